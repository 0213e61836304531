//! The task that owns trust: checks what comes, writes it, publishes it.
use std::{path::Path, sync::Arc, time::Duration};

use octomesh_protocol::{
    id::{NodeId, RevocationId},
    limits,
    session::secret::MeshSecret,
    sync::SyncReply,
    trust::{
        CLOCK_TOLERANCE_S, CertificateChain, Issuer, NodeIdentity, SignedRevocation, SignedRotation,
        StatementError,
    },
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    Exclusion, RootSource, Trust, TrustReader,
    state::{Input, TrustState, Write},
    store::{Store, StoreError},
};
use crate::app::clock::Clock;

/// Commands that wait: exchanges with a few dozen members at once.
const COMMANDS: usize = 64;
/// How often the end of a rotation's window is looked for; the window is checked at every handshake as well.
const TICK: Duration = Duration::from_secs(60);

/// Why trust can't be changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum TrustError {
    #[error("this node may not revoke: it is no admin and does not hold the root key")]
    NotAdmin,
    #[error("a node does not revoke itself: revoke it on another admin's node")]
    Itself,
    #[error("{0}")]
    Excluded(Exclusion),
    #[error("{0} nodes are revoked in this mesh, and no more fit: make a new mesh", limits::REVOCATIONS)]
    Full,
    #[error(transparent)]
    Statement(#[from] StatementError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no randomness: {0}")]
    Entropy(String),
    /// Of this node: the one that is to be put in force, or the one with which it would sign.
    #[error("{0}")]
    Certificate(String),
    #[error("the part of this node that keeps trust has stopped")]
    Stopped,
}

/// A node to be revoked.
#[derive(Debug, Clone)]
pub(crate) struct RevokeAsk {
    pub(crate) node: NodeId,
    pub(crate) reason: String,
    /// Replace the mesh secret, too.
    pub(crate) rotate: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revoked {
    /// Unix seconds.
    pub(crate) at: u64,
    /// Which secret holds now, counted from 0.
    pub(crate) secret_generation: u64,
}

enum Command {
    Revoke { ask: RevokeAsk, reply: oneshot::Sender<Result<Revoked, TrustError>> },
    Missing { ids: Vec<RevocationId>, reply: oneshot::Sender<Vec<RevocationId>> },
    Learn { revocations: Vec<Vec<u8>>, reply: oneshot::Sender<()> },
    LearnSecret { rotation: Zeroizing<Vec<u8>>, reply: oneshot::Sender<()> },
    Install { chain: Box<CertificateChain>, pushed: bool, reply: oneshot::Sender<Result<(), TrustError>> },
    Told { by: NodeId },
    Welcomed { by: NodeId },
}

/// Talks to the task; cheap to clone.
#[derive(Clone)]
pub(crate) struct TrustHandle {
    commands: mpsc::Sender<Command>,
    trust: TrustReader,
    root: RootSource,
    clock: Arc<dyn Clock>,
}

impl TrustHandle {
    /// What holds now.
    pub(crate) fn now(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.borrow())
    }

    /// The same, to wait for changes.
    pub(crate) fn reader(&self) -> TrustReader {
        self.trust.clone()
    }

    /// Whether this node may revoke `node`, before anything is done for it.
    pub(crate) fn may_revoke(&self, node: NodeId) -> Result<(), TrustError> {
        let trust = self.now();
        if node == trust.node {
            return Err(TrustError::Itself);
        }
        if (self.root)().is_some() {
            return Ok(());
        }
        if trust.is_admin() {
            return may_sign(&trust, self.clock.unix());
        }
        Err(match trust.exclusion() {
            Some(exclusion @ (Exclusion::Revoked { .. } | Exclusion::Void { .. })) => {
                TrustError::Excluded(exclusion)
            }
            _ => TrustError::NotAdmin,
        })
    }

    /// Revokes a node, and replaces the mesh secret when asked to. It is on the disk and in force here when this returns.
    pub(crate) async fn revoke(&self, ask: RevokeAsk) -> Result<Revoked, TrustError> {
        self.ask(|reply| Command::Revoke { ask, reply }).await?
    }

    /// Of these revocations, those that this node has not and wants.
    pub(crate) async fn missing(&self, ids: Vec<RevocationId>) -> Result<Vec<RevocationId>, TrustError> {
        self.ask(|reply| Command::Missing { ids, reply }).await
    }

    /// Takes in what a member told; what does not verify is said in the log and left out.
    pub(crate) async fn learn(&self, revocations: Vec<Vec<u8>>) -> Result<(), TrustError> {
        self.ask(|reply| Command::Learn { revocations, reply }).await
    }

