//! The command line: one command per file. All but `init`, `join`, `up` and most of `root` speak to a running node through its HTTP
//! API, so that people, programs and the CLI see one truth.
mod arguments;
mod artifacts;
mod ask;
mod bench;
mod call;
pub mod client;
mod completions;
mod config;
mod context;
mod cp;
mod decision;
mod demo;
mod doctor;
mod drain;
pub mod exit;
mod init;
mod invite;
mod join;
mod leave;
mod nodes;
mod place;
mod rename;
pub mod render;
mod revoke;
mod root;
mod runs;
mod sessions;
mod solve;
mod sse;
mod status;
mod tools;
mod up;
mod wake;
mod why;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};
use tokio_util::sync::CancellationToken;

pub use context::Context;
pub use demo::{DEMO_RENDER_ARGUMENT, demo_render};
pub use exit::{CliError, Exit};
use render::Screen;

/// Turns the machines of a home lab into one agent.
#[derive(Debug, Parser)]
#[command(name = "octomesh", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
struct Globals {
    /// Where the node lives [default: ~/.octomesh]
    #[arg(long, global = true, value_name = "DIR", env = "OCTOMESH_HOME")]
    home: Option<PathBuf>,
    /// The node's API: `up` binds it, all others connect to it [env: OCTOMESH_API] [default: 127.0.0.1:9480]
    #[arg(long, global = true, value_name = "ADDR:PORT|URL")]
    api: Option<String>,
    /// One JSON object on stdout
    #[arg(long, global = true)]
    json: bool,
    /// Answer yes to all questions
    #[arg(long, short, global = true)]
    yes: bool,
    /// Say more; twice for even more
    #[arg(short, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// No progress
    #[arg(short, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start three nodes on this machine and solve a question on them
    Demo(demo::DemoCommand),
    /// Make a new mesh with this machine as its first node
    Init(init::InitCommand),
    /// Make a ticket for one more machine
    Invite(invite::InviteCommand),
    /// Join a mesh with a ticket
    Join(join::JoinCommand),
    /// Leave the mesh for good and erase this node's keys
    Leave,
    /// Give this node another name
    Rename(rename::RenameCommand),
    /// Run the node until Ctrl-C
    Up(up::UpCommand),
    /// Show this node
    Status,
    /// Show every member of the mesh, or forget one that is gone
    Nodes(nodes::NodesCommand),
    /// Show open sessions and their encryption
    Sessions,
    /// Show tools of this node or of the mesh
    Tools(tools::ToolsCommand),
    /// Call one tool, on the node that fits best
    Call(call::CallCommand),
    /// Show where a call would run, without running it
    Place(place::PlaceCommand),
    /// Show why a step or call ran where it ran
    Why(why::WhyCommand),
    /// Solve a question with the tools of the mesh
    Solve(solve::SolveCommand),
    /// List, show or cancel runs
    Runs(runs::RunsCommand),
    /// Copy a file from a node's workspace, or into it
    Cp(cp::CpCommand),
    /// Throw a node out of the mesh for good
    Revoke(revoke::RevokeCommand),
    /// Take a node out for maintenance: running steps finish, no new ones come
    Drain(drain::DrainCommand),
    /// Wake a machine that sleeps
    Wake(wake::WakeCommand),
    /// End the maintenance of a node
    Undrain(drain::DrainCommand),
    /// Show the mesh's root key, move it offline and back
    Root(root::RootCommand),
    /// Check each thing that can be wrong and say what to do
    Doctor,
    /// Check or show the configuration
    Config(config::ConfigCommand),
    /// Measure this machine
    Bench(bench::BenchCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsCommand),
}

impl Command {
    /// Whether the command itself answers to Ctrl-C; all others are just dropped.
    const fn handles_interrupt(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Solve(_) | Self::Demo(_))
    }
}

