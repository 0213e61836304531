//! Hard filters: what a node must have before its cost matters. Each has a code that people, scripts and metrics see.
use std::{collections::BTreeMap, time::Duration};

use octomesh_protocol::{
    advert::{Advert, LoadState},
    card::ToolCard,
    id::NodeId,
    step::RefuseReason,
    trust::Role,
};
use octomesh_tools::policy;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Ask, Candidate, Exclusion, Filtered, History, OwnReservations, ProbeResult,
    cost::{CostOf, Terms},
    reservation::Unseen,
    vram,
};
use crate::membership::view::{Member, MemberState, MeshView, RemoteTool};

/// Without an advert or another sign of life for longer, which is two pings, nothing is known of its load. That it lives says SWIM.
pub(super) const ADVERT_TTL: Duration = Duration::from_secs(90);

/// Why a node can't run a step.
///
/// A node that the step already tried, and one that is gone, say so first (`refused`, `lost`, `down`, or the code of the
/// refusal): nothing else about them matters. Then the checks go in the order of the variants, and the first one that
/// fails is the reason.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FilterReason {
    /// It has no tool of that name.
    NoTool,
    /// It has another card under that name than the one asked for.
    ToolVersion,
    /// The tool is there but does not work.
    Unavailable,
    /// The tool needs GPU memory and the node has no GPU.
    NoGpu,
    /// It has a GPU, but not enough of its memory is free.
    Vram,
    /// Not enough main memory is free.
    Memory,
    /// The model is not there.
    ModelAbsent,
    /// It confines calls less than the tool or the caller's certificate demands.
    Sandbox,
    /// Roles or grants forbid it.
    Policy,
    /// It takes no new steps.
    Draining,
    /// The machine is its owner's alone for now.
    Yields,
    /// Its executor did not prove itself, or it has no slots.
    NotReady,
    /// It may be gone.
    Suspect,
    /// What is known of it is too old.
    Stale,
    /// We have too many steps there.
    Quota,
    /// The step could not end in time there.
    Deadline,
    /// It lacks a tag that the tool demands.
    Tag,
    /// Another node was asked for.
    Pinned,
    /// The data that the arguments point to is not there.
    NoData,
    /// It does not answer, or left.
    Down,
    /// It refused this step.
    Refused,
    /// It lost this step.
    Lost,
}

impl FilterReason {
    /// The code.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.into()
    }
}

impl From<RefuseReason> for FilterReason {
    fn from(reason: RefuseReason) -> Self {
        match reason {
            RefuseReason::Busy | RefuseReason::Fenced | RefuseReason::CatchingUp | RefuseReason::Wait => {
                Self::Refused
            }
            RefuseReason::Draining => Self::Draining,
            RefuseReason::NoTool => Self::NoTool,
            RefuseReason::ToolVersion => Self::ToolVersion,
            RefuseReason::Vram => Self::Vram,
            RefuseReason::Memory => Self::Memory,
            RefuseReason::Policy => Self::Policy,
            RefuseReason::Quota => Self::Quota,
            RefuseReason::Deadline => Self::Deadline,
            RefuseReason::Unavailable => Self::Unavailable,
            RefuseReason::Yields => Self::Yields,
        }
    }
}

/// What one look at a member came to.
pub(super) enum Verdict {
    Candidate(Box<Candidate>),
    /// Everything but the data is right, and nobody asked for the data yet.
    NeedsProbe(Filtered),
    Filtered(Filtered),
}

pub(super) type Out = (FilterReason, String);

/// All that a placement looks at.
pub(super) struct Placement<'a> {
    pub(super) view: &'a MeshView,
    pub(super) ask: &'a Ask,
    pub(super) history: &'a History,
    pub(super) reservations: &'a OwnReservations,
    pub(super) probes: &'a BTreeMap<NodeId, ProbeResult>,
    pub(super) now: Instant,
}

