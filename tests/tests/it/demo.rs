//! `octomesh demo`: one command, three nodes, a right answer, and nothing left behind.
use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use octomesh_tests::{
    Done, Running, SUITE, picture,
    process::processes_with,
    program,
    wait::{PATIENCE, wait, wait_within, when},
};
use rustix::process::Signal;
use serde_json::Value;

/// The limit for the whole demo.
const DEMO: Duration = Duration::from_secs(60);

/// The demo with a temporary folder of its own, so that all it makes is below a known path.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("octomesh-stage-").tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn start(&self, args: &[&str]) -> Running {
        let mut command = program::command(&[]);
        command
            .env("TMPDIR", self.path())
            .env("HOME", self.path())
            .arg("demo")
            .args(args)
            .stdin(Stdio::null());
        // Each in its own group already; SIGINT goes to the demo alone, as from a terminal it goes to its group.
        command.process_group(0);
        Running::start(command, self.path(), "demo")
    }

    fn play(&self, args: &[&str]) -> Done {
        let done = self.start(args).wait(DEMO);
        self.nothing_runs(Duration::from_secs(2));
        done
    }

    /// Homes are named in every command line of the demo, and tools run in workspaces.
    fn nothing_runs(&self, patience: Duration) {
        let path = self.path().to_str().unwrap().to_owned();
        wait_within(patience, "nothing of the demo runs", || {
            let left = processes_with(&path);
            when(left.is_empty(), left)
        });
    }

    fn folders(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.path()).unwrap().map(|e| e.unwrap().path());
        all.filter(|path| path.is_dir()).collect()
    }

    /// All three nodes run.
    fn wait_for_nodes(&self, demo: &mut Running) -> Vec<String> {
        let path = self.path().to_str().unwrap().to_owned();
        wait("three nodes of the demo run", || {
            assert!(demo.ended().is_none(), "the demo was over before it could be stopped: {}", demo.err());
            let nodes: Vec<String> =
                processes_with(&path).into_iter().filter(|line| line.contains(" up ")).collect();
            if nodes.len() == 3 { Ok(nodes) } else { Err(format!("{nodes:?}")) }
        })
    }
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key} in {value}"))
}

fn by<'a>(list: &'a [Value], key: &str, wanted: &str) -> &'a Value {
    list.iter().find(|v| v[key] == wanted).unwrap_or_else(|| panic!("no {wanted} in {list:?}"))
}

#[test]
fn the_built_in_question_is_answered_right_by_all_three_nodes() {
    let stage = Stage::new();
    let done = stage.play(&["--json", "--keep"]).with_code(0);
    let demo = done.json();
    let folder = PathBuf::from(demo["folder"].as_str().unwrap());
    assert!(folder.starts_with(stage.path()), "{}", folder.display());

    let steps = rows(&demo, "steps");
    assert!(steps.len() >= 4, "{steps:?}");
    assert!(steps.iter().all(|s| s["status"] == "ok"), "{steps:?}");
    for node in ["pi", "attic", "tower"] {
        by(steps, "node", node);
    }
    let render = by(steps, "tool", "image_render");
    assert_eq!(render["node"], "tower");
    let why = &render["why"];
    assert_eq!(why["chosen"], "tower");
    assert!(why["decision_id"].as_str().is_some_and(|id| !id.is_empty()));
    assert!(why["sentence"].as_str().unwrap().contains("attic has no GPU"), "{}", why["sentence"]);
    let filtered = rows(why, "filtered");
    assert_eq!(by(filtered, "node", "attic")["reason"], "no_gpu");
    assert_eq!(by(filtered, "node", "pi")["reason"], "no_tool");
    for step in steps {
        assert_eq!(step["why"]["chosen"], step["node"], "{step}");
    }

    let nodes = rows(&demo, "nodes");
    assert_eq!(nodes.len(), 3);
    let gpus = rows(by(nodes, "name", "tower"), "gpus");
    assert_eq!(gpus.len(), 1);
    assert_eq!(gpus[0]["declared"], true);
    assert_eq!(gpus[0]["vram_total"], 24u64 << 30);
    for node in ["pi", "attic"] {
        assert!(rows(by(nodes, "name", node), "gpus").is_empty());
    }

    let sessions = rows(&demo, "sessions");
    assert!(sessions.len() >= 3, "three nodes need three sessions: {sessions:?}");
    assert!(sessions.iter().all(|s| s["suite"] == SUITE), "{sessions:?}");

    // The tool said which size it rendered; the default of its card.
    let picture = PathBuf::from(demo["picture"].as_str().unwrap());
    assert_eq!(picture::png_size(&picture), (320, 200));
    assert_eq!(render["output"]["bytes"], fs::metadata(&picture).unwrap().len());

    answer_is_right(&demo, &folder);
    assert!(demo["elapsed_ms"].as_u64().unwrap() < 60_000);
    fs::remove_dir_all(&folder).unwrap();
}

