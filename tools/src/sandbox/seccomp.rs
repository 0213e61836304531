//! System calls that no tool needs and that have opened sandboxes before.
//!
//! A list of what is denied, not of what is allowed: programs of all kinds run here. Everything that it denies is also
//! stopped by something else at the upper levels, where nothing but a bug of the kernel lets it through.
use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::plan::Plan;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Denied whatever their arguments are.
const DENIED: [i64; 55] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_lookup_dcookie,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// Not there at all, as on an old kernel: their arguments lie in memory, where a filter can't read them, and the C library
/// then uses the calls that a filter can read.
const ABSENT: [i64; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// New namespaces: the way to a user namespace where one is root again.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Denies them to this process and all that it starts. No new privileges must be set before.
pub(super) fn apply(plan: &Plan) -> Result<(), String> {
    if !plan.defends("filter") {
        return Ok(());
    }
    for (rules, errno) in [(denied(plan)?, libc::EPERM), (absent(), libc::ENOSYS)] {
        let program = compile(rules, errno)?;
        seccompiler::apply_filter(&program).map_err(|e| format!("seccomp: {e}"))?;
    }
    Ok(())
}

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, String> {
    let say = |e: &dyn std::fmt::Display| format!("seccomp: {e}");
    let arch = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| say(&e))?;
    let deny = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(with_x32(rules), SeccompAction::Allow, deny, arch)
        .and_then(TryInto::try_into)
        .map_err(|e| say(&e))
}

/// The second numbering of x86-64 kernels reaches the same calls.
#[cfg(target_arch = "x86_64")]
fn with_x32(rules: Rules) -> Rules {
    const X32: i64 = 0x4000_0000;
    /// ioctl, ptrace, kexec_load, process_vm_readv, process_vm_writev, move_pages: own numbers there.
    const RENUMBERED: [(i64, i64); 6] = [
        (libc::SYS_ioctl, 514),
        (libc::SYS_ptrace, 521),
        (libc::SYS_kexec_load, 528),
        (libc::SYS_move_pages, 533),
        (libc::SYS_process_vm_readv, 539),
        (libc::SYS_process_vm_writev, 540),
    ];
    let mut all = rules.clone();
    for (number, rule) in rules {
        let other = RENUMBERED.iter().find(|(n, _)| *n == number).map_or(number, |(_, other)| *other);
        all.insert(X32 | other, rule);
    }
    all
}

#[cfg(not(target_arch = "x86_64"))]
const fn with_x32(rules: Rules) -> Rules {
    rules
}

fn absent() -> Rules {
    ABSENT.iter().map(|call| (*call, Vec::new())).collect()
}

fn denied(plan: &Plan) -> Result<Rules, String> {
    let mut rules: Rules = Rules::new();
    if plan.defends("seccomp") {
        rules.extend(DENIED.iter().map(|call| (*call, Vec::new())));
        let flags: Result<_, _> = NAMESPACES.iter().map(|f| rule(&[bits(0, *f)?])).collect();
        rules.insert(libc::SYS_clone, flags?);
        rules.insert(
            libc::SYS_ioctl,
            vec![rule(&[equals(1, libc::TIOCSTI)?])?, rule(&[equals(1, libc::TIOCLINUX)?])?],
        );
        nodes(&mut rules)?;
    }
    if plan.defends("sockets") {
        sockets(plan, &mut rules)?;
    }
    if plan.defends("suid") {
        suid(&mut rules)?;
    }
    Ok(rules)
}

/// Sockets of the network only for tools that may use it; local ones only where those of the machine are out of sight.
fn sockets(plan: &Plan, rules: &mut Rules) -> Result<(), String> {
    let mut allowed = Vec::new();
    if plan.has_namespaces() || plan.network {
        allowed.push(libc::AF_UNIX);
    }
    if plan.network {
        allowed.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]);
    }
    let others: Result<Vec<_>, _> = allowed.iter().map(|family| differs(0, *family)).collect();
    let others = others?;
    let all = if others.is_empty() { Vec::new() } else { vec![rule(&others)?] };
    rules.insert(libc::SYS_socket, all);
    // Raw sockets need a capability that nobody has here; denied anyway.
    if plan.network {
        let raw = rule(&[masked(1, 0xf, libc::SOCK_RAW)?, differs(0, libc::AF_NETLINK)?])?;
        rules.entry(libc::SYS_socket).or_default().push(raw);
    }
    Ok(())
}

/// Block and character devices.
fn nodes(rules: &mut Rules) -> Result<(), String> {
    for kind in [libc::S_IFBLK, libc::S_IFCHR] {
        let kind = kind.cast_signed();
        let format = libc::S_IFMT.cast_signed();
        #[cfg(target_arch = "x86_64")]
        rules.entry(libc::SYS_mknod).or_default().push(rule(&[masked(1, format, kind)?])?);
        rules.entry(libc::SYS_mknodat).or_default().push(rule(&[masked(2, format, kind)?])?);
    }
    Ok(())
}

/// Files that run as their owner, whoever starts them.
fn suid(rules: &mut Rules) -> Result<(), String> {
    /// `fchmodat2`, which the C library's constants do not have everywhere.
    const FCHMODAT2: i64 = 452;
    for bit in [libc::S_ISUID, libc::S_ISGID] {
        let bit = bit.cast_signed();
        let mut add = |call: i64, conditions: &[SeccompCondition]| {
            rule(conditions).map(|r| rules.entry(call).or_default().push(r))
        };
        add(libc::SYS_fchmod, &[bits(1, bit)?])?;
        add(libc::SYS_fchmodat, &[bits(2, bit)?])?;
        add(FCHMODAT2, &[bits(2, bit)?])?;
        add(libc::SYS_mknodat, &[bits(2, bit)?])?;
        // Without O_CREAT the mode is not given.
        add(libc::SYS_openat, &[bits(2, libc::O_CREAT)?, bits(3, bit)?])?;
        #[cfg(target_arch = "x86_64")]
        {
            add(libc::SYS_chmod, &[bits(1, bit)?])?;
            add(libc::SYS_creat, &[bits(1, bit)?])?;
            add(libc::SYS_mknod, &[bits(1, bit)?])?;
            add(libc::SYS_open, &[bits(1, libc::O_CREAT)?, bits(2, bit)?])?;
        }
    }
    Ok(())
}

fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, String> {
    SeccompRule::new(conditions.to_vec()).map_err(|e| format!("seccomp: {e}"))
}

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    SeccompCondition::new(argument, Dword, op, value).map_err(|e| format!("seccomp: {e}"))
}

fn word(value: impl TryInto<u32>) -> Result<u64, String> {
    value.try_into().map(u64::from).map_err(|_| "seccomp: a value over 32 bits".to_owned())
}

/// All bits of `value` are set.
fn bits(argument: u8, value: i32) -> Result<SeccompCondition, String> {
    let value = u64::from(value.cast_unsigned());
    condition(argument, SeccompCmpOp::MaskedEq(value), value)
}

fn masked(argument: u8, mask: i32, value: i32) -> Result<SeccompCondition, String> {
    condition(argument, SeccompCmpOp::MaskedEq(word(mask)?), word(value)?)
}

fn equals(argument: u8, value: impl TryInto<u32>) -> Result<SeccompCondition, String> {
    condition(argument, SeccompCmpOp::Eq, word(value)?)
}

fn differs(argument: u8, value: i32) -> Result<SeccompCondition, String> {
    condition(argument, SeccompCmpOp::Ne, word(value)?)
}
