use serde_json::{Value, json};

use super::{
    Tools,
    clauses::read,
    forms::{FormArguments, parse},
    plan_file, question,
    recipes::Recipes,
    text::words,
};
use crate::solve::{
    plan::{NeedsConfirmation, Plan, PlanError, PlanOutcome},
    roles::PlanFile,
    tests::fixtures::{WordRanker, card, catalogue},
};

fn outcome(text: &str) -> Result<PlanOutcome, PlanError> {
    question::plan(text, &Tools::new(&catalogue()), &Recipes::embedded().unwrap(), &WordRanker)
}

fn plan(text: &str) -> Plan {
    match outcome(text) {
        Ok(PlanOutcome::Plan(plan)) => plan,
        other => panic!("{text}: {other:?}"),
    }
}

fn asked(text: &str) -> NeedsConfirmation {
    match outcome(text) {
        Ok(PlanOutcome::NeedsConfirmation(question)) => *question,
        other => panic!("{text}: {other:?}"),
    }
}

fn failed(text: &str) -> String {
    outcome(text).unwrap_err().to_string()
}

/// Tool and arguments of a one-clause question.
fn call(text: &str) -> (String, Value) {
    let plan = plan(text);
    assert_eq!(plan.blocks.len(), 1, "{text}");
    let call = &plan.blocks[0].outline[0];
    (call.tool.to_string(), Value::Object(call.arguments.clone()))
}

#[test]
fn explicit_forms() {
    for text in [
        "file_read path=a.md limit=3",
        "file_read path=\"a.md\" limit=3",
        "file_read {\"path\": \"a.md\", \"limit\": 3}",
        "file_read: {\"path\": \"a.md\", \"limit\": 3}",
        "file_read{\"path\": \"a.md\", \"limit\": 3}",
        "1. file_read path='a.md' limit=3",
    ] {
        assert_eq!(call(text), ("file_read".into(), json!({"path": "a.md", "limit": 3})), "{text}");
    }
    // The schema decides the type: digits are a text where a text is asked for.
    assert_eq!(call("echo text=5").1, json!({"text": "5"}));
    assert_eq!(
        call("image_render width=5 tags=[1,2] fast=true").1,
        json!({"width": 5, "tags": [1, 2], "fast": true})
    );
    assert_eq!(call("echo text=\"a; b then c\"").1, json!({"text": "a; b then c"}));
    assert_eq!(call("file_list").1, json!({}));
}

