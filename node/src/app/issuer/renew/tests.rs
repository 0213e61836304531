//! Attacks of the protocol's section 5, number 11, and the rest that an issuer says no to.
use std::{collections::BTreeMap, path::Path, sync::Arc};

use octomesh_protocol::{
    session::secret::MeshSecret,
    trust::{Grants, MeshRoot, NodeIdentity, RevocationSet, Role, certificate::LIFETIME_S},
};
use tokio::sync::{broadcast, oneshot, watch};

use super::*;
use crate::{
    app::{
        clock::TestClock,
        home::Home,
        issuer::{
            HANDED, HANDED_NAMES, Record, Signer,
            rows::{Redeemed, Row},
        },
        root::{RootFile, RootKeeper},
    },
    membership::{Member, MemberState, MeshView},
    trust::{
        Secrets, Trust,
        fixtures::{NOW, chain, id, identity, out, request, root, secret},
    },
};

struct Office {
    issuer: Issuer,
    rows: Rows,
    view: watch::Sender<Arc<MeshView>>,
    _folder: tempfile::TempDir,
}

fn home(folder: &Path, root: Option<MeshRoot>) -> Home {
    let home = Home::new(folder);
    home.pending_node(&zeroize::Zeroizing::new([2; 64])).unwrap();
    let root = root.map(RootFile::Clear);
    let secret = MeshSecret::from_bytes([7; 32]);
    home.adopt(&chain(2, Role::Admin), &secret, root.as_ref(), &[]).unwrap();
    home
}

/// Node 2, an admin, with the root key or without, in a mesh where these nodes are out.
fn office(with_root: bool, revoked: &[u8]) -> Office {
    let folder = tempfile::tempdir().unwrap();
    let home = home(&folder.path().join("home"), with_root.then(root));
    let mut revocations = RevocationSet::default();
    for seed in revoked {
        revocations.learn(Arc::new(out(*seed)));
    }
    let trust = Trust::new(id(2), chain(2, Role::Admin), Secrets::first(secret(7)), revocations);
    let empty = MeshView {
        me: id(2),
        members: BTreeMap::new(),
        unreached: Arc::default(),
        gone: Arc::default(),
        version: 0,
    };
    let (view, reader) = watch::channel(Arc::new(empty));
    let issuer = Issuer {
        signer: Signer {
            node: Arc::new(NodeIdentity::from_seed([2; 64])),
            root: RootKeeper::new(home.clone(), root().mesh_id()),
            trust: watch::channel(Arc::new(trust)).1,
            lifetime_s: LIFETIME_S,
        },
        file: home.tickets(),
        view: reader,
        clock: Arc::new(TestClock::new(NOW + 1000, 1)),
        open: watch::channel(Arc::default()).0,
        events: broadcast::channel(4).0,
        record: Record::default(),
    };
    Office { rows: Rows::read(&home.tickets()), issuer, view, _folder: folder }
}

impl Office {
    fn asks(&mut self, seed: u8, chain: &CertificateChain, name: Option<&str>) -> SyncReply {
        let (reply, mut answer) = oneshot::channel();
        let name = name.map(|n| NodeName::parse(n).unwrap());
        let renewal = Renewal { chain: chain.clone(), name };
        self.issuer.renew(RenewAsk { node: id(seed), renewal, reply }, &mut self.rows);
        answer.try_recv().unwrap()
    }

