//! Checks of this machine.
use std::{
    fs, io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::Check;
use crate::{
    api::types::NodesReply,
    app::{
        entry,
        root::{self, RootPlace},
    },
    cli::render::{seconds, size},
    config::{ConfigErrors, Loaded, NodeConfig, TOKEN_FILE},
    trust::store::Store,
};

/// Below this the journal may not be able to write what it must.
const DISK_LOW_BYTES: u64 = 1 << 30;
/// Below this nothing works for long.
const DISK_OUT_BYTES: u64 = 64 << 20;
/// 2026-01-01: a clock before the program was written is not set.
const EARLIEST_S: u64 = 1_767_225_600;
/// A certificate that ends within this time is a warning.
const ENDS_SOON_S: u64 = 30 * 86_400;
/// Certificates and tickets allow five minutes between clocks; half of it is a warning.
const SKEW_S: u64 = 150;

pub(super) fn home(home: &Path) -> Check {
    let shown = home.display();
    let meta = match fs::metadata(home) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Check::warn(
                "home",
                format!("{shown} does not exist"),
                "`octomesh init` or `octomesh join` makes it",
            );
        }
        Err(e) => return Check::fail("home", format!("{shown}: {e}"), "give another one with --home"),
    };
    if !meta.is_dir() {
        return Check::fail("home", format!("{shown} is no directory"), "give another one with --home");
    }
    // Only a real file shows whether one can be written: permissions, read-only mounts and quotas are not all in the mode.
    match tempfile::tempfile_in(home) {
        Ok(_) => Check::ok("home", format!("{shown} is writable")),
        Err(e) => {
            Check::fail("home", format!("{shown} is not writable: {e}"), format!("chown or chmod {shown}"))
        }
    }
}

/// The home itself, the token and everything under `identity/` belong to the owner alone.
pub(super) fn permissions(home: &Path) -> Check {
    let mut open = Vec::new();
    let mut look = |path: PathBuf, allowed: u32| {
        if let Ok(meta) = fs::symlink_metadata(&path) {
            let mode = meta.permissions().mode() & 0o777;
            if mode & !allowed != 0 {
                open.push(format!("chmod {allowed:o} {}", path.display()));
            }
        }
    };
    look(home.to_owned(), 0o755);
    look(home.join(TOKEN_FILE), 0o600);
    look(home.join(".env"), 0o600);
    let identity = home.join("identity");
    look(identity.clone(), 0o755);
    for entry in fs::read_dir(&identity).into_iter().flatten().flatten() {
        if entry.path().is_file() {
            look(entry.path(), 0o600);
        }
    }
    if open.is_empty() {
        return Check::ok("permissions", "keys and token are for their owner alone");
    }
    Check::fail(
        "permissions",
        format!("{} file(s) that others can read or change", open.len()),
        open.join("; "),
    )
}

pub(super) fn configuration(loaded: &Result<Loaded, ConfigErrors>) -> Check {
    match loaded {
        Ok(loaded) if loaded.warnings.is_empty() => Check::ok("config", "no errors"),
        Ok(loaded) => Check::warn("config", loaded.warnings.join("; "), "correct or unset the variable"),
        Err(errors) => {
            Check::fail("config", errors.to_string(), "correct each line; `octomesh config check` tells")
        }
    }
}

pub(super) fn identity(home: &Path) -> Check {
    match entry::identity(home) {
        Ok(Some(who)) => trust_files(home, &who.mesh_id).unwrap_or_else(|| {
            Check::ok(
                "identity",
                format!("{} {} ({}) of mesh {}", who.role, who.name, who.node_id, who.mesh_id),
            )
        }),
        Ok(None) => Check::fail(
            "identity",
            "this node belongs to no mesh",
            "`octomesh init` for a new mesh, or `octomesh join TICKET`",
        ),
        Err(e) => Check::fail(
            "identity",
            e.message,
            e.hint.unwrap_or_else(|| "restore it from a backup".to_owned()),
        ),
    }
}

/// What is wrong with the mesh secret and the revocations, which a start reads as well.
fn trust_files(home: &Path, mesh: &str) -> Option<Check> {
    let store = Store::new(home.join("identity"));
    match mesh.parse().map(|mesh| store.examine(mesh)) {
        Ok(Ok(damaged)) if damaged.is_empty() => None,
        Ok(Ok(damaged)) => {
            let shown = damaged.first().map(|path| path.display().to_string()).unwrap_or_default();
            Some(Check::warn(
                "identity",
                format!(
                    "{} stored revocation(s) are damaged and not used, the first is {shown}",
                    damaged.len()
                ),
                "remove these files: the revocations are learnt again from other members",
            ))
        }
        Ok(Err(error)) => Some(Check::fail(
            "identity",
            error.to_string(),
            "the node does not start like this: restore the file from a backup",
        )),
        Err(error) => {
            Some(Check::fail("identity", error.to_string(), "restore the certificate from a backup"))
        }
    }
}

