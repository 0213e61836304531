//! Revoked peers, void certificates and mesh secrets that were replaced, over whole handshakes.
use octomesh_protocol::trust::{CertificateChain, RevocationSet, SignedRevocation, SignedRotation};
use tokio::sync::watch;

use super::*;
use crate::trust::{Previous, ROTATION_WINDOW_S, Secrets};

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 64])
}

fn request(seed: u8, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity(seed).public().clone(),
        name: NodeName::parse(&format!("node-{seed}")).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

fn by_root(seed: u8) -> CertificateChain {
    root().issue(request(seed, Role::Admin)).unwrap()
}

/// A member that knows of these revocations, with its clock at `unix`.
fn knowing(seed: u8, chain: CertificateChain, revoked: &[u8], secrets: Secrets, unix: u64) -> Member {
    let identity = Arc::new(identity(seed));
    let mut set = RevocationSet::default();
    for node in revoked {
        let node = NodeIdentity::from_seed([*node; 64]).node_id();
        set.learn(Arc::new(SignedRevocation::by_root(&root(), node, NOW, "lost").unwrap()));
    }
    let trust = Trust::new(identity.node_id(), chain, secrets, set);
    reading(identity, watch::channel(Arc::new(trust)).1, unix)
}

fn reading(identity: Arc<NodeIdentity>, trust: TrustReader, unix: u64) -> Member {
    let (sessions, opened) = mpsc::channel(4);
    // Every handshake of a clock draws other bytes, so that no first message is a replay.
    let clock = Arc::new(TestClock::new(unix, u64::from(identity.node_id().as_bytes()[0])));
    let config = SecureConfig::new(identity.clone(), trust, clock, sessions).unwrap();
    Member { security: Security::new(Arc::new(config), None), identity, opened }
}

/// A member whose trust changes while it runs.
pub(in crate::net) fn changing(seed: u8) -> (Member, watch::Sender<Arc<Trust>>) {
    let trust = Trust::new(identity(seed).node_id(), by_root(seed), first(), RevocationSet::default());
    let (change, trust) = watch::channel(Arc::new(trust));
    (reading(Arc::new(identity(seed)), trust, NOW), change)
}

/// From now on `node` is out.
pub(in crate::net) fn revoke(trust: &watch::Sender<Arc<Trust>>, node: NodeId) {
    trust.send_modify(|trust| {
        let mut next = (**trust).clone();
        let mut set = (*next.revocations).clone();
        set.learn(Arc::new(SignedRevocation::by_root(&root(), node, NOW, "lost").unwrap()));
        next.revocations = Arc::new(set);
        *trust = Arc::new(next);
    });
}

fn member_of(seed: u8, chain: CertificateChain, revoked: &[u8]) -> Member {
    knowing(seed, chain, revoked, Secrets::first(MeshSecret::from_bytes([1; 32])), NOW)
}

#[tokio::test]
async fn a_revoked_node_that_calls_is_refused_and_told() {
    let (mut revoked, knows) = (member_of(2, by_root(2), &[]), member_of(3, by_root(3), &[2]));
    let (dialled, accepted) = connect(&revoked, &knows).await;
    let error = accepted.unwrap_err();
    assert!(matches!(error, SecureError::Revoked(_)), "{error}");
    assert!(error.to_string().contains("node-2") && error.to_string().contains("revoked: lost"), "{error}");
    // The initiator is done before it can hear: the first thing it reads is why.
    let mut stream = dialled.unwrap().1;
    let heard = stream.read(&mut [0; 8]).await.unwrap_err();
    assert!(heard.to_string().contains("revoked"), "{heard}");
    revoked.opened.try_recv().unwrap();
}

#[tokio::test]
async fn a_revoked_node_that_is_called_is_refused() {
    let (revoked, mut knows) = (member_of(2, by_root(2), &[]), member_of(3, by_root(3), &[2]));
    let (dialled, accepted) = connect(&knows, &revoked).await;
    assert!(matches!(dialled.unwrap_err(), SecureError::Revoked(_)));
    assert!(accepted.is_err());
    assert!(knows.opened.try_recv().is_err());
}

#[tokio::test]
async fn a_revoked_admin_that_issues_issues_nothing_that_holds() {
    let issued = by_root(2).issue(&identity(2), request(4, Role::Worker)).unwrap();
    let (holder, knows) = (member_of(4, issued, &[]), member_of(3, by_root(3), &[2]));
    let error = connect(&holder, &knows).await.1.unwrap_err();
    assert!(matches!(error, SecureError::Revoked(_)), "{error}");
    assert!(error.to_string().contains("certificate of node node-4 is void"), "{error}");
    // The same node with a certificate of somebody who may.
    let (renewed, knows) = (member_of(4, by_root(4), &[]), member_of(3, by_root(3), &[2]));
    let (dialled, accepted) = connect(&renewed, &knows).await;
    assert!(dialled.is_ok() && accepted.is_ok());
}

fn first() -> Secrets {
    Secrets::first(MeshSecret::from_bytes([1; 32]))
}

fn rotated() -> Secrets {
    let rotation = SignedRotation::by_root(&root(), 1, NOW, MeshSecret::from_bytes([2; 32])).unwrap();
    Secrets {
        current: MeshSecret::from_bytes([2; 32]),
        stamp: rotation.stamp(),
        rotation: Some(Arc::new(rotation)),
        previous: vec![Previous { secret: MeshSecret::from_bytes([1; 32]), until: NOW + ROTATION_WINDOW_S }],
    }
}

#[tokio::test]
async fn a_replaced_secret_opens_a_handshake_for_a_day() {
    let with = |seed, secrets, unix| knowing(seed, by_root(seed), &[], secrets, unix);
    let last = NOW + ROTATION_WINDOW_S;
    let (dialled, accepted) = connect(&with(2, first(), last), &with(3, rotated(), last)).await;
    assert!(dialled.is_ok() && accepted.is_ok());
    // After it the answer is the one for strangers, at message 1.
    let (dialled, accepted) = connect(&with(2, first(), last + 1), &with(3, rotated(), last + 1)).await;
    assert!(matches!(accepted.unwrap_err(), SecureError::WrongMeshSecret(_)));
    assert!(matches!(dialled.unwrap_err(), SecureError::HungUp));
}

#[tokio::test]
async fn who_has_the_new_secret_reaches_who_has_the_old_one() {
    let (new, old) = (knowing(2, by_root(2), &[], rotated(), NOW), knowing(3, by_root(3), &[], first(), NOW));
    assert!(matches!(connect(&new, &old).await.0.unwrap_err(), SecureError::HungUp), "the newest first");
    let (dialled, accepted) = connect(&new, &old).await;
    assert!(dialled.is_ok() && accepted.is_ok(), "the one before it on the next dial");
    // A newcomer has only the newest: after one more refusal that is the one dialled.
    let only_new = Secrets::first(MeshSecret::from_bytes([2; 32]));
    let newcomer = knowing(4, by_root(4), &[], only_new, NOW);
    assert!(connect(&new, &newcomer).await.0.is_err());
    assert!(connect(&new, &newcomer).await.0.is_ok());
}

/// Off while the secret was replaced twice: the one before the last still opens a handshake, in both directions.
#[tokio::test]
async fn a_secret_that_was_replaced_twice_opens_a_handshake() {
    let twice = || {
        let mut secrets = rotated();
        secrets.current = MeshSecret::from_bytes([3; 32]);
        let until = NOW + ROTATION_WINDOW_S;
        secrets.previous.insert(0, Previous { secret: MeshSecret::from_bytes([2; 32]), until });
        secrets
    };
    let old = knowing(2, by_root(2), &[], first(), NOW);
    let new = knowing(3, by_root(3), &[], twice(), NOW);
    let (dialled, accepted) = connect(&old, &new).await;
    assert!(dialled.is_ok() && accepted.is_ok());
    // Each dial after a refusal tries the next one, and after the last the newest again.
    for _ in 0..2 {
        assert!(connect(&new, &old).await.0.is_err());
    }
    assert!(connect(&new, &old).await.0.is_ok());
    let newcomer = knowing(4, by_root(4), &[], Secrets::first(MeshSecret::from_bytes([3; 32])), NOW);
    assert!(connect(&new, &newcomer).await.0.is_err());
    assert!(connect(&new, &newcomer).await.0.is_ok());
}