/// No core dump holds the keys of this process, and no other program of its user can look into it. The size limit is for kernels that
/// write dumps to files; those that hand them to a program ask the other question. Programs that this one starts are as they were.
fn keep_memory_private() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    // silent-ok: to lower a limit is always allowed, and a refusal is no reason to stay away
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    #[cfg(target_os = "linux")]
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Runs the command line of the process.
#[must_use]
pub fn main() -> ExitCode {
    keep_memory_private();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error, arguments.iter().any(|a| a == "--json")).into(),
    };
    let screen = Screen::new(cli.globals.json, cli.globals.quiet);
    let Some(home) =
        cli.globals.home.clone().or_else(|| std::env::home_dir().map(|dir| dir.join(".octomesh")))
    else {
        screen.fail(&CliError::usage("there is no home directory; give one with --home"));
        return Exit::Usage.into();
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            screen.fail(&CliError::failed(format!("no threads: {e}")));
            return Exit::Failed.into();
        }
    };
    let context = Context {
        home,
        api: cli.globals.api,
        yes: cli.globals.yes,
        verbose: cli.globals.verbose,
        environment: our_variables(),
        parallelism: parallelism(),
        screen,
        interrupt: CancellationToken::new(),
    };
    let exit = runtime.block_on(run(&cli.command, &context));
    // Whatever still reads stdin must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    exit.into()
}

fn our_variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with("OCTOMESH_") || name.starts_with("OPTIMCLAW_"))
        // Read where it is needed, and kept nowhere.
        .filter(|(name, _)| name != ask::PASSPHRASE_VARIABLE)
        .collect()
}

fn parallelism() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX))
}

/// Help and version are results; the rest are usage errors.
fn not_a_command(error: &clap::Error, json: bool) -> Exit {
    let screen = Screen::new(json, false);
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // silent-ok: a closed pipe wants no help
            let _ = error.print();
            Exit::Ok
        }
        _ if json => {
            let text = error.to_string();
            let message = text.trim().trim_start_matches("error: ");
            screen.fail(&CliError::usage(message));
            Exit::Usage
        }
        _ => {
            // silent-ok: as above
            let _ = error.print();
            Exit::Usage
        }
    }
}

async fn run(command: &Command, context: &Context) -> Exit {
    let result = {
        let work = dispatch(command, context);
        tokio::pin!(work);
        tokio::select! {
            result = &mut work => result,
            () = interrupted() => {
                context.interrupt.cancel();
                if command.handles_interrupt() {
                    // A second Ctrl-C means it.
                    tokio::select! {
                        result = work => result,
                        () = interrupted() => Err(CliError::interrupted()),
                    }
                } else {
                    Err(CliError::interrupted())
                }
            }
        }
    };
    match result {
        Ok(exit) => exit,
        Err(error) => {
            context.screen.fail(&error);
            error.exit
        }
    }
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals there is no Ctrl-C; the command just runs.
        std::future::pending::<()>().await;
    }
}

async fn dispatch(command: &Command, context: &Context) -> Result<Exit, CliError> {
    match command {
        Command::Demo(c) => c.run(context).await,
        Command::Init(c) => c.run(context).await,
        Command::Invite(c) => c.run(context).await,
        Command::Join(c) => c.run(context).await,
        Command::Up(c) => c.run(context).await,
        Command::Status => status::run(context).await,
        Command::Nodes(c) => c.run(context).await,
        Command::Leave => leave::run(context).await,
        Command::Rename(c) => c.run(context).await,
        Command::Sessions => sessions::run(context).await,
        Command::Tools(c) => c.run(context).await,
        Command::Call(c) => c.run(context).await,
        Command::Place(c) => c.run(context).await,
        Command::Why(c) => c.run(context).await,
        Command::Solve(c) => c.run(context).await,
        Command::Runs(c) => c.run(context).await,
        Command::Cp(c) => c.run(context).await,
        Command::Revoke(c) => c.run(context).await,
        Command::Drain(c) => c.run(context, true).await,
        Command::Wake(c) => c.run(context).await,
        Command::Undrain(c) => c.run(context, false).await,
        Command::Root(c) => c.run(context).await,
        Command::Doctor => doctor::run(context).await,
        Command::Config(c) => c.run(context),
        Command::Bench(c) => c.run(context).await,
        Command::Completions(c) => c.run(context, &mut Cli::command()),
    }
}
