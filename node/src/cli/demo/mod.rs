//! `octomesh demo`: real node processes on loopback, each with a home of its own, joined with tickets; one question; real
//! sessions. Nothing in it is simulated but the GPU, which is declared and shown as declared.
mod homes;
mod processes;
mod render;
mod report;

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::{homes::Homes, processes::Processes};
use super::{CliError, Context, Exit, client::Client, solve};
use crate::{
    api::types::{NodesReply, RunRequest, RunStarted, SessionsReply, ToolsReply},
    app::entry::{self, InitArgs, JoinArgs},
};

/// The hidden first argument that makes the binary the demo's renderer.
pub const DEMO_RENDER_ARGUMENT: &str = "__demo-render";

/// Uses four tools on three nodes: the log is on attic only, the picture wants a GPU, the sum is done where it is asked.
const QUESTION: &str = "search notes/harbour-log.txt for storm; count the lines in notes/harbour-log.txt; \
     image_render buoys=$1.count path=harbour.png; calculate $1.count * 100 / $2.lines";

/// Three sessions and their cards on a slow machine.
const READY: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(150);

/// The demo's process tool `image_render`.
#[must_use]
pub fn demo_render() -> std::process::ExitCode {
    render::main()
}

/// Starts nodes on this machine and solves a question on them.
#[derive(Debug, Args)]
pub(super) struct DemoCommand {
    /// Something else than the built-in question; the rules engine must be able to plan it
    #[arg(long, value_name = "Q")]
    question: Option<String>,
    /// How many nodes: attic, tower, pi, and shelf-4 and so on
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// Keep the homes of the nodes, with logs and workspaces
    #[arg(long)]
    keep: bool,
}

