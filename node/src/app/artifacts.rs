//! What the steps of a run have made, read off its document.
use serde_json::Value;

use crate::api::types::{Artifact, ArtifactsReply};

/// Files that one step may name.
const FILES_OF_A_STEP: usize = 100;

/// Results that are blobs, and files that the tools say they wrote.
pub(super) fn of(run_id: &str, document: &Value) -> ArtifactsReply {
    let list =
        |value: &Value, field: &str| value.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let steps = list(document, "blocks").into_iter().flat_map(|block| list(&block, "steps"));
    ArtifactsReply { run_id: run_id.to_owned(), artifacts: steps.flat_map(|step| of_step(&step)).collect() }
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).map(str::to_owned)
}

fn of_step(step: &Value) -> Vec<Artifact> {
    let (Some(step_id), Some(tool), Some(output)) =
        (text(step, "step_id"), text(step, "tool"), step.get("output"))
    else {
        return Vec::new();
    };
    let node = text(step, "node");
    let mut made = Vec::new();
    if let Some(blob) = output.get("blob").filter(|blob| blob.get("sha256").is_some()) {
        made.push(Artifact {
            name: format!("{step_id}-{tool}.json"),
            kind: "result".into(),
            path: None,
            bytes: blob.get("bytes").and_then(Value::as_u64),
            sha256: text(blob, "sha256"),
            step_id: step_id.clone(),
            tool: tool.clone(),
            node: node.clone(),
        });
    }
    let file = |path: String, bytes: Option<u64>, sha256: Option<String>| Artifact {
        step_id: step_id.clone(),
        tool: tool.clone(),
        name: format!("{step_id}-{}", path.rsplit('/').next().unwrap_or_default()),
        kind: "file".into(),
        node: node.clone(),
        path: Some(path),
        bytes,
        sha256,
    };
    match tool.as_str() {
        "file_write" => made.extend(text(output, "path").map(|path| {
            file(path, output.get("total_bytes").and_then(Value::as_u64), text(output, "sha256"))
        })),
        "run_python_code" => {
            let files = output.get("files").and_then(Value::as_array).into_iter().flatten();
            let paths = files.filter_map(Value::as_str).take(FILES_OF_A_STEP);
            made.extend(paths.map(|path| file(path.to_owned(), None, None)));
        }
        _ => {}
    }
    made
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_and_files_are_found() {
        let step = |id: &str, tool: &str, output: Value| json!({"step_id": id, "tool": tool, "node": "pi", "output": output});
        let document = json!({"blocks": [
            {"steps": [
                step("s001", "echo", json!({"text": "hi"})),
                step("s002", "file_read", json!({"content": "x", "blob": {"sha256": "ab", "bytes": 300_000}})),
            ]},
            {"steps": [
                step("s003", "file_write", json!({"path": "a/b.txt", "total_bytes": 7, "sha256": "cd"})),
                step("s004", "run_python_code", json!({"files": ["plot.png", "x/t.csv"], "stdout": ""})),
            ]},
        ]});
        let found = of("run-1", &document).artifacts;
        let short: Vec<_> =
            found.iter().map(|a| (a.name.as_str(), a.kind.as_str(), a.bytes, a.path.as_deref())).collect();
        assert_eq!(
            short,
            [
                ("s002-file_read.json", "result", Some(300_000), None),
                ("s003-b.txt", "file", Some(7), Some("a/b.txt")),
                ("s004-plot.png", "file", None, Some("plot.png")),
                ("s004-t.csv", "file", None, Some("x/t.csv")),
            ]
        );
        assert!(of("run-1", &json!({"error": {}})).artifacts.is_empty());
    }
}
