//! The lease table without its task, for simulations: a node's own admission, slots, queue and limits, in virtual time.
use std::sync::Arc;

use octomesh_protocol::{
    advert::LoadState,
    card::{SandboxLevel, ToolCard},
    id::{CardHash, LeaseId, NodeId},
    step::{Granted, Outcome, Refused, Reserve, StepStatus},
};
use octomesh_tools::tool::Caller;
use tokio::time::Instant;

use super::{
    ExecutorConfig, Resources,
    lease::{Action, LeaseState, Reservation, StartAnswer},
};

/// The steps of one simulated node.
#[derive(Debug)]
pub(crate) struct Model {
    state: LeaseState,
    resources: Resources,
    leases: u64,
}

impl Model {
    pub(crate) fn new(slots: u16) -> Self {
        let config = ExecutorConfig { slots, offers_tools: true };
        let mut state = LeaseState::new(config);
        state.set_ready(true);
        Self { state, resources: Resources::default(), leases: 0 }
    }

    /// Asks for a place, as over the network.
    pub(crate) fn reserve(
        &mut self,
        request: Reserve,
        caller: &Caller,
        card: (CardHash, Arc<ToolCard>),
        now: Instant,
    ) -> Result<Granted, Refused> {
        self.leases += 1;
        let lease = LeaseId(self.leases);
        let ask = Reservation {
            request,
            caller: caller.clone(),
            card: Ok(card),
            sandbox: SandboxLevel::Rlimits,
            lease,
            proof: false,
        };
        self.state.reserve(ask, &self.resources, now)
    }

    /// Starts a lease. Leases whose steps begin to run now; `None` when there is no such lease (any more).
    pub(crate) fn start(
        &mut self,
        lease: LeaseId,
        epoch: u64,
        owner: NodeId,
        now: Instant,
    ) -> Option<Vec<LeaseId>> {
        match self.state.start(lease, epoch, owner, now) {
            (StartAnswer::Accepted { .. }, actions) => Some(begun(actions)),
            (StartAnswer::Ended(_), _) => None,
        }
    }

    /// A running step ended after `elapsed_ms`. Leases whose steps begin to run now.
    pub(crate) fn finished(&mut self, lease: LeaseId, elapsed_ms: u64, now: Instant) -> Vec<LeaseId> {
        let outcome = Outcome::new(StepStatus::Ok, Vec::new(), elapsed_ms, SandboxLevel::Rlimits);
        begun(self.state.finished(lease, outcome, now))
    }

    /// Takes no new leases, or takes them again.
    pub(crate) fn drain(&mut self, on: bool) {
        self.state.set_draining(on);
    }

    /// Load as adverts carry it.
    pub(crate) fn load(&self, now: Instant) -> LoadState {
        self.state.load(&self.resources, now)
    }
}

fn begun(actions: Vec<Action>) -> Vec<LeaseId> {
    let run = |action| match action {
        Action::Run(lease) => Some(lease),
        Action::Stop(..) | Action::End(..) => None,
    };
    actions.into_iter().filter_map(run).collect()
}