/// How long the membership lasts; a node that runs renews it by itself when it meets an admin's.
pub(super) fn certificate(home: &Path, now: u64) -> Option<Check> {
    let who = entry::identity(home).ok().flatten()?;
    Some(match who.ends_at.checked_sub(now) {
        None => Check::fail(
            "certificate",
            format!("it has ended {} ago", seconds(now - who.ends_at)),
            "`octomesh leave`, then `octomesh join` with a new ticket; if only the clock is wrong, set it",
        ),
        Some(left) if left < ENDS_SOON_S => Check::warn(
            "certificate",
            format!("it ends in {}", seconds(left)),
            "run this node while a node of an admin runs: it is renewed by itself",
        ),
        Some(left) => Check::ok("certificate", format!("it holds for {}", seconds(left))),
    })
}

/// Where the mesh's root key is, on a node that could have it.
pub(super) fn root(home: &Path) -> Option<Check> {
    let who = entry::identity(home).ok().flatten()?;
    match root::status(home) {
        Ok(reply) if who.role == "admin" || reply.place != RootPlace::Away => {
            Some(Check::ok("root", reply.place.sentence()))
        }
        Ok(_) => None,
        Err(e) => Some(Check::fail(
            "root",
            e.message,
            e.hint.unwrap_or_else(|| "restore it from a copy".to_owned()),
        )),
    }
}

pub(super) fn disk(home: &Path) -> Check {
    // The nearest directory that exists has the disk that the home will be on.
    let Some(there) = home.ancestors().find(|path| path.exists()) else {
        return Check::warn("disk", "there is no such disk", "give another home with --home");
    };
    let free = match rustix::fs::statvfs(there) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(e) => return Check::warn("disk", format!("free space is not known: {e}"), "look at it with df"),
    };
    let detail = format!("{} free", size(free));
    match free {
        0..DISK_OUT_BYTES => {
            Check::fail("disk", detail, "free some space: the journal must be able to write")
        }
        DISK_OUT_BYTES..DISK_LOW_BYTES => Check::warn("disk", detail, "free some space"),
        _ => Check::ok("disk", detail),
    }
}

/// Ports are free, or ours when the node runs.
pub(super) fn ports(config: Option<&NodeConfig>, node_runs: bool) -> Option<Check> {
    let config = config?;
    if node_runs {
        return Some(Check::ok("ports", "in use by the running node"));
    }
    let taken: Vec<String> = config
        .listen
        .iter()
        .chain([&config.api])
        .filter_map(|address| TcpListener::bind(address).err().map(|e| format!("{address}: {e}")))
        .collect();
    Some(if taken.is_empty() {
        Check::ok("ports", format!("{} is free", config.api.port()))
    } else {
        Check::fail(
            "ports",
            taken.join("; "),
            "stop the other program, or set `listen` and `api` to other ports",
        )
    })
}

/// Against the program's age, and against what other members' starts tell.
pub(super) fn clock(now: u64, nodes: Option<&NodesReply>) -> Check {
    if now < EARLIEST_S {
        return Check::fail(
            "clock",
            "this machine's clock is not set",
            "set it, for example with timedatectl set-ntp true",
        );
    }
    // An incarnation is the start of a node in its own seconds; one in our future means that the clocks differ.
    let ahead = nodes
        .into_iter()
        .flat_map(|reply| &reply.nodes)
        .filter(|node| !node.is_self)
        .map(|node| (node.incarnation.saturating_sub(now), &node.name))
        .max();
    match ahead {
        Some((skew, name)) if skew > SKEW_S => Check::warn(
            "clock",
            format!("{name} started {} in this machine's future", seconds(skew)),
            "set the clocks of both machines; certificates allow five minutes",
        ),
        _ => Check::ok("clock", "plausible"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::CheckStatus,
        trust::fixtures::{out, root},
    };

    #[test]
    fn damaged_files_of_trust_are_reported() {
        let home = tempfile::tempdir().unwrap();
        let mesh = root().mesh_id().to_string();
        assert!(trust_files(home.path(), &mesh).is_none());
        let files = home.path().join("identity/revocations");
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join(out(5).id().to_string()), "damaged").unwrap();
        let check = trust_files(home.path(), &mesh).unwrap();
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
        fs::write(home.path().join("identity/secrets.json"), "{").unwrap();
        let check = trust_files(home.path(), &mesh).unwrap();
        assert!(check.status == CheckStatus::Fail && check.detail.contains("secrets.json"), "{check:?}");
    }
}