    fn refuses(&mut self, seed: u8, chain: &CertificateChain, name: Option<&str>) -> RenewRefusal {
        match self.asks(seed, chain, name) {
            SyncReply::NotRenewed { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    fn gives(&mut self, seed: u8, chain: &CertificateChain, name: Option<&str>) -> CertificateChain {
        match self.asks(seed, chain, name) {
            SyncReply::Renewed(chain) => *chain,
            other => panic!("{other:?}"),
        }
    }

    /// A member shows this certificate in its session.
    fn meets(&self, certificate: &CertificateChain) {
        let certificate = certificate.leaf().unwrap().clone();
        let mut member =
            Member::new(certificate.node, certificate.name.clone(), certificate.role, Grants::default());
        member.certificate = Some(Arc::new(certificate));
        let mut view = (**self.view.borrow()).clone();
        view.members.insert(member.node, Arc::new(member));
        self.view.send_replace(Arc::new(view));
    }
}

#[tokio::test]
async fn a_member_gets_the_same_for_longer() {
    let mut limited = request(3, Role::Worker);
    limited.grants.tools = Some(vec![]);
    let old = root().issue(limited).unwrap();
    for with_root in [true, false] {
        let mut office = office(with_root, &[]);
        let new = office.gives(3, &old, None);
        let (was, is) = (old.leaf().unwrap(), new.leaf().unwrap());
        assert_eq!(
            (is.keys(), &is.name, is.role, &is.grants),
            (was.keys(), &was.name, was.role, &was.grants)
        );
        assert!(is.not_after > was.not_after && is.serial != was.serial);
        // By an admin a chain ends with the admin's certificate, which only the root renews.
        assert_eq!(new.ends() > old.ends(), with_root);
        new.verify(root().mesh_id(), NOW + 1000, 300).unwrap();
    }
}

/// Where the root key is at hand, a node whose clock was ahead gets a certificate of today; nobody else gets one for such a thing.
#[tokio::test]
async fn the_own_certificate_of_the_future_is_put_right() {
    let of_the_future = |seed| {
        let mut ahead = request(seed, Role::Admin);
        ahead.now = NOW + 1_000_000_000;
        root().issue(ahead).unwrap()
    };
    let own = office(true, &[]).gives(2, &of_the_future(2), None);
    own.verify(root().mesh_id(), NOW + 1000, 300).unwrap();
    assert_eq!(office(true, &[]).refuses(3, &of_the_future(3), None), RenewRefusal::Certificate);
}

#[tokio::test]
async fn only_the_root_renews_an_admin() {
    let admin = chain(4, Role::Admin);
    assert_eq!(office(false, &[]).refuses(4, &admin, None), RenewRefusal::NotIssuer);
    assert_eq!(office(true, &[]).gives(4, &admin, None).leaf().unwrap().role, Role::Admin);
}

/// Whether it shows its last certificate or one from before.
#[tokio::test]
async fn a_revoked_node_that_renews_with_an_old_certificate() {
    let mut earlier = request(3, Role::Worker);
    earlier.now = NOW - 1000;
    for old in [chain(3, Role::Worker), root().issue(earlier).unwrap()] {
        assert_eq!(office(true, &[3]).refuses(3, &old, None), RenewRefusal::Revoked);
    }
}

#[tokio::test]
async fn a_certificate_of_a_revoked_admin_is_not_renewed() {
    let by_admin = chain(4, Role::Admin).issue(&identity(4), request(3, Role::Worker)).unwrap();
    assert_eq!(office(true, &[4]).refuses(3, &by_admin, None), RenewRefusal::Revoked);
    // Nor does a revoked issuer issue, whichever key it has.
    assert_eq!(office(true, &[2]).refuses(3, &chain(3, Role::Worker), None), RenewRefusal::NotIssuer);
    assert_eq!(office(false, &[2]).refuses(3, &chain(3, Role::Worker), None), RenewRefusal::NotIssuer);
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_certificate_is_not_renewed() {
    let mut office = office(true, &[]);
    assert_eq!(office.refuses(3, &chain(5, Role::Worker), None), RenewRefusal::Certificate);
    // The same node id with another ML-DSA key than the session proved.
    office.meets(&chain(3, Role::Worker));
    let mut mixed = request(3, Role::Worker);
    mixed.keys = octomesh_protocol::trust::PublicKeys::of_node(id(3), identity(5).public().ml_dsa().clone());
    tokio::time::advance(GAP).await;
    assert_eq!(office.refuses(3, &root().issue(mixed).unwrap(), None), RenewRefusal::Certificate);
    // Another mesh's, and one that has ended.
    let foreign = MeshRoot::from_seed([8; 64]).issue(request(3, Role::Worker)).unwrap();
    tokio::time::advance(GAP).await;
    assert_eq!(office.refuses(3, &foreign, None), RenewRefusal::Certificate);
    let mut ended = request(3, Role::Worker);
    ended.lifetime_s = 100;
    tokio::time::advance(GAP).await;
    assert_eq!(office.refuses(3, &root().issue(ended).unwrap(), None), RenewRefusal::Certificate);
}

/// A member whose limits or name changed does not get the old ones back.
#[tokio::test]
async fn an_older_certificate_than_the_one_shown_is_not_renewed() {
    let mut office = office(true, &[]);
    let mut newer = request(3, Role::Worker);
    newer.now = NOW + 500;
    office.meets(&root().issue(newer).unwrap());
    assert_eq!(office.refuses(3, &chain(3, Role::Worker), None), RenewRefusal::Old);
}

#[tokio::test(start_paused = true)]
async fn names_are_unique_and_certificates_not_free() {
    let mut office = office(true, &[]);
    office.meets(&chain(4, Role::Worker));
    let own = chain(3, Role::Worker);
    assert_eq!(office.refuses(3, &own, Some("node-4")), RenewRefusal::NameTaken);
    // A question that was refused counts too.
    assert_eq!(office.refuses(3, &chain(5, Role::Worker), None), RenewRefusal::Busy);
    tokio::time::advance(GAP).await;
    assert_eq!(office.gives(3, &own, Some("loft")).leaf().unwrap().name.as_str(), "loft");
    assert_eq!(office.refuses(3, &own, Some("attic")), RenewRefusal::Busy);
    tokio::time::advance(GAP).await;
    assert_eq!(office.gives(3, &own, Some("node-3")).leaf().unwrap().name.as_str(), "node-3");
    for seed in 10..20 {
        office.gives(seed, &chain(seed, Role::Worker), None);
    }
    assert!(office.issuer.record.renewed.len() <= ASKERS);
}

/// Both joined elsewhere, and neither has shown its new certificate yet.
#[tokio::test(start_paused = true)]
async fn one_name_is_not_handed_to_two_at_once() {
    let mut office = office(true, &[]);
    office.gives(3, &chain(3, Role::Worker), Some("loft"));
    assert_eq!(office.refuses(4, &chain(4, Role::Worker), Some("loft")), RenewRefusal::NameTaken);
    tokio::time::advance(HANDED).await;
    office.gives(4, &chain(4, Role::Worker), Some("loft"));
    for n in 0..2 * HANDED_NAMES {
        let node = NodeId::from_bytes(std::array::from_fn(|at| (n >> (8 * at.min(3))) as u8));
        office.issuer.record.hand_out(node, NodeName::parse("x").unwrap(), Instant::now());
    }
    assert_eq!(office.issuer.record.handed.len(), HANDED_NAMES);
}

impl Office {
    fn changes(&self, seed: u8, change: impl FnOnce(&mut Member)) {
        let mut view = (**self.view.borrow()).clone();
        let mut member = (**view.get(id(seed)).unwrap()).clone();
        change(&mut member);
        view.members.insert(member.node, Arc::new(member));
        self.view.send_replace(Arc::new(view));
    }

    fn is_taken(&self, name: &str) -> bool {
        self.issuer.is_taken(&self.rows, id(3), &NodeName::parse(name).unwrap())
    }

    fn redeemed(&mut self, chain: &CertificateChain) {
        let leaf = chain.leaf().unwrap();
        let (node_id, name) = (leaf.node.to_string(), leaf.name.clone());
        let chain = HEXLOWER.encode(&chain.to_bytes().unwrap());
        let redeemed = vec![Redeemed { node_id, name, chain, gone: false }];
        let (id, secret) = (String::new(), String::new());
        let grants = Grants::default();
        let row =
            Row { id, secret, role: Role::Worker, grants, uses: 1, expires: 0, withdrawn: false, redeemed };
        self.rows.change(NOW, |rows| rows.push(row)).unwrap();
    }
}

#[tokio::test]
async fn a_name_is_free_when_its_node_is_gone_for_good_only() {
    let mut office = office(true, &[]);
    office.meets(&chain(4, Role::Worker));
    office.changes(4, |m| (m.state, m.known) = (MemberState::Left, true));
    assert!(office.is_taken("node-4"), "it was only stopped");
    office.changes(4, |m| m.known = false);
    assert!(!office.is_taken("node-4"), "it has left");
    // One with a ticket of here.
    office.redeemed(&chain(4, Role::Worker));
    office.issuer.free_names(&mut office.rows);
    assert!(office.is_taken("node-4"));
    let mut view = (**office.view.borrow()).clone();
    view.gone = Arc::new([id(4)].into());
    office.view.send_replace(Arc::new(view));
    office.issuer.free_names(&mut office.rows);
    assert!(!office.is_taken("node-4"));
    office.rows = Rows::read(&office.issuer.file);
    office.view.send_modify(|view| Arc::make_mut(view).gone = Arc::default());
    assert!(!office.is_taken("node-4"), "also after a restart");
}

#[tokio::test]
async fn a_void_certificate_holds_no_name() {
    let by_admin = chain(4, Role::Admin).issue(&identity(4), request(5, Role::Worker)).unwrap();
    for (revoked, taken) in [(vec![], true), (vec![4], false)] {
        let mut office = office(true, &revoked);
        office.redeemed(&by_admin);
        assert_eq!(office.is_taken("node-5"), taken);
        let office = self::office(true, &revoked);
        office.meets(&by_admin);
        assert_eq!(office.is_taken("node-5"), taken);
    }
    let mut office = office(true, &[]);
    let mut ended = request(6, Role::Worker);
    ended.lifetime_s = 100;
    office.redeemed(&root().issue(ended).unwrap());
    assert!(!office.is_taken("node-6"));
}
