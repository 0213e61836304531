//! This node's own certificate: renewed at half of its life, or under another name.
use std::sync::Arc;

use octomesh_protocol::{
    codec::CodecError,
    id::{NodeId, NodeName},
    sync::{RenewRefusal, Renewal, SyncReply, SyncRequest},
    trust::{CLOCK_TOLERANCE_S, Certificate, CertificateChain, Issuer, Role},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Duration, Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use crate::{
    membership::{MeshView, renewals::Renewals},
    net::{NetError, NetHandle},
    trust::{Exclusion, TrustError, TrustHandle},
};

/// Renames that wait; they come from a person.
pub(crate) const COMMANDS: usize = 4;
/// Issuers asked in one try: a mesh has a few admins.
const ISSUERS: usize = 8;
/// An issuer answers in milliseconds.
const ANSWER: Duration = Duration::from_secs(5);
/// The wall clock is looked at this often: machines sleep, and clocks are set.
const LOOK: Duration = Duration::from_secs(60);
/// First pause after a try that failed, as a part of the certificate's life, and its bounds: with a year 5 minutes.
const FIRST_PAUSE: (u64, u64, u64) = (32, 1, 300);
/// Longest pause: with a year 6 hours.
const LAST_PAUSE: (u64, u64, u64) = (8, 4, 6 * 3600);
/// Before its end a certificate that could not be renewed is a warning.
const WARN_S: u64 = 30 * 86_400;

/// Why there is no other certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum RenewalError {
    #[error("no node that could issue it is connected")]
    NoIssuer,
    #[error("{why}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused { why: RenewRefusal, detail: String },
    #[error("the issuer did not answer: {0}")]
    Unreachable(String),
    #[error("what the issuer sent is not what was asked for: {0}")]
    Answer(&'static str),
    #[error("{0}")]
    Excluded(String),
    #[error("the new certificate is not taken: {0}")]
    Install(String),
    #[error("the node is stopping")]
    Stopped,
}

impl From<TrustError> for RenewalError {
    fn from(error: TrustError) -> Self {
        Self::Install(error.to_string())
    }
}

impl From<CodecError> for RenewalError {
    fn from(error: CodecError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<NetError> for RenewalError {
    fn from(error: NetError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

pub(crate) enum RenewalCommand {
    Rename { name: NodeName, reply: oneshot::Sender<Result<(), RenewalError>> },
}

/// Talks to the task; cheap to clone.
#[derive(Clone)]
pub(crate) struct RenewalHandle {
    commands: mpsc::Sender<RenewalCommand>,
    failed: watch::Receiver<Option<RenewalError>>,
}

impl RenewalHandle {
    /// Gives this node another name.
    pub(crate) async fn rename(&self, name: NodeName) -> Result<(), RenewalError> {
        let (reply, answer) = oneshot::channel();
        let command = RenewalCommand::Rename { name, reply };
        self.commands.send(command).await.map_err(|_| RenewalError::Stopped)?;
        answer.await.map_err(|_| RenewalError::Stopped)?
    }

    /// What the owner should know of this node's certificate, if anything.
    pub(crate) fn warning(&self, chain: &CertificateChain, now: u64) -> Option<String> {
        let life = Life::of(chain)?;
        if life.is_of_the_future(now) {
            let ahead = octomesh_protocol::trust::span(life.from - now);
            return Some(format!(
                "this node's certificate begins in {ahead}: it was issued while this machine's clock was ahead, and members refuse it \
                 until then. Set the clock; where the root key is at hand it is renewed at once, else `octomesh leave` and \
                 `octomesh join` with a new ticket"
            ));
        }
        if now < life.due() || life.ends.saturating_sub(now) > WARN_S {
            return None;
        }
        let ends = match life.ends.checked_sub(now) {
            Some(left) => format!("ends in {}", octomesh_protocol::trust::span(left)),
            None => "has ended".to_owned(),
        };
        let why = self.failed.borrow().as_ref().map(|e| format!(" ({e})")).unwrap_or_default();
        Some(format!(
            "this node's certificate {ends} and was not renewed{why}: bring this node together with an admin's"
        ))
    }
}

/// When a chain was issued and when it ends, unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    from: u64,
    ends: u64,
}

impl Life {
    fn of(chain: &CertificateChain) -> Option<Self> {
        Some(Self { from: chain.leaf()?.issued_at(), ends: chain.ends()? })
    }

    fn length(self) -> u64 {
        self.ends.saturating_sub(self.from)
    }

    /// Half of it is over.
    fn due(self) -> u64 {
        self.from.saturating_add(self.length() / 2)
    }

    /// It was issued while this machine's clock was ahead: until then every member refuses it.
    fn is_of_the_future(self, now: u64) -> bool {
        now.saturating_add(CLOCK_TOLERANCE_S) < self.from
    }

    fn is_due(self, now: u64) -> bool {
        now >= self.due() || self.is_of_the_future(now)
    }

    /// The pause after so many tries that failed; `random` moves it by up to a quarter, so that nodes do not ask in step.
    fn pause(self, failures: u32, random: u64) -> Duration {
        let part = |(part, least, most): (u64, u64, u64)| (self.length() / part).clamp(least, most);
        let whole = 1000 * part(FIRST_PAUSE).saturating_mul(1 << failures.min(20)).min(part(LAST_PAUSE));
        Duration::from_millis(whole - whole / 4 + random % (whole / 2 + 1))
    }
}

/// What the task is made of.
pub(crate) struct RenewalParts {
    pub(crate) trust: TrustHandle,
    /// This node's own issuer, which may have the root key.
    pub(crate) renewals: Renewals,
    pub(crate) net: NetHandle,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl RenewalParts {
    /// The handle, and the task that serves it.
    pub(crate) fn start(self, stop: CancellationToken) -> (RenewalHandle, impl Future<Output = ()> + Send) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (failed_out, failed) = watch::channel(None);
        let task = Task { parts: self, failed: failed_out, failures: 0, not_before: Instant::now() };
        (RenewalHandle { commands, failed }, task.run(inbox, stop))
    }
}

struct Task {
    parts: RenewalParts,
    failed: watch::Sender<Option<RenewalError>>,
    failures: u32,
    /// No try before this.
    not_before: Instant,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<RenewalCommand>, stop: CancellationToken) {
        let work = async {
            loop {
                let lonely = matches!(*self.failed.borrow(), Some(RenewalError::NoIssuer));
                let mut view = self.parts.view.clone();
                let (trust, wait) = (self.parts.trust.clone(), self.wait());
                tokio::select! {
                    command = inbox.recv() => match command {
                        Some(RenewalCommand::Rename { name, reply }) => {
                            // silent-ok: whoever asked does not wait any more
                            let _ = reply.send(self.renew(Some(&name)).await);
                        }
                        None => return,
                    },
                    () = tokio::time::sleep(wait) => self.look().await,
                    // Somebody who could issue is here now.
                    met = async { view.wait_for(|v| !issuers(v, &trust).is_empty()).await.is_ok() }, if lonely => {
                        if !met {
                            return;
                        }
                        self.not_before = Instant::now();
                        self.look().await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Until the next look.
    fn wait(&self) -> Duration {
        let Some(life) = Life::of(&self.parts.trust.now().chain) else { return LOOK };
        let now = self.parts.clock.unix();
        let due = Duration::from_secs(if life.is_due(now) { 0 } else { life.due().saturating_sub(now) });
        let pause = self.not_before.saturating_duration_since(Instant::now());
        // A second that has begun is not over.
        due.max(pause).clamp(Duration::from_millis(200), LOOK)
    }

    /// Renews when it is time.
    async fn look(&mut self) {
        let Some(life) = Life::of(&self.parts.trust.now().chain) else { return };
        let now = self.parts.clock.unix();
        if !life.is_due(now) {
            // It is not due any more when somebody sent one unasked.
            self.failed.send_replace(None);
            return;
        }
        if Instant::now() < self.not_before {
            return;
        }
        match self.renew(None).await {
            Ok(()) => {
                self.failures = 0;
                self.failed.send_replace(None);
                // A chain whose other certificate ends soon may be due again at once.
                self.not_before = Instant::now() + life.pause(0, self.random());
            }
            Err(error) => {
                if life.ends.saturating_sub(now) <= WARN_S {
                    tracing::warn!(%error, "this node's certificate could not be renewed");
                } else {
                    tracing::debug!(%error, "this node's certificate could not be renewed yet");
                }
                self.not_before = Instant::now() + life.pause(self.failures, self.random());
                self.failures = self.failures.saturating_add(1);
                self.failed.send_replace(Some(error));
            }
        }
    }

    fn random(&self) -> u64 {
        u64::from_le_bytes(self.parts.clock.id_bytes())
    }

    /// Asks the own issuer, which may have the root key, then those that are connected, until one gives a certificate.
    async fn renew(&self, name: Option<&NodeName>) -> Result<(), RenewalError> {
        let trust = self.parts.trust.now();
        if let Some(exclusion @ (Exclusion::Revoked { .. } | Exclusion::Void { .. })) = trust.exclusion() {
            return Err(RenewalError::Excluded(exclusion.to_string()));
        }
        let old = trust.own().ok_or(RenewalError::Answer("there is no certificate"))?;
        let renewal = Renewal { chain: trust.chain.clone(), name: name.cloned() };
        let mut others = issuers(&self.parts.view.borrow(), &self.parts.trust);
        // Not always the same one first.
        let turn = usize::try_from(self.random() % 1024).unwrap_or(0) % others.len().max(1);
        others.rotate_left(turn);
        let mut failed = RenewalError::NoIssuer;
        for issuer in std::iter::once(None).chain(others.into_iter().take(ISSUERS).map(Some)) {
            let chain = match self.ask(issuer, trust.node, &renewal).await {
                Ok(chain) => chain,
                // The next one would only say it again.
                Err(error @ RenewalError::Refused { why: RenewRefusal::NameTaken, .. }) => return Err(error),
                // A node that is no issuer itself is no news.
                Err(RenewalError::Refused { why: RenewRefusal::NotIssuer, .. }) if issuer.is_none() => {
                    continue;
                }
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            // One of the future ends later than any of today, and is worth nothing today.
            let of_the_future =
                Life::of(&trust.chain).is_some_and(|life| life.is_of_the_future(self.parts.clock.unix()));
            match accepted(old, trust.chain.ends().filter(|_| !of_the_future), &chain, name) {
                Ok(()) => return Ok(self.parts.trust.install(chain).await?),
                Err(why) => failed = RenewalError::Answer(why),
            }
        }
        Err(failed)
    }

    async fn ask(
        &self,
        issuer: Option<NodeId>,
        own: NodeId,
        renewal: &Renewal,
    ) -> Result<CertificateChain, RenewalError> {
        let reply = match issuer {
            None => self.parts.renewals.ask(own, renewal.clone()).await,
            Some(issuer) => {
                let bytes = SyncRequest::Renew(Box::new(renewal.clone())).to_bytes()?;
                let answer = timeout(ANSWER, self.parts.net.sync(issuer, bytes)).await;
                SyncReply::from_bytes(
                    &answer.map_err(|_| RenewalError::Unreachable("too slow".to_owned()))??,
                )?
            }
        };
        match reply {
            SyncReply::Renewed(chain) => Ok(*chain),
            SyncReply::NotRenewed { why, detail } => Err(RenewalError::Refused { why, detail }),
            SyncReply::Refused => {
                Err(RenewalError::Refused { why: RenewRefusal::Revoked, detail: String::new() })
            }
            _ => Err(RenewalError::Answer("another kind of answer")),
        }
    }
}

/// Connected members that could issue a certificate.
fn issuers(view: &MeshView, trust: &TrustHandle) -> Vec<NodeId> {
    let trust = trust.now();
    let is_issuer = |c: &Certificate| c.role == Role::Admin && c.issuer == Issuer::Root;
    view.members
        .values()
        .filter(|m| m.connected && !view.is_me(m.node) && !trust.is_revoked(m.node))
        .filter(|m| m.certificate.as_deref().is_some_and(is_issuer))
        .map(|m| m.node)
        .collect()
}

/// Whether a new certificate says what the old one said, and holds for longer. Its signatures and keys are checked when it is
/// installed.
fn accepted(
    old: &Certificate,
    old_ends: Option<u64>,
    chain: &CertificateChain,
    name: Option<&NodeName>,
) -> Result<(), &'static str> {
    let new = chain.leaf().ok_or("an empty chain")?;
    if new.name != *name.unwrap_or(&old.name) {
        return Err("another name");
    }
    if (new.role, &new.grants) != (old.role, &old.grants) {
        return Err("another role or other grants");
    }
    if name.is_none() && chain.ends() <= old_ends {
        return Err("it ends no later than the one that there is");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