    /// Takes in a rotation of the mesh secret that a member told.
    pub(crate) async fn learn_secret(&self, rotation: Zeroizing<Vec<u8>>) -> Result<(), TrustError> {
        self.ask(|reply| Command::LearnSecret { rotation, reply }).await
    }

    /// Puts another certificate of this node in force: renewed, renamed, or by another issuer. It is checked, and on the disk when this
    /// returns.
    pub(crate) async fn install(&self, chain: CertificateChain) -> Result<(), TrustError> {
        self.ask(|reply| Command::Install { chain: Box::new(chain), pushed: false, reply }).await?
    }

    /// As [`TrustHandle::install`], for a certificate that an admin sent unasked: it may only say the same of this node, for longer.
    pub(crate) async fn accept(&self, chain: CertificateChain) -> Result<(), TrustError> {
        self.ask(|reply| Command::Install { chain: Box::new(chain), pushed: true, reply }).await?
    }

    /// A member closed a session because it knows this node to be revoked. Lost when the task is busy: others say it again.
    pub(crate) fn told_revoked(&self, by: NodeId) -> bool {
        self.commands.try_send(Command::Told { by }).is_ok()
    }

    /// A member opened a session: what it said of this node before is over.
    pub(crate) fn welcomed(&self, by: NodeId) {
        if self.trust.borrow().told.contains(&by) {
            // silent-ok: the task is busy; it is said again with the next session
            let _ = self.commands.try_send(Command::Welcomed { by });
        }
    }

    /// The revocations with these names, as many as fit a reply.
    pub(crate) fn answer_revocations(&self, ids: &[RevocationId]) -> SyncReply {
        let trust = self.now();
        let found = ids.iter().filter_map(|id| trust.revocations.get(*id)?.to_bytes().ok());
        SyncReply::Revocations(found.take(limits::REVOCATIONS_PER_REPLY).collect())
    }

    /// The newest rotation, for a member.
    pub(crate) fn answer_secret(&self, asker: NodeId) -> SyncReply {
        let trust = self.now();
        if trust.is_revoked(asker) {
            return SyncReply::Refused;
        }
        let rotation = trust.secrets.rotation.as_ref().and_then(|r| r.to_bytes().ok());
        SyncReply::Secret(rotation.map(|bytes| bytes.to_vec()))
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, TrustError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| TrustError::Stopped)?;
        answer.await.map_err(|_| TrustError::Stopped)
    }
}

/// What the task is made of.
pub(crate) struct TrustParts {
    pub(crate) identity: Arc<NodeIdentity>,
    /// Where this node holds it.
    pub(crate) root: RootSource,
    pub(crate) trust: Trust,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
}

impl TrustParts {
    /// The handle, and the task that serves it.
    pub(crate) fn start(self, stop: CancellationToken) -> (TrustHandle, impl Future<Output = ()> + Send) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (out, trust) = watch::channel(Arc::new(self.trust.clone()));
        let state = TrustState::new(self.trust);
        if let Some(exclusion) = state.now.exclusion() {
            tracing::error!("{exclusion}; {}", exclusion.hint());
        }
        let (root, clock) = (Arc::clone(&self.root), Arc::clone(&self.clock));
        let task = Task {
            identity: self.identity,
            root: self.root,
            store: self.store,
            clock: self.clock,
            state,
            out,
        };
        (TrustHandle { commands, trust, root, clock }, task.run(inbox, stop))
    }
}

/// Whether what this node signs with its own certificate holds for others: the certificate must hold at this moment.
fn may_sign(trust: &Trust, now: u64) -> Result<(), TrustError> {
    trust.chain.verify(trust.mesh, now, CLOCK_TOLERANCE_S).map(|_| ()).map_err(|cause| not_now(&cause))
}

fn not_now(cause: &dyn std::fmt::Display) -> TrustError {
    TrustError::Certificate(format!(
        "this node's certificate has ended, or its clock is wrong: {cause}; set the clock, have the certificate renewed, \
         or use the node of another admin"
    ))
}

/// What is wrong with something that this node has just signed itself.
fn own_fault(error: StatementError) -> TrustError {
    match error {
        StatementError::Certificate(cause) => not_now(&cause),
        other => other.into(),
    }
}

