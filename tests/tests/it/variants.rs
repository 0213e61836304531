//! Two nodes have different tools under one name: both can be called, and everybody calls them the same.
use octomesh_tests::{Machine, Mesh, wait::wait};
use serde_json::Value;

/// `listed_as` and `model_name` of the variants of `lamp`, and who has them.
fn lamps(machine: &Machine) -> Vec<(String, String, Value)> {
    let list = machine.json(&["tools", "--all"]);
    let lamps = list["tools"].as_array().unwrap().iter().filter(|tool| tool["name"] == "lamp");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lamps: Vec<_> =
        lamps.map(|t| (text(&t["listed_as"]), text(&t["model_name"]), t["nodes"].clone())).collect();
    lamps.sort_by_key(|lamp| lamp.0.clone());
    lamps
}

#[test]
fn variants_have_names_that_all_nodes_agree_on() {
    let mut mesh = Mesh::up(&["pi", "tower"], |machine| {
        let kind = if machine.name == "pi" { "keywords = [\"red\"]" } else { "keywords = [\"blue\"]" };
        machine.tool("lamp", &format!("effect = \"pure\"\n{kind}"), &format!("echo '\"{}\"'", machine.name));
    });
    let names = wait("both know both lamps", || {
        let seen = [lamps(&mesh["pi"]), lamps(&mesh["tower"])];
        if seen[0].len() == 2 && seen[0] == seen[1] { Ok(seen[0].clone()) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!((names[0].0.as_str(), names[1].0.as_str()), ("lamp@pi", "lamp@tower"));
    assert!(names.iter().all(|(_, model, _)| model.starts_with("lamp-") && model.len() == 13), "{names:?}");
    assert_ne!(names[0].1, names[1].1);

    // Each is called by either name, wherever it is.
    for (listed, model, _) in &names {
        let holder = listed.strip_prefix("lamp@").unwrap();
        for (from, name) in [("pi", listed), ("pi", model), ("tower", listed), ("tower", model)] {
            let call = mesh[from].json(&["call", name]);
            assert_eq!((&call["node"], &call["output"]), (&holder.into(), &holder.into()), "{name}: {call}");
            assert_eq!(call["tool"], "lamp");
            assert_eq!(mesh[from].json(&["tools", "show", name])["nodes"], serde_json::json!([holder]));
        }
    }
    let place = mesh["pi"].json(&["place", &names[1].1]);
    let out = &place["filtered"][0];
    assert_eq!((&out["node"], &out["reason"]), (&"pi".into(), &"tool_version".into()), "{place}");
    for unknown in ["lamp@moon", "echo2@pi", "lamp-00000000"] {
        assert_eq!(mesh["pi"].run(&["--json", "call", unknown]).code, 1, "{unknown}");
    }

    // The others and their order change nothing: after restarts in the other order the names are the same.
    for machine in ["pi", "tower"] {
        mesh[machine].stop();
    }
    for machine in ["tower", "pi"] {
        mesh[machine].up();
    }
    for machine in ["pi", "tower"] {
        wait("the same names", || {
            let seen = lamps(&mesh[machine]);
            if seen == names { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
}
