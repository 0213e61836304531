use octomesh_protocol::trust::{Role, certificate::LIFETIME_S};

use super::*;
use crate::trust::fixtures::{NOW, chain, identity, request, root};

const YEAR: Life = Life { from: NOW, ends: NOW + LIFETIME_S };

#[test]
fn half_of_a_life_is_over() {
    let of_root = Life::of(&chain(3, Role::Worker)).unwrap();
    assert_eq!(of_root, YEAR);
    assert_eq!(of_root.due(), NOW + LIFETIME_S / 2);
    // A chain ends with the admin's certificate in it.
    let mut admin = request(2, Role::Admin);
    admin.lifetime_s = 1000;
    let admin = root().issue(admin).unwrap();
    let of_admin = admin.issue(&identity(2), request(3, Role::Worker)).unwrap();
    assert_eq!(Life::of(&of_admin), Some(Life { from: NOW, ends: NOW + 1000 }));
}

#[test]
fn pauses_grow_to_a_bound_and_are_not_in_step() {
    let seconds = |failures, random| YEAR.pause(failures, random).as_secs();
    assert_eq!((seconds(0, 0), seconds(0, 150_000)), (225, 375), "300 s, a quarter less or more");
    assert_eq!(seconds(3, 0), 8 * 225);
    for failures in [20, 31, 32, u32::MAX] {
        assert_eq!(seconds(failures, 0), 6 * 3600 * 3 / 4, "{failures}");
    }
    let short = Life { from: NOW, ends: NOW + 10 };
    assert_eq!((short.pause(0, 0), short.pause(9, 0)), (Duration::from_millis(750), Duration::from_secs(3)));
}

#[test]
fn only_what_was_asked_for_is_taken() {
    let old = chain(3, Role::Worker);
    let check = |change: &dyn Fn(&mut octomesh_protocol::trust::CertificateRequest), name: Option<&str>| {
        let mut new = request(3, Role::Worker);
        new.now = NOW + 100;
        change(&mut new);
        let name = name.map(|n| NodeName::parse(n).unwrap());
        accepted(old.leaf().unwrap(), old.ends(), &root().issue(new).unwrap(), name.as_ref())
    };
    assert_eq!(check(&|_| (), None), Ok(()));
    assert_eq!(check(&|new| new.name = NodeName::parse("loft").unwrap(), Some("loft")), Ok(()));
    assert_eq!(check(&|_| (), Some("loft")), Err("another name"));
    assert_eq!(check(&|new| new.name = NodeName::parse("loft").unwrap(), None), Err("another name"));
    assert_eq!(check(&|new| new.role = Role::Admin, None), Err("another role or other grants"));
    assert_eq!(check(&|new| new.grants.tools = Some(vec![]), None), Err("another role or other grants"));
    assert_eq!(check(&|new| new.now = NOW, None), Err("it ends no later than the one that there is"));
}

#[test]
fn a_warning_comes_when_it_was_not_renewed_and_ends_soon() {
    let (commands, _inbox) = mpsc::channel(1);
    let (_out, failed) = watch::channel(Some(RenewalError::NoIssuer));
    let handle = RenewalHandle { commands, failed };
    let chain = chain(3, Role::Worker);
    assert_eq!(handle.warning(&chain, NOW), None);
    assert_eq!(handle.warning(&chain, YEAR.due() + 1), None, "there is time");
    let soon = handle.warning(&chain, YEAR.ends - 29 * 86_400).unwrap();
    assert!(soon.contains("ends in 29 d") && soon.contains("no node that could issue it"), "{soon}");
    assert!(handle.warning(&chain, YEAR.ends + 1).unwrap().contains("has ended"));
}

/// The clock was ahead while the root key was at hand, and was then set right.
#[test]
fn a_certificate_of_the_future_is_due_at_once() {
    let future = Life { from: NOW + LIFETIME_S, ends: NOW + 2 * LIFETIME_S };
    assert!(future.is_due(NOW) && !YEAR.is_due(NOW));
    assert!(!YEAR.is_due(NOW - CLOCK_TOLERANCE_S), "clocks differ a little");
    assert!(YEAR.is_due(NOW - CLOCK_TOLERANCE_S - 1) && YEAR.is_due(YEAR.due()));
    let mut ahead = request(3, Role::Worker);
    ahead.now = future.from;
    let (ahead, today) = (root().issue(ahead).unwrap(), chain(3, Role::Worker));
    assert!(accepted(ahead.leaf().unwrap(), ahead.ends(), &today, None).is_err());
    assert_eq!(accepted(ahead.leaf().unwrap(), None, &today, None), Ok(()));
    let (commands, _inbox) = mpsc::channel(1);
    let (_out, failed) = watch::channel(None);
    let warning = RenewalHandle { commands, failed }.warning(&ahead, NOW).unwrap();
    assert!(warning.contains("clock was ahead") && warning.contains("Set the clock"), "{warning}");
}