#[test]
fn explicit_forms_that_are_wrong() {
    assert_eq!(
        failed("file_raed path=a.md"),
        "clause 1 (\"file_raed path=a.md\"): no node has a tool named \"file_raed\"; near are: file_read, file_list, file_write"
    );
    assert!(failed("echo text=a; nope: {\"a\": 1}").starts_with("clause 2"));
    assert!(failed("file_read").contains("argument missing: path"));
    assert!(failed("file_read pth=a.md").contains("there is no argument \"pth\"; there are: path"));
    assert!(failed("file_read path=a.md limit=many").contains("/limit"));
    assert!(failed("file_read {\"path\": 5}").contains("/path"));
    assert!(failed("file_read {\"path\": }").contains("not a JSON object"));
    assert!(failed("file_read path=a.md and more").contains("\"and\" has no name"));
    assert!(failed("echo text=a text=b").contains("given twice"));
    assert!(failed(&format!("echo text={}", "x".repeat(70_000))).contains("over its limit"));
    let deep = format!("echo {{\"text\": {}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(failed(&deep).contains("recursion limit"));
    assert_eq!(outcome("  ; \n"), Err(PlanError::EmptyQuestion));
    assert!(failed(&"echo text=a\n".repeat(65)).contains("64 clauses"));
}

#[test]
fn what_is_no_explicit_form() {
    for text in ["what is x=3", "read notes/a.md", "notes/a.md x=1", "hello: world", "a"] {
        assert!(!matches!(parse(text), Some(f) if f.arguments != FormArguments::None), "{text}");
    }
    let form = parse("calc expression=2 as two").unwrap();
    assert_eq!((form.tool, form.save_as), ("calc", Some("two")));
}

#[test]
fn references_make_dependencies() {
    let p = plan(
        "text_stats path=a.md as stats; hash path=b.md; calc expression=\"${stats.lines} * 2\"; echo text=$last.result; echo text=\"$2.sha256 costs $$5\"",
    );
    let depends: Vec<Vec<String>> =
        p.blocks.iter().map(|b| b.depends_on.iter().map(ToString::to_string).collect()).collect();
    let none = Vec::<String>::new();
    assert_eq!(depends, [none.clone(), none, vec!["b001".into()], vec!["b003".into()], vec!["b002".into()]]);
    assert_eq!(p.blocks[2].outline[0].arguments["expression"], "${1.lines} * 2");
    assert_eq!(p.blocks[3].outline[0].arguments["text"], "${3.result}");
    assert_eq!(p.blocks[4].outline[0].arguments["text"], "${2.sha256} costs $$5");
    assert_eq!(p.blocks[0].goal, "text_stats path=a.md as stats");
    assert!(failed("echo text=$1").contains("no earlier result $1; nothing ran before it"));
    assert!(failed("echo text=a as x; echo text=$3").contains("$1 to $1 and ${x} exist here"));
    assert!(failed("echo text=a as x; echo text=${y}").contains("no earlier result ${y}"));
    assert!(failed("echo text=a as x; echo text=b as x").contains("used twice"));
}

#[test]
fn changes_keep_their_order() {
    let p = plan("hash path=a.md; file_write path=b content=x; hash path=b.md; file_write path=c content=y");
    let depends: Vec<Vec<usize>> =
        p.blocks.iter().map(|b| b.depends_on.iter().map(|d| d.index()).collect()).collect();
    assert_eq!(depends, [vec![], vec![0], vec![1], vec![0, 1, 2]]);
}

#[test]
fn recipes() {
    for (text, tool, arguments) in [
        ("read notes/a.md", "file_read", json!({"path": "notes/a.md"})),
        ("Please show me the file attic:a.md.", "file_read", json!({"path": "attic:a.md"})),
        ("read \"my file\"", "file_read", json!({"path": "my file"})),
        ("count the words in notes/x.md", "text_stats", json!({"path": "notes/x.md"})),
        ("Count the lines and words in x.md", "text_stats", json!({"path": "x.md"})),
        ("How many lines are in x.md?", "text_stats", json!({"path": "x.md"})),
        ("how many words does x.md have?", "text_stats", json!({"path": "x.md"})),
        ("search a.md for \"big storm\"", "file_search", json!({"path": "a.md", "query": "big storm"})),
        ("search a.md for a big storm", "file_search", json!({"path": "a.md", "query": "a big storm"})),
        ("find storm in a.md", "file_search", json!({"path": "a.md", "query": "storm"})),
        ("hash a.md", "hash", json!({"path": "a.md"})),
        ("list files", "file_list", json!({})),
        ("list the files in notes", "file_list", json!({"path": "notes"})),
        ("calculate 12 * 3", "calc", json!({"expression": "12 * 3"})),
        ("what is sqrt(2) + 1?", "calc", json!({"expression": "sqrt(2) + 1"})),
        ("calc 2+2", "calc", json!({"expression": "2+2"})),
        ("what time is it?", "time", json!({"op": "now"})),
        ("what time is it in New York?", "time", json!({"op": "now", "tz": "America/New_York"})),
        ("time in Europe/Berlin", "time", json!({"op": "now", "tz": "Europe/Berlin"})),
        ("echo hello world", "echo", json!({"text": "hello world"})),
        ("write \"a b\" to c.md", "file_write", json!({"content": "a b", "path": "c.md"})),
    ] {
        assert_eq!(call(text), (tool.into(), arguments), "{text}");
    }
    let p = plan("read a.md as notes; what is $1.lines * 2");
    assert_eq!(p.blocks[0].outline[0].save_as.as_deref(), Some("notes"));
    assert_eq!(p.blocks[1].outline[0].arguments["expression"], "${1.lines} * 2");
    // A word is no arithmetic, a sentence no path, and a recipe whose tool is nowhere says so.
    assert!(matches!(outcome("what is the meaning of life"), Ok(PlanOutcome::NeedsConfirmation(_))));
    assert!(failed("fetch https://example.org/a and save it to b.md").contains("web_fetch"));
}

#[test]
fn recipes_of_the_owner_come_first_and_have_several_steps() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("mine.yaml"),
        "recipes:\n- match: ['backup {path} to {to:path}']\n  steps:\n  - {tool: file_read, args: {path: '{path}'}, save_as: page}\n  - {tool: echo, args: {text: 'read {path}'}}\n  - {tool: file_write, args: {path: '{to}', content: '${page.content} $last.text'}}\n- match: ['read {path}']\n  tool: hash\n  args: {path: '{path}'}\n",
    )
    .unwrap();
    let recipes = Recipes::with_folder(dir.path()).unwrap();
    let tools = Tools::new(&catalogue());
    let Ok(PlanOutcome::Plan(p)) = question::plan(
        "hash x.md; backup a.md to b.md as done; echo text=${done.x}; read q.md",
        &tools,
        &recipes,
        &WordRanker,
    ) else {
        panic!("no plan")
    };
    let steps = &p.blocks[1].outline;
    assert_eq!(steps.len(), 3);
    assert_eq!(steps[2].arguments["content"], "${2.content} ${3.text}");
    assert_eq!(steps[1].arguments["text"], "read a.md");
    assert_eq!(steps[2].save_as.as_deref(), Some("done"));
    assert_eq!(p.blocks[2].outline[0].arguments["text"], "${4.x}");
    assert_eq!(p.blocks[3].outline[0].tool.as_str(), "hash");
    for (text, word) in [
        ("recipes:\n- match: ['a {nope}']\n  tool: echo\n", "no slot \"nope\""),
        ("recipes:\n- match: ['a {path']\n  tool: echo\n", "not closed"),
        ("recipes:\n- match: ['[a]']\n  tool: echo\n", "must be there"),
        ("recipes:\n- match: ['a']\n", "either tool"),
        ("recipes:\n- match: ['a']\n  tol: echo\n", "tol"),
        ("recipes:\n- match: ['a']\n  tool: echo\n  args: {text: '${b}'}\n", "no earlier result"),
    ] {
        std::fs::write(dir.path().join("mine.yaml"), text).unwrap();
        let error = Recipes::with_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("mine.yaml"), "{error}");
    }
    assert!(Recipes::with_folder(&dir.path().join("none")).is_ok());
}

