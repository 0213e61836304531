//! The house rules that a program can check. Lists of exceptions may only shrink: one that is no longer needed fails the test.
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Longest file, in lines.
const LONGEST_FILE: usize = 800;

/// Words that say nothing about what a module is for.
const BANNED_NAMES: [&str; 10] =
    ["manager", "helper", "helpers", "util", "utils", "common", "misc", "data", "info", "stuff"];

/// Which of our crates a crate may depend on.
const CRATE_EDGES: [(&str, &[&str]); 4] = [
    ("protocol", &[]),
    ("tools", &["octomesh-protocol"]),
    ("node", &["octomesh-protocol", "octomesh-tools"]),
    ("tests", &["octomesh-protocol", "octomesh-tools", "octomesh"]),
];

/// Rooms of `node`, lowest first. A room may name the rooms in lines above its own, never one beside or below it.
const ROOMS: [&[&str]; 12] = [
    &["metrics", "config", "app::clock", "app::supervise", "app::events", "app::failpoint"],
    &["trust"],
    &["net", "journal", "load", "discovery"],
    &["membership"],
    &["blob"],
    &["router", "executor"],
    &["dispatch"],
    &["solve"],
    &["api"],
    &["app"],
    &["bench"],
    &["cli"],
];

/// (file, room it names). Each with its reason in a comment here. Empty is the goal.
const EDGE_EXCEPTIONS: [(&str, &str); 0] = [];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(folder: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                if entry.file_name().unwrap() != "target" {
                    walk(&entry, found);
                }
            } else if entry.extension().is_some_and(|e| e == "rs") {
                found.push(entry);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&root().join(folder), &mut paths);
    assert!(!paths.is_empty(), "no Rust files in {folder}");
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn all_files() -> Vec<(String, String)> {
    CRATE_EDGES.iter().flat_map(|(folder, _)| rust_files(folder)).collect()
}

/// Lines of code: comments cut off, everything from a file's test module on left out.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .enumerate()
        .map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn crates_point_downwards() {
    for (folder, allowed) in CRATE_EDGES {
        let manifest: String = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let ours: BTreeSet<&str> = manifest
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| name.starts_with("octomesh"))
            .collect();
        for name in ours {
            assert!(allowed.contains(&name), "{folder} depends on {name}, allowed are {allowed:?}");
        }
    }
}

#[test]
fn only_net_names_libp2p() {
    for (file, text) in all_files() {
        if file.starts_with("node/src/net/") || file.starts_with("tests/") {
            continue;
        }
        for (line, code) in code(&text) {
            assert!(!code.contains("libp2p"), "{file}:{line} names libp2p; that belongs into node/src/net");
        }
    }
}

#[test]
fn only_the_codec_names_bincode() {
    for (file, text) in all_files() {
        if file == "protocol/src/codec.rs" || file.starts_with("tests/") {
            continue;
        }
        for (line, code) in code(&text) {
            assert!(
                !code.contains("bincode"),
                "{file}:{line} names bincode; that belongs into protocol/src/codec.rs"
            );
        }
    }
}

#[test]
fn rooms_of_the_node_point_downwards() {
    let floor = |room: &str| ROOMS.iter().position(|floor| floor.contains(&room));
    let mut unused: BTreeSet<(&str, &str)> = EDGE_EXCEPTIONS.into_iter().collect();
    for (file, text) in rust_files("node/src") {
        let inner = file.trim_start_matches("node/src/").trim_end_matches(".rs");
        let mut parts = inner.split('/');
        let first = parts.next().unwrap();
        if ["lib", "main", "testing"].contains(&first) {
            continue;
        }
        let two = format!("{first}::{}", parts.next().unwrap_or_default());
        let own = floor(&two).or_else(|| floor(first));
        let own = own.unwrap_or_else(|| panic!("{file}: the room {first} has no floor in ROOMS"));
        for (line, code) in code(&text) {
            for named in code.split("crate::").skip(1) {
                let mut words =
                    named.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
                let Some(room) = words.next() else { continue };
                let inner = format!("{room}::{}", words.next().unwrap_or_default());
                let Some(other) = floor(&inner).or_else(|| floor(room)) else { continue };
                let same = room == first;
                if same || other < own {
                    continue;
                }
                match EDGE_EXCEPTIONS.iter().find(|(f, r)| *f == file && *r == room) {
                    Some(exception) => drop(unused.remove(exception)),
                    None => panic!("{file}:{line} names {room}, which is not below it"),
                }
            }
        }
    }
    assert!(unused.is_empty(), "exceptions that are no longer needed: {unused:?}");
}

#[test]
fn files_are_short_and_named_for_what_they_do() {
    for (file, text) in all_files() {
        let lines = text.lines().count();
        assert!(lines <= LONGEST_FILE, "{file} has {lines} lines, over {LONGEST_FILE}");
        for part in file.trim_end_matches(".rs").split('/') {
            assert!(!BANNED_NAMES.contains(&part), "{file}: {part} says nothing about what is in it");
        }
    }
}

#[test]
fn tasks_are_spawned_in_one_place() {
    for (file, text) in rust_files("node/src") {
        for (line, code) in code(&text) {
            let spawns = code.contains("tokio::spawn(") || code.contains("task::spawn(");
            assert!(
                !spawns || file == "node/src/app/supervise.rs",
                "{file}:{line} spawns a task without an owner"
            );
        }
    }
}

/// A fifo in the place of a file would be waited for, and a huge one read into memory: files go through `octomesh_tools::regular`.
#[test]
fn files_are_read_with_a_bound() {
    // The system's own files under /proc; a log of a process that the demo started itself.
    let exceptions = ["tools/src/sandbox/", "tools/src/regular.rs", "node/src/cli/demo/"];
    let mut found = Vec::new();
    for (file, text) in rust_files("node/src").into_iter().chain(rust_files("tools/src")) {
        if exceptions.iter().any(|e| file.starts_with(e)) || file.contains("tests") {
            continue;
        }
        for (line, code) in code(&text) {
            if code.contains("fs::read(") || code.contains("fs::read_to_string(") {
                found.push(format!("{file}:{line}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
