//! What programs in a sandbox must not reach, and a node whose programs try.
use std::{
    fs, io,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use octomesh_tools::{builtin, sandbox::Sandbox};
use serde_json::{Value, json};

use crate::support::Node;

/// The machine around a sandbox: every attempt has something real to reach.
pub(crate) struct Outside {
    pub(crate) node: Node,
    folder: tempfile::TempDir,
    secret: String,
    tcp: TcpListener,
    /// At the address of cloud machines' metadata where the test has made a network with it, never at a real one.
    metadata: TcpListener,
    /// Where a file tree shows the whole machine; empty for the machine itself.
    pub(crate) host: &'static str,
    udp: UdpSocket,
    local: UnixListener,
    local_name: String,
    _file_socket: UnixListener,
    victim: Child,
    /// Open in this process without close-on-exec: handed to everything that is started.
    _leak: fs::File,
}

fn quiet(result: io::Result<()>) {
    result.unwrap();
}

impl Outside {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let node = Node::new();
        builtin::register_code(&node.registry, sandbox).unwrap();
        // Reachable for every user, so that only the sandbox can be what keeps a program away.
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let secret = format!("secret-{}", folder.path().file_name().unwrap().to_string_lossy());
        let bait = folder.path().join("bait");
        fs::write(&bait, &secret).unwrap();
        fs::set_permissions(&bait, fs::Permissions::from_mode(0o666)).unwrap();
        let leak = fs::File::open(&bait).unwrap();
        rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        quiet(tcp.set_nonblocking(true));
        let metadata = TcpListener::bind("169.254.169.254:0").or_else(|_| TcpListener::bind("127.0.0.2:0"));
        let metadata = metadata.unwrap();
        quiet(metadata.set_nonblocking(true));
        quiet(udp.set_nonblocking(true));
        let local = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&secret).unwrap()).unwrap();
        quiet(local.set_nonblocking(true));
        let socket = folder.path().join("socket");
        let file_socket = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
        let victim =
            Command::new("sleep").arg("1000").env("SECRET", &secret).stdin(Stdio::null()).spawn().unwrap();
        Self {
            node,
            folder,
            tcp,
            metadata,
            host: "",
            udp,
            local,
            local_name: secret.clone(),
            secret,
            _file_socket: file_socket,
            victim,
            _leak: leak,
        }
    }

    /// After an attempt that is known to work.
    pub(crate) fn restore(&self) {
        fs::set_permissions(self.bait(), fs::Permissions::from_mode(0o666)).unwrap();
    }

    /// Whether the other process has ended.
    #[cfg(feature = "sandbox-mutations")]
    pub(crate) fn victim_is_dead(&mut self) -> bool {
        // The signal is sent when the call returns; the process ends when it is next scheduled.
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            self.victim.try_wait().unwrap().is_some()
        })
    }

    pub(crate) fn bait(&self) -> PathBuf {
        self.folder.path().join("bait")
    }

    /// A script with the names of what is outside filled in.
    pub(crate) fn fill(&self, script: &str) -> String {
        let metadata = self.metadata.local_addr().unwrap();
        let metadata = format!("('{}', {})", metadata.ip(), metadata.port());
        script
            .replace("{bait}", &format!("{}{}", self.host, self.bait().display()))
            .replace("{dir}", &format!("{}{}", self.host, self.folder.path().display()))
            .replace("{host}", self.host)
            .replace("{metadata}", &metadata)
            .replace("{tcp}", &self.tcp.local_addr().unwrap().port().to_string())
            .replace("{udp}", &self.udp.local_addr().unwrap().port().to_string())
            .replace("{local}", &self.local_name)
            .replace("{pid}", &self.victim.id().to_string())
            .replace("{secret}", &self.secret)
    }

    pub(crate) async fn shell(&self, script: &str) -> Value {
        self.node.ok("shell", json!({"command": self.fill(script), "timeout_s": 30})).await
    }

    /// What outside has changed, in words.
    pub(crate) fn touched(&mut self) -> Option<String> {
        let text = fs::read_to_string(self.bait()).unwrap_or_default();
        if text != self.secret {
            return Some(format!("the bait is now {text:?}"));
        }
        let about = fs::metadata(self.bait()).unwrap();
        if about.mode() & 0o7777 != 0o666 || about.nlink() != 1 {
            return Some(format!("the bait has mode {:o} and {} names", about.mode(), about.nlink()));
        }
        if self.tcp.accept().is_ok()
            || self.metadata.accept().is_ok()
            || self.udp.recv_from(&mut [0; 9]).is_ok()
            || self.local.accept().is_ok()
        {
            return Some("somebody came over a socket".into());
        }
        if self.victim.try_wait().unwrap().is_some() {
            return Some("the other process is dead".into());
        }
        let suid = fs::read_dir(self.node.workspace.path())
            .unwrap()
            .flatten()
            .find(|e| e.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o6000 != 0));
        suid.map(|e| format!("{} has an SUID bit", e.path().display()))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}
