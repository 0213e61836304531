//! `node:path`: an argument that names the node its data lies on. The prefix pins the step; the tool sees the bare path.
use std::collections::BTreeSet;

use serde_json::Value;

use super::{CallAsk, Dispatcher};

impl Dispatcher {
    /// Takes the `node:` prefix off the arguments that the tool's card names as data, and off `path`. Only a prefix that is exactly the name of
    /// a member counts: file names may contain colons.
    pub(super) fn resolve_data(&self, ask: &mut CallAsk) {
        let view = self.view();
        // This node's own card; else that of whoever answers. A card decides what of the arguments is changed here.
        let others = view.members.values().filter(|m| m.state.is_present());
        let mut carriers = view.own().into_iter().chain(others);
        let Some(tool) = carriers.find_map(|m| m.tool(&ask.tool)) else { return };
        // A new file has no place yet, so the card of a tool that writes one names no data; its `path` may all the same.
        let path = tool.card.input_schema.pointer("/properties/path").map(|_| "path".to_owned());
        let names: BTreeSet<&String> = tool.card.data.iter().chain(&path).collect();
        for name in names {
            let Some(Value::String(text)) = ask.arguments.get_mut(name) else { continue };
            let Some((prefix, rest)) = text.split_once(':') else { continue };
            if let Some(member) = view.by_name(prefix) {
                ask.pinned = Some(member.node);
                *text = rest.to_owned();
            }
        }
    }
}
