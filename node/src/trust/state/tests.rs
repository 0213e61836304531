use octomesh_protocol::trust::Role;

use super::*;
use crate::trust::{
    Exclusion,
    fixtures::{NOW, chain, id, identity, out, request, rotation, secret, trust},
};

fn give(state: &mut TrustState, input: Input) -> Option<Write> {
    let change = state.handle(input, NOW)?;
    state.now = change.next;
    Some(change.write.unwrap_or(Write::Chain))
}

#[test]
fn a_revocation_is_written_and_holds() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    let signed = Arc::new(out(5));
    assert_eq!(state.missing(&[signed.id()]), [signed.id()]);
    let change = state.handle(Input::Revocation(Arc::clone(&signed)), NOW).unwrap();
    assert_eq!(change.write, Some(Write::Revocation { signed: Arc::clone(&signed), instead_of: None }));
    assert!(!state.now.is_revoked(id(5)), "not before it is written");
    state.now = change.next;
    assert!(state.now.is_revoked(id(5)) && state.missing(&[signed.id()]).is_empty());
    assert!(state.now.check(chain(5, Role::Worker).leaf().unwrap()).is_err());
    assert_eq!(state.handle(Input::Revocation(signed), NOW), None);
    assert_eq!(state.now.exclusion(), None);
}

#[test]
fn what_is_void_or_worse_is_not_asked_for_again() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    give(&mut state, Input::Revocation(Arc::new(out(2)))).unwrap();
    give(&mut state, Input::Revocation(Arc::new(out(5)))).unwrap();
    let admin = |seed: u8, node: u8| {
        let own = chain(seed, Role::Admin);
        Arc::new(SignedRevocation::by_admin(&identity(seed), &own, id(node), NOW - 1000, "").unwrap())
    };
    // Of a revoked admin; of an admin about a node that the root has revoked.
    for unwanted in [admin(2, 6), admin(4, 5)] {
        assert_eq!(state.missing(&[unwanted.id()]).len(), 1);
        assert!(give(&mut state, Input::Revocation(Arc::clone(&unwanted))).is_none());
        assert!(state.missing(&[unwanted.id()]).is_empty());
    }
    assert!(!state.now.is_revoked(id(6)));
    // After a change both are looked at again: who was worth nothing may be worth something.
    give(&mut state, Input::Revocation(Arc::new(out(8)))).unwrap();
    assert_eq!(state.missing(&[admin(2, 6).id()]).len(), 1);
}

#[test]
fn the_own_revocation_counts_more_than_what_is_told() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    for teller in 10..30 {
        give(&mut state, Input::Told(id(teller)));
    }
    let Some(Exclusion::Told { by }) = state.now.exclusion() else { panic!("{:?}", state.now.exclusion()) };
    assert_eq!(by.len(), TELLERS);
    for teller in 10..30 {
        give(&mut state, Input::Welcomed(id(teller)));
    }
    assert_eq!(state.now.exclusion(), None, "all of them took it back");
    give(&mut state, Input::Told(id(10)));
    give(&mut state, Input::Revocation(Arc::new(out(3))));
    let said = state.now.exclusion().unwrap();
    assert!(matches!(said, Exclusion::Revoked { at: NOW, by: Issuer::Root, .. }), "{said:?}");
    assert_eq!(said.to_string(), "this node was revoked by the root of the mesh: lost");
}

#[test]
fn a_certificate_of_a_revoked_admin_is_void_until_there_is_another() {
    let mut own = trust(3, Role::Worker);
    own.chain = chain(2, Role::Admin).issue(&identity(2), request(3, Role::Worker)).unwrap();
    let mut state = TrustState::new(own);
    give(&mut state, Input::Revocation(Arc::new(out(2))));
    assert_eq!(state.now.exclusion(), Some(Exclusion::Void { issuer: id(2) }));
    assert_eq!(give(&mut state, Input::Chain(chain(3, Role::Worker))), Some(Write::Chain));
    assert_eq!(state.now.exclusion(), None);
    assert_eq!(state.handle(Input::Chain(chain(3, Role::Worker)), NOW), None, "nothing new");
}

#[test]
fn a_revoked_admin_is_none() {
    let mut state = TrustState::new(trust(2, Role::Admin));
    assert!(state.now.is_admin());
    give(&mut state, Input::Revocation(Arc::new(out(2))));
    assert!(!state.now.is_admin());
    assert!(!trust(3, Role::Worker).is_admin());
}

