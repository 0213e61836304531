//! Tickets and the certificates they are redeemed for. One task owns the tickets; they live in `identity/tickets.json`, so that
//! a ticket survives a restart and a redeemed one stays redeemed.
use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    advert::MemberAddress,
    id::{NodeId, NodeName},
    join::{JoinAnswer, JoinGrant, JoinRefusal},
    session::secret::{MeshSecret, OneTimeSecret},
    trust::{
        CertificateChain, CertificateRequest, Grants, MeshRoot, NodeIdentity, Role, Ticket,
        certificate::LIFETIME_S,
    },
};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    events::NodeEvent,
    home::{self, HomeError},
};
use crate::{
    membership::MeshView,
    net::join::{JoinAsk, OpenTicket},
};

/// PROTOCOL 2: at most 64 open tickets, since each is tried against message 1 of a join.
const OPEN_TICKETS: usize = 64;
/// Tickets kept after they ended, so that a late joiner is told "expired" or "used" instead of "unknown".
const ENDED_TICKETS: usize = 256;
/// Node keys one ticket may serve.
const MOST_USES: u32 = 64;
/// A ticket lives at most a week: it is a secret in somebody's chat history.
const LONGEST_TTL_S: u64 = 7 * 24 * 3600;

/// Why a ticket can't be made or taken back.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum IssuerError {
    #[error("this node may not invite: it is no admin")]
    NotAdmin,
    #[error("only the node that holds the root key makes admins")]
    NoRoot,
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
    #[error("the issuer has stopped")]
    Stopped,
}

