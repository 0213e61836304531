//! Every row of the list gets out when its defence is switched off: none of the tests passes for another reason.
use octomesh_protocol::card::SandboxLevel::{
    self, BwrapLandlockSeccomp, LandlockSeccomp, UsernsLandlockSeccomp,
};
use octomesh_tools::sandbox::{Sandbox, SandboxConfig};

use crate::{
    bait::Outside,
    escapes::{ROWS, Row, tries},
    support::{launcher, sandbox_at},
};

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

const MUTATIONS: &[Mutation] = &[
    Mutation {
        without: &["landlock"],
        levels: BARE,
        out: &[
            "read",
            "write",
            "read through a link",
            "write through a link",
            "/sys",
            "/proc/self/cwd upwards",
        ],
        out_same_user: &["environments", "kill"],
        out_root: &[],
    },
    Mutation {
        without: &["landlock", "files"],
        levels: NAMESPACES,
        out: &["through a mount"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["seccomp"],
        levels: ALL,
        out: &[
            "user namespace",
            "io_uring",
            "bpf",
            "keyring",
            "terminal injection",
            "read memory of others",
            "ptrace",
        ],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["sockets", "landlock"],
        levels: BARE,
        out: &["TCP", "UDP", "abstract socket", "socket file", "netlink"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["sockets", "landlock", "netns"],
        levels: NAMESPACES,
        out: &["TCP", "UDP", "abstract socket"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["suid"],
        levels: ALL,
        out: &["SUID by chmod", "SUID by open"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["descriptors"],
        levels: &[LandlockSeccomp, UsernsLandlockSeccomp, BwrapLandlockSeccomp],
        out: &["inherited descriptors"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["limits"],
        levels: ALL,
        out: &["large file", "memory"],
        out_same_user: &[],
        out_root: &[],
    },
    Mutation {
        without: &["landlock", "seccomp", "user"],
        levels: BARE,
        out: &["hard link", "rename out", "delete", "mode of a file outside", "time of a file outside"],
        out_same_user: &[],
        out_root: &["shadow", "core_pattern", "system folder", "root folder", "uid 0 and rights"],
    },
    Mutation {
        without: &["landlock", "sockets"],
        levels: NAMESPACES,
        out: &["netlink"],
        out_same_user: &[],
        out_root: &[],
    },
];

const MORE: [Row; 1] = [Row::new("through a mount", "cat /outside{bait} && echo OUT")];

fn find(name: &str) -> &'static Row {
    ROWS.iter().chain(&MORE).find(|row| row.name == name).unwrap()
}

#[tokio::test]
async fn each_row_fails_without_its_defence() {
    let same_user = !rustix::process::geteuid().is_root();
    let mut missed = Vec::new();
    for mutation in MUTATIONS {
        for level in mutation.levels {
            let scratch = tempfile::tempdir().unwrap();
            let mut config = SandboxConfig::new(launcher(), scratch.path().join("probe"));
            config.without = mutation.without.iter().map(|w| (*w).to_owned()).collect();
            let sandbox = Sandbox::unproven(config, *level);
            let rows = mutation
                .out
                .iter()
                .chain(mutation.out_same_user.iter().filter(|_| same_user))
                .chain(mutation.out_root.iter().filter(|_| !same_user));
            for name in rows {
                let outside = Outside::new(&sandbox);
                let (out, text) = tries(&outside, find(name)).await;
                if !out {
                    missed.push(format!("{name} at {level} without {:?}: {text}", mutation.without));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
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
