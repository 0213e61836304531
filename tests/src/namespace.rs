//! Machines with networks of their own: three namespaces on one bridge, which is in a fourth.
use std::process::Command;

/// Namespaces that end with this value. Nothing outside of them is touched.
#[derive(Debug)]
pub struct Lab {
    hub: String,
    rooms: Vec<String>,
}

fn ip(args: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(args).output().map_err(|e| format!("ip: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}

impl Lab {
    /// `count` namespaces with the addresses 10.99.7.1, 10.99.7.2 and so on.
    ///
    /// # Errors
    /// What is missing: the program `ip`, or the right to make namespaces.
    pub fn new(count: usize) -> Result<Self, String> {
        let id = std::process::id();
        let mut lab = Self { hub: format!("octo{id}-hub"), rooms: Vec::new() };
        let hub = lab.hub.clone();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
        for at in 1..=count {
            let (room, port) = (format!("octo{id}-{at}"), format!("port{at}"));
            ip(&["netns", "add", &room])?;
            lab.rooms.push(room.clone());
            ip(&["-n", &room, "link", "set", "lo", "up"])?;
            // Both ends are born in their namespaces.
            ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &room])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
            ip(&["-n", &room, "addr", "add", &format!("10.99.7.{at}/24"), "dev", "eth0"])?;
            ip(&["-n", &room, "link", "set", "eth0", "up"])?;
        }
        Ok(lab)
    }

    /// The address in namespace `at`, from 0.
    pub fn address(&self, at: usize) -> String {
        format!("10.99.7.{}", at + 1)
    }

    /// What stands before a command that is to run in namespace `at`, from 0.
    pub fn prefix(&self, at: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.rooms[at]].map(str::to_owned).to_vec()
    }

    /// Takes the cable of namespace `at` out, or puts it in again.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn cable(&self, at: usize, plugged: bool) {
        let (port, state) = (format!("port{}", at + 1), if plugged { "up" } else { "down" });
        ip(&["-n", &self.hub, "link", "set", &port, state]).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in self.rooms.iter().chain([&self.hub]) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}