#[test]
fn two_secrets_are_accepted_for_a_day_and_then_one() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    assert_eq!(give(&mut state, Input::Rotation(Arc::new(rotation(1, 8)))), Some(Write::Secrets));
    let secrets = &state.now.secrets;
    assert_eq!((&secrets.current, secrets.stamp.generation), (&secret(8), 1));
    assert_eq!(secrets.previous(NOW + ROTATION_WINDOW_S).collect::<Vec<_>>(), [&secret(7)]);
    assert_eq!(secrets.previous(NOW + ROTATION_WINDOW_S + 1).count(), 0, "also before the tick");
    assert_eq!(state.handle(Input::Tick, NOW + ROTATION_WINDOW_S), None);
    let change = state.handle(Input::Tick, NOW + ROTATION_WINDOW_S + 1).unwrap();
    assert_eq!((change.write, change.next.secrets.previous), (Some(Write::Secrets), Vec::new()));
    // An older one, and the same again, change nothing.
    assert_eq!(state.handle(Input::Rotation(Arc::new(rotation(1, 8))), NOW), None);
    assert_eq!(state.handle(Input::Rotation(Arc::new(rotation(0, 9))), NOW), None);
}

#[test]
fn of_two_rotations_at_once_the_order_does_not_matter() {
    let (a, b) = (Arc::new(rotation(1, 8)), Arc::new(rotation(1, 9)));
    let ends = [[&a, &b], [&b, &a]].map(|order| {
        let mut state = TrustState::new(trust(3, Role::Worker));
        order.into_iter().for_each(|r| drop(give(&mut state, Input::Rotation(Arc::clone(r)))));
        state.now.secrets.current
    });
    assert_eq!(ends[0], ends[1]);
}

/// A machine that joined after a rotation was given the newest secret, and learns of its rotation from the first member.
#[test]
fn a_newcomer_hears_of_the_rotation_that_it_has() {
    let mut own = trust(3, Role::Worker);
    own.secrets = Secrets::first(secret(8));
    let mut state = TrustState::new(own);
    give(&mut state, Input::Rotation(Arc::new(rotation(4, 8)))).unwrap();
    assert_eq!(state.now.secrets.stamp.generation, 4);
    assert_eq!(state.now.secrets.previous, [], "there is no other to accept");
}

#[test]
fn a_rotation_by_a_revoked_admin_is_void() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    let own = chain(2, Role::Admin);
    let early = SignedRotation::by_admin(&identity(2), &own, 1, NOW - 1000, secret(9)).unwrap();
    give(&mut state, Input::Revocation(Arc::new(out(2)))).unwrap();
    assert_eq!(state.handle(Input::Rotation(Arc::new(early)), NOW), None);
    assert_eq!(state.now.secrets.current, secret(7));
}

/// Else one rogue admin could end all rotation: nothing comes after the greatest number.
#[test]
fn a_rotation_far_ahead_is_refused() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    for generation in [u64::MAX, GENERATIONS_AHEAD + 1] {
        assert_eq!(state.handle(Input::Rotation(Arc::new(rotation(generation, 8))), NOW), None);
    }
    give(&mut state, Input::Rotation(Arc::new(rotation(GENERATIONS_AHEAD, 8)))).unwrap();
    give(&mut state, Input::Rotation(Arc::new(rotation(GENERATIONS_AHEAD + 1, 9)))).unwrap();
    assert_eq!(state.now.secrets.current, secret(9));
}

/// A machine that is off while two nodes are revoked has the secret before the last one.
#[test]
fn each_replaced_secret_is_accepted_for_its_own_day() {
    let mut state = TrustState::new(trust(3, Role::Worker));
    let learn = |state: &mut TrustState, generation: u8, now| {
        let signed = rotation(generation.into(), 10 + generation);
        state.now = state.handle(Input::Rotation(Arc::new(signed)), now).unwrap().next;
    };
    let open = |state: &TrustState, now| state.now.secrets.previous(now).cloned().collect::<Vec<_>>();
    learn(&mut state, 1, NOW);
    learn(&mut state, 2, NOW + 100);
    assert_eq!(open(&state, NOW + 100), [secret(11), secret(7)]);
    assert_eq!(open(&state, NOW + ROTATION_WINDOW_S + 1), [secret(11)]);
    let change = state.handle(Input::Tick, NOW + ROTATION_WINDOW_S + 1).unwrap();
    assert_eq!((change.write, change.next.secrets.previous.len()), (Some(Write::Secrets), 1));
    for generation in 3..=6 {
        learn(&mut state, generation, NOW + 200);
    }
    assert_eq!(
        open(&state, NOW + 200),
        [secret(15), secret(14), secret(13), secret(12)],
        "no more than four"
    );
    // One that was in force before does not stay in the list when it is in force again.
    let again = Arc::new(rotation(7, 14));
    state.now = state.handle(Input::Rotation(again), NOW + 200).unwrap().next;
    assert_eq!(open(&state, NOW + 200), [secret(16), secret(15), secret(13), secret(12)]);
}
