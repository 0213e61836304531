//! Every row of the list gets out when its defence is switched off: none of the tests passes for another reason.
use octomesh_protocol::card::SandboxLevel::{
    self, BwrapLandlockSeccomp, LandlockSeccomp, UsernsLandlockSeccomp,
};
use octomesh_tools::{
    builtin,
    sandbox::{Quota, Sandbox, SandboxConfig},
};
use serde_json::{Value, json};

use crate::{
    bait::Outside,
    escapes::{ROWS, Row, tries},
    support::{Node, launcher, sandbox_at},
};

/// Defences switched off together, because each of them alone stops the row, and what gets out then.
struct Mutation {
    without: &'static [&'static str],
    levels: &'static [SandboxLevel],
    /// Rows that get out then, for whoever runs the node.
    out: &'static [&'static str],
    /// Also those, when the programs have the node's own user.
    out_same_user: &'static [&'static str],
    /// Also those, when the programs are root's.
    out_root: &'static [&'static str],
}

const NAMESPACES: &[SandboxLevel] = &[BwrapLandlockSeccomp, UsernsLandlockSeccomp];
const ALL: &[SandboxLevel] = &[BwrapLandlockSeccomp, UsernsLandlockSeccomp, LandlockSeccomp];
const BARE: &[SandboxLevel] = &[LandlockSeccomp];

const fn off(
    without: &'static [&'static str],
    levels: &'static [SandboxLevel],
    out: &'static [&'static str],
) -> Mutation {
    Mutation { without, levels, out, out_same_user: &[], out_root: &[] }
}

const MUTATIONS: [Mutation; 21] = [
    Mutation {
        out_same_user: &["environments", "kill"],
        ..off(
            &["landlock"],
            BARE,
            &[
                "read",
                "write",
                "read through a link",
                "write through a link",
                "/sys",
                "/proc/self/root",
                "/proc/self/cwd upwards",
            ],
        )
    },
    // A file tree that shows the whole machine, below `/outside`.
    Mutation {
        out_same_user: &["rename out", "delete", "mode of a file outside", "time of a file outside"],
        ..off(
            &["landlock", "files"],
            NAMESPACES,
            &[
                "read",
                "write",
                "read through a link",
                "write through a link",
                "/sys",
                "/proc/self/root",
                "/proc/self/cwd upwards",
                "socket file",
            ],
        )
    },
    // Programs that are root's see and change what is root's.
    Mutation {
        out_root: &[
            "shadow",
            "root's home",
            "rename out",
            "delete",
            "mode of a file outside",
            "time of a file outside",
            "system folder",
            "root folder",
        ],
        ..off(&["landlock", "files", "user"], NAMESPACES, &[])
    },
    Mutation { out_root: &["core_pattern", "sysrq"], ..off(&["landlock", "proc", "user"], NAMESPACES, &[]) },
    off(
        &["seccomp"],
        ALL,
        &[
            "user namespace",
            "io_uring",
            "bpf",
            "keyring",
            "terminal injection",
            "read memory of others",
            "ptrace",
        ],
    ),
    off(&["seccomp", "landlock"], ALL, &["mount", "new mount interface", "moved mount"]),
    // The filter knows which table a number is from: without, it is no filter for the other tables.
    off(&["filter"], ALL, &["32-bit calls", "user namespace, second numbering"]),
    off(&["sockets"], ALL, &["vsock"]),
    off(
        &["sockets", "landlock"],
        BARE,
        &["TCP", "metadata service", "UDP", "abstract socket", "socket file", "netlink"],
    ),
    off(
        &["sockets", "landlock", "netns"],
        NAMESPACES,
        &["TCP", "metadata service", "UDP", "abstract socket"],
    ),
    off(&["landlock", "sockets"], NAMESPACES, &["netlink"]),
    off(&["suid"], ALL, &["SUID by chmod", "SUID by open"]),
    off(&["descriptors"], ALL, &["inherited descriptors"]),
    off(&["limits"], ALL, &["large file", "memory"]),
    off(&["limits"], NAMESPACES, &["fork bomb"]),
    Mutation { out_root: &["fork bomb"], ..off(&["limits"], BARE, &[]) },
    off(&["sizes"], NAMESPACES, &["memory file systems"]),
    off(&["rights"], NAMESPACES, &["uid 0 and rights"]),
    Mutation { out_same_user: &["kill"], ..off(&["landlock", "pidns"], NAMESPACES, &[]) },
    Mutation { out_root: &["kill"], ..off(&["landlock", "pidns", "user"], NAMESPACES, &[]) },
    Mutation {
        out_root: &[
            "shadow",
            "root's home",
            "core_pattern",
            "sysrq",
            "system folder",
            "root folder",
            "uid 0 and rights",
            "environments",
            "kill",
            "device node",
        ],
        ..off(
            &["landlock", "seccomp", "user", "rights"],
            BARE,
            &["hard link", "rename out", "delete", "mode of a file outside", "time of a file outside"],
        )
    },
];

