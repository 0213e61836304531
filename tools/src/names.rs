//! Names that models call tools by.
//!
//! A model API takes 1 to 64 of `a-z A-Z 0-9 _ -`, and one name for one tool. A mesh may have several *variants* of a tool: one
//! name, another card on other nodes. [`ModelNames`] is a function of the set of tools alone: whoever knows the same tools gives
//! them the same names, whatever came first. A tool of one card keeps its own name. Variants get a digest behind it, each its own,
//! so that a node that joins renames at most the one variant that was alone before.
use std::collections::{BTreeMap, BTreeSet};

use octomesh_protocol::{
    id::{CardHash, ToolName},
    limits::TOOL_NAME_BYTES,
};
use sha2::{Digest, Sha256};

/// Hexadecimal digits of a digest: few enough to be read, and two of a thousand tools are alike once in ten thousand meshes.
const SHORT: usize = 8;
/// Digits when that was not enough.
const LONG: usize = 32;

/// One card of one tool; replicas of it on several nodes are the same.
type Variant = (String, CardHash);

/// Which name stands for which card, both ways.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelNames {
    by_name: BTreeMap<String, Variant>,
    by_variant: BTreeMap<Variant, String>,
}

impl ModelNames {
    /// Names for these tools, in any order and any number of times. Tools of other systems may have names that no model takes.
    #[must_use]
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, CardHash)>) -> Self {
        let mut cards: BTreeMap<&str, BTreeSet<CardHash>> = BTreeMap::new();
        for (tool, card) in tools {
            cards.entry(tool).or_default().insert(card);
        }
        // A good name is the tool's own, also of a tool with variants: it means any of them.
        let own: BTreeSet<&str> =
            cards.keys().copied().filter(|tool| ToolName::parse(tool).is_ok()).collect();
        let mut names = Self::default();
        let mut open = Vec::new();
        for (tool, hashes) in cards {
            let variants = hashes.len() > 1;
            for card in hashes {
                if own.contains(tool) && !variants {
                    names.insert(tool.to_owned(), tool, card);
                } else {
                    open.push((tool, card, variants));
                }
            }
        }
        // Whoever makes tools with the very names of digests takes one attempt with each.
        for attempt in 0..=own.len() {
            let mut made: BTreeMap<String, Vec<(&str, CardHash, bool)>> = BTreeMap::new();
            for (tool, card, variants) in std::mem::take(&mut open) {
                let name = with_digest(tool, variants.then_some(card), attempt);
                made.entry(name).or_default().push((tool, card, variants));
            }
            // All at once, so that none of two that are alike comes first.
            for (name, of) in made {
                match of.as_slice() {
                    [(tool, card, _)]
                        if !own.contains(name.as_str()) && !names.by_name.contains_key(&name) =>
                    {
                        names.insert(name, tool, *card);
                    }
                    _ => open.extend(of),
                }
            }
            if open.is_empty() {
                break;
            }
        }
        names
    }

    fn insert(&mut self, name: String, tool: &str, card: CardHash) {
        let variant = (tool.to_owned(), card);
        self.by_name.insert(name.clone(), variant.clone());
        self.by_variant.insert(variant, name);
    }

    /// What models call this card of this tool.
    #[must_use]
    pub fn name(&self, tool: &str, card: CardHash) -> Option<&str> {
        self.by_variant.get(&(tool.to_owned(), card)).map(String::as_str)
    }

    /// The tool and the card that a model means by `name`.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<(&str, CardHash)> {
        self.by_name.get(name).map(|(tool, card)| (tool.as_str(), *card))
    }
}

/// The tool's name as far as there is room, and a digest of what it is.
fn with_digest(tool: &str, card: Option<CardHash>, attempt: usize) -> String {
    let digest = Sha256::new()
        .chain_update(b"octomesh-model-name-v1")
        .chain_update((tool.len() as u64).to_be_bytes())
        .chain_update(tool)
        .chain_update(card.as_ref().map_or(&[][..], |card| card.as_bytes()))
        .chain_update((attempt as u64).to_be_bytes())
        .finalize();
    let digits = if attempt == 0 { SHORT } else { LONG };
    let hex = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(digits);
    let mut name = readable(tool, TOOL_NAME_BYTES - 1 - digits);
    name.push('-');
    name.extend(hex.filter_map(|digit| char::from_digit(u32::from(digit), 16)));
    name
}