#[test]
fn plain_english_acts_alone_only_when_it_is_safe() {
    // Pure, clear, complete.
    assert_eq!(call("tell me the stats about text in \"b.md\"").0, "text_stats");
    // Changes something: never alone.
    let question = asked("please do a file write to out/b.md with \"hello\"");
    assert_eq!(question.guesses[0].tool.as_str(), "file_write");
    assert_eq!(
        question.guesses[0].arguments,
        *json!({"path": "out/b.md", "content": "hello"}).as_object().unwrap()
    );
    assert!(question.guesses[0].missing.is_empty());
    assert!(question.guesses.len() <= 3);
    assert_eq!(question.guesses[0].command, "file_write content=\"hello\" path=\"out/b.md\"");
    assert!(question.hint.contains("file_write content"));
    // Not complete.
    let question = asked("compute the stats of my text");
    assert_eq!(
        (question.guesses[0].tool.as_str(), &question.guesses[0].missing[..]),
        ("text_stats", &["path".to_owned()][..])
    );
    // Nothing that it could work on, although its schema would let it run.
    assert_eq!(asked("make a hash").guesses[0].tool.as_str(), "hash");
    // Nothing fits.
    let question = asked("sing me a lullaby");
    assert!(question.guesses.is_empty() && question.hint.contains("octomesh tools"));
}

#[test]
fn two_candidates_for_one_slot_are_none() {
    let tools = Tools::new(&catalogue());
    let stats = tools.get("text_stats").unwrap();
    let fill = |text: &str| super::slots::fill(stats, &words(text));
    assert_eq!(fill("stats a.md b.md").missing, ["path"]);
    assert_eq!(fill("stats of a.md").arguments["path"], "a.md");
    let image = tools.get("image_render").unwrap();
    let found = super::slots::fill(image, &words("render an image fast 640 wide"));
    assert_eq!(Value::Object(found.arguments), json!({"width": 640, "fast": true}));
    let found = super::slots::fill(image, &words("render 640 height 480"));
    assert_eq!(Value::Object(found.arguments), json!({"height": 480}));
}

#[test]
fn a_close_second_is_asked_about() {
    use octomesh_protocol::card::Effect;
    let cards = ["weather_now", "weather_later"].map(|n| card(n, Effect::Pure, &[], &[], json!({})));
    assert!(matches!(read("weather please", &cards, &WordRanker), super::clauses::Reading::Ask(_)));
    assert!(matches!(read("weather please", &cards[..1], &WordRanker), super::clauses::Reading::Call(..)));
}

