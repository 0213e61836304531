//! The cheapest node, or this one when it is nearly as good.
use octomesh_protocol::id::NodeId;

use super::Decision;

/// A local cost up to this factor of the best one is taken: fewer things can go wrong here.
const LOCAL_FACTOR: f64 = 1.15;
/// And this many milliseconds more, so that tools that take no time stay at home.
const LOCAL_MS: f64 = 2.0;

/// Sorts the candidates and picks one. Ties go to the smaller name, so that equal inputs give equal decisions.
pub(super) fn choose(decision: &mut Decision, me: NodeId) {
    decision.candidates.sort_by(|a, b| {
        a.cost_ms.total_cmp(&b.cost_ms).then_with(|| a.name.cmp(&b.name)).then(a.node.cmp(&b.node))
    });
    decision.filtered.sort_by(|a, b| a.name.cmp(&b.name).then(a.node.cmp(&b.node)));
    let best = decision.candidates.first();
    let near = best.map_or(0.0, |b| b.cost_ms * LOCAL_FACTOR + LOCAL_MS);
    let local = decision.candidates.iter().find(|c| c.node == me && c.cost_ms <= near);
    decision.chosen = local.or(best).cloned();
}