/// Tried where they can do no harm and the first process is ours: [`in_a_machine_of_its_own_without_its_defence`].
const ELSEWHERE: [&str; 2] = ["kill all", "/proc/1/root"];

fn find(name: &str) -> &'static Row {
    ROWS.iter().find(|row| row.name == name).unwrap()
}

/// Why a row can't get out of this kernel, whatever is switched off. Asked outside of every sandbox.
fn impossible(name: &str) -> Option<&'static str> {
    let works = |code: &str| {
        let code = format!("import ctypes, socket, sys\n{code}");
        std::process::Command::new("python3").args(["-c", &code]).status().unwrap().success()
    };
    match name {
        "sysrq" => (!std::path::Path::new("/proc/sysrq-trigger").exists())
            .then_some("this kernel is built without the keys of sysrq"),
        "vsock" => (!works("try: socket.socket(40, socket.SOCK_STREAM)\nexcept OSError: sys.exit(1)"))
            .then_some("this kernel has no vsock"),
        // getpid
        "user namespace, second numbering" => {
            (!works("sys.exit(ctypes.CDLL(None).syscall(0x40000000 + 39) < 0)"))
                .then_some("this kernel is built without the second numbering")
        }
        // getpid by the number for 32-bit programs, as in the row
        "32-bit calls" => (!works(
            "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n\
             f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nsys.exit(f() <= 0)",
        ))
        .then_some("this kernel is built without calls of 32-bit programs"),
        _ => None,
    }
}

fn unproven(without: &[&str], level: SandboxLevel, change: impl FnOnce(&mut SandboxConfig)) -> Sandbox {
    // Never made: only a self-test needs it.
    let mut config = SandboxConfig::new(launcher(), std::env::temp_dir().join("probe"));
    config.without = without.iter().map(|w| (*w).to_owned()).collect();
    change(&mut config);
    Sandbox::unproven(config, level)
}

/// Why a row is not tried at a level without its defence, for who runs this.
fn not_tried(name: &str, level: SandboxLevel, same_user: bool) -> Option<&'static str> {
    let namespaces = level > LandlockSeccomp;
    match name {
        "hard link" if namespaces => Some("the kernel makes none between two mounts"),
        "environments" | "/proc/1/root" if namespaces => {
            Some("the kernel shows them to nobody in another user namespace")
        }
        "device node" if namespaces || same_user => Some("the kernel makes them for the machine's root only"),
        "shadow" | "root's home" | "core_pattern" | "sysrq" | "system folder" | "root folder"
            if same_user =>
        {
            Some("the node's own user can't either")
        }
        "uid 0 and rights" if same_user && !namespaces => Some("the node's own user has none"),
        "fork bomb" if same_user && !namespaces => {
            Some("a known weakness of this level: only the deadline ends it")
        }
        "memory file systems" if !namespaces => Some("there are none of its own"),
        _ => None,
    }
}