fn file(text: &str) -> Result<Plan, PlanError> {
    let file = PlanFile { name: "plan.yaml".into(), text: text.into() };
    plan_file::plan(&file, &Tools::new(&catalogue()), 10)
}

#[test]
fn plan_files() {
    let yaml = "blocks:\n- id: sum\n  goal: add\n  depends_on: [stats, read]\n  steps:\n  - tool: calc\n    args: {expression: '${st.lines} + $2.size'}\n- id: read\n  steps:\n  - {tool: file_read, args: {path: a.md}, node: attic}\n- id: stats\n  steps:\n  - {tool: text_stats, args: {path: a.md}, save_as: st}\n  - {tool: echo, args: {text: $last.lines}}\n";
    let p = file(yaml).unwrap();
    let depends: Vec<_> = p.blocks[0].depends_on.iter().map(ToString::to_string).collect();
    assert_eq!(depends, ["b002", "b003"]);
    assert_eq!(p.blocks[0].outline[0].arguments["expression"], "${3.lines} + ${2.size}");
    assert_eq!(p.blocks[2].outline[1].arguments["text"], "${3.lines}");
    assert_eq!(p.blocks[1].outline[0].node.as_ref().unwrap().as_str(), "attic");
    assert_eq!((p.blocks[0].goal.as_str(), p.blocks[1].goal.as_str()), ("add", "read"));
    let json = file(
        "{\"blocks\": [{\"id\": \"a\", \"steps\": [{\"tool\": \"echo\", \"args\": {\"text\": \"x\"}}]}]}",
    )
    .unwrap();
    assert_eq!(json.blocks.len(), 1);
}

#[test]
fn plan_files_that_are_wrong() {
    let echo = "steps: [{tool: echo, args: {text: x}}]";
    for (text, words) in [
        (format!("blocks:\n- id: a\n  gaol: x\n  {echo}\n"), vec!["gaol", "line 3"]),
        ("blocks:\n- id: a\n  steps:\n  - {tool: echo, arg: {}}\n".into(), vec!["arg", "line 4"]),
        ("blok: []".into(), vec!["blok"]),
        ("blocks: []".into(), vec!["1 to 64"]),
        ("blocks:\n- id: a\n  steps: []\n".into(), vec!["blocks[0].steps", "0 steps"]),
        ("{\"blocks\": [}".into(), vec!["line 1 column 13"]),
        (
            format!("blocks:\n- id: a\n  {echo}\n- id: a\n  {echo}\n"),
            vec!["blocks[1].id", "blocks[0] already"],
        ),
        (
            format!("blocks:\n- id: a\n  depends_on: [z]\n  {echo}\n"),
            vec!["blocks[0].depends_on", "no block \"z\""],
        ),
        (
            format!("blocks:\n- id: a\n  depends_on: [b]\n  {echo}\n- id: b\n  depends_on: [a]\n  {echo}\n"),
            vec!["wait for each other: a, b"],
        ),
        (format!("blocks:\n- id: a\n  depends_on: [a]\n  {echo}\n"), vec!["wait for each other: a"]),
        (
            "blocks:\n- id: a\n  steps: [{tool: eco, args: {text: x}}]\n".into(),
            vec!["blocks[0] (a).steps[0].tool", "\"eco\"", "near are: echo"],
        ),
        (
            "blocks:\n- id: a\n  steps: [{tool: echo, args: {txt: x}}]\n".into(),
            vec!["steps[0].args", "\"txt\""],
        ),
        (
            "blocks:\n- id: a\n  steps: [{tool: echo, args: {text: x}, node: 'No Node'}]\n".into(),
            vec!["not a node name"],
        ),
        (
            "blocks:\n- id: a\n  steps: [{tool: echo, args: {text: x}, save_as: '1'}]\n".into(),
            vec!["save_as"],
        ),
        (
            "blocks:\n- id: a\n  steps: [{tool: echo, args: {text: '${nope}'}}]\n".into(),
            vec!["no result ${nope}"],
        ),
        ("blocks:\n- id: a\n  steps: [{tool: echo, args: {text: $last}}]\n".into(), vec!["there is none"]),
        (
            "blocks:\n- id: a\n  steps: [{tool: echo, args: {text: $1}, save_as: s}]\n".into(),
            vec!["not an earlier step"],
        ),
        (
            format!(
                "blocks:\n- id: a\n  {echo}\n- id: b\n  steps: [{{tool: echo, args: {{text: $1.text}}}}]\n"
            ),
            vec!["blocks[1] (b)", "block \"a\", which is not in depends_on"],
        ),
        (
            format!("blocks:\n- id: a\n  steps: [{}]\n", "{tool: echo, args: {text: x}},".repeat(11)),
            vec!["11 steps", "--max-steps"],
        ),
    ] {
        let error = file(&text).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error} should contain {word}");
        }
        assert!(error.contains("plan.yaml"), "{error}");
    }
    assert!(file(&" ".repeat(2 << 20)).unwrap_err().to_string().contains("1 MiB"));
    assert!(file(&"[".repeat(100_000)).is_err());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_panics(text in "[ -~\\n\"'{}\\[\\]();&$=é\u{2026}]{0,200}") {
        let _ = outcome(&text);
        let _ = file(&text);
        let _ = parse(&text);
    }

    #[test]
    fn no_command_panics(
        words in proptest::collection::vec("(file_read|calc|echo|path=|text=|\"|'|\\{|\\}|;|then|as|x|\\$1|\\$\\{a\\}|what|is|in|1\\.|\\n| |&&|=)", 0..30)
    ) {
        let _ = outcome(&words.join(" "));
        let _ = outcome(&words.concat());
    }

    #[test]
    fn an_explicit_text_arrives_unchanged(text in "[ -#%-~]{0,80}") {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        let p = plan(&format!("echo text=\"{quoted}\""));
        proptest::prop_assert_eq!(&p.blocks[0].outline[0].arguments["text"], &Value::String(text));
    }
}