#[derive(Clone, Serialize, Deserialize)]
struct Row {
    id: String,
    /// Hexadecimal; the file is private like a key.
    secret: String,
    role: Role,
    uses: u32,
    expires: u64,
    withdrawn: bool,
    redeemed: Vec<Redeemed>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Redeemed {
    node_id: String,
    name: NodeName,
    /// The chain in hexadecimal: the same key asking again gets the same certificate.
    chain: String,
}

/// A ticket as shown to its maker.
#[derive(Debug, Clone)]
pub(crate) struct TicketRow {
    pub(crate) id: String,
    pub(crate) role: Role,
    pub(crate) uses: u32,
    pub(crate) used: u32,
    pub(crate) expires: u64,
}

/// A ticket to be made.
#[derive(Debug, Clone)]
pub(crate) struct Invite {
    pub(crate) role: Role,
    pub(crate) ttl_s: u64,
    pub(crate) uses: u32,
}

pub(crate) enum IssuerCommand {
    Invite { invite: Invite, reply: oneshot::Sender<Result<(Ticket, u32), IssuerError>> },
    List { reply: oneshot::Sender<Vec<TicketRow>> },
    Withdraw { id: String, reply: oneshot::Sender<Result<(), IssuerError>> },
}

/// What an issuer signs with.
pub(crate) struct Signer {
    pub(crate) node: Arc<NodeIdentity>,
    pub(crate) chain: CertificateChain,
    pub(crate) root: Option<MeshRoot>,
    pub(crate) secret: MeshSecret,
}

pub(crate) struct Issuer {
    pub(crate) signer: Signer,
    pub(crate) file: PathBuf,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) open: watch::Sender<Arc<Vec<OpenTicket>>>,
    pub(crate) events: broadcast::Sender<NodeEvent>,
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
        self,
        mut joins: mpsc::Receiver<JoinAsk>,
        mut commands: mpsc::Receiver<IssuerCommand>,
        stop: CancellationToken,
    ) {
        let mut rows = read(&self.file);
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
                else => break,
            }
            self.announce(&rows);
        }
    }

    fn now(&self) -> u64 {
        self.clock.unix()
    }

    /// Tells the network which secrets open a join: also those of ended tickets, so that their holder is told why not.
    fn announce(&self, rows: &[Row]) {
        let open = rows.iter().rev().take(OPEN_TICKETS).filter_map(|row| {
            let secret: [u8; 32] = HEXLOWER.decode(row.secret.as_bytes()).ok()?.try_into().ok()?;
            Some(OpenTicket { id: row.id.parse().ok()?, secret: OneTimeSecret::from_bytes(secret) })
        });
        self.open.send_replace(Arc::new(open.collect()));
    }

    fn command(&self, command: IssuerCommand, rows: &mut Vec<Row>) {
        // silent-ok: in all three the asker does not wait any more
        match command {
            IssuerCommand::Invite { invite, reply } => {
                let _ = reply.send(self.invite(&invite, rows));
            }
            IssuerCommand::List { reply } => {
                let now = self.now();
                let open = rows.iter().filter(|r| r.is_open(now)).map(|r| TicketRow {
                    id: r.id.clone(),
                    role: r.role,
                    uses: r.uses,
                    used: u32::try_from(r.redeemed.len()).unwrap_or(u32::MAX),
                    expires: r.expires,
                });
                let _ = reply.send(open.collect());
            }
            IssuerCommand::Withdraw { id, reply } => {
                let _ = reply.send(self.withdraw(&id, rows));
            }
        }
    }

    fn invite(&self, invite: &Invite, rows: &mut Vec<Row>) -> Result<(Ticket, u32), IssuerError> {
        let own = self.signer.chain.leaf().map(|c| c.role);
        if self.signer.root.is_none() && own != Some(Role::Admin) {
            return Err(IssuerError::NotAdmin);
        }
        if invite.role == Role::Admin && self.signer.root.is_none() {
            return Err(IssuerError::NoRoot);
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
            mesh: self.signer.chain.root().mesh_id(),
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
            uses: invite.uses,
            expires: ticket.expires,
            withdrawn: false,
            redeemed: Vec::new(),
        };
        self.change(rows, |rows| rows.push(row))?;
        Ok((ticket, invite.uses))
    }

    fn withdraw(&self, id: &str, rows: &mut Vec<Row>) -> Result<(), IssuerError> {
        if !rows.iter().any(|r| r.id == id) {
            return Err(IssuerError::Unknown(id.chars().take(80).collect()));
        }
        self.change(rows, |rows| rows.iter_mut().filter(|r| r.id == id).for_each(|r| r.withdrawn = true))
    }

    /// Changes the rows on disk first: an answer that went out is never forgotten.
    fn change(&self, rows: &mut Vec<Row>, change: impl FnOnce(&mut Vec<Row>)) -> Result<(), IssuerError> {
        let mut next = rows.clone();
        change(&mut next);
        let now = self.now();
        let ended = next.iter().filter(|r| !r.is_open(now)).count();
        let mut drop = ended.saturating_sub(ENDED_TICKETS);
        next.retain(|r| {
            let goes = drop > 0 && !r.is_open(now);
            drop -= usize::from(goes);
            !goes
        });
        let text = zeroize::Zeroizing::new(serde_json::to_vec_pretty(&next).unwrap_or_default());
        home::write_private(&self.file, &text)?;
        *rows = next;
        Ok(())
    }

    fn redeem(&self, ask: &JoinAsk, rows: &mut Vec<Row>) -> JoinAnswer {
        let id = ask.ticket.to_string();
        let Some(at) = rows.iter().position(|r| r.id == id) else {
            return refuse(JoinRefusal::UnknownTicket, String::new());
        };
        let Some(row) = rows.get(at).cloned() else {
            return refuse(JoinRefusal::UnknownTicket, String::new());
        };
        let node_id = ask.keys.node_id().to_string();
        if let Some(before) = row.redeemed.iter().find(|r| r.node_id == node_id) {
            return match chain_from(&before.chain) {
                Some(chain) if chain.leaf().is_some_and(|own| own.keys() == ask.keys) => self.grant(chain),
                Some(_) => {
                    refuse(JoinRefusal::Used, "this node has a certificate for another ML-DSA key".to_owned())
                }
                None => refuse(JoinRefusal::Unavailable, "the stored certificate is damaged".to_owned()),
            };
        }
        let now = self.now();
        if row.withdrawn {
            return refuse(JoinRefusal::Withdrawn, String::new());
        }
        if now > row.expires {
            return refuse(JoinRefusal::Expired, String::new());
        }
        if row.redeemed.len() >= row.uses as usize {
            return refuse(JoinRefusal::Used, String::new());
        }
        if self.names(rows, ask.keys.node_id()).contains(&ask.name) {
            return refuse(JoinRefusal::NameTaken, format!("`{}` is a member already", ask.name));
        }
        let chain = match self.issue(&row, ask, rows, now) {
            Ok(chain) => chain,
            Err(detail) => return refuse(JoinRefusal::Unavailable, detail),
        };
        let Ok(bytes) = chain.to_bytes() else {
            return refuse(JoinRefusal::Unavailable, "the certificate is too large".to_owned());
        };
        let redeemed =
            Redeemed { node_id: node_id.clone(), name: ask.name.clone(), chain: HEXLOWER.encode(&bytes) };
        let changed = self.change(rows, |rows| {
            if let Some(row) = rows.get_mut(at) {
                row.redeemed.push(redeemed);
            }
        });
        if let Err(error) = changed {
            return refuse(JoinRefusal::Unavailable, error.to_string());
        }
        tracing::info!(node = %ask.name, id = node_id, role = %row.role, "certificate issued");
        // silent-ok: nobody watches
        let _ = self.events.send(NodeEvent::Joined { node: ask.name.to_string(), node_id });
        self.grant(chain)
    }

    fn issue(&self, row: &Row, ask: &JoinAsk, rows: &[Row], now: u64) -> Result<CertificateChain, String> {
        let issued = rows.iter().map(|r| r.redeemed.len() as u64).sum::<u64>();
        let request = CertificateRequest {
            keys: ask.keys.clone(),
            name: ask.name.clone(),
            role: row.role,
            grants: Grants::default(),
            // Unique at this issuer: certificates are far fewer than a thousand a second.
            serial: now.saturating_mul(1000).saturating_add(issued % 1000),
            now,
            lifetime_s: LIFETIME_S,
        };
        let chain = match &self.signer.root {
            Some(root) => root.issue(request),
            None => self.signer.chain.issue(&self.signer.node, request),
        };
        chain.map_err(|e| e.to_string())
    }

    /// Names of all members but `node`, and of those that have a certificate and were not seen yet.
    fn names(&self, rows: &[Row], node: NodeId) -> BTreeSet<NodeName> {
        let view = self.view.borrow().clone();
        let members = view.members.values().filter(|m| m.node != node).map(|m| m.name.clone());
        let id = node.to_string();
        let issued =
            rows.iter().flat_map(|r| &r.redeemed).filter(|r| r.node_id != id).map(|r| r.name.clone());
        members.chain(issued).collect()
    }

    fn grant(&self, chain: CertificateChain) -> JoinAnswer {
        let view = self.view.borrow().clone();
        let members = view
            .members
            .values()
            .filter(|m| !m.addresses.is_empty())
            .map(|m| MemberAddress { node: m.node, name: m.name.clone(), addresses: m.addresses.clone() })
            .collect();
        JoinAnswer::Granted(JoinGrant { chain, mesh_secret: self.signer.secret.clone(), members })
    }
}

impl Row {
    fn is_open(&self, now: u64) -> bool {
        !self.withdrawn && now <= self.expires && self.redeemed.len() < self.uses as usize
    }
}

fn refuse(reason: JoinRefusal, detail: String) -> JoinAnswer {
    JoinAnswer::Refused { reason, detail }
}

fn chain_from(hex: &str) -> Option<CertificateChain> {
    CertificateChain::from_bytes(&HEXLOWER.decode(hex.as_bytes()).ok()?).ok()
}

fn read(file: &std::path::Path) -> Vec<Row> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!(path = %file.display(), %error, "tickets are damaged and void; make new ones");
            Vec::new()
        }),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(path = %file.display(), %error, "tickets can't be read and are void");
            }
            Vec::new()
        }
    }
}
