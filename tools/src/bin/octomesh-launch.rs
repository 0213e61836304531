//! A launcher and the stages of the sandbox by themselves: a fixture of this crate's tests, which have no node. The node's binary is its own launcher.
use std::{ffi::OsString, process::ExitCode};

use octomesh_tools::sandbox;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == sandbox::SANDBOX_INIT_ARGUMENT => sandbox::sandbox_init_main(rest),
        _ => sandbox::launcher_main(&args),
    }
}
