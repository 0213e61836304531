//! A launcher by itself: a fixture of this crate's tests, which have no node. The node's binary is its own launcher.
use std::{ffi::OsString, process::ExitCode};

use octomesh_tools::sandbox;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    sandbox::launcher_main(&args)
}
