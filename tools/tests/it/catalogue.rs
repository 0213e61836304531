use std::sync::Arc;

use octomesh_protocol::{card::ToolCard, id::NodeName};
use octomesh_tools::{
    builtin::{self, Catalogue, Listed, echo::Echo},
    registry::Registry,
    tool::Tool,
};
use serde_json::{Value, json};

use crate::support::{Node, name};

fn names(found: &Value) -> Vec<&str> {
    found["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn by_exact_name_and_by_words() {
    let node = Node::new();
    let one = node.ok("tool_info", json!({"query": "file_search"})).await;
    assert_eq!(names(&one), ["file_search"]);
    let tool = &one["tools"][0];
    assert_eq!(tool["parameters"]["properties"]["query"]["type"], "string");
    assert!(tool["examples"][0]["arguments"].is_object() && tool["description"].is_string());
    let words = node.ok("tool_info", json!({"query": "count the words of a text", "max_results": 1})).await;
    assert_eq!(names(&words), ["text_stats"]);
}

#[tokio::test]
async fn nothing_found_is_said_and_limits_hold() {
    let node = Node::new();
    let none = node.ok("tool_info", json!({"query": "zzzqqq"})).await;
    assert_eq!(none["tools"], json!([]));
    assert!(none["hint"].as_str().unwrap().contains("other words"));
    let all = node.ok("tool_info", json!({"query": "file text", "max_results": 1_000_000})).await;
    assert!(names(&all).len() <= 11);
    assert!(names(&node.ok("tool_info", json!({"query": "file"})).await).len() <= 5);
    for bad in [json!(0), json!(-1), json!("5"), json!(1.5)] {
        let (code, message) = node.err("tool_info", json!({"query": "file", "max_results": bad})).await;
        assert!(code == "invalid_arguments" && message.contains("`max_results`"), "{message}");
    }
}

/// A mesh with many large cards.
struct Mesh(Vec<Listed>);

impl Catalogue for Mesh {
    fn cards(&self) -> Vec<Listed> {
        self.0.clone()
    }
}

fn listed(card: ToolCard, node: &str) -> Listed {
    let hash = card.hash().unwrap();
    Listed { card: Arc::new(card), hash, nodes: vec![NodeName::parse(node).unwrap()] }
}

#[tokio::test]
async fn variants_are_found_by_the_tools_name_and_each_by_its_own() {
    let echo = |version: &str, node| {
        let mut card = (**Echo::new().unwrap().card()).clone();
        card.version = version.to_owned();
        listed(card, node)
    };
    let mut node = Node::new();
    node.registry = Registry::new();
    let mesh = Mesh(vec![echo("1", "attic"), echo("2", "pi")]);
    builtin::register_all(&node.registry, Arc::new(mesh)).unwrap();
    let both = node.ok("tool_info", json!({"query": "echo"})).await;
    let names = names(&both);
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    for (name, holder) in [(names[0], "attic"), (names[1], "pi")] {
        assert!(name.starts_with("echo-"), "{name}");
        let one = node.ok("tool_info", json!({ "query": name })).await;
        assert_eq!(one["tools"].as_array().unwrap().len(), 1, "{one}");
        assert_eq!((&one["tools"][0]["name"], &one["tools"][0]["nodes"]), (&json!(name), &json!([holder])));
    }
}

#[tokio::test]
async fn the_whole_mesh_is_searched_and_the_result_fits() {
    let cards = (0..40)
        .map(|i| {
            let mut card = (**Echo::new().unwrap().card()).clone();
            card.name = name(&format!("lamp_{i}"));
            card.description = format!("Switches lamp {i}. {}", "Long. ".repeat(4000));
            listed(card, "attic")
        })
        .collect();
    let mut node = Node::new();
    node.registry = Registry::new();
    builtin::register_all(&node.registry, Arc::new(Mesh(cards))).unwrap();
    let found = node.ok("tool_info", json!({"query": "switch a lamp", "max_results": 50})).await;
    let count = names(&found).len();
    assert!((5..40).contains(&count), "{count}");
    assert_eq!(found["tools"][0]["nodes"], json!(["attic"]));
    assert!(found["hint"].is_string());
}
