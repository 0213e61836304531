//! Starts a program as a container does whose profile refuses namespaces and mounts: `octomesh-without-namespaces PROGRAM ARGS…`.
use std::{os::unix::process::CommandExt, process::Command};

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

const REFUSED: [i64; 4] = [libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_pivot_root];
const KINDS: [i32; 5] =
    [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWPID, libc::CLONE_NEWNET, libc::CLONE_NEWIPC];

fn main() {
    let flag = |flag: i32| {
        let flag = u64::from(flag.cast_unsigned());
        let set = SeccompCondition::new(0, Dword, SeccompCmpOp::MaskedEq(flag), flag).unwrap();
        SeccompRule::new(vec![set]).unwrap()
    };
    let refused =
        REFUSED.map(|call| (call, vec![])).into_iter().chain([(libc::SYS_clone, KINDS.map(flag).to_vec())]);
    // Its arguments can't be read by a filter; the C library takes the older call then.
    let absent = [(libc::SYS_clone3, vec![])];
    for (rules, errno) in [(refused.collect(), libc::EPERM), (absent.into_iter().collect(), libc::ENOSYS)] {
        let action = SeccompAction::Errno(errno.cast_unsigned());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
    }
    let mut words = std::env::args_os().skip(1);
    let program = words.next().expect("a program to start");
    panic!("{}", Command::new(program).args(words).exec());
}