struct Task {
    identity: Arc<NodeIdentity>,
    root: RootSource,
    store: Store,
    clock: Arc<dyn Clock>,
    state: TrustState,
    out: watch::Sender<Arc<Trust>>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                command = inbox.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                _ = tick.tick() => {
                    self.mended(&|path| path.exists());
                    if let Err(error) = self.input(Input::Tick) {
                        tracing::warn!(%error, "an old mesh secret can't be removed from the disk");
                    }
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        // silent-ok, for all replies: whoever asked does not wait any more
        match command {
            Command::Revoke { ask, reply } => drop(reply.send(self.revoke(&ask))),
            Command::Missing { ids, reply } => drop(reply.send(self.state.missing(&ids))),
            Command::Learn { revocations, reply } => {
                for bytes in revocations {
                    self.learn(&bytes);
                }
                let _ = reply.send(());
            }
            Command::LearnSecret { rotation, reply } => {
                self.learn_secret(&rotation);
                let _ = reply.send(());
            }
            Command::Install { chain, pushed, reply } => drop(reply.send(self.install(*chain, pushed))),
            Command::Welcomed { by } => {
                // silent-ok: as below
                let _ = self.input(Input::Welcomed(by));
            }
            Command::Told { by } => {
                // silent-ok: nothing of it goes to the disk, so nothing can fail
                let _ = self.input(Input::Told(by));
            }
        }
    }

    /// Performs one input: on the disk first, then in force. A revocation holds even when the disk is full: it must not keep anybody in.
    fn input(&mut self, input: Input) -> Result<bool, StoreError> {
        let Some(change) = self.state.handle(input, self.clock.unix()) else { return Ok(false) };
        let before = self.state.now.exclusion();
        match &change.write {
            None => {}
            Some(Write::Secrets) => self.store.write_secrets(&change.next.secrets)?,
            Some(Write::Chain) => self.store.write_chain(&change.next.chain)?,
            Some(Write::Revocation { signed, instead_of }) => {
                let said = signed.unverified();
                tracing::warn!(node = said.node.short(), reason = said.reason, "a node was revoked");
                if let Err(error) = self.store.add_revocation(signed, instead_of.as_deref()) {
                    tracing::error!(%error, "a revocation holds now, but can't be stored: after a restart it has to be learnt again");
                }
            }
        }
        self.state.now = change.next;
        if let Some(Write::Revocation { signed, .. }) = &change.write {
            // Written over it.
            let name = signed.id().to_string();
            if let Some(next) = self.state.now.mended(|path| path.file_name().is_none_or(|n| *n != *name)) {
                self.state.now = next;
            }
        }
        self.out.send_replace(Arc::new(self.state.now.clone()));
        if let Some(exclusion) = self.state.now.exclusion().filter(|e| Some(e) != before.as_ref()) {
            tracing::error!("{exclusion}; {}", exclusion.hint());
        }
        Ok(true)
    }

    /// Forgets the damaged files that are `still` no more.
    fn mended(&mut self, still: &dyn Fn(&Path) -> bool) {
        if let Some(next) = self.state.now.mended(still) {
            self.state.now = next;
            self.out.send_replace(Arc::new(self.state.now.clone()));
        }
    }

    fn learn(&mut self, bytes: &[u8]) {
        let mesh = self.state.now.mesh;
        let signed = SignedRevocation::from_bytes(bytes)
            .and_then(|signed| signed.verify(mesh).map(|_| ()).map(|()| signed));
        match signed {
            Ok(signed) => {
                // silent-ok: a revocation that can't be stored is said in the log
                let _ = self.input(Input::Revocation(Arc::new(signed)));
            }
            Err(error) => tracing::warn!(%error, "a revocation that does not hold was refused"),
        }
    }

    fn learn_secret(&mut self, bytes: &[u8]) {
        let mesh = self.state.now.mesh;
        let rotation = SignedRotation::from_bytes(bytes)
            .and_then(|rotation| rotation.verify(mesh).map(|_| ()).map(|()| rotation));
        match rotation.map(|rotation| self.input(Input::Rotation(Arc::new(rotation)))) {
            Ok(Ok(true)) => {
                let generation = self.state.now.secrets.stamp.generation;
                tracing::info!(generation, "the mesh has a new secret");
            }
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::error!(%error, "the new mesh secret can't be stored and is not used"),
            Err(error) => tracing::warn!(%error, "a rotation that does not hold was refused"),
        }
    }

    fn install(&mut self, chain: CertificateChain, pushed: bool) -> Result<(), TrustError> {
        let refused = |why: &dyn std::fmt::Display| {
            TrustError::Certificate(format!("the certificate is not this node's: {why}"))
        };
        let now = self.clock.unix();
        let own =
            chain.verify(self.state.now.mesh, now, CLOCK_TOLERANCE_S).map_err(|e| refused(&e))?.certificate;
        if own.keys() != *self.identity.public() {
            return Err(refused(&"it is for other keys"));
        }
        self.state.now.check(&own).map_err(|e| refused(&e))?;
        // Nobody renames a node or gives it another role by a message that it did not ask for, and no old certificate comes back.
        if pushed {
            let same = self.state.now.own().is_some_and(|old| {
                (&old.name, old.role, &old.grants) == (&own.name, own.role, &own.grants)
                    && own.not_after >= old.not_after
            });
            if !same {
                return Err(refused(
                    &"it says something else of this node than the one it has, or ends earlier",
                ));
            }
        }
        self.input(Input::Chain(chain))?;
        Ok(())
    }