/// Long enough for the slowest machine, far too short for anything quadratic.
const SOON: std::time::Duration = std::time::Duration::from_secs(20);

#[test]
fn hostile_questions_are_answered_soon() {
    let size = 64 * 1024;
    let bits = [
        ";",
        "; ",
        "then ",
        " then then",
        "1. ",
        "1. a\n",
        "(",
        "\"",
        "'",
        "\\\"",
        "{",
        "[",
        "$",
        "${",
        "s001 ",
        "\n",
        "\r\n",
        ".",
        ", ",
        "=",
        "echo text=a; ",
        "echo text=",
        "file_read path=",
        "{\"a\":",
        "and ",
        "\u{0}",
        "\u{301}",
        "🦀",
        "#1 ",
        "node:",
        "@",
    ];
    for bit in bits {
        let begun = tokio::time::Instant::now();
        let text = bit.repeat(size / bit.len());
        let _ = outcome(&text);
        let _ = outcome(&format!("echo text=a {text}"));
        assert!(begun.elapsed() < SOON, "{bit:?} took {:?}", begun.elapsed());
    }
}

#[test]
fn plan_bombs_are_refused_soon() {
    let mut laughs = "l0: &l0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let last = n - 1;
        laughs += &format!("l{n}: &l{n} [{}]\n", vec![format!("*l{last}"); 9].join(", "));
    }
    let step = |args: &str| format!("blocks:\n- id: a\n  steps:\n  - tool: echo\n    args: {args}\n");
    let deep = 100_000;
    let bombs = [
        format!("{laughs}blocks: *l11\n"),
        format!("{laughs}{}", step("{text: *l11}")),
        step("&a {text: *a}"),
        step(&format!("{{text: {}1{}}}", "[".repeat(deep), "]".repeat(deep))),
        step(&"{a: ".repeat(deep)),
        "- ".repeat(deep),
        "[".repeat(deep),
        format!("{{{}}}", "\"a\":{".repeat(deep)),
        "? ".repeat(deep),
        "&a ".repeat(deep),
        "!!map ".repeat(deep),
        format!("blocks: {}", "- id: a\n".repeat(deep)),
        format!("blocks:\n{}", "- {id: a, steps: [{tool: echo, args: {text: x}}]}\n".repeat(10_000)),
        "a: |\n".to_owned() + &" x\n".repeat(deep),
        "\t".repeat(deep),
        "\u{feff}".repeat(1000),
    ];
    for (number, text) in bombs.into_iter().enumerate() {
        let begun = tokio::time::Instant::now();
        let read = plan_file::plan(&PlanFile { name: "plan".into(), text }, &Tools::new(&catalogue()), 10);
        assert!(read.is_err(), "bomb {number}");
        assert!(read.unwrap_err().to_string().len() < 10_000, "bomb {number}");
        assert!(begun.elapsed() < SOON, "bomb {number} took {:?}", begun.elapsed());
    }
}
