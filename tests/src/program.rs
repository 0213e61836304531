//! The program under test.
use std::{path::PathBuf, process::Command};

/// `OCTOMESH_BIN`, or the one that this package builds beside its tests.
///
/// # Panics
/// When there is none.
pub fn path() -> PathBuf {
    if let Some(given) = std::env::var_os("OCTOMESH_BIN") {
        let given = PathBuf::from(given);
        // Its demo and its tools start it by its absolute path; so do we.
        return given.canonicalize().unwrap_or_else(|e| panic!("OCTOMESH_BIN {}: {e}", given.display()));
    }
    // target/PROFILE/deps/it-… stands two levels below target/PROFILE/octomesh-under-test.
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|p| p.parent()).unwrap().join("octomesh-under-test");
    assert!(path.is_file(), "{} is missing; build it with `cargo build -p octomesh-tests`", path.display());
    path
}

/// The program without a word of ours in its environment, behind `prefix` (`ip netns exec …`).
pub fn command(prefix: &[String]) -> Command {
    let mut command = match prefix.split_first() {
        None => Command::new(path()),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(path());
            command
        }
    };
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("OCTOMESH_") || text.starts_with("OPTIMCLAW_") {
            command.env_remove(&name);
        }
    }
    command.env("NO_COLOR", "1");
    command
}
