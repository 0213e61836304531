use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::{card::ToolCard, step::StepStatus};
use octomesh_tools::{
    availability,
    builtin::echo::Echo,
    call,
    registry::{EntryState, Registry, RegistryError, Tier},
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput},
};
use serde_json::{Value, json};

use crate::support::{Node, error, name};

/// A tool that does what its name says.
struct Odd(Arc<ToolCard>);

fn odd(tool: &str, change: impl FnOnce(&mut ToolCard)) -> Arc<Odd> {
    let mut card = (**Echo::new().unwrap().card()).clone();
    card.name = name(tool);
    card.input_schema = json!({"type": "object"});
    change(&mut card);
    Arc::new(Odd(Arc::new(card)))
}

#[async_trait]
impl Tool for Odd {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, _context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        match self.0.name.as_str() {
            "panics" => panic!("on purpose"),
            "sleeps" => std::future::pending().await,
            "shouts" => Ok(json!("x".repeat(17 << 20)).into()),
            "rambles" => Err(ToolError::Failed("é".repeat(100_000))),
            _ => Ok(Value::Object(arguments).into()),
        }
    }
}

#[tokio::test]
async fn arguments_are_checked_and_named() {
    let node = Node::new();
    assert_eq!(node.ok("echo", json!({"text": "hi"})).await, json!({"text": "hi"}));
    for (arguments, message) in [
        (json!({}), "argument `text` is missing"),
        (json!({"text": 5}), "argument `text`: expected string, got number 5"),
        (json!({"text": "a", "loud": true}), "unknown argument `loud`; known are text"),
        (json!([1]), "arguments must be a JSON object, not an array"),
    ] {
        let (code, got) = node.err("echo", arguments).await;
        assert_eq!((code.as_str(), got.as_str()), ("invalid_arguments", message));
    }
    let report = call::call(&node.registry, &name("echo"), &node.context(), b"{\"text\": ").await;
    assert!(error(&report).1.starts_with("arguments are not JSON"), "{report:?}");
}

#[tokio::test]
async fn monstrous_arguments_are_refused_in_few_words() {
    let node = Node::new();
    let large = json!({"text": "x".repeat(10 << 20)}).to_string();
    let report = call::call(&node.registry, &name("echo"), &node.context(), large.as_bytes()).await;
    assert_eq!(error(&report).0, "too_large");
    assert!(report.output.len() < 1000);
    for deep in [
        format!("{{\"text\": {}", "[".repeat(10_000)),
        format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000)),
    ] {
        let report = call::call(&node.registry, &name("echo"), &node.context(), deep.as_bytes()).await;
        let (code, message) = error(&report);
        assert_eq!(code, "invalid_arguments");
        assert!(message.contains("127 levels"), "{message}");
    }
}

#[tokio::test]
async fn an_unknown_tool_is_refused() {
    let node = Node::new();
    let report = node.call("ehco", json!({})).await;
    assert_eq!(report.status, StepStatus::Refused);
    assert_eq!(error(&report), ("no_tool".into(), "no tool `ehco` on this node".into()));
}

#[tokio::test]
async fn a_panic_is_an_error_of_that_call() {
    let node = Node::new();
    node.registry.register(odd("panics", |_| {})).unwrap();
    let (code, message) = node.err("panics", json!({})).await;
    assert_eq!((code.as_str(), message.as_str()), ("failed", "the tool panicked: on purpose"));
    assert_eq!(node.ok("echo", json!({"text": "still here"})).await["text"], "still here");
}

#[tokio::test(start_paused = true)]
async fn deadline_and_cancel_end_a_call() {
    let node = Node::new();
    node.registry.register(odd("sleeps", |_| {})).unwrap();
    let mut context = node.context();
    context.deadline = tokio::time::Instant::now() + Duration::from_secs(3);
    let started = tokio::time::Instant::now();
    let report = node.call_with("sleeps", json!({}), &context).await;
    assert_eq!((report.status, error(&report).0.as_str()), (StepStatus::Timeout, "timeout"));
    assert_eq!(started.elapsed().as_secs(), 3);
    let context = node.context();
    let cancel = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        context.cancel.cancel();
    };
    let (report, ()) = tokio::join!(node.call_with("sleeps", json!({}), &context), cancel);
    assert_eq!((report.status, error(&report).0.as_str()), (StepStatus::Cancelled, "cancelled"));
    assert_eq!(started.elapsed().as_secs(), 4);
}

#[tokio::test]
async fn outputs_and_messages_have_limits() {
    let node = Node::new();
    node.registry.register(odd("shouts", |_| {})).unwrap();
    node.registry.register(odd("rambles", |_| {})).unwrap();
    let (code, message) = node.err("shouts", json!({})).await;
    assert!(code == "too_large" && message.contains("ask for less"), "{message}");
    let report = node.call("rambles", json!({})).await;
    assert!(report.output.len() < 5000 && error(&report).1.ends_with('…'));
}