impl DemoCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let homes = Homes::create(self.nodes)?;
        let mut processes = Processes::default();
        let work = self.play(context, &homes, &mut processes);
        let result = tokio::select! {
            result = work => result,
            () = context.interrupt.cancelled() => Err(CliError::interrupted()),
        };
        context.screen.progress("stopping the nodes");
        processes.stop().await;
        let failed = !matches!(result, Ok(ref document) if solve::exit_of(document) == Exit::Ok);
        match homes.tidy(self.keep) {
            Some(kept) if self.keep || failed => {
                context.screen.progress(&format!("homes and logs are in {}", kept.display()));
            }
            _ => {}
        }
        let document = result?;
        context.screen.show(&document, report::text)?;
        Ok(solve::exit_of(&document))
    }

    async fn play(
        &self,
        context: &Context,
        homes: &Homes,
        processes: &mut Processes,
    ) -> Result<Value, CliError> {
        let begun = Instant::now();
        let screen = &context.screen;
        screen.progress(&format!("{} nodes on this machine, in {}", self.nodes, homes.folder().display()));
        let pi = homes.coordinator();
        entry::init(InitArgs::new(&pi.home, Some(&pi.name)))?;
        processes.start(pi).await?;
        let client = pi.client()?;
        for node in homes.others() {
            let invited: Value = client.post(&["api", "invites"], &json!({"ttl_s": 300}), false).await?;
            let ticket = invited.get("ticket").and_then(Value::as_str).unwrap_or_default().to_owned();
            let name = Some(node.name.clone());
            entry::join(JoinArgs { home: node.home.clone(), ticket, name }).await?;
            screen.progress(&format!("{} joined with a ticket", node.name));
            processes.start(node).await?;
        }
        ready(homes).await?;
        screen.progress("all nodes know each other and each other's tools");

        let question = self.question.clone().unwrap_or_else(|| QUESTION.to_owned());
        screen.progress(&format!("question: {question}"));
        let request = RunRequest {
            question: question.clone(),
            plan: None,
            engine: None,
            max_steps: None,
            max_time_s: Some(120),
        };
        let started: RunStarted = client.post(&["api", "runs"], &request, false).await?;
        let run = tokio::select! {
            run = solve::follow(&client, &started.run_id, context) => run?,
            () = context.interrupt.cancelled() => solve::cancel(&client, &started.run_id, context).await?,
        };
        let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.document(homes, &client, question, run, elapsed_ms).await
    }

    /// The document of `--json`: `{question, answer, citations, steps, nodes, sessions, elapsed_ms}`, and what else there is to know.
    async fn document(
        &self,
        homes: &Homes,
        client: &Client,
        question: String,
        run: Value,
        elapsed_ms: u64,
    ) -> Result<Value, CliError> {
        let nodes: NodesReply = client.get(&["api", "mesh", "nodes"]).await?;
        let tools: ToolsReply = client.query(&["api", "tools"], &[("all", "true".to_owned())]).await?;
        let mut sessions = Vec::new();
        for node in homes.all() {
            let open: SessionsReply = node.client()?.get(&["api", "mesh", "sessions"]).await?;
            // Each session is seen from both ends; the end that dialled tells it.
            let out = open.sessions.into_iter().filter(|s| s.direction == "out");
            sessions.extend(out.map(|s| json!({"from": node.name, "to": s.name, "suite": s.suite})));
        }
        let list = |key: &str| run.get(key).cloned().unwrap_or_else(|| json!([]));
        let steps: Vec<Value> = run
            .get("blocks")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|block| block.get("steps").and_then(Value::as_array))
            .flatten()
            .map(|s| {
                let part = |key: &str| s.get(key).cloned().unwrap_or(Value::Null);
                json!({
                    "step_id": part("step_id"), "block_id": part("block_id"), "tool": part("tool"),
                    "node": part("node"), "status": part("status"), "elapsed_ms": part("elapsed_ms"),
                    "why": part("why"), "output": part("output"),
                })
            })
            .collect();
        let picture = homes.save_picture(&steps)?;
        let names = |node: &str| -> Vec<&str> {
            tools
                .tools
                .iter()
                .filter(|t| t.nodes.iter().any(|n| n == node))
                .map(|t| t.name.as_str())
                .collect()
        };
        let nodes: Vec<Value> = nodes
            .nodes
            .iter()
            .map(|n| {
                json!({
                    "name": n.name, "node_id": n.node_id, "tools": names(&n.name), "sandbox": n.sandbox,
                    "gpus": n.gpus,
                })
            })
            .collect();
        let mut document = json!({
            "question": question, "run_id": run.get("run_id"), "status": run.get("status"),
            "answer": run.get("answer"), "citations": list("citations"), "unresolved": list("unresolved"),
            "steps": steps, "nodes": nodes, "sessions": sessions, "picture": picture,
            "folder": homes.folder(), "elapsed_ms": elapsed_ms,
        });
        if let (Value::Object(fields), Some(Value::Object(run))) =
            (&mut document, run.as_object().map(|r| Value::Object(r.clone())))
        {
            for key in ["error", "reason"] {
                if let Some(value) = run.get(key) {
                    fields.insert(key.to_owned(), value.clone());
                }
            }
        }
        Ok(document)
    }
}

/// Every node sees every other alive, and the coordinator has all cards.
async fn ready(homes: &Homes) -> Result<(), CliError> {
    let until = Instant::now() + READY;
    loop {
        match missing(homes).await? {
            None => return Ok(()),
            Some(what) if Instant::now() >= until => {
                return Err(CliError::failed(format!("the nodes did not find each other: {what}"))
                    .hint(format!("their logs are in {}", homes.folder().display())));
            }
            Some(_) => sleep(POLL).await,
        }
    }
}

async fn missing(homes: &Homes) -> Result<Option<String>, CliError> {
    let wanted = homes.all().count();
    for node in homes.all() {
        let reply: NodesReply = node.client()?.get(&["api", "mesh", "nodes"]).await?;
        let alive = reply.nodes.iter().filter(|n| n.state == "alive" && n.tools > 0).count();
        if alive < wanted {
            return Ok(Some(format!("{} sees {alive} of {wanted} nodes with tools", node.name)));
        }
    }
    let client = homes.coordinator().client()?;
    let tools: ToolsReply = client.query(&["api", "tools"], &[("all", "true".to_owned())]).await?;
    let holders = tools.tools.iter().find(|t| t.name == "image_render").map_or(0, |t| t.nodes.len());
    Ok((holders < 2).then(|| format!("image_render is known on {holders} of 2 nodes")))
}