/// No row is forgotten at any level.
#[test]
fn each_row_has_a_mutation() {
    let same_user = !rustix::process::geteuid().is_root();
    let mut missing = Vec::new();
    for level in ALL {
        for Row { name, .. } in &ROWS {
            let more = |m: &Mutation| if same_user { m.out_same_user } else { m.out_root };
            let tried =
                |m: &Mutation| m.levels.contains(level) && (m.out.contains(name) || more(m).contains(name));
            if let Some(why) = not_tried(name, *level, same_user) {
                println!("skipped: {name} at {level}: {why}");
            } else if !ELSEWHERE.contains(name) && !MUTATIONS.iter().any(tried) {
                missing.push(format!("{name} at {level}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[tokio::test]
async fn each_row_gets_out_without_its_defence() {
    let same_user = !rustix::process::geteuid().is_root();
    let mut missed = Vec::new();
    for mutation in &MUTATIONS {
        for level in mutation.levels {
            let sandbox = unproven(mutation.without, *level, |_| {});
            let rows = mutation
                .out
                .iter()
                .chain(mutation.out_same_user.iter().filter(|_| same_user))
                .chain(mutation.out_root.iter().filter(|_| !same_user));
            for name in rows {
                if let Some(why) = impossible(name) {
                    println!("skipped: {name} at {level}: {why}");
                    continue;
                }
                let mut outside = Outside::new(&sandbox);
                if mutation.without.contains(&"files") {
                    outside.host = "/outside";
                }
                let (out, text) = tries(&outside, find(name)).await;
                if !out {
                    missed.push(format!("{name} at {level} without {:?}: {text}", mutation.without));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// A signal to all processes, and the files of the first one, in a process namespace that stands for the machine: the real
/// one would not like the signal.
#[test]
fn in_a_machine_of_its_own_without_its_defence() {
    const INSIDE: &str = "OCTOMESH_TEST_MACHINE_OF_ITS_OWN";
    let is_root = rustix::process::geteuid().is_root();
    if std::env::var_os(INSIDE).is_none() {
        let users: &[&str] = if is_root { &[] } else { &["--user", "--map-current-user"] };
        let output = std::process::Command::new("unshare")
            .args(users)
            .args(["--pid", "--fork", "--mount-proc", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "mutations::in_a_machine_of_its_own_without_its_defence", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    assert_eq!(std::process::id(), 1, "the first process of a namespace is not meant by a signal to all");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for level in ALL {
            let mut without = vec!["landlock"];
            if NAMESPACES.contains(level) {
                without.push("pidns");
            }
            if is_root {
                without.push("user");
            }
            let mut outside = Outside::new(&unproven(&without, *level, |_| {}));
            if *level == LandlockSeccomp {
                // In another user namespace the kernel never allows it.
                let all = [&without[..], &["rights"]].concat();
                let (out, text) =
                    tries(&Outside::new(&unproven(&all, *level, |_| {})), find("/proc/1/root")).await;
                assert!(out, "{text}");
            }
            tries(&outside, find("kill all")).await;
            assert!(outside.victim_is_dead(), "{level} without {without:?}");
        }
    });
}

#[tokio::test]
async fn a_workspace_fills_without_its_quota() {
    let quota = Quota { bytes: 20 << 20, entries: 500 };
    for (without, limit) in [(&["quota"][..], json!(null)), (&[], json!("quota"))] {
        let node = Node::new();
        let sandbox = unproven(without, BwrapLandlockSeccomp, |config| config.quota = quota);
        builtin::register_code(&node.registry, &sandbox).unwrap();
        let mut afar = node.context();
        afar.caller.local = false;
        let fill = json!({"command": "head -c 30000000 /dev/zero > large; echo full"});
        let report = node.call_with("shell", fill, &afar).await;
        let output: Value = serde_json::from_slice(&report.output).unwrap();
        assert_eq!((&output["limit"], &output["stdout"]), (&limit, &json!("full\n")), "{without:?}");
    }
}

/// The self-test notices too: it does not give the level.
#[tokio::test]
async fn the_self_test_notices() {
    let cases: [(&[&str], SandboxLevel); 7] = [
        (&["landlock"], LandlockSeccomp),
        (&["seccomp"], BwrapLandlockSeccomp),
        (&["seccomp"], UsernsLandlockSeccomp),
        (&["seccomp"], LandlockSeccomp),
        (&["suid"], BwrapLandlockSeccomp),
        (&["sockets", "landlock", "netns"], UsernsLandlockSeccomp),
        (&["sockets", "landlock", "netns"], BwrapLandlockSeccomp),
    ];
    for (without, level) in cases {
        let all = without.iter().map(|w| (*w).to_owned()).collect();
        let sandbox = sandbox_at(level, |config| config.without = all).await;
        let test = sandbox.self_test();
        assert!(sandbox.level() < level, "{level} without {without:?}");
        assert!(test.missing.iter().any(|m| m.contains("got out")), "{:?}", test.missing);
    }
    if rustix::process::geteuid().is_root() {
        let sandbox = sandbox_at(BwrapLandlockSeccomp, |config| config.without = vec!["user".into()]).await;
        let missing = sandbox.self_test().missing.join("\n");
        assert!(sandbox.level() < LandlockSeccomp, "programs of root: {missing}");
        assert!(missing.contains("belongs to root"), "{missing}");
    }
}
