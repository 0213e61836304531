use octomesh_protocol::{
    id::MeshId,
    session::secret::MeshSecret,
    sync::MemberAddress,
    trust::{CertificateRequest, Grants, MeshRoot, Role, certificate::LIFETIME_S},
};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::*;
use crate::{
    app::clock::TestClock,
    net::secure::{
        Security,
        tests::{Member, member},
    },
};

const NOW: u64 = 1_800_000_000;

struct Issuer {
    member: Member,
    asks: mpsc::Receiver<JoinAsk>,
    open: watch::Sender<Arc<Vec<OpenTicket>>>,
}

fn issuer() -> Issuer {
    let (open, now_open) = watch::channel(Arc::default());
    let (ask, asks) = mpsc::channel(4);
    let member = member(1, 1, 2, NOW, Some(JoinService::new(now_open, ask)));
    Issuer { member, asks, open }
}

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

fn ticket(issuer: &Issuer, secret: u8) -> Ticket {
    Ticket {
        mesh: root().mesh_id(),
        issuer: issuer.member.node(),
        addresses: vec![],
        secret: OneTimeSecret::from_bytes([secret; 32]),
        role: Role::Worker,
        expires: NOW + 60,
    }
}

fn open_tickets(issuer: &Issuer, secrets: impl IntoIterator<Item = u8>) {
    let open = |secret| {
        let secret = OneTimeSecret::from_bytes([secret; 32]);
        OpenTicket { id: TicketId::of(&secret), secret }
    };
    issuer.open.send_replace(Arc::new(secrets.into_iter().map(open).collect()));
}

fn joiner() -> NodeIdentity {
    NodeIdentity::from_seed([5; 64])
}

fn grant(keys: &PublicKeys, name: &NodeName, role: Role) -> JoinAnswer {
    let node = keys.node_id();
    let request = CertificateRequest {
        keys: keys.clone(),
        name: name.clone(),
        role,
        grants: Grants::default(),
        serial: 2,
        now: NOW,
        lifetime_s: LIFETIME_S,
    };
    JoinAnswer::Granted(JoinGrant {
        chain: root().issue(request).unwrap(),
        mesh_secret: MeshSecret::from_bytes([1; 32]),
        members: vec![MemberAddress { node, name: name.clone(), addresses: vec!["10.0.0.1:7400".into()] }],
        revocations: vec![],
    })
}

/// Runs both sides; `answer` is the issuer's mind.
async fn join_with(
    issuer: &mut Issuer,
    ticket: &Ticket,
    answer: impl FnOnce(&JoinAsk) -> Option<JoinAnswer>,
) -> (Result<Joined, JoinError>, SecureError) {
    join_at(issuer, ticket, NOW, answer).await
}

