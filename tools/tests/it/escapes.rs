//! The list of ways out. Every row is tried at every level, as root and as an ordinary user; a row prints `OUT` when it got out.
use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use octomesh_protocol::card::SandboxLevel::{
    self, BwrapLandlockSeccomp, LandlockSeccomp, UsernsLandlockSeccomp,
};

use crate::{bait::Outside, support::sandbox_at};

/// A way out.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Prints `OUT` when it worked. `py` in front: Python.
    pub(crate) script: &'static str,
    /// Known to work without namespaces, for nodes that do not run as root: printed weaknesses of that level.
    weak: bool,
}

const fn row(name: &'static str, script: &'static str) -> Row {
    Row { name, script, weak: false }
}

const fn weak(name: &'static str, script: &'static str) -> Row {
    Row { name, script, weak: true }
}

/// A system call by number that must be denied with EPERM (1) or not exist (38).
macro_rules! call {
    ($number:literal, $arguments:literal) => {
        concat!(
            "py import ctypes; c=ctypes.CDLL(None, use_errno=True); b=ctypes.create_string_buffer(4096); ",
            "r=c.syscall(",
            $number,
            $arguments,
            "); e=ctypes.get_errno(); print('OUT' if r!=-1 or e not in (1,38) else e)"
        )
    };
}

/// `unshare` for a user namespace, by its number for 32-bit programs: a filter that only knows the other numbers lets it through.
/// mov eax, 310; mov ebx, 0x10000000; int 0x80; ret, with the register saved that belongs to the caller.
const NUMBERS_OF_32_BITS: &str = "py import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('53b836010000bb00000010cd805bc3'))\nr = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nprint('OUT' if r == 0 else r)";

pub(crate) const ROWS: [Row; 50] = [
    row("shadow", "cat {host}/etc/shadow && echo OUT"),
    row("root's home", "ls -A {host}/root | grep . && echo OUT"),
    row("read", "cat {bait} && echo OUT"),
    row("write", "echo changed > {bait} && echo OUT"),
    row("read through a link", "ln -s {bait} l1; cat l1 && echo OUT"),
    row("write through a link", "ln -s {bait} l2; echo changed > l2 && echo OUT"),
    row("hard link", "ln {bait} hard && echo OUT"),
    row("rename out", "echo x > mine; mv mine {dir}/mine && echo OUT"),
    row("delete", "rm -f {bait} && echo gone; ls {dir} && echo OUT"),
    weak("mode of a file outside", "chmod 600 {bait} && echo OUT"),
    weak("time of a file outside", "touch -d 2001-01-01 {bait} && echo OUT"),
    row("/proc/1/root", "cat /proc/1/root{bait} && echo OUT"),
    row("/proc/self/root", "cat /proc/self/root{bait} && echo OUT"),
    row("/proc/self/cwd upwards", "cat /proc/self/cwd/../../../../..{bait} && echo OUT"),
    row("core_pattern", "py import os; os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY); print('OUT')"),
    row("sysrq", "py import os; os.open('/proc/sysrq-trigger', os.O_WRONLY); print('OUT')"),
    row("/sys", "ls {host}/sys/kernel && echo OUT"),
    row("environments", "cat /proc/[0-9]*/environ 2>/dev/null | grep -qa {secret} && echo OUT"),
    row("system folder", "touch {host}/usr/octomesh-escape && rm {host}/usr/octomesh-escape && echo OUT"),
    row("root folder", "touch {host}/octomesh-escape && rm {host}/octomesh-escape && echo OUT"),
    row("TCP", "py import socket; socket.create_connection(('127.0.0.1', {tcp}), 2); print('OUT')"),
    row("metadata service", "py import socket; socket.create_connection({metadata}, 1); print('OUT')"),
    row(
        "UDP",
        "py import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp})); print('OUT')",
    ),
    row("netlink", "py import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); print('OUT')"),
    row("vsock", "py import socket; socket.socket(40, socket.SOCK_STREAM); print('OUT')"),
    row(
        "abstract socket",
        "py import socket; s=socket.socket(socket.AF_UNIX); s.connect('\\0{local}'); print('OUT')",
    ),
    row(
        "socket file",
        "py import socket; s=socket.socket(socket.AF_UNIX); s.connect('{dir}/socket'); print('OUT')",
    ),
    row("kill", "kill -9 {pid} && echo OUT"),
    row("kill all", "kill -TERM -1; true"),
    row(
        "ptrace",
        "py import ctypes, os; r=ctypes.CDLL(None, use_errno=True).syscall(101, 0x4206, os.getppid(), 0, 0); print('OUT' if r == 0 else ctypes.get_errno())",
    ),
    row("read memory of others", call!("310, 1, b, 1, b, 1, 0", "")),
    row("user namespace", "unshare -U true && echo OUT"),
    row("user namespace, second numbering", call!("0x40000000 + 272, 0x10000000", "")),
    row(
        "mount",
        "mkdir -p p; mount -t tmpfs x p && echo OUT && umount p; unshare -Urm --propagation unchanged mount -t tmpfs x p && echo OUT",
    ),
    row("new mount interface", call!("430, b'tmpfs', 0", "")),
    row("moved mount", call!("429, -1, b'', -1, b'', 4", "")),
    row("32-bit calls", NUMBERS_OF_32_BITS),
    row("device node", "mknod disk b 8 0 && echo OUT; rm -f disk"),
    row("io_uring", call!("425, 1, b", "")),
    row("bpf", call!("321, 0, b, 64", "")),
    row("keyring", call!("250, 0, -3, 0", "")),
    row(
        "terminal injection",
        "py import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x'); print('OUT')\nexcept OSError as e: print('OUT' if e.errno != 1 else e)",
    ),
    row(
        "inherited descriptors",
        "py import os\nfor n in range(3, 200):\n  try: os.fstat(n); print('OUT', n)\n  except OSError: pass",
    ),
    row(
        "SUID by chmod",
        "cp /bin/true t1; chmod u+s t1 && echo OUT; cp /bin/true t2; chmod g+s t2 && echo OUT",
    ),
    row(
        "SUID by open",
        "py import os; os.close(os.open('t3', os.O_CREAT|os.O_WRONLY, 0o4755)); print('OUT')",
    ),
    row(
        "large file",
        "py import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); open('big','wb').truncate(300<<20); print('OUT')",
    ),
    row("memory", "py b = bytearray(3 << 30); print('OUT')"),
    weak(
        "fork bomb",
        "py import os, time\nn = 0\ntry:\n  while n < 400:\n    if os.fork() == 0: time.sleep(100)\n    n += 1\n  print('OUT')\nexcept OSError as e: print(n, e)",
    ),
    row(
        "memory file systems",
        "for d in /tmp /dev/shm; do cd $d && fallocate -l 200M a && fallocate -l 200M b && echo OUT; rm -f a b; done",
    ),
    row(
        "uid 0 and rights",
        "[ $(id -u) = 0 ] && echo OUT; grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo OUT",
    ),
];

