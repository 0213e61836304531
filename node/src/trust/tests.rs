//! The task with a disk under it: what an admin does, and what others take in.
use octomesh_protocol::trust::{Issuer, RevocationSet, Role};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    fixtures::{NOW, chain, id, identity, out, request, root, rotation, secret, trust},
    store::Store,
    *,
};
use crate::app::clock::TestClock;

struct House {
    handle: TrustHandle,
    folder: tempfile::TempDir,
    _task: JoinSet<()>,
}

fn house(trust: Trust, seed: u8, holds_root: bool) -> House {
    house_at(NOW, trust, seed, holds_root)
}

fn house_at(now: u64, trust: Trust, seed: u8, holds_root: bool) -> House {
    let folder = tempfile::tempdir().unwrap();
    let parts = TrustParts {
        identity: Arc::new(identity(seed)),
        root: Arc::new(move || holds_root.then(root)),
        trust,
        store: Store::new(folder.path().to_owned()),
        clock: Arc::new(TestClock::new(now, u64::from(seed))),
    };
    let (handle, task) = parts.start(CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(task);
    House { handle, folder, _task: tasks }
}

fn ask(node: NodeId, rotate: bool) -> RevokeAsk {
    RevokeAsk { node, reason: "lost".into(), rotate }
}

fn stored(house: &House) -> RevocationSet {
    Store::new(house.folder.path().to_owned()).revocations(root().mesh_id()).unwrap()
}

#[tokio::test]
async fn an_admin_revokes_and_rotates() {
    let house = house(trust(2, Role::Admin), 2, false);
    let revoked = house.handle.revoke(ask(id(5), true)).await.unwrap();
    assert_eq!((revoked.at, revoked.secret_generation), (NOW, 1));
    let now = house.handle.now();
    assert_eq!(now.revocations.of(id(5)).unwrap().issuer, Issuer::Admin(id(2)));
    assert_eq!(now.secrets.previous(NOW).collect::<Vec<_>>(), [&secret(7)]);
    assert_eq!(stored(&house), *now.revocations, "on the disk when it is answered");
    let store = Store::new(house.folder.path().to_owned());
    assert_eq!(store.secrets(root().mesh_id(), secret(7)).unwrap(), now.secrets);
    // Again: the same, and no second secret unless asked for.
    assert_eq!(house.handle.revoke(ask(id(5), false)).await.unwrap(), revoked);
    // Members may have the secret, the revoked one may not.
    assert!(matches!(house.handle.answer_secret(id(3)), octomesh_protocol::sync::SyncReply::Secret(Some(_))));
    assert_eq!(house.handle.answer_secret(id(5)), octomesh_protocol::sync::SyncReply::Refused);
}

#[tokio::test]
async fn who_may_not_revoke_is_told_why() {
    let worker = house(trust(3, Role::Worker), 3, false);
    assert!(matches!(worker.handle.revoke(ask(id(5), true)).await, Err(TrustError::NotAdmin)));
    assert!(matches!(worker.handle.may_revoke(id(5)), Err(TrustError::NotAdmin)));
    let admin = house(trust(2, Role::Admin), 2, false);
    assert!(matches!(admin.handle.revoke(ask(id(2), false)).await, Err(TrustError::Itself)));
    admin.handle.learn(vec![out(2).to_bytes().unwrap()]).await.unwrap();
    assert!(matches!(admin.handle.may_revoke(id(5)), Err(TrustError::Excluded(_))));
    assert!(admin.handle.revoke(ask(id(5), false)).await.is_err());
    assert!(!admin.handle.now().is_revoked(id(5)));
    // With the root key it goes on.
    let mut held = trust(2, Role::Admin);
    held.revocations = admin.handle.now().revocations.clone();
    let holder = house(held, 2, true);
    holder.handle.revoke(ask(id(5), false)).await.unwrap();
    assert_eq!(holder.handle.now().revocations.of(id(5)).unwrap().issuer, Issuer::Root);
}

/// What a revoked admin said before goes on to hold, also at nodes that hear of it only now.
#[tokio::test]
async fn the_revocations_of_a_revoked_admin_are_signed_again() {
    use octomesh_protocol::trust::SignedRevocation;
    let own = chain(4, Role::Admin);
    let earlier = SignedRevocation::by_admin(&identity(4), &own, id(5), NOW - 100, "").unwrap();
    let house = house(trust(2, Role::Admin), 2, false);
    house.handle.learn(vec![earlier.to_bytes().unwrap()]).await.unwrap();
    house.handle.revoke(ask(id(4), false)).await.unwrap();
    let now = house.handle.now();
    assert_eq!(now.revocations.of(id(5)).unwrap().issuer, Issuer::Admin(id(2)));
    assert_eq!(stored(&house), *now.revocations);
    let late = self::house(trust(3, Role::Worker), 3, false);
    let all: Vec<_> =
        [id(4), id(5)].iter().map(|n| now.revocations.signed(*n).unwrap().to_bytes().unwrap()).collect();
    late.handle.learn(all).await.unwrap();
    assert!(late.handle.now().is_revoked(id(5)) && late.handle.now().is_revoked(id(4)));
}

#[tokio::test]
async fn what_does_not_hold_is_left_out() {
    let house = house(trust(3, Role::Worker), 3, false);
    let foreign = octomesh_protocol::trust::MeshRoot::from_seed([9; 64]);
    let foreign = octomesh_protocol::trust::SignedRevocation::by_root(&foreign, id(5), NOW, "").unwrap();
    let good = out(6);
    let list = vec![vec![0xff; 40], foreign.to_bytes().unwrap(), good.to_bytes().unwrap()];
    house.handle.learn(list).await.unwrap();
    assert_eq!(house.handle.now().revocations.ids(), [good.id()]);
    let answer = house.handle.answer_revocations(&[foreign.id(), good.id()]);
    let octomesh_protocol::sync::SyncReply::Revocations(given) = answer else { panic!("{answer:?}") };
    assert_eq!(given, [good.to_bytes().unwrap()]);
    house.handle.learn_secret(zeroize::Zeroizing::new(vec![1, 2, 3])).await.unwrap();
    house.handle.learn_secret(rotation(1, 8).to_bytes().unwrap()).await.unwrap();
    assert_eq!(house.handle.now().secrets.current, secret(8));
}

#[tokio::test]
async fn a_certificate_is_installed_if_it_is_this_nodes() {
    let house = house(trust(3, Role::Worker), 3, false);
    let longer = |role| {
        root()
            .issue(octomesh_protocol::trust::CertificateRequest { now: NOW + 60, ..request(3, role) })
            .unwrap()
    };
    assert!(house.handle.accept(chain(5, Role::Worker)).await.is_err(), "another node's");
    assert!(house.handle.accept(longer(Role::Client)).await.is_err(), "another role, unasked");
    let ends_earlier = root()
        .issue(octomesh_protocol::trust::CertificateRequest { lifetime_s: 60, ..request(3, Role::Worker) })
        .unwrap();
    assert!(house.handle.accept(ends_earlier).await.is_err());
    house.handle.accept(longer(Role::Worker)).await.unwrap();
    assert_eq!(house.handle.now().chain, longer(Role::Worker));
    assert!(house.folder.path().join("certificate").is_file());
    house.handle.install(longer(Role::Client)).await.unwrap();
    assert_eq!(house.handle.now().own().unwrap().role, Role::Client);
    // One of a revoked admin is none.
    house.handle.learn(vec![out(2).to_bytes().unwrap()]).await.unwrap();
    let void = chain(2, Role::Admin).issue(&identity(2), request(3, Role::Worker)).unwrap();
    assert!(matches!(house.handle.install(void).await, Err(TrustError::Certificate(_))));
}

/// What it signed would be refused everywhere, and by itself at its next start.
#[tokio::test]
async fn an_admin_whose_certificate_does_not_hold_now_signs_nothing() {
    use octomesh_protocol::trust::certificate::LIFETIME_S;
    for now in [NOW + LIFETIME_S + 86_400, NOW - 30 * 86_400] {
        let house = house_at(now, trust(2, Role::Admin), 2, false);
        for error in [
            house.handle.may_revoke(id(5)).unwrap_err(),
            house.handle.revoke(ask(id(5), true)).await.unwrap_err(),
            house.handle.revoke(ask(id(5), false)).await.unwrap_err(),
        ] {
            assert!(matches!(error, TrustError::Certificate(_)), "{error:?}");
            let said = error.to_string();
            assert!(said.contains("this node's certificate has ended") && said.contains("clock"), "{said}");
        }
        assert!(!house.handle.now().is_revoked(id(5)) && stored(&house).is_empty());
        let store = Store::new(house.folder.path().to_owned());
        assert_eq!(store.secrets(root().mesh_id(), secret(7)).unwrap(), house.handle.now().secrets);
        // The root key needs no certificate.
        let holder = house_at(now, trust(2, Role::Admin), 2, true);
        holder.handle.may_revoke(id(5)).unwrap();
        holder.handle.revoke(ask(id(5), true)).await.unwrap();
        assert!(stored(&holder).is_revoked(id(5)));
    }
}

#[tokio::test]
async fn a_secret_that_is_not_taken_is_no_success() {
    let mut last = trust(2, Role::Admin);
    let held = rotation(u64::MAX, 8);
    last.secrets.stamp = octomesh_protocol::trust::SecretStamp {
        generation: u64::MAX,
        id: octomesh_protocol::id::RotationId::from_bytes([0xff; 32]),
    };
    (last.secrets.current, last.secrets.rotation) = (secret(8), Some(Arc::new(held)));
    let house = house(last, 2, false);
    let error = house.handle.revoke(ask(id(5), true)).await.unwrap_err();
    assert!(matches!(error, TrustError::Store(_)), "{error:?}");
    assert!(error.to_string().contains("the mesh secret was not replaced"), "{error}");
    assert!(house.handle.now().is_revoked(id(5)), "the revocation holds all the same");
}

/// Who was off when a later revoked admin replaced the secret refuses its rotation, and must get the secret from somebody else.
#[tokio::test]
async fn the_secret_of_a_revoked_admin_is_signed_again() {
    use octomesh_protocol::trust::SignedRotation;
    let by_four = SignedRotation::by_admin(&identity(4), &chain(4, Role::Admin), 1, NOW, secret(9)).unwrap();
    let house = house(trust(2, Role::Admin), 2, false);
    house.handle.learn_secret(by_four.to_bytes().unwrap()).await.unwrap();
    let revoked = house.handle.revoke(ask(id(4), false)).await.unwrap();
    assert_eq!(revoked.secret_generation, 2);
    let now = house.handle.now();
    assert_eq!(now.secrets.current, secret(9), "the same secret");
    assert!(
        now.secrets.previous(NOW).any(|previous| *previous == secret(7)),
        "the one before it goes on to open"
    );
    let rotation = now.secrets.rotation.as_ref().unwrap();
    assert_eq!(rotation.unverified().issuer, Issuer::Admin(id(2)));
    // A member that was off.
    let late = self::house(trust(3, Role::Worker), 3, false);
    late.handle.learn(vec![now.revocations.signed(id(4)).unwrap().to_bytes().unwrap()]).await.unwrap();
    late.handle.learn_secret(by_four.to_bytes().unwrap()).await.unwrap();
    assert_eq!(late.handle.now().secrets.current, secret(7), "of a revoked admin");
    late.handle.learn_secret(rotation.to_bytes().unwrap()).await.unwrap();
    assert_eq!(late.handle.now().secrets.current, secret(9));
    // Of others' secrets none is made again.
    assert_eq!(house.handle.revoke(ask(id(5), false)).await.unwrap().secret_generation, 2);
}

/// `status` counts them until they are learnt again or removed.
#[tokio::test]
async fn damaged_files_are_told_until_they_are_mended() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("revocations");
    std::fs::create_dir(&files).unwrap();
    for node in [5, 6] {
        std::fs::write(files.join(out(node).id().to_string()), "damaged").unwrap();
    }
    let store = Store::new(folder.path().to_owned());
    let held = Trust::load(&store, id(3), chain(3, Role::Worker), secret(7)).unwrap();
    let warning = held.warning().unwrap();
    assert!(
        warning.starts_with("2 stored revocation(s) are damaged") && warning.contains("remove"),
        "{warning}"
    );
    let parts = TrustParts {
        identity: Arc::new(identity(3)),
        root: Arc::new(|| None),
        trust: held,
        store,
        clock: Arc::new(TestClock::new(NOW, 3)),
    };
    let (handle, task) = parts.start(CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(task);
    handle.learn(vec![out(5).to_bytes().unwrap()]).await.unwrap();
    assert!(handle.now().warning().unwrap().starts_with("1 stored"), "written over");
    std::fs::remove_file(files.join(out(6).id().to_string())).unwrap();
    assert!(handle.now().mended(|path| path.exists()).unwrap().warning().is_none());
}

#[test]
fn a_void_certificate_is_told_apart_from_a_revoked_node() {
    let void = Exclusion::Void { issuer: id(2) };
    assert!(
        void.to_string().contains("void") && !void.to_string().contains("this node was revoked"),
        "{void}"
    );
    assert!(void.hint().contains("another admin"));
    let revoked = Exclusion::Revoked { at: NOW, by: Issuer::Root, reason: String::new() };
    assert!(revoked.to_string().contains("this node was revoked") && void.hint() != revoked.hint());
}
