//! Machines with networks of their own: three namespaces on one bridge, which is in a fourth.
use std::{
    fs::File,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};

/// Labs of this process so far: two at once must not share a name.
static LABS: AtomicUsize = AtomicUsize::new(0);

/// Namespaces that end with this value. Nothing outside of them is touched.
#[derive(Debug)]
pub struct Lab {
    hub: String,
    rooms: Vec<String>,
}

fn ip(args: &[&str]) -> Result<(), String> {
    program("ip", args)
}

fn program(name: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(name).args(args).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{name} {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}

/// Puts this thread, and the processes that it starts from now on, into a network of its own in which there is nothing but loopback.
///
/// # Errors
/// What is missing: the right to make namespaces, or the program `ip`.
pub fn alone() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("a network of its own: {e}"))?;
    ip(&["link", "set", "lo", "up"])
}

impl Lab {
    /// `count` namespaces with the addresses 10.99.7.1, 10.99.7.2 and so on.
    ///
    /// # Errors
    /// What is missing: the program `ip`, or the right to make namespaces.
    pub fn new(count: usize) -> Result<Self, String> {
        let id = format!("{}l{}", std::process::id(), LABS.fetch_add(1, Ordering::Relaxed));
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

    /// Gives namespace `at` this address instead of its own, in the same network.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn readdress(&self, at: usize, address: &str) {
        let room = &self.rooms[at];
        ip(&["-n", room, "addr", "flush", "dev", "eth0"]).unwrap();
        ip(&["-n", room, "addr", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    }

    /// Makes the network of namespace `at` a poor one: `mtu`, and of what it sends `percent` of the packets are lost.
    ///
    /// They are dropped by a filter of the kernel's oldest kind where they leave the cable, so that the sender does not know of it.
    /// `netem` would do the same and is in fewer kernels.
    ///
    /// # Errors
    /// What is missing: the program `tc`, or a kernel with `clsact` and `cls_bpf`.
    pub fn degrade(&self, at: usize, mtu: u32, percent: u32) -> Result<(), String> {
        let (port, mtu) = (format!("port{}", at + 1), mtu.to_string());
        for (room, device) in [(&self.hub, port.as_str()), (&self.rooms[at], "eth0")] {
            ip(&["-n", room, "link", "set", device, "mtu", &mtu])?;
            // One packet is one packet: nothing is cut up after the filter.
            ip(&["-n", room, "link", "set", device, "gso_max_segs", "1"])?;
        }
        // Load a random number; up to the share of all numbers answer 2, which is "drop", else 0, "go on".
        let share = u64::from(u32::MAX) * u64::from(percent) / 100;
        let filter = format!("4,32 0 0 4294963256,37 1 0 {share},6 0 0 2,6 0 0 0");
        program("tc", &["-n", &self.hub, "qdisc", "add", "dev", &port, "clsact"])?;
        let rule = ["filter", "add", "dev", &port, "ingress", "bpf", "da", "bytecode", &filter];
        program("tc", &[&["-n", &self.hub][..], &rule].concat())
    }

    /// Does `work` on a thread whose network is that of namespace `at`.
    ///
    /// # Panics
    /// When it does.
    pub fn inside<T: Send>(&self, at: usize, work: impl FnOnce() -> T + Send) -> T {
        let room = File::open(format!("/run/netns/{}", self.rooms[at])).unwrap();
        let inside = move || {
            setns(room, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in self.rooms.iter().chain([&self.hub]) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}