pub(crate) fn script(row: &Row) -> String {
    match row.script.strip_prefix("py ") {
        Some(code) => {
            // Also with all rights of a user namespace of its own, where it may have one.
            let again = if row.name.contains("mount") {
                "; unshare -Urm --propagation unchanged python3 try.py"
            } else {
                ""
            };
            format!("cat > try.py <<'END'\n{code}\nEND\npython3 try.py{again}")
        }
        None => row.script.to_owned(),
    }
}

fn got_out(output: &serde_json::Value) -> bool {
    output["stdout"].as_str().unwrap().contains("OUT")
}

pub(crate) async fn tries(outside: &Outside, row: &Row) -> (bool, String) {
    let output = outside.shell(&format!("{}\necho tried", script(row))).await;
    let text = output.to_string();
    // The positive control: the script really ran.
    let ended = output["stdout"].as_str().unwrap().contains("tried");
    assert!(ended || row.name == "kill all", "{}: {text}", row.name);
    assert!(!text.contains("python3: not found"), "this test needs Python 3");
    (got_out(&output), text)
}

async fn nothing_gets_out_at(level: SandboxLevel) {
    let sandbox = sandbox_at(level, |_| {}).await;
    assert_eq!(sandbox.level(), level, "{:#?}", sandbox.self_test().missing);
    let mut outside = Outside::new(&sandbox);
    let ok = outside.shell("echo ok; echo kept > own; cat own; python3 -c 'print(1)'").await;
    assert_eq!(ok["stdout"], "ok\nkept\n1\n", "{ok}");
    let is_root = rustix::process::geteuid().is_root();
    for row in &ROWS {
        let known = level == LandlockSeccomp && row.weak && !is_root;
        let (out, text) = tries(&outside, row).await;
        if known {
            outside.restore();
            continue;
        }
        assert!(!out, "{} got out at {level}: {text}", row.name);
        assert_eq!(outside.touched(), None, "{} at {level}: {text}", row.name);
    }
}

#[tokio::test]
async fn escapes_at_bwrap() {
    nothing_gets_out_at(BwrapLandlockSeccomp).await;
}

#[tokio::test]
async fn escapes_at_userns() {
    nothing_gets_out_at(UsernsLandlockSeccomp).await;
}

#[tokio::test]
async fn escapes_at_landlock() {
    nothing_gets_out_at(LandlockSeccomp).await;
}

/// The same tests once more in a process of an ordinary user, when this one is root's.
#[test]
fn as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let copy = |from: &std::path::Path, name: &str| {
        let to = place.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    // The build folder may be out of that user's reach.
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let launcher = copy(env!("CARGO_BIN_EXE_octomesh-launch").as_ref(), "launcher");
    let tmp = place.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    for (path, mode) in [(place.path(), 0o755), (tmp.as_path(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let output = Command::new("setpriv")
        .args(["--reuid=63999", "--regid=63999", "--clear-groups", "--"])
        .arg(tests)
        .args([
            "escapes_at",
            "echo_ok",
            "nothing_survives",
            "without_its_defence",
            "each_row_has_a_mutation",
            "--test-threads=3",
        ])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", &tmp)
        .env("OCTOMESH_TEST_LAUNCHER", launcher)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let tests = if cfg!(feature = "sandbox-mutations") { 11 } else { 8 };
    assert!(text.contains(&format!("test result: ok. {tests} passed")), "{text}");
}
