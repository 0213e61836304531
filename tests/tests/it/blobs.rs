//! What is too large for a frame: files that are copied, results and arguments of calls.
use std::{fs, path::Path, time::Duration};

use octomesh_tests::{
    Mesh,
    wait::{PATIENCE, wait_within},
};
use serde_json::{Value, json};

/// Bytes that no two pieces of which are alike.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// A copy in a development build on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(300);

fn copied(mesh: &Mesh, from: &str, to: &str) -> Value {
    mesh["attic"].start(&["--json", "cp", from, to]).wait(LONG).with_code(0).json()
}

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes of parts in the blob store of a home.
fn parts(home: &Path) -> u64 {
    let folder = fs::read_dir(home.join("blobs/partial"));
    folder.map_or(0, |f| f.flatten().filter_map(|e| Some(e.metadata().ok()?.len())).sum())
}

#[test]
fn a_file_goes_to_another_node_and_comes_back() {
    let mesh = Mesh::up(&["attic", "tower"], |_| {});
    let (here, back) = (mesh.folder().join("here.bin"), mesh.folder().join("back.bin"));
    let content = noise(64 << 20);
    fs::write(&here, &content).unwrap();
    let sent = copied(&mesh, at(&here), "tower:deep/er/there.bin");
    assert_eq!((&sent["bytes"], &sent["to"]), (&json!(64 << 20), &json!("tower:deep/er/there.bin")));
    assert!(fs::read(mesh["tower"].workspace().join("deep/er/there.bin")).unwrap() == content);
    let got = copied(&mesh, "tower:deep/er/there.bin", at(&back));
    assert_eq!(got["sha256"], sent["sha256"]);
    assert!(fs::read(&back).unwrap() == content);
    assert_eq!(parts(&mesh["tower"].home), 0, "nothing stays behind");
    // The own node, a folder as destination, an empty file.
    fs::write(mesh.folder().join("empty"), "").unwrap();
    mesh["attic"].json(&["cp", at(&mesh.folder().join("empty")), "attic:"]);
    let folder = mesh.folder().join("folder");
    fs::create_dir(&folder).unwrap();
    mesh["tower"].json(&["cp", "attic:empty", at(&folder)]);
    assert_eq!(fs::read(folder.join("empty")).unwrap(), b"");
    // What the file tools refuse is refused here.
    for (from, to, code) in [
        ("tower:none", at(&back), "not_found"),
        ("tower:../journal.db", at(&back), "policy"),
        ("tower:deep", at(&back), "invalid"),
        (at(&here), "tower:../x", "policy"),
        ("nobody:x", at(&back), "unknown_node"),
    ] {
        let refused =
            mesh["attic"].run(&["--json", "cp", from, to]).with_code(if code == "invalid" { 2 } else { 1 });
        assert_eq!(refused.json()["error"]["code"], code, "{from} {to}");
    }
    assert!(fs::read(&back).unwrap() == content, "a copy that failed left the old file");
}

#[test]
fn a_copy_goes_on_after_kill_9_of_either_end() {
    let mut mesh = Mesh::up(&["attic", "tower"], |_| {});
    let content = noise(48 << 20);
    let back = mesh.folder().join("back.bin");
    fs::create_dir_all(mesh["tower"].workspace()).unwrap();
    fs::write(mesh["tower"].workspace().join("large.bin"), &content).unwrap();
    // The sending node dies in the middle.
    let mut getting = mesh["attic"].start(&["--json", "cp", "tower:large.bin", at(&back)]);
    let pid = getting.pid();
    let part = mesh.folder().join(format!(".back.bin.{pid}.part"));
    wait_within(PATIENCE, "the first bytes came", || {
        let have = fs::metadata(&part).map_or(0, |m| m.len());
        if have > 1 << 20 { Ok(()) } else { Err(format!("{have} bytes")) }
    });
    mesh["tower"].kill();
    assert!(!back.exists(), "nothing incomplete is in its place");
    mesh["tower"].up();
    let done = getting.wait(LONG).with_code(0).json();
    assert_eq!(done["bytes"], 48 << 20);
    assert!(fs::read(&back).unwrap() == content);
    // The receiving node dies in the middle.
    let mut putting = mesh["attic"].start(&["--json", "cp", at(&back), "tower:again.bin"]);
    wait_within(PATIENCE, "the first bytes went", || {
        let have = parts(&mesh["tower"].home);
        if have > 4 << 20 { Ok(()) } else { Err(format!("{have} bytes")) }
    });
    mesh["tower"].kill();
    let there = parts(&mesh["tower"].home);
    assert!(!mesh["tower"].workspace().join("again.bin").exists());
    mesh["tower"].up();
    let done = putting.wait(LONG).with_code(0).json();
    assert!(done["interruptions"].as_u64().unwrap() > 0, "{done}");
    assert!(there > 0 && fs::read(mesh["tower"].workspace().join("again.bin")).unwrap() == content);
}

