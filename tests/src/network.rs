//! Networks made to measure: rooms (network namespaces) with cables to switches (bridges in namespaces of their own). Nothing
//! outside of them is touched, and they end with their value.
use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::wait::{wait, when};

/// One network at a time: each has several namespaces and nodes.
static TURN: Mutex<()> = Mutex::new(());

/// Rooms and switches.
#[derive(Debug)]
pub struct Network {
    id: String,
    spaces: Vec<String>,
    cables: AtomicU32,
    _turn: MutexGuard<'static, ()>,
}

fn run(program: &str, args: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{program}: {e}"))?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).map_err(|e| format!("{program}: {e}"))?;
    let done = child.wait_with_output().map_err(|e| format!("{program}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}

impl Network {
    /// An empty one with these rooms and switches, or `None` where namespaces can't be made; a failure where they must be
    /// (`OCTOMESH_REQUIRE_NETNS=1`). `programs` are needed besides `ip`.
    ///
    /// # Panics
    /// See above.
    pub fn new(rooms: &[&str], switches: &[&str], programs: &[&str]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let id = format!("{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut network = Self { id, spaces: Vec::new(), cables: AtomicU32::new(0), _turn: turn };
        let made = programs
            .iter()
            .try_for_each(|program| run(program, &["-v"], ""))
            .and_then(|()| network.make(rooms, switches));
        match made {
            Ok(()) => Some(network),
            Err(why) if std::env::var_os("OCTOMESH_REQUIRE_NETNS").is_some_and(|v| v == "1") => {
                panic!("{why}")
            }
            Err(why) => {
                println!(
                    "skipped, this machine makes no such networks (it takes root, `ip` and {programs:?}): {why}"
                );
                None
            }
        }
    }

    fn make(&mut self, rooms: &[&str], switches: &[&str]) -> Result<(), String> {
        for name in rooms.iter().chain(switches) {
            let space = self.space(name);
            run("ip", &["netns", "add", &space], "")?;
            self.spaces.push(space.clone());
            run("ip", &["-n", &space, "link", "set", "lo", "up"], "")?;
        }
        for switch in switches {
            let space = self.space(switch);
            run("ip", &["-n", &space, "link", "add", "bridge", "type", "bridge"], "")?;
            run("ip", &["-n", &space, "link", "set", "bridge", "up"], "")?;
        }
        Ok(())
    }

    fn space(&self, name: &str) -> String {
        format!("octo{}-{name}", self.id)
    }

    /// What stands before a command that is to run in a room.
    pub fn prefix(&self, room: &str) -> Vec<String> {
        ["ip", "netns", "exec", &self.space(room)].map(str::to_owned).to_vec()
    }

    /// `ip` in a room or switch, its words separated by blanks.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, space: &str, words: &str) {
        let space = self.space(space);
        let args: Vec<&str> = ["-n", &space].into_iter().chain(words.split_whitespace()).collect();
        run("ip", &args, "").unwrap();
    }

    /// Firewall rules for a room.
    ///
    /// # Panics
    /// When they are refused.
    pub fn nft(&self, room: &str, rules: &str) {
        let space = self.space(room);
        run("ip", &["netns", "exec", &space, "nft", "-f", "-"], rules).unwrap();
    }

    /// A setting of a room below `/proc/sys`.
    ///
    /// # Panics
    /// When it is refused.
    pub fn set(&self, room: &str, path: &str, value: &str) {
        let space = self.space(room);
        let script = format!("echo {value} > /proc/sys/{path}");
        run("ip", &["netns", "exec", &space, "sh", "-c", &script], "").unwrap();
    }

    /// Plugs a cable from `interface` of a room into a switch; gives the port's name there. `addresses` with their prefixes.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn plug(&self, room: &str, interface: &str, switch: &str, addresses: &[&str]) -> String {
        let port = format!("port{}", self.cables.fetch_add(1, Ordering::Relaxed));
        // Both ends are born in their namespaces.
        let other = self.space(room);
        self.ip(switch, &format!("link add {port} type veth peer name {interface} netns {other}"));
        self.ip(switch, &format!("link set {port} master bridge up"));
        for address in addresses {
            // An address of IPv6 is checked for a second before it may be used; nobody else is there.
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.ip(room, &format!("addr add {address} dev {interface} {nodad}"));
        }
        self.ip(room, &format!("link set {interface} up"));
        // The kernel looks at a new cable now and then; a node that starts before that has no network yet.
        let state = format!("/sys/class/net/{interface}/operstate");
        let mut read = self.prefix(room);
        read.extend(["cat".to_owned(), state]);
        wait(&format!("{interface} of {room} has a carrier"), || {
            let done = Command::new(&read[0]).args(&read[1..]).output().map_err(|e| e.to_string())?;
            when(done.stdout == b"up\n", String::from_utf8_lossy(&done.stdout))
        });
        port
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in &self.spaces {
            let _ = run("ip", &["netns", "del", space], "");
        }
    }
}
