//! Whole meshes of real nodes in one process, on stopped time, from one seed: the same seed, the same bytes. See README.md.
#![deny(unsafe_op_in_unsafe_fn)]
mod entropy;
mod mesh;
mod oracle;
mod story;
mod wire;

use std::{fmt::Write as _, process::ExitCode};

use mesh::{Mesh, Outcome};

const USAGE: &str = "octomesh-sim SEED [--nodes N, at least 7] [--story] [--lie lives|died]
  the run of a seed; --story prints all that happened, --lie tells the laws something that is not true";

struct Asked {
    seed: u64,
    nodes: u64,
    story: bool,
    lie: Option<story::Lie>,
}

/// Two admins, three who go for good, and two who can be cut off from each other.
const FEWEST: u64 = 7;

/// Of twenty seeds four have the mesh of twenty; small ones find most faults sooner.
fn usual_size(seed: u64) -> u64 {
    if seed.is_multiple_of(5) { 20 } else { FEWEST + seed % 5 }
}

fn asked() -> Option<Asked> {
    let mut arguments = std::env::args().skip(1);
    let seed = arguments.next()?.parse().ok()?;
    let mut asked = Asked { seed, nodes: usual_size(seed), story: false, lie: None };
    while let Some(flag) = arguments.next() {
        match flag.as_str() {
            "--nodes" => asked.nodes = arguments.next()?.parse().ok().filter(|nodes| *nodes >= FEWEST)?,
            "--story" => asked.story = true,
            "--lie" => asked.lie = Some(story::Lie::of(&arguments.next()?)?),
            _ => return None,
        }
    }
    Some(asked)
}

/// One run; the text is the same for the same seed, but for what is said of wall time.
fn run(asked: &Asked) -> Outcome<String> {
    let folder = std::env::temp_dir().join(format!("octomesh-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    #[expect(clippy::disallowed_methods, reason = "wall time, for whoever waits for the run")]
    let began = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let outcome = runtime.block_on(async {
        let mut mesh = Mesh::new(asked.seed, asked.nodes, &folder)?;
        let outcome = story::tell(&mut mesh, asked.nodes, asked.seed, asked.lie).await;
        if asked.story || outcome.is_err() {
            let skipped = if asked.story { 0 } else { mesh.story.len().saturating_sub(60) };
            mesh.story.iter().skip(skipped).for_each(|line| println!("{line}"));
        }
        outcome?;
        let messages = mesh.messages().await?;
        let traffic = mesh.network.traffic();
        let mut text = format!("seed {} nodes {} digest {}", asked.seed, asked.nodes, mesh.network.digest());
        let virtual_ms = mesh.elapsed().as_millis();
        let slowest = mesh.slowest.as_millis();
        write!(text, " virtual_ms {virtual_ms} slowest_ms {slowest}").map_err(|e| e.to_string())?;
        write!(text, " connections {} bytes {}", traffic.connections, traffic.bytes)
            .map_err(|e| e.to_string())?;
        write!(text, " written {} read {}", messages.written, messages.read).map_err(|e| e.to_string())?;
        write!(text, " dropped {} lost {}", messages.dropped, messages.lost).map_err(|e| e.to_string())?;
        Ok(text)
    });
    drop(runtime);
    // What the nodes wrote is of no use to anybody.
    let _ = std::fs::remove_dir_all(&folder);
    eprintln!("seed {}: {:.1} s of wall time", asked.seed, began.elapsed().as_secs_f64());
    outcome
}

fn main() -> ExitCode {
    let Some(asked) = asked() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    entropy::seed(asked.seed);
    if let Ok(filter) = std::env::var("OCTOMESH_SIM_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    }
    match run(&asked) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("seed {}: {why}", asked.seed);
            println!("again: cd tests/sim && cargo run -- {} --nodes {} --story", asked.seed, asked.nodes);
            ExitCode::FAILURE
        }
    }
}
