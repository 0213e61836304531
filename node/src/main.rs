//! The binary. Three hidden first arguments make it something smaller than the node.
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        // Starts a process tool within its limits; before any thread or runtime exists.
        Some((first, rest)) if first == octomesh_tools::sandbox::LAUNCH_ARGUMENT => {
            octomesh_tools::sandbox::launcher_main(rest)
        }
        // A stage between the launcher and a tool's program.
        Some((first, rest)) if first == octomesh_tools::sandbox::SANDBOX_INIT_ARGUMENT => {
            octomesh_tools::sandbox::sandbox_init_main(rest)
        }
        // The demo's own process tool.
        Some((first, _)) if first == octomesh::cli::DEMO_RENDER_ARGUMENT => octomesh::cli::demo_render(),
        _ => octomesh::cli::main(),
    }
}