#[tokio::test]
async fn a_bad_card_is_quarantined_and_its_neighbours_work() {
    let node = Node::new();
    let before = node.registry.snapshot().tool_set();
    node.registry
        .register(odd("crooked", |c| c.input_schema = json!({"type": "object", "properties": 5})))
        .unwrap();
    node.registry.register(odd("lying", |c| c.data = vec!["path".into()])).unwrap();
    let snapshot = node.registry.snapshot();
    for bad in ["crooked", "lying"] {
        let entry = snapshot.get(&name(bad)).unwrap();
        assert!(matches!(entry.state, EntryState::Quarantined { .. }), "{entry:?}");
        assert_eq!(node.err(bad, json!({})).await.0, "quarantined");
        assert!(!node.registry.set_available(&name(bad)));
    }
    assert_eq!(snapshot.tool_set(), before, "nobody hears of a quarantined tool");
    assert_eq!(node.ok("echo", json!({"text": "a"})).await["text"], "a");
    assert!(matches!(
        node.registry.register(odd("huge", |c| c.description = "x".repeat(100_000))),
        Err(RegistryError::Card { .. })
    ));
    assert!(matches!(node.registry.register(odd("echo", |_| {})), Err(RegistryError::NameTaken(_))));
}

#[tokio::test]
async fn snapshots_show_what_peers_get() {
    let node = Node::new();
    let mut changes = node.registry.subscribe();
    let snapshot = changes.borrow_and_update().clone();
    assert_eq!(snapshot.manifest().entries().len(), 11);
    assert_eq!(snapshot.manifest().hash().unwrap(), snapshot.tool_set());
    for entry in snapshot.manifest().entries() {
        let bytes = snapshot.card_bytes(&entry.card).unwrap();
        let card = ToolCard::from_bytes(&bytes, entry.card).unwrap();
        assert_eq!(card.name, entry.name);
        assert!(!card.examples.is_empty() && !card.keywords.is_empty() && card.output_schema.is_some());
    }
    assert_eq!(snapshot.get(&name("echo")).unwrap().tier, Tier::Core);
    assert_eq!(snapshot.get(&name("calc")).unwrap().tier, Tier::Deferred);
    assert!(!snapshot.get(&name("calc")).unwrap().loaded);

    node.ok("calc", json!({"expression": "1"})).await;
    assert!(changes.has_changed().unwrap());
    let after = changes.borrow_and_update().clone();
    assert!(after.get(&name("calc")).unwrap().loaded);
    assert_eq!(after.tool_set(), snapshot.tool_set());

    assert!(node.registry.set_unavailable(&name("calc"), "out of chalk"));
    let gone = changes.borrow_and_update().clone();
    assert_ne!(gone.tool_set(), snapshot.tool_set());
    assert_eq!(gone.get(&name("calc")).unwrap().state.reason(), Some("out of chalk"));
    assert!(gone.card_bytes(&snapshot.get(&name("calc")).unwrap().hash).is_none());
    assert_eq!(node.err("calc", json!({"expression": "1"})).await.0, "unavailable");
    assert!(node.registry.set_available(&name("calc")));
    assert_eq!(node.registry.snapshot().tool_set(), snapshot.tool_set());
}

#[tokio::test]
async fn demo_calls_decide_about_availability() {
    let node = Node::new();
    assert_eq!(availability::check_all(&node.registry, || node.context()).await, vec![]);
    let demo = |c: &mut ToolCard| {
        c.demo_calls = c.examples.clone();
    };
    node.registry.register(odd("panics", demo)).unwrap();
    let failed = availability::check_all(&node.registry, || node.context()).await;
    assert_eq!(failed.len(), 1);
    assert!(failed[0].1.contains("on purpose"), "{failed:?}");
    let state = node.registry.snapshot().get(&name("panics")).unwrap().state.clone();
    assert!(matches!(state, EntryState::Unavailable { .. }));
    // One that works again is offered again.
    node.registry.set_unavailable(&name("calc"), "was broken");
    availability::check(&node.registry, &name("calc"), || node.context()).await.unwrap();
    assert!(node.registry.snapshot().get(&name("calc")).unwrap().state.is_available());
}

#[tokio::test]
async fn probes_say_where_the_data_is() {
    let node = Node::new();
    node.put("a/notes.txt", "12345");
    let ask = |tool: &'static str, arguments: Value| {
        let node = &node;
        async move {
            call::probe(&node.registry, &name(tool), &node.workspace, arguments.to_string().as_bytes()).await
        }
    };
    for tool in ["file_read", "file_search", "text_stats", "hash"] {
        assert_eq!(ask(tool, json!({"path": "a/notes.txt"})).await, DataProbe::Have(5), "{tool}");
        assert!(matches!(ask(tool, json!({"path": "b"})).await, DataProbe::Missing(_)), "{tool}");
        assert!(matches!(ask(tool, json!({"path": "../x"})).await, DataProbe::Missing(_)), "{tool}");
    }
    assert_eq!(ask("file_list", json!({"path": "a"})).await, DataProbe::Have(0));
    assert_eq!(ask("file_search", json!({"path": "a"})).await, DataProbe::Have(0));
    assert!(matches!(ask("file_read", json!({"path": "a"})).await, DataProbe::Missing(_)));
    assert!(matches!(ask("file_list", json!({"path": "a/notes.txt"})).await, DataProbe::Missing(_)));
    assert_eq!(ask("hash", json!({"text": "x"})).await, DataProbe::Have(0));
    assert_eq!(ask("echo", json!({"text": "x"})).await, DataProbe::Have(0));
    assert!(matches!(ask("nope", json!({})).await, DataProbe::Missing(_)));
}

#[tokio::test]
async fn the_registry_goes_away_with_its_last_handle() {
    let registry = Registry::new();
    let catalogue = registry.catalogue();
    octomesh_tools::builtin::register_all(&registry, catalogue.clone()).unwrap();
    assert_eq!(catalogue.cards().len(), 11);
    drop(registry);
    assert!(catalogue.cards().is_empty());
}
