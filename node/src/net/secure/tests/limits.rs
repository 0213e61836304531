//! What PROTOCOL 1 allows a stranger, a replayer and a crowd of members.
use octomesh_protocol::session::handshake::MESSAGE_1_BYTES;

use super::*;

/// PROTOCOL 5.7: an old capture, here the first message of a handshake that went well.
#[tokio::test]
async fn a_recorded_first_message_is_refused_when_it_comes_again() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let ((x, tap_x), (tap_y, y)) = (tokio::io::duplex(1 << 16), tokio::io::duplex(1 << 16));
    let (from_a, to_a) = tokio::io::split(tap_x);
    let (from_b, to_b) = tokio::io::split(tap_y);
    let dial = async {
        let upgrade = a.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL);
        upgrade.await.unwrap().1.close().await.unwrap();
    };
    let listen = async {
        let upgrade = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL);
        upgrade.await.unwrap().1.close().await.unwrap();
    };
    let ((), (), recorded, _) = tokio::join!(dial, listen, tap(from_a, to_b), tap(from_b, to_a));

    let (mut replayer, y) = tokio::io::duplex(1 << 16);
    replayer.write_all(&recorded[..2 + MESSAGE_1_BYTES]).await.unwrap();
    let error = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL).await.unwrap_err();
    assert!(matches!(error, SecureError::Replay), "{error}");
    assert_eq!(replayer.read(&mut [0; 1]).await.unwrap(), 0, "nothing was answered");
    assert!(connect(&a, &b).await.1.is_ok());
}

/// Messages that do not open with the mesh secret can't push out those that do.
#[tokio::test]
async fn junk_is_not_remembered() {
    let b = member(1, 1, 3, NOW, None);
    for _ in 0..2 {
        let (mut x, y) = tokio::io::duplex(1 << 16);
        x.write_all(&[&[0x04, 0xe0][..], &[7; MESSAGE_1_BYTES]].concat()).await.unwrap();
        let error = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL).await.unwrap_err();
        assert!(matches!(error, SecureError::WrongMeshSecret(_)), "{error}");
    }
    assert!(
        !b.security.config().replays.lock().unwrap().contains(&Sha256::digest([7; MESSAGE_1_BYTES]).into())
    );
}

#[tokio::test]
async fn sixteen_handshakes_are_answered_at_once_and_the_next_waits() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let mut busy = Vec::new();
    for _ in 0..ANSWERED_AT_ONCE {
        busy.push(b.security.config().answered().await.unwrap());
    }
    let mut waiting = pin!(connect(&a, &b));
    for _ in 0..100 {
        assert!(futures::poll!(waiting.as_mut()).is_pending());
    }
    // A stranger is refused without a wait.
    let stranger = member(1, 2, 4, NOW, None);
    assert!(matches!(connect(&stranger, &b).await.1.unwrap_err(), SecureError::WrongMeshSecret(_)));
    busy.pop();
    assert!(waiting.await.1.is_ok());
}
