//! Both sides learn why there is no session: the one that refuses in its error, the other from the close record.
use futures::AsyncRead;
use octomesh_protocol::session::record::{CloseReason, Sealer};

use super::*;

/// What an initiator finds where the session should begin.
async fn told<T: AsyncRead + Unpin>(stream: &mut T) -> Diagnosis {
    let error = stream.read(&mut [0; 64]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    diagnose(&error, Cause::Io)
}

/// Dials `b` from `a` as the swarm does, which lets go of a connection that is refused.
async fn refused(a: &Member, b: &Member) -> (Diagnosis, SecureError) {
    let (x, y) = tokio::io::duplex(1 << 16);
    let dial = async {
        let upgrade = a.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL);
        let (_, mut stream) = upgrade.await.unwrap();
        // A session begins with the initiator's proposal of a multiplexer; nobody reads it.
        stream.write_all(&[7; 40]).await.unwrap();
        stream.flush().await.unwrap();
        told(&mut stream).await
    };
    let listen = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL);
    let (at_a, at_b) = tokio::join!(dial, listen);
    (at_a, at_b.map(|_| ()).unwrap_err())
}

#[tokio::test]
async fn an_expired_certificate() {
    // Both clocks agree, so the certificate is to blame.
    let late = NOW + 3600 + CLOCK_TOLERANCE_S + 1;
    let old = build(1, 1, 2, late, None, RecordLimits::default(), 3600);
    let b = member(1, 1, 3, late, None);
    let (at_old, at_b) = refused(&old, &b).await;
    assert_eq!((at_old.cause, at_old.by_peer), (Cause::Expired, true));
    assert!(at_old.message.contains("refuses this one: expired"), "{}", at_old.message);
    assert_eq!(Cause::of(&at_b), Cause::Expired);
}

#[tokio::test]
async fn a_clock_that_is_wrong() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW + LIFETIME_S + 3 * 3600, None));
    let (at_a, at_b) = refused(&a, &b).await;
    assert_eq!((at_a.cause, at_a.by_peer, Cause::of(&at_b)), (Cause::Clock, true, Cause::Clock));
    let seconds = LIFETIME_S + 3 * 3600;
    assert!(at_a.message.contains(&format!("differs from the other's by -{seconds} s")), "{}", at_a.message);
}

#[tokio::test]
async fn a_peer_of_another_mesh() {
    // Without the mesh secret there are no keys to say anything with.
    let (a, b) = (member(1, 1, 2, NOW, None), member(9, 1, 3, NOW, None));
    let (dialled, accepted) = connect(&a, &b).await;
    assert_eq!(Cause::of(&dialled.unwrap_err()), Cause::HungUp);
    assert_eq!(Cause::of(&accepted.unwrap_err()), Cause::WrongMeshSecret);
}

#[tokio::test]
async fn a_self_dial_is_told_apart() {
    let a = member(1, 1, 2, NOW, None);
    let (dialled, accepted) = connect(&a, &a).await;
    assert!(matches!(dialled.unwrap_err(), SecureError::SelfDial));
    assert!(matches!(accepted.unwrap_err(), SecureError::SelfDial));
}

#[tokio::test]
async fn a_copy_of_the_own_home_is_no_self_dial() {
    let (a, copy) = (member(1, 1, 2, NOW, None), member(1, 1, 2, NOW, None));
    let (dialled, accepted) = connect(&a, &copy).await;
    for error in [dialled.unwrap_err(), accepted.unwrap_err()] {
        assert_eq!(Cause::of(&error), Cause::IdentityInUse);
        assert!(error.to_string().contains("identity_in_use: node-2"), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_is_short_and_printable_whatever_it_says() {
    let (one, other) = split_pair();
    let (mut x, y) = tokio::io::duplex(1 << 16);
    let said = "revoke\u{1b}[2J\u{202e}\r\n";
    let record = Sealer::new(&one.send, Default::default()).close_with(CloseReason::Refused, said).unwrap();
    x.write_all(&record).await.unwrap();
    let mut stream = stream(y.compat(), &other, true);
    let found = told(&mut stream).await;
    assert_eq!(found.cause, Cause::Identity, "a reason of another version");
    assert!(found.message.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{}", found.message);
    assert!(stream.read(&mut [0; 8]).await.is_err(), "and nothing more");
}

/// The negotiation of the multiplexer is where an initiator meets it.
#[tokio::test]
async fn a_refusal_is_found_under_a_negotiation() {
    use multistream_select::{Version, dialer_select_proto};
    let (one, other) = split_pair();
    let (mut x, y) = tokio::io::duplex(1 << 16);
    let record = Sealer::new(&one.send, Default::default()).close_with(CloseReason::Revoked, "").unwrap();
    x.write_all(&record).await.unwrap();
    let stream = stream(y.compat(), &other, true);
    let error = dialer_select_proto(stream, ["/yamux/1.0.0"], Version::V1).await.map(|_| ()).unwrap_err();
    let found = diagnose(&io::Error::other(error), Cause::Io);
    assert_eq!((found.cause, found.by_peer), (Cause::Revoked, true), "{}", found.message);
}

/// A session that is ended says why, and does not wait for a side that takes nothing.
#[tokio::test(start_paused = true)]
async fn an_end_with_a_reason_is_heard_or_over_within_a_second() {
    let (one, other) = split_pair();
    let (x, y) = tokio::io::duplex(1 << 16);
    let mut left = stream(x.compat(), &one, true);
    left.traffic.farewell.set(Farewell::new(CloseReason::Revoked, "")).unwrap();
    left.close().await.unwrap();
    assert_eq!(told(&mut stream(y.compat(), &other, false)).await.cause, Cause::Revoked);

    let (x, _silent) = tokio::io::duplex(100);
    let mut left = stream(x.compat(), &one, true);
    left.write_all(&pattern(1000)).await.unwrap();
    assert!(futures::poll!(pin!(left.flush())).is_pending());
    left.traffic.farewell.set(Farewell::new(CloseReason::Revoked, "")).unwrap();
    let began = Instant::now();
    assert_eq!(left.close().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() <= Duration::from_millis(1100), "{:?}", began.elapsed());
}