#[test]
fn large_results_and_arguments_come_whole() {
    let mesh = Mesh::up(&["attic", "tower"], |_| {});
    let text = "0123456789abcdef".repeat(60_000);
    mesh["tower"].write("big.txt", &text);
    for node in ["attic", "tower"] {
        let read = mesh[node].json(&["call", "file_read", "path=big.txt"]);
        assert_eq!((&read["status"], &read["node"]), (&json!("ok"), &json!("tower")), "{node}");
        assert_eq!(read["output"]["content"].as_str().unwrap().len(), text.len());
        assert!(read.get("blob").is_none());
    }
    // Arguments that fit no frame, and the same again, which are there already.
    let call = json!({"path": "written.txt", "content": text}).to_string();
    for _ in 0..2 {
        let wrote = mesh["attic"]
            .run_with(&["--json", "call", "file_write", "-", "--node", "tower"], Some(call.as_bytes()));
        let wrote = wrote.with_code(0).json();
        assert_eq!(wrote["output"]["total_bytes"], text.len(), "{wrote}");
    }
    assert_eq!(fs::read_to_string(mesh["tower"].workspace().join("written.txt")).unwrap(), text);
    // Over the bound of an answer: its beginning, and the command that gets the rest.
    mesh["tower"].write("huge.txt", &"line of text\n".repeat(400_000));
    let read = mesh["attic"].json(&["call", "file_read", "path=huge.txt", "limit=1000000"]);
    let hash = read["blob"]["sha256"].as_str().unwrap_or_else(|| panic!("{}", read["status"]));
    assert_eq!(read["output"]["lines"], 400_000);
    let file = mesh.folder().join("whole.json");
    let got = mesh["attic"].json(&["cp", &format!("blob:{hash}"), at(&file)]);
    assert_eq!((&got["bytes"], got["sha256"].as_str()), (&read["blob"]["bytes"], Some(hash)));
    let whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(whole["content"].as_str().unwrap().len(), 13 * 400_000);
}

#[test]
fn artifacts_of_a_run() {
    let mesh = Mesh::up(&["attic", "tower"], |_| {});
    mesh["tower"].write("big.txt", &"0123456789abcde\n".repeat(40_000));
    let plan = mesh.folder().join("plan.json");
    let steps = json!([
        {"tool": "file_read", "args": {"path": "big.txt"}, "save_as": "big"},
        {"tool": "file_write", "args": {"path": "out/count.txt", "content": "${big.lines} lines"}},
    ]);
    fs::write(&plan, json!({"blocks": [{"id": "b", "goal": "count", "steps": steps}]}).to_string()).unwrap();
    let run = mesh["attic"].json(&["solve", "count the lines", "--plan", at(&plan)]);
    let id = run["run_id"].as_str().unwrap();
    let made = mesh["attic"].json(&["runs", "artifacts", id]);
    let kinds: Vec<&Value> = made["artifacts"].as_array().unwrap().iter().map(|a| &a["kind"]).collect();
    assert_eq!(kinds, ["result", "file"], "{made}");
    let out = mesh.folder().join("out");
    mesh["attic"].json(&["runs", "artifacts", id, "--out", at(&out)]);
    let whole: Value = serde_json::from_slice(&fs::read(out.join("s001-file_read.json")).unwrap()).unwrap();
    assert_eq!(whole["total_bytes"], 640_000);
    assert_eq!(fs::read_to_string(out.join("s002-count.txt")).unwrap(), "40000 lines");
    let none = mesh["attic"].json(&["solve", "calc expression=2+3"]);
    let id = none["run_id"].as_str().unwrap();
    let text = mesh["attic"].run(&["runs", "artifacts", id]).with_code(0).out;
    assert!(text.contains("has made no files"), "{text}");
}

#[test]
fn who_may_not_call_the_file_tools_copies_nothing() {
    let mut mesh = Mesh::furnished(&["attic", "guest"], |_| {});
    mesh["attic"].init();
    mesh["attic"].up();
    let granted = mesh["attic"].json(&["invite", "--role", "client", "--tools", "echo"]);
    mesh["guest"].join(granted["ticket"].as_str().unwrap());
    mesh["guest"].up();
    mesh["attic"].write("secret.txt", "nobody's business");
    wait_within(PATIENCE, "the guest sees the attic", || {
        let called = mesh["guest"].run(&["--json", "call", "echo", "text=hi", "--node", "attic"]);
        if called.code == 0 { Ok(()) } else { Err(called.out) }
    });
    let file = mesh.folder().join("stolen.txt");
    let refused = mesh["guest"].run(&["--json", "cp", "attic:secret.txt", at(&file)]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "policy");
    assert!(refused.error().contains("is not granted file_read") && !file.exists());
    fs::write(&file, "mine").unwrap();
    let refused = mesh["guest"].run(&["--json", "cp", at(&file), "attic:secret.txt"]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "policy");
    // And a client is nobody's host.
    let refused = mesh["attic"].run(&["--json", "cp", at(&file), "guest:x.txt"]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "policy");
}
