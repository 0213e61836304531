//! Tickets and the certificates they are redeemed for. One task owns the tickets; they live in `identity/tickets.json`, so that
//! a ticket survives a restart and a redeemed one stays redeemed.
mod redeem;
mod renew;
mod rows;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::{NodeId, NodeName},
    session::secret::OneTimeSecret,
    trust::{
        Certificate, CertificateChain, CertificateError, CertificateRequest, Grants, NodeIdentity, Role,
        Ticket,
    },
};
use rows::{Row, Rows};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    events::NodeEvent,
    home::HomeError,
    root::{RootAbsent, RootKeeper},
};
use crate::{
    membership::{MeshView, renewals::RenewAsk},
    net::join::{JoinAsk, OpenTicket},
    trust::{Exclusion, Trust, TrustReader},
};

/// PROTOCOL 2: at most 64 open tickets, since each is tried against message 1 of a join.
const OPEN_TICKETS: usize = 64;
/// Node keys one ticket may serve.
const MOST_USES: u32 = 64;
/// A ticket lives at most a week: it is a secret in somebody's chat history.
const LONGEST_TTL_S: u64 = 7 * 24 * 3600;

/// A name that was handed out is not handed to another node for this long: by then its holder has shown its certificate to the
/// members, this node among them.
const HANDED: Duration = Duration::from_secs(60);
/// Names remembered for that, one for each node; the oldest goes first. More than change their names or join in such a time.
const HANDED_NAMES: usize = 256;

/// Why a ticket can't be made or taken back.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum IssuerError {
    #[error("this node may not invite: it is no admin")]
    NotAdmin,
    #[error("only the root key makes admins. {0}")]
    NoRoot(#[from] RootAbsent),
    #[error("too many tools, or their names are too long, to fit a certificate")]
    Grants,
    #[error("{0}")]
    Revoked(Exclusion),
    #[error("{OPEN_TICKETS} tickets are open; withdraw one first")]
    TooMany,
    #[error("a ticket lives 1 s to 7 days and serves 1 to {MOST_USES} nodes")]
    Range,
    #[error("no address is known that others could reach; set `listen` or `advertise`")]
    NoAddress,
    #[error("no ticket {0}")]
    Unknown(String),
    #[error("tickets: {0}")]
    Home(#[from] HomeError),
    #[error("no randomness: {0}")]
    Entropy(String),
    #[error("certificate: {0}")]
    Certificate(#[from] SignerError),
    #[error("the issuer has stopped")]
    Stopped,
}

/// A ticket as shown to its maker.
#[derive(Debug, Clone)]
pub(crate) struct TicketRow {
    pub(crate) id: String,
    pub(crate) role: Role,
    pub(crate) grants: Grants,
    pub(crate) uses: u32,
    pub(crate) used: u32,
    pub(crate) expires: u64,
}

/// A ticket to be made.
#[derive(Debug, Clone)]
pub(crate) struct Invite {
    pub(crate) role: Role,
    pub(crate) grants: Grants,
    pub(crate) ttl_s: u64,
    pub(crate) uses: u32,
}

pub(crate) enum IssuerCommand {
    Invite { invite: Invite, reply: oneshot::Sender<Result<(Ticket, u32), IssuerError>> },
    List { reply: oneshot::Sender<Vec<TicketRow>> },
    Withdraw { id: String, reply: oneshot::Sender<Result<(), IssuerError>> },
    Reissue { certificate: Box<Certificate>, reply: oneshot::Sender<Result<CertificateChain, IssuerError>> },
}

/// What an issuer signs with.
pub(crate) struct Signer {
    pub(crate) node: Arc<NodeIdentity>,
    pub(crate) root: RootKeeper,
    /// The own certificate, the mesh secret that is handed out, and who gets none.
    pub(crate) trust: TrustReader,
    /// How long a certificate holds, in seconds.
    pub(crate) lifetime_s: u64,
}

pub(crate) struct Issuer {
    pub(crate) signer: Signer,
    pub(crate) file: PathBuf,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) open: watch::Sender<Arc<Vec<OpenTicket>>>,
    pub(crate) events: broadcast::Sender<NodeEvent>,
    pub(crate) record: Record,
}

/// What the issuer remembers of what it issued, beside the tickets.
#[derive(Default)]
pub(crate) struct Record {
    last_serial: u64,
    /// Who got a certificate in the last second.
    renewed: Vec<(NodeId, Instant)>,
    /// Names of certificates that members may not have seen yet, one for each node.
    handed: Vec<(NodeId, NodeName, Instant)>,
    /// Those who were gone for good when the tickets were last compared with them.
    gone: Arc<BTreeSet<NodeId>>,
}

impl Record {
    /// `node` has a certificate of that name since `now`.
    fn hand_out(&mut self, node: NodeId, name: NodeName, now: Instant) {
        self.handed.retain(|(holder, _, at)| *holder != node && now.duration_since(*at) < HANDED);
        if self.handed.len() >= HANDED_NAMES {
            self.handed.remove(0);
        }
        self.handed.push((node, name, now));
    }

    /// Who got a certificate of that name of late.
    fn handed(&self, name: &NodeName, now: Instant) -> impl Iterator<Item = NodeId> {
        self.handed
            .iter()
            .filter(move |(_, held, at)| held == name && now.duration_since(*at) < HANDED)
            .map(|(node, _, _)| *node)
    }
}

/// Handle of the issuer's task.
#[derive(Clone)]
pub(crate) struct IssuerHandle(pub(crate) mpsc::Sender<IssuerCommand>);

impl IssuerHandle {
    /// A new ticket and how many nodes it serves.
    pub(crate) async fn invite(&self, invite: Invite) -> Result<(Ticket, u32), IssuerError> {
        self.ask(|reply| IssuerCommand::Invite { invite, reply }).await?
    }

    pub(crate) async fn list(&self) -> Result<Vec<TicketRow>, IssuerError> {
        self.ask(|reply| IssuerCommand::List { reply }).await
    }

    pub(crate) async fn withdraw(&self, id: String) -> Result<(), IssuerError> {
        self.ask(|reply| IssuerCommand::Withdraw { id, reply }).await?
    }

    /// Another certificate for a member that has one: same keys, name, role and grants, signed by this node or its root key.
    pub(crate) async fn reissue(&self, certificate: Certificate) -> Result<CertificateChain, IssuerError> {
        self.ask(|reply| IssuerCommand::Reissue { certificate: Box::new(certificate), reply }).await?
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> IssuerCommand,
    ) -> Result<T, IssuerError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(command(reply)).await.map_err(|_| IssuerError::Stopped)?;
        answer.await.map_err(|_| IssuerError::Stopped)
    }
}