impl Placement<'_> {
    pub(super) fn examine(&self, member: &Member) -> Verdict {
        let filtered =
            |(reason, detail): Out| Filtered { node: member.node, name: member.name.clone(), reason, detail };
        let candidate = match self.candidate(member) {
            Ok(candidate) => candidate,
            Err(out) => return Verdict::Filtered(filtered(out)),
        };
        let needs_data = member.tool(&self.ask.tool).is_some_and(|t| !t.card.data.is_empty());
        match self.probes.get(&member.node) {
            Some(ProbeResult::Missing(detail)) if needs_data => {
                let detail = if detail.is_empty() {
                    "does not have the data".to_owned()
                } else {
                    format!("does not have the data: {detail}")
                };
                Verdict::Filtered(filtered((FilterReason::NoData, detail)))
            }
            Some(ProbeResult::Silent) if needs_data => Verdict::Filtered(filtered((
                FilterReason::NoData,
                "did not answer whether it has the data".into(),
            ))),
            None if needs_data => Verdict::NeedsProbe(filtered((
                FilterReason::NoData,
                "was not asked whether it has the data".into(),
            ))),
            _ => Verdict::Candidate(Box::new(candidate)),
        }
    }

    /// All filters but the data, then the cost.
    fn candidate(&self, member: &Member) -> Result<Candidate, Out> {
        self.check_gone(member)?;
        let tool = self.check_tool(member)?;
        let card = &tool.card;
        let advert = member.advert.as_deref().zip(member.advert_at);
        let (load, load_at) = advert.map_or((LoadState::default(), self.now), |(a, at)| {
            self.reservations.newest_load(member.node, (a.load, at))
        });
        let unseen = self.reservations.unseen(member.node, load_at);
        let mut gpu = None;
        if let Some((advert, at)) = advert {
            let age = self.now.saturating_duration_since(at);
            // A reply tells the load anew, and nothing of GPUs: these are as old as the advert.
            let of_gpus = self.reservations.unseen(member.node, at);
            gpu = check_hardware(card, advert, age, (unseen, of_gpus), load)?;
            self.check_confinement(member, card, advert)?;
            check_load(load)?;
            self.check_owner(member, advert)?;
        }
        self.check_fresh(member, load_at)?;
        let speed_percent = advert.map_or(100, |(a, _)| a.speed_percent);
        let work_bytes = self.ask.argument_bytes.saturating_add(self.data_bytes(member.node));
        let cost = CostOf {
            member,
            local: self.view.is_me(member.node),
            card,
            load,
            unseen,
            speed_percent,
            argument_bytes: if self.ask.there.contains(&member.node) { 0 } else { self.ask.argument_bytes },
            work_bytes,
        };
        let terms = cost.terms(self.history, self.now);
        self.check_deadline(&terms)?;
        self.check_wishes(member, card, advert.map(|(a, _)| a))?;
        Ok(Candidate {
            node: member.node,
            name: member.name.clone(),
            cost_ms: terms.sum(),
            prior_ms: cost.prior_ms(),
            pace: load.pace(),
            terms,
            card: tool.hash,
            effect: card.effect,
            gpu,
            vram: card.needs.gpu_vram.unwrap_or(0),
            memory: card.needs.memory.unwrap_or(0),
            work_bytes,
        })
    }

    fn data_bytes(&self, node: NodeId) -> u64 {
        match self.probes.get(&node) {
            Some(ProbeResult::Have(bytes)) => *bytes,
            _ => 0,
        }
    }

    fn check_gone(&self, member: &Member) -> Result<(), Out> {
        if let Some(Exclusion { reason, detail }) = self.ask.exclude.get(&member.node) {
            return Err((*reason, detail.clone()));
        }
        match member.state {
            _ if self.view.is_me(member.node) => Ok(()),
            MemberState::Down => Err((FilterReason::Down, "is down".into())),
            MemberState::Left => Err((FilterReason::Down, "left the mesh".into())),
            MemberState::Alive | MemberState::Suspect => Ok(()),
        }
    }

    fn check_tool<'m>(&self, member: &'m Member) -> Result<&'m RemoteTool, Out> {
        let name = &self.ask.tool;
        let Some(tool) = member.tool(name) else {
            let local = self.view.is_me(member.node);
            let why = if member.tools_complete || local {
                format!("has no tool {name}")
            } else {
                format!("has no tool {name} as far as is known; its list of tools is still on the way")
            };
            return Err((FilterReason::NoTool, why));
        };
        match self.ask.card {
            Some(wanted) if wanted != tool.hash => Err((
                FilterReason::ToolVersion,
                format!("has another {name} ({} instead of {})", tool.hash.short(), wanted.short()),
            )),
            _ => Ok(tool),
        }
    }

    fn check_confinement(&self, member: &Member, card: &ToolCard, advert: &Advert) -> Result<(), Out> {
        let local = self.view.is_me(member.node);
        let grants = self.view.own().map(|own| &own.grants).filter(|_| !local);
        let demanded = policy::least_level(card, local).max(grants.and_then(|g| g.min_sandbox));
        if let Some(least) = demanded.filter(|least| advert.sandbox < *least) {
            return Err((FilterReason::Sandbox, format!("runs tools at {}, below {least}", advert.sandbox)));
        }
        let name = &self.ask.tool;
        if !local && member.role == Role::Client {
            return Err((FilterReason::Policy, "is a client and offers no tools".into()));
        }
        match grants.and_then(|g| g.tools.as_ref()) {
            Some(tools) if !tools.contains(name) => Err((
                FilterReason::Policy,
                format!("would refuse: this node's certificate does not grant {name}"),
            )),
            _ => Ok(()),
        }
    }

    /// The owner's own steps go on on the machine at which they sit.
    fn check_owner(&self, member: &Member, advert: &Advert) -> Result<(), Out> {
        match advert.circumstances.yields {
            Some(reason) if !self.view.is_me(member.node) => {
                Err((FilterReason::Yields, format!("is kept by its owner: {}", reason.words())))
            }
            _ => Ok(()),
        }
    }

    fn check_fresh(&self, member: &Member, load_at: Instant) -> Result<(), Out> {
        if self.view.is_me(member.node) {
            return Ok(());
        }
        if member.state == MemberState::Suspect {
            return Err((FilterReason::Suspect, "may be down".into()));
        }
        if member.advert.is_none() {
            return Err((FilterReason::Stale, "has sent no advert yet".into()));
        }
        let reply_age = self.now.saturating_duration_since(load_at);
        let silence = member.silence(self.now).map_or(reply_age, |s| s.min(reply_age));
        if silence > ADVERT_TTL {
            return Err((FilterReason::Stale, format!("was last heard {} s ago", silence.as_secs())));
        }
        Ok(())
    }

    fn check_deadline(&self, terms: &Terms) -> Result<(), Out> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a deadline")]
        let left = self.ask.deadline_ms as f64;
        let least = terms.at_least();
        if least > left {
            return Err((
                FilterReason::Deadline,
                format!("needs at least {least:.0} ms, {left:.0} ms are left"),
            ));
        }
        Ok(())
    }

    fn check_wishes(&self, member: &Member, card: &ToolCard, advert: Option<&Advert>) -> Result<(), Out> {
        let tags = advert.map_or(&[][..], |a| &a.tags);
        if let Some(missing) = card.needs.tags.iter().find(|t| !tags.contains(t)) {
            return Err((FilterReason::Tag, format!("lacks the tag {missing}")));
        }
        match self.ask.pinned {
            Some(pinned) if pinned != member.node => {
                Err((FilterReason::Pinned, "is not the node asked for".into()))
            }
            _ => Ok(()),
        }
    }
}