/// What models can read of a name.
fn readable(tool: &str, most: usize) -> String {
    let mut name = String::new();
    for c in tool.chars() {
        let good = c.is_ascii_alphanumeric() || c == '-';
        match (good, name.ends_with('_')) {
            (true, _) => name.push(c),
            (false, false) => name.push('_'),
            (false, true) => {}
        }
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "tool_");
    }
    name.truncate(most);
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card(n: u8) -> CardHash {
        CardHash::from_bytes([n; 32])
    }

    fn names(tools: &[(&str, u8)]) -> ModelNames {
        ModelNames::new(tools.iter().map(|(tool, n)| (*tool, card(*n))))
    }

    #[test]
    fn replicas_keep_the_name_and_variants_get_a_digest() {
        let one = names(&[("echo", 1), ("echo", 1), ("time", 1)]);
        assert_eq!(one.name("echo", card(1)), Some("echo"));
        assert_eq!(one.tool("time"), Some(("time", card(1))));
        let two = names(&[("echo", 1), ("echo", 2), ("time", 1)]);
        let first = two.name("echo", card(1)).unwrap();
        assert!(first.starts_with("echo-") && first.len() == "echo-".len() + SHORT, "{first}");
        assert_ne!(two.name("echo", card(2)).unwrap(), first);
        assert_eq!(two.tool(first), Some(("echo", card(1))));
        assert_eq!(two.tool("echo"), None, "that would be any of them");
        assert_eq!(two.name("time", card(1)), Some("time"));
        // A third one renames nobody.
        let three = names(&[("echo", 1), ("echo", 2), ("echo", 3), ("time", 1)]);
        assert_eq!(three.name("echo", card(1)), Some(first));
    }

    /// Names are kept by people and in logs: they are part of the interface.
    #[test]
    fn golden_names() {
        let names = names(&[("echo", 1), ("echo", 2), ("größe.messen", 3)]);
        let of = |tool, n| names.name(tool, card(n)).unwrap();
        assert_eq!((of("echo", 1), of("echo", 2)), ("echo-001452e5", "echo-fdcf65f2"));
        assert_eq!(of("größe.messen", 3), "gr_e_messen-e495c4f6");
    }

    #[test]
    fn who_takes_the_names_of_digests_takes_no_name_away() {
        let mut tools = vec![("echo".to_owned(), card(1)), ("echo".to_owned(), card(2))];
        for attempt in 0..20 {
            let taken = with_digest("echo", Some(card(1)), attempt);
            tools.push((taken.clone(), card(9)));
            // With variants, it does not use the name itself, and it still means them.
            if attempt % 2 == 0 {
                tools.push((taken, card(8)));
            }
        }
        let own: BTreeSet<&str> = tools.iter().map(|(tool, _)| tool.as_str()).collect();
        let names = ModelNames::new(tools.iter().map(|(tool, card)| (tool.as_str(), *card)));
        for (tool, card) in &tools {
            let name = names.name(tool, *card).unwrap();
            assert_eq!(names.tool(name), Some((tool.as_str(), *card)));
            assert!(name == tool || !own.contains(name), "{name} is another tool's");
        }
        assert_eq!(names.by_name.len(), tools.len());
    }

    /// Names as they are and as they come: good ones, long ones, of other systems, and the names of digests.
    fn tool() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => prop::sample::select(vec!["echo", "time", "e", "_", "", "a.b", "a b", "a_b", "größe", "größe2", "1st", "✂"])
                .prop_map(str::to_owned),
            2 => "[a-zA-Z][a-zA-Z0-9_-]{0,63}",
            1 => "[a-z]{60,200}",
            1 => any::<String>(),
            1 => (0u8..4, 0usize..3).prop_map(|(n, attempt)| with_digest("echo", Some(card(n)), attempt)),
            1 => prop::sample::select(vec!["größe", "a.b", ""]).prop_map(|tool| with_digest(tool, None, 0)),
        ]
    }

    fn tools() -> impl Strategy<Value = Vec<(String, CardHash)>> {
        prop::collection::vec((tool(), (0u8..4).prop_map(card)), 0..40)
    }

    fn of(tools: &[(String, CardHash)]) -> ModelNames {
        ModelNames::new(tools.iter().map(|(tool, card)| (tool.as_str(), *card)))
    }

    fn valid(name: &str) -> bool {
        (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
    }

    proptest! {
        #[test]
        fn every_tool_has_one_name_that_models_take(tools in tools()) {
            let names = of(&tools);
            let set: BTreeSet<_> = tools.iter().cloned().collect();
            prop_assert_eq!(names.by_name.len(), set.len());
            for (tool, card) in &set {
                let name = names.name(tool, *card).unwrap();
                prop_assert!(valid(name), "{}", name);
                prop_assert_eq!(names.tool(name), Some((tool.as_str(), *card)));
            }
        }

        #[test]
        fn the_order_of_joining_says_nothing((tools, order) in tools().prop_flat_map(|tools| {
            (Just(tools.clone()), Just(tools).prop_shuffle())
        })) {
            prop_assert_eq!(of(&tools), of(&order));
        }

        #[test]
        fn who_joins_renames_at_most_the_one_that_was_alone(tools in tools(), new in (tool(), (0u8..4).prop_map(card))) {
            let before = of(&tools);
            let after = of(&[&tools[..], std::slice::from_ref(&new)].concat());
            let renamed = before.by_variant.iter().filter(|(variant, name)| after.by_variant.get(*variant) != Some(name));
            for ((tool, card), name) in renamed {
                let alone = !tools.iter().any(|(other, hash)| other == tool && hash != card);
                prop_assert!((*tool == new.0 && alone) || *name == new.0, "{} of {}", name, tool);
            }
        }
    }
}
