//! Several machines that are one mesh.
use std::{
    ops::{Index, IndexMut},
    path::Path,
};

use tempfile::TempDir;

use crate::{Machine, wait::PATIENCE};

/// Machines with a folder that is removed with them.
#[derive(Debug)]
pub struct Mesh {
    // Before the folder: nodes end before their homes vanish.
    machines: Vec<Machine>,
    folder: TempDir,
}

impl Mesh {
    /// Machines on loopback; nothing is started. `furnish` may write tools, files and configuration.
    pub fn furnished(names: &[&str], furnish: impl Fn(&Machine)) -> Self {
        let folder = tempfile::Builder::new().prefix("octomesh-test-").tempdir().unwrap();
        let machines: Vec<Machine> = names.iter().map(|name| Machine::new(folder.path(), name)).collect();
        machines.iter().for_each(furnish);
        Self { machines, folder }
    }

    /// Machines that were made elsewhere.
    pub fn of(folder: TempDir, machines: Vec<Machine>) -> Self {
        Self { machines, folder }
    }

    /// Running nodes that all see each other; the first made the mesh.
    pub fn up(names: &[&str], furnish: impl Fn(&Machine)) -> Self {
        let mut mesh = Self::furnished(names, furnish);
        mesh.start();
        mesh
    }

    /// Init, invite, join, up, and everybody sees everybody.
    pub fn start(&mut self) {
        self.machines[0].init();
        self.machines[0].up();
        for at in 1..self.machines.len() {
            let ticket = self.machines[0].invite();
            self.machines[at].join(&ticket);
            self.machines[at].up();
        }
        self.settled();
    }

    /// Waits until everybody sees everybody.
    pub fn settled(&self) {
        let names: Vec<&str> = self.machines.iter().map(|m| m.name.as_str()).collect();
        for machine in &self.machines {
            machine.wait_for(PATIENCE, &names);
        }
    }

    /// All machines, for what is to happen to them at once.
    pub fn machines_mut(&mut self) -> &mut [Machine] {
        &mut self.machines
    }

    /// The folder with all homes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Index<&str> for Mesh {
    type Output = Machine;

    fn index(&self, name: &str) -> &Machine {
        self.machines.iter().find(|m| m.name == name).unwrap()
    }
}

impl IndexMut<&str> for Mesh {
    fn index_mut(&mut self, name: &str) -> &mut Machine {
        self.machines.iter_mut().find(|m| m.name == name).unwrap()
    }
}
