//! What happens in a node, for whoever watches: the terminal of `up`, the API's event stream.
/// One event. Watchers that are slow lose the oldest.
#[derive(Debug, Clone)]
pub(crate) enum NodeEvent {
    /// A member changed its state.
    Member { node: String, state: String },
    /// A member told what it has and does.
    Advert {
        node: String,
        incarnation: u64,
        seq: u64,
        running: u16,
        queued: u16,
        draining: bool,
        ready: bool,
        tool_set: String,
    },
    /// Somebody who dialled us was refused.
    Refused { address: Option<String>, reason: String },
    /// A node got its certificate from us.
    Joined { node: String, node_id: String },
}
