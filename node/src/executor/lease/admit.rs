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
    vram::{self, Held, VramHold},
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
    /// A self-call: it takes no place of anybody's, so that a node whose places are all taken is not thought broken.
    pub(in crate::executor) proof: bool,
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
    if ask.proof {
        return admit_proof(state, ask, now);
    }
    if !caller.local && !state.config.offers_tools {
        return Err((RefuseReason::Policy, "this node offers no tools".into()));
    }
    if request.epoch < state.epochs.of(caller.node, &request.key.run) {
        return Err((RefuseReason::Fenced, "a newer coordinator of this run was seen".into()));
    }
    if let Some(id) = known(state, ask) {
        return Ok(Admitted::Known(id));
    }
    if state.draining {
        return Err((RefuseReason::Draining, "this node is draining".into()));
    }
    if let Some(reason) = resources.yields.filter(|_| !caller.local) {
        return Err((RefuseReason::Yields, format!("this node is kept by its owner: {}", reason.words())));
    }
    let card = check_tool(ask)?;
    check_policy(ask, card)?;
    check_load(state, ask, now)?;
    let held = check_memory(state, request, card, resources, now)?;
    let slot = state.has_free_slot() && state.queue.is_empty();
    if !slot && state.waiting() >= state.config.queue() {
        return Err((RefuseReason::Busy, "all slots and the queue are full".into()));
    }
    check_wait(state, request, now)?;
    let deadline = now + Duration::from_millis(request.deadline_ms).min(LONGEST);
    Ok(Admitted::New(Place { effect: card.effect, deadline, held }))
}

/// A self-call goes beside everything that can be full or switched off. There is one at a time; its key says nothing, or a peer
/// could take it away.
fn admit_proof(state: &LeaseState, ask: &Reservation, now: Instant) -> Result<Admitted, Refusal> {
    if let Some((id, _)) = state.leases.iter().find(|(_, l)| l.proof) {
        return Ok(Admitted::Known(*id));
    }
    let effect = own_card(ask)?.1.effect;
    let deadline = now + Duration::from_millis(ask.request.deadline_ms).min(LONGEST);
    Ok(Admitted::New(Place { effect, deadline, held: Held { vram: None, memory: 0, at: now, ended: None } }))
}

/// The lease that the key of this caller already has. A step that was stopped, by a lost lease say, and never began or may be
/// repeated, gets a new one: its coordinator came back for it.
fn known(state: &LeaseState, ask: &Reservation) -> Option<LeaseId> {
    let (key, owner) = (&ask.request.key, ask.caller.node);
    let live = state.by_key.get(&(key.clone(), owner)).copied();
    let repeatable = ask.card.as_ref().is_ok_and(|(_, card)| card.effect.may_repeat());
    let ended = || {
        let ended = state.results.get(key, owner)?;
        let again = (repeatable || !ended.ran) && ended.outcome.status == StepStatus::Cancelled;
        (!again).then_some(ended.lease)
    };
    live.or_else(ended)
}

fn own_card(ask: &Reservation) -> Result<&(CardHash, Arc<ToolCard>), Refusal> {
    let name = &ask.request.tool;
    match &ask.card {
        Err(Absent::NoTool) => Err((RefuseReason::NoTool, format!("there is no tool {name} here"))),
        Err(Absent::Unavailable(why)) => {
            Err((RefuseReason::Unavailable, format!("{name} does not work here: {why}")))
        }
        Ok(own) => Ok(own),
    }
}

fn check_tool(ask: &Reservation) -> Result<&ToolCard, Refusal> {
    let (hash, card) = own_card(ask)?;
    if *hash == ask.request.card {
        return Ok(card);
    }
    let name = &ask.request.tool;
    let detail = format!("{name} is {} here, not {}", hash.short(), ask.request.card.short());
    Err((RefuseReason::ToolVersion, detail))
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

/// What a coordinator expects may be old. It hears of it here, before the step waits behind work that nobody told of.
fn check_wait(state: &LeaseState, request: &Reserve, now: Instant) -> Result<(), Refusal> {
    if request.longest_wait_ms == u32::MAX {
        return Ok(());
    }
    let wait = state.wait_ms(now).ceil();
    if wait <= f64::from(request.longest_wait_ms) {
        return Ok(());
    }
    let most = request.longest_wait_ms;
    Err((RefuseReason::Wait, format!("it would wait {wait:.0} ms here, at most {most} ms were expected")))
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
        let picked = vram::pick_gpu(vram, resources, || state.on_cards());
        let vram::Picked { card, others } =
            picked.map_err(|none| (RefuseReason::Vram, none.sentence(vram)))?;
        Some(VramHold { card, bytes: vram, others, call: request.key.to_string() })
    };
    if memory > 0 {
        let free = vram::free_memory(resources, state.held(), now).unwrap_or(0);
        if free < memory {
            let detail = format!("{free} bytes of memory are free, {memory} are needed");
            return Err((RefuseReason::Memory, detail));
        }
    }
    Ok(Held { vram: gpu, memory, at: now, ended: None })
}