impl Issuer {
    /// Serves joins and commands until `stop`.
    pub(crate) async fn run(
        mut self,
        mut joins: mpsc::Receiver<JoinAsk>,
        mut renewals: mpsc::Receiver<RenewAsk>,
        mut commands: mpsc::Receiver<IssuerCommand>,
        stop: CancellationToken,
    ) {
        let mut rows = Rows::read(&self.file);
        let mut view = self.view.clone();
        self.announce(&rows);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(command) = commands.recv() => self.command(command, &mut rows),
                Some(ask) = joins.recv() => {
                    let answer = self.redeem(&ask, &mut rows);
                    // silent-ok: the joiner is gone; the same key gets the same answer when it asks again
                    let _ = ask.answer.send(answer);
                }
                Some(ask) = renewals.recv() => self.renew(ask, &mut rows),
                Ok(()) = view.changed() => {
                    view.mark_unchanged();
                    self.free_names(&mut rows);
                    continue;
                }
                else => break,
            }
            self.announce(&rows);
        }
    }

    fn now(&self) -> u64 {
        self.clock.unix()
    }

    /// Unique at this issuer, also after a restart: certificates are far fewer than a thousand a second.
    fn next_serial(&mut self, now: u64) -> u64 {
        self.record.last_serial = now.saturating_mul(1000).max(self.record.last_serial.saturating_add(1));
        self.record.last_serial
    }

    /// Tells the network which secrets open a join: also those of ended tickets, so that their holder is told why not.
    fn announce(&self, rows: &Rows) {
        let open = rows.iter().rev().take(OPEN_TICKETS).filter_map(|row| {
            let secret: [u8; 32] = HEXLOWER.decode(row.secret.as_bytes()).ok()?.try_into().ok()?;
            Some(OpenTicket { id: row.id.parse().ok()?, secret: OneTimeSecret::from_bytes(secret) })
        });
        self.open.send_replace(Arc::new(open.collect()));
    }

    fn command(&mut self, command: IssuerCommand, rows: &mut Rows) {
        // silent-ok: in all four the asker does not wait any more
        match command {
            IssuerCommand::Invite { invite, reply } => {
                let _ = reply.send(self.invite(&invite, rows));
            }
            IssuerCommand::List { reply } => {
                let now = self.now();
                let open = rows.iter().filter(|r| r.is_open(now)).map(|r| TicketRow {
                    id: r.id.clone(),
                    role: r.role,
                    grants: r.grants.clone(),
                    uses: r.uses,
                    used: u32::try_from(r.redeemed.len()).unwrap_or(u32::MAX),
                    expires: r.expires,
                });
                let _ = reply.send(open.collect());
            }
            IssuerCommand::Withdraw { id, reply } => {
                let _ = reply.send(self.withdraw(&id, rows));
            }
            IssuerCommand::Reissue { certificate, reply } => {
                let _ = reply.send(self.reissue(*certificate));
            }
        }
    }

    fn invite(&self, invite: &Invite, rows: &mut Rows) -> Result<(Ticket, u32), IssuerError> {
        let trust = self.signer.trust();
        if let Some(exclusion) = trust.exclusion().filter(|e| !matches!(e, Exclusion::Told { .. })) {
            return Err(IssuerError::Revoked(exclusion));
        }
        let root = self.signer.root.root();
        if root.is_err() && !trust.is_admin() {
            return Err(IssuerError::NotAdmin);
        }
        if invite.role == Role::Admin {
            root?;
        }
        if !invite.grants.fit() {
            return Err(IssuerError::Grants);
        }
        if !(1..=LONGEST_TTL_S).contains(&invite.ttl_s) || !(1..=MOST_USES).contains(&invite.uses) {
            return Err(IssuerError::Range);
        }
        let now = self.now();
        if rows.iter().filter(|r| r.is_open(now)).count() >= OPEN_TICKETS {
            return Err(IssuerError::TooMany);
        }
        let addresses = self.view.borrow().own().map(|m| m.addresses.clone()).unwrap_or_default();
        if addresses.is_empty() {
            return Err(IssuerError::NoAddress);
        }
        let mut secret = zeroize::Zeroizing::new([0u8; 32]);
        self.clock.fill(&mut *secret).map_err(|e| IssuerError::Entropy(e.to_string()))?;
        let ticket = Ticket {
            mesh: trust.mesh,
            issuer: self.signer.node.node_id(),
            addresses,
            secret: OneTimeSecret::from_bytes(*secret),
            role: invite.role,
            expires: now + invite.ttl_s,
        };
        let row = Row {
            id: ticket.id().to_string(),
            secret: HEXLOWER.encode(&*secret),
            role: invite.role,
            grants: invite.grants.clone(),
            uses: invite.uses,
            expires: ticket.expires,
            withdrawn: false,
            redeemed: Vec::new(),
        };
        rows.change(now, |rows| rows.push(row))?;
        Ok((ticket, invite.uses))
    }

    /// Another certificate for the holder of `old`, with what it says but its serial and times.
    fn reissue(&mut self, old: Certificate) -> Result<CertificateChain, IssuerError> {
        if self.signer.trust().is_revoked(old.node) {
            return Err(IssuerError::NotAdmin);
        }
        let now = self.now();
        let serial = self.next_serial(now);
        Ok(self.signer.issue(CertificateRequest {
            keys: old.keys(),
            name: old.name,
            role: old.role,
            grants: old.grants,
            serial,
            now,
            lifetime_s: self.signer.lifetime_s,
        })?)
    }

    fn withdraw(&self, id: &str, rows: &mut Rows) -> Result<(), IssuerError> {
        if rows.get(id).is_none() {
            return Err(IssuerError::Unknown(id.chars().take(80).collect()));
        }
        rows.change(self.now(), |rows| {
            rows.iter_mut().filter(|r| r.id == id).for_each(|r| r.withdrawn = true);
        })?;
        Ok(())
    }
}

impl Signer {
    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.borrow())
    }

    /// Signs with the root where it is at hand, else as the admin that this node is. An admin's certificate needs the root.
    fn issue(&self, request: CertificateRequest) -> Result<CertificateChain, SignerError> {
        match self.root.root() {
            Ok(root) => Ok(root.issue(request)?),
            Err(absent) if request.role == Role::Admin => Err(absent.into()),
            Err(_) if !self.trust().is_admin() => Err(SignerError::NotAdmin),
            Err(_) => Ok(self.trust().chain.issue(&self.node, request)?),
        }
    }
}

/// Why no certificate came about.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum SignerError {
    #[error("only the root key makes admins. {0}")]
    Root(#[from] RootAbsent),
    #[error("this node issues no certificates: it is no admin")]
    NotAdmin,
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}
