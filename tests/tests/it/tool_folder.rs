//! Tools that are dropped into a node's folder while it runs.
use std::{fs, time::Duration};

use octomesh_tests::{
    Machine, Mesh,
    wait::{wait, wait_within, when},
};
use serde_json::Value;

/// From the drop until another node knows of it.
const SOON: Duration = Duration::from_secs(2);

fn tool(list: &Value, name: &str) -> Option<Value> {
    list["tools"].as_array().unwrap().iter().find(|t| t["name"] == name).cloned()
}

fn own(machine: &Machine, name: &str) -> Option<Value> {
    tool(&machine.json(&["tools"]), name)
}

#[test]
fn a_dropped_tool_is_known_everywhere_within_two_seconds_and_gone_with_its_folder() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let (pi, attic) = (&mesh["pi"], &mesh["attic"]);
    assert!(tool(&pi.json(&["tools", "--all"]), "greet").is_none());

    attic.tool("greet", "effect = \"pure\"", "echo '{\"greeting\": \"hello\"}'");
    let seen = wait_within(SOON, "pi knows greet", || {
        let all = pi.json(&["tools", "--all"]);
        tool(&all, "greet").ok_or_else(|| all.to_string())
    });
    assert_eq!(seen["nodes"], serde_json::json!(["attic"]));
    assert_eq!(seen["source"], "process");
    let call = pi.json(&["call", "greet"]);
    assert_eq!((call["node"].as_str(), &call["output"]["greeting"]), (Some("attic"), &"hello".into()));
    let level = call["sandbox"].as_str().unwrap();
    assert!(level.ends_with("landlock+seccomp"), "{level}");

    fs::remove_dir_all(attic.home.join("tools/greet")).unwrap();
    wait_within(SOON, "pi forgets greet", || {
        let all = pi.json(&["tools", "--all"]);
        when(tool(&all, "greet").is_none(), all)
    });
    let gone = pi.run(&["--json", "call", "greet"]);
    assert_ne!(gone.code, 0);
    assert!(gone.error().contains("greet"), "{}", gone.out);
}

#[test]
fn what_is_wrong_with_a_dropped_tool_is_shown_with_its_reason() {
    let mesh = Mesh::up(&["pi"], |_| {});
    let pi = &mesh["pi"];
    pi.tool("typo", "effcet = \"pure\"", "true");
    pi.tool("echo", "", "echo mine");
    wait("typo is shown as broken", || {
        let list = pi.json(&["tools"]);
        let entry = tool(&list, "typo").ok_or_else(|| list.to_string())?;
        let reason = entry["reason"].as_str().unwrap_or_default().to_owned();
        let told = ["effcet", "tool.toml"].iter().all(|w| reason.contains(w));
        when(entry["state"] == "quarantined" && told, &entry)
    });
    // A built-in's name stays the built-in's, and the drop is not forgotten silently.
    wait("the second echo is refused", || {
        let status = pi.json(&["status"]);
        let warnings = status["warnings"].as_array().unwrap().clone();
        when(warnings.iter().any(|w| w.as_str().unwrap().contains("name_taken")), warnings)
    });
    let call = pi.json(&["call", "echo", "text=mine?"]);
    assert_eq!(call["output"]["text"], "mine?");
    assert_eq!(own(pi, "calc").unwrap()["source"], "builtin");

    // Mended in place.
    let path = pi.home.join("tools/typo/tool.toml");
    let text = fs::read_to_string(&path).unwrap().replace("effcet", "effect");
    fs::write(&path, text).unwrap();
    wait("the mended tool is offered", || {
        let list = pi.json(&["tools"]);
        let entry = tool(&list, "typo").ok_or_else(|| list.to_string())?;
        when(entry["state"] != "quarantined", &entry)
    });
}