/// [`join_with`] of a machine whose clock says `now`.
async fn join_at(
    issuer: &mut Issuer,
    ticket: &Ticket,
    now: u64,
    answer: impl FnOnce(&JoinAsk) -> Option<JoinAnswer>,
) -> (Result<Joined, JoinError>, SecureError) {
    let (x, y) = tokio::io::duplex(1 << 17);
    let identity = joiner();
    let name = NodeName::parse("pi").unwrap();
    // Fresh randomness for each joiner: a first message that comes twice is a replay.
    static JOINERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(77);
    let clock = TestClock::new(now, JOINERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let ask = join_over(x.compat(), ticket, &identity, &name, &clock);
    let security = issuer.member.security.clone();
    let serve = accept(security, y.compat());
    let decide = async {
        let Some(ask) = issuer.asks.recv().await else { return };
        if let Some(answer) = answer(&ask) {
            ask.answer.send(answer).ok();
        }
    };
    tokio::select! {
        both = async { tokio::join!(ask, serve) } => both,
        never = async { decide.await; std::future::pending().await } => never,
    }
}

/// What the swarm does with an incoming connection: negotiate, then upgrade.
async fn accept<T>(security: Security, io: T) -> SecureError
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    use libp2p::core::upgrade::{InboundConnectionUpgrade as _, UpgradeInfo as _};
    let (protocol, io) = match multistream_select::listener_select_proto(io, security.protocol_info()).await {
        Ok(selected) => selected,
        Err(error) => return SecureError::Io(io::Error::other(error)),
    };
    match security.upgrade_inbound(io, protocol).await {
        Ok(_) => panic!("a join became a session"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_machine_with_a_ticket_becomes_a_member() {
    let mut issuer = issuer();
    // The one that counts is the last of many.
    open_tickets(&issuer, (100..163).chain([9]));
    let ticket = ticket(&issuer, 9);
    let mut asked = None;
    let (joined, served) = join_with(&mut issuer, &ticket, |ask| {
        asked = Some((ask.ticket, ask.keys.clone(), ask.name.clone()));
        Some(grant(&ask.keys, &ask.name, Role::Worker))
    })
    .await;
    let grant = joined.unwrap().grant;
    assert_eq!(grant.chain.leaf().unwrap().name.as_str(), "pi");
    assert_eq!(grant.mesh_secret, MeshSecret::from_bytes([1; 32]));
    assert_eq!(grant.members.len(), 1);
    assert_eq!(asked, Some((ticket.id(), joiner().public().clone(), NodeName::parse("pi").unwrap())));
    assert!(matches!(served, SecureError::JoinServed { node, .. } if node == joiner().node_id()), "{served}");
}

#[tokio::test]
async fn a_refusal_arrives_with_its_reason() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let ticket = ticket(&issuer, 9);
    let (joined, served) = join_with(&mut issuer, &ticket, |_| {
        Some(JoinAnswer::Refused { reason: JoinRefusal::NameTaken, detail: "by tower".into() })
    })
    .await;
    let error = joined.unwrap_err();
    assert!(matches!(error, JoinError::Refused { reason: JoinRefusal::NameTaken, .. }), "{error}");
    assert_eq!(error.to_string(), "another node has this name: join with another --name: by tower");
    let SecureError::JoinRefused { node, why, .. } = served else { panic!("{served}") };
    assert_eq!((node, why), (joiner().node_id(), error.to_string()));
}

#[tokio::test]
async fn an_issuer_that_can_not_issue_says_so() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let ticket = ticket(&issuer, 9);
    let (joined, _) = join_with(&mut issuer, &ticket, |_| None).await;
    assert!(matches!(joined.unwrap_err(), JoinError::Refused { reason: JoinRefusal::Unavailable, .. }));
}

#[tokio::test]
async fn unknown_ended_and_misdirected_tickets() {
    let mut issuer = issuer();
    open_tickets(&issuer, [8]);
    let unknown = ticket(&issuer, 9);
    let (joined, served) = join_with(&mut issuer, &unknown, |_| None).await;
    assert!(matches!(joined.unwrap_err(), JoinError::UnknownTicket));
    assert!(matches!(served, SecureError::JoinUnknownTicket));

    let other = Ticket { issuer: joiner().node_id(), ..ticket(&issuer, 8) };
    let (joined, served) = join_with(&mut issuer, &other, |_| panic!("asked")).await;
    assert!(matches!(joined.unwrap_err(), JoinError::OtherIssuer { .. }));
    assert!(!matches!(served, SecureError::JoinServed { .. }), "{served}");

    let mesh = Ticket { mesh: MeshId::from_bytes([3; 32]), ..ticket(&issuer, 8) };
    let (joined, _) = join_with(&mut issuer, &mesh, |_| panic!("asked")).await;
    assert!(matches!(joined.unwrap_err(), JoinError::UnknownTicket));
}

#[tokio::test]
async fn a_certificate_for_another_key_role_or_mesh_is_not_taken() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let ticket = ticket(&issuer, 9);
    let stranger = NodeIdentity::from_seed([6; 64]);
    let (joined, _) =
        join_with(&mut issuer, &ticket, |ask| Some(grant(stranger.public(), &ask.name, Role::Worker))).await;
    assert!(matches!(joined.unwrap_err(), JoinError::OtherCertificate));
    let (joined, _) =
        join_with(&mut issuer, &ticket, |ask| Some(grant(&ask.keys, &ask.name, Role::Client))).await;
    assert!(matches!(joined.unwrap_err(), JoinError::OtherCertificate));
    // The right node with another ML-DSA key: the certificate would be somebody else's in the end.
    let (joined, _) = join_with(&mut issuer, &ticket, |ask| {
        let mixed = PublicKeys::of_node(ask.keys.node_id(), stranger.public().ml_dsa().clone());
        Some(grant(&mixed, &ask.name, Role::Worker))
    })
    .await;
    assert!(matches!(joined.unwrap_err(), JoinError::OtherCertificate));
}