/// Computed here from the file that the nodes read, in another way.
fn answer_is_right(demo: &Value, folder: &Path) {
    let log = fs::read_to_string(folder.join("attic/workspace/notes/harbour-log.txt")).unwrap();
    let lines = log.lines().count();
    let storms = log.lines().filter(|line| line.to_lowercase().contains("storm")).count();
    assert!(storms > 0 && lines > storms);
    let percent = storms as f64 * 100.0 / lines as f64;
    let answer = demo["answer"].as_str().unwrap();
    let first = answer.lines().next().unwrap();
    let value = first.split(" = ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {first}"));
    assert!((value - percent).abs() < 1e-6, "{first}: expected {percent}");

    let citations = rows(demo, "citations");
    let mut cited = 0;
    for piece in answer.split('[').skip(1) {
        let Some((id, _)) = piece.split_once(']') else { continue };
        let known = ["rag-", "code-", "web-", "tool-"].iter().any(|kind| id.starts_with(kind));
        if known && !id.contains(' ') {
            cited += 1;
            by(citations, "id", &format!("[{id}]"));
        }
    }
    assert!(cited >= 4, "{answer}");
    for citation in citations {
        assert!(answer.contains(citation["id"].as_str().unwrap()), "{citation} is cited nowhere");
        assert!(!citation["source"].as_str().unwrap().is_empty());
        assert!(!citation["content"].as_str().unwrap().is_empty());
    }
}

#[test]
fn people_see_plan_placement_reasons_answer_and_suites() {
    let stage = Stage::new();
    let done = stage.play(&[]).with_code(0);
    for line in ["plan by rules:", "image_render -> tower", "why: tower:", "attic has no GPU (no_gpu)"] {
        assert!(done.err.contains(line), "no {line:?} in the progress: {}", done.err);
    }
    for line in ["Answer: ", "Sources:", "[code-1]", SUITE, "declared", "Picture: "] {
        assert!(done.out.contains(line), "no {line:?} in the result: {}", done.out);
    }
    // All that stays is the picture.
    let kept = stage.folders();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let files: Vec<_> = fs::read_dir(&kept[0]).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, ["harbour.png"]);
}

#[test]
fn another_question_is_answered_and_leaves_nothing() {
    let stage = Stage::new();
    let done = stage.play(&["--json", "--question", "calculate 6*7"]).with_code(0);
    let demo = done.json();
    let steps = rows(&demo, "steps");
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0]["output"]["result"], 42);
    assert!(demo["answer"].as_str().unwrap().contains("42"), "{}", demo["answer"]);
    assert!(stage.folders().is_empty(), "{:?}", stage.folders());
}

#[test]
fn a_demo_that_is_killed_leaves_no_node() {
    let stage = Stage::new();
    let mut demo = stage.start(&[]);
    stage.wait_for_nodes(&mut demo);
    demo.signal(Signal::KILL);
    assert_eq!(demo.wait(PATIENCE).code, -9);
    stage.nothing_runs(Duration::from_secs(20));
}

#[test]
fn ctrl_c_ends_the_demo_and_its_nodes() {
    let stage = Stage::new();
    let mut demo = stage.start(&["--json"]);
    stage.wait_for_nodes(&mut demo);
    demo.signal(Signal::INT);
    let done = demo.wait(PATIENCE).with_code(130);
    assert_eq!(done.json()["error"]["code"], "interrupted");
    stage.nothing_runs(Duration::from_secs(1));
    assert!(stage.folders().is_empty(), "{:?}", stage.folders());
}
