//! May this step have a place here? Each refusal has a code and a sentence.
use std::{sync::Arc, time::Duration};

use octomesh_protocol::{
    card::{Effect, SandboxLevel, ToolCard},
    id::{CardHash, LeaseId},
    step::{RefuseReason, Reserve, StepStatus},
};
use octomesh_tools::{policy, tool::Caller};
use tokio::time::Instant;

use super::LeaseState;
use crate::executor::{
    Resources,
    ports::Absent,
    vram::{self, Held},
};

/// A step that wants longer than this gets this: a deadline bounds what a lost coordinator can leave behind.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A request for a place with all that is needed to judge it.
#[derive(Debug)]
pub(in crate::executor) struct Reservation {
    pub(in crate::executor) request: Reserve,
    pub(in crate::executor) caller: Caller,
    /// This node's own card; the request's needs and effect do not decide.
    pub(in crate::executor) card: Result<(CardHash, Arc<ToolCard>), Absent>,
    /// Level that programs run at here now.
    pub(in crate::executor) sandbox: SandboxLevel,
    /// The id that a new lease gets; random, not in use.
    pub(in crate::executor) lease: LeaseId,
}

/// A place.
pub(super) struct Place {
    pub(super) effect: Effect,
    pub(super) deadline: Instant,
    pub(super) held: Held,
}

pub(super) enum Admitted {
    /// The key has this lease already.
    Known(LeaseId),
    New(Place),
}

type Refusal = (RefuseReason, String);

pub(super) fn admit(
    state: &LeaseState,
    ask: &Reservation,
    resources: &Resources,
    now: Instant,
) -> Result<Admitted, Refusal> {
    let (request, caller) = (&ask.request, &ask.caller);
    if !caller.local && !state.config.offers_tools {
        return Err((RefuseReason::Policy, "this node offers no tools".into()));
    }
    if request.epoch < state.epochs.of(caller.node, &request.key.run) {
        return Err((RefuseReason::Fenced, "a newer coordinator of this run was seen".into()));
    }
    if let Some(id) = known(state, ask)? {
        return Ok(Admitted::Known(id));
    }
    if state.draining {
        return Err((RefuseReason::Draining, "this node is draining".into()));
    }
    let card = check_tool(ask)?;
    check_policy(ask, card)?;
    check_load(state, ask, now)?;
    let held = check_memory(state, request, card, resources, now)?;
    let slot = state.has_free_slot() && state.queue.is_empty();
    let places = state.leases.len() - state.taken();
    if !slot && places >= state.config.queue() {
        return Err((RefuseReason::Busy, "all slots and the queue are full".into()));
    }
    let deadline = now + Duration::from_millis(request.deadline_ms).min(LONGEST);
    Ok(Admitted::New(Place { effect: card.effect, deadline, held }))
}

/// The lease that the key already has. A key belongs to the node that used it first. A step that was stopped, by a lost lease
/// say, and may be repeated, gets a new one: its coordinator came back for it.
fn known(state: &LeaseState, ask: &Reservation) -> Result<Option<LeaseId>, Refusal> {
    let key = &ask.request.key;
    let live = state.by_key.get(key).and_then(|id| Some((*id, state.leases.get(id)?.owner)));
    let repeatable = ask.card.as_ref().is_ok_and(|(_, card)| card.effect.may_repeat());
    let ended = || {
        let ended = state.results.get(key)?;
        let again =
            repeatable && ended.outcome.status == StepStatus::Cancelled && ended.owner == ask.caller.node;
        (!again).then_some((ended.lease, ended.owner))
    };
    let Some((id, owner)) = live.or_else(ended) else {
        return Ok(None);
    };
    if owner == ask.caller.node {
        Ok(Some(id))
    } else {
        Err((RefuseReason::Policy, "the step belongs to another node".into()))
    }
}

fn check_tool(ask: &Reservation) -> Result<&ToolCard, Refusal> {
    let name = &ask.request.tool;
    match &ask.card {
        Err(Absent::NoTool) => Err((RefuseReason::NoTool, format!("there is no tool {name} here"))),
        Err(Absent::Unavailable(why)) => {
            Err((RefuseReason::Unavailable, format!("{name} does not work here: {why}")))
        }
        Ok((hash, _)) if *hash != ask.request.card => Err((
            RefuseReason::ToolVersion,
            format!("{name} is {} here, not {}", hash.short(), ask.request.card.short()),
        )),
        Ok((_, card)) => Ok(card),
    }
}

fn check_policy(ask: &Reservation, card: &ToolCard) -> Result<(), Refusal> {
    policy::decide(&ask.caller, card, ask.sandbox).map_err(|denied| (RefuseReason::Policy, denied.reason))
}

fn check_load(state: &LeaseState, ask: &Reservation, now: Instant) -> Result<(), Refusal> {
    let request = &ask.request;
    if !ask.caller.local {
        let leases = state.leases.values().filter(|l| l.owner == ask.caller.node).count();
        if leases >= state.config.per_peer() {
            return Err((RefuseReason::Quota, format!("{} has {leases} leases here", ask.caller.name)));
        }
    }
    // Estimates are often off by a factor of two, so half of them counts: only what can't be done is refused.
    let slots = u64::try_from(state.config.slots()).unwrap_or(1);
    let wait = if state.has_free_slot() { 0 } else { state.work_ms(now) / slots };
    let least = wait.saturating_add(u64::from(request.est_ms)) / 2;
    if request.deadline_ms == 0 || least > request.deadline_ms {
        let left = request.deadline_ms;
        return Err((
            RefuseReason::Deadline,
            format!("it takes at least {least} ms here, {left} ms are left"),
        ));
    }
    Ok(())
}

fn check_memory(
    state: &LeaseState,
    request: &Reserve,
    card: &ToolCard,
    resources: &Resources,
    now: Instant,
) -> Result<Held, Refusal> {
    let vram = request.vram.max(card.needs.gpu_vram.unwrap_or(0));
    let memory = request.memory.max(card.needs.memory.unwrap_or(0));
    let gpu = if vram == 0 {
        None
    } else {
        let picked = vram::pick_gpu(vram, resources, || state.held(), now);
        let short =
            |free| (RefuseReason::Vram, format!("{free} bytes of GPU memory are free, {vram} are needed"));
        Some((picked.map_err(short)?, vram))
    };
    if memory > 0 {
        let free = vram::free_memory(resources, state.held(), now).unwrap_or(0);
        if free < memory {
            let detail = format!("{free} bytes of memory are free, {memory} are needed");
            return Err((RefuseReason::Memory, detail));
        }
    }
    Ok(Held { vram: gpu, memory, at: now })
}