#[tokio::test]
async fn a_node_that_takes_no_tickets_is_told_apart() {
    let (x, y) = tokio::io::duplex(1 << 16);
    let issuer = issuer();
    let ticket = ticket(&issuer, 9);
    let plain = member(1, 1, 3, NOW, None);
    let (name, identity, clock) = (NodeName::parse("pi").unwrap(), joiner(), TestClock::new(NOW, 1));
    let (joined, _) = tokio::join!(
        join_over(x.compat(), &ticket, &identity, &name, &clock),
        accept(plain.security.clone(), y.compat())
    );
    assert!(matches!(joined.unwrap_err(), JoinError::NotAnIssuer));
}

/// An hour off: the ticket's end looks past or far, and the certificates hold.
#[tokio::test]
async fn a_clock_that_is_an_hour_off_joins() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let ticket = ticket(&issuer, 9);
    for now in [NOW - 3600, NOW + 3600] {
        assert_eq!(ticket.check_time(now).is_err(), now > NOW, "a minute is left by the issuer's clock");
        let mut told = 0;
        let (joined, _) = join_at(&mut issuer, &ticket, now, |ask| {
            told = ask.unix_time;
            Some(grant(&ask.keys, &ask.name, Role::Worker))
        })
        .await;
        assert_eq!(joined.unwrap().issuer_time, NOW);
        assert_eq!(told, now);
    }
}

/// A machine without a clock of its own begins in 1970, another has one that is years ahead: both sides learn why it can't join,
/// and what was granted all the same is not taken.
#[tokio::test]
async fn a_clock_that_is_years_off_is_named_on_both_sides() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let ticket = ticket(&issuer, 9);
    for (now, differ, direction) in
        [(0, "20833 d 8 h", "ahead of"), (NOW + 2 * LIFETIME_S, "730 d", "behind")]
    {
        let (joined, served) = join_at(&mut issuer, &ticket, now, |ask| {
            assert_eq!(ask.unix_time, now);
            Some(JoinAnswer::Refused { reason: JoinRefusal::Clocks, detail: "clocks differ".into() })
        })
        .await;
        let error = joined.unwrap_err().to_string();
        assert!(error.contains("clocks differ by"), "{error}");
        assert!(error.contains(&format!("clock is {differ} {direction} this one")), "{error}");
        let told = served.to_string();
        assert!(told.contains("pi") && told.contains("clocks differ"), "{told}");

        let (joined, _) =
            join_at(&mut issuer, &ticket, now, |ask| Some(grant(&ask.keys, &ask.name, Role::Worker))).await;
        assert!(matches!(joined.unwrap_err(), JoinError::Identity(IdentityError::Clock { .. })));
    }
}

/// A wrong clock is no way around the checks: the issuer must hold by its own time, and be the ticket's.
#[tokio::test]
async fn a_wrong_clock_opens_nothing() {
    let mut issuer = issuer();
    open_tickets(&issuer, [9]);
    let other = Ticket { issuer: joiner().node_id(), ..ticket(&issuer, 9) };
    let (joined, _) = join_at(&mut issuer, &other, 0, |_| panic!("asked")).await;
    assert!(matches!(joined.unwrap_err(), JoinError::OtherIssuer { .. }));
}