    fn revoke(&mut self, ask: &RevokeAsk) -> Result<Revoked, TrustError> {
        if ask.node == self.identity.node_id() {
            return Err(TrustError::Itself);
        }
        if (self.root)().is_none() {
            if !self.state.now.is_admin() {
                return Err(TrustError::NotAdmin);
            }
            may_sign(&self.state.now, self.clock.unix())?;
        }
        // A new secret that can't be made or stored must not leave half of what was asked for undone.
        let rotation = if ask.rotate { Some(self.new_secret()?) } else { self.kept_secret(ask.node)? };
        let held = self.state.now.revocations.of(ask.node).filter(|said| !self.is_void(said.issuer));
        let at = match held {
            Some(said) => said.at,
            None => {
                let (now, reason) = (self.clock.unix(), ask.reason.as_str());
                let said: Vec<_> = self.state.now.revocations.issued_by(ask.node).cloned().collect();
                self.sign_revocation(ask.node, now, reason)?;
                // What the revoked admin said goes on to hold for nodes that did not hear it yet.
                for earlier in said {
                    self.sign_revocation(
                        earlier.node,
                        earlier.at.max(self.not_before()).min(now),
                        &earlier.reason,
                    )?;
                }
                now
            }
        };
        if !self.state.now.is_revoked(ask.node) {
            return Err(TrustError::Full);
        }
        if let Some(rotation) = rotation {
            self.put_in_force(rotation)?;
        }
        Ok(Revoked { at, secret_generation: self.state.now.secrets.stamp.generation })
    }

    fn put_in_force(&mut self, rotation: SignedRotation) -> Result<(), TrustError> {
        if self.input(Input::Rotation(Arc::new(rotation)))? {
            Ok(())
        } else {
            Err(StoreError::NotTaken.into())
        }
    }

    fn is_void(&self, issuer: Issuer) -> bool {
        matches!(issuer, Issuer::Admin(admin) if self.state.now.is_revoked(admin))
    }

    /// From when on this node was an admin: what it signs may not be older.
    fn not_before(&self) -> u64 {
        self.state.now.own().map_or(0, |own| own.not_before)
    }

    fn sign_revocation(&mut self, node: NodeId, at: u64, reason: &str) -> Result<(), TrustError> {
        if node == self.identity.node_id() {
            return Ok(());
        }
        let signed = match (self.root)() {
            Some(root) => SignedRevocation::by_root(&root, node, at, reason)?,
            None => SignedRevocation::by_admin(&self.identity, &self.state.now.chain, node, at, reason)?,
        };
        // What others refuse must not get onto the own disk: this node would act on it alone.
        signed.verify(self.state.now.mesh).map_err(own_fault)?;
        self.input(Input::Revocation(Arc::new(signed)))?;
        Ok(())
    }

    /// The secret in force, signed by this node, when `out` made it: members that were off refuse the rotation of a revoked admin, and
    /// could not come back once the secret before it has ended.
    fn kept_secret(&self, out: NodeId) -> Result<Option<SignedRotation>, TrustError> {
        let secrets = &self.state.now.secrets;
        match &secrets.rotation {
            Some(held) if held.unverified().issuer == Issuer::Admin(out) => {
                self.sign_rotation(secrets.current.clone()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn new_secret(&self) -> Result<SignedRotation, TrustError> {
        let mut secret = Zeroizing::new([0; 32]);
        self.clock.fill(&mut *secret).map_err(|e| TrustError::Entropy(e.to_string()))?;
        self.sign_rotation(MeshSecret::from_bytes(*secret))
    }

    fn sign_rotation(&self, secret: MeshSecret) -> Result<SignedRotation, TrustError> {
        let generation = self.state.now.secrets.stamp.generation.saturating_add(1);
        let now = self.clock.unix();
        let signed = match (self.root)() {
            Some(root) => SignedRotation::by_root(&root, generation, now, secret)?,
            None => SignedRotation::by_admin(&self.identity, &self.state.now.chain, generation, now, secret)?,
        };
        // A rotation that does not hold would keep this node from starting again.
        signed.verify(self.state.now.mesh).map_err(own_fault)?;
        Ok(signed)
    }
}