fn check_hardware(
    card: &ToolCard,
    advert: &Advert,
    age: Duration,
    (unseen, of_gpus): (Unseen, Unseen),
    load: LoadState,
) -> Result<Option<String>, Out> {
    let mut gpu = None;
    if let Some(need) = card.needs.gpu_vram {
        gpu = Some(vram::check(need, advert, age, of_gpus)?);
    }
    if let Some(need) = card.needs.memory {
        let free = load.memory_free.saturating_sub(unseen.memory);
        if free < need {
            return Err((
                FilterReason::Memory,
                format!("has {} of memory free, needs {}", size(free), size(need)),
            ));
        }
    }
    match &card.needs.model {
        Some(model) if !advert.models.contains(model) => {
            Err((FilterReason::ModelAbsent, format!("does not have the model {model}")))
        }
        _ => Ok(gpu),
    }
}

fn check_load(load: LoadState) -> Result<(), Out> {
    if load.draining {
        return Err((FilterReason::Draining, "is draining".into()));
    }
    if !load.ready {
        return Err((FilterReason::NotReady, "is not ready".into()));
    }
    if load.slots == 0 {
        return Err((FilterReason::NotReady, "has no slots".into()));
    }
    Ok(())
}

/// Bytes for people: GiB with one digit, MiB below one.
pub(super) fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes >= 1 << 30 {
        let tenths = bytes / (MIB * 1024 / 10);
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    } else {
        format!("{} MiB", bytes / MIB)
    }
}
