use std::time::Duration;

use futures::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::*;

fn inside(number: u16) -> ConnectedPoint {
    let at = |port: u16| format!("/ip4/192.0.2.1/tcp/{port}").parse::<Multiaddr>().unwrap();
    ConnectedPoint::Listener { local_addr: at(1), send_back_addr: at(number) }
}

/// PROTOCOL 5.5: one byte a second, from the first byte of the negotiation on.
#[tokio::test(start_paused = true)]
async fn one_byte_a_second_lasts_two_seconds() {
    let (mut stranger, io) = tokio::io::duplex(64);
    let mut watched = Places::default().watch(io.compat(), &inside(2));
    let began = Instant::now();
    let drip = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if stranger.write_all(b"x").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        () = drip => {}
        ended = watched.read_to_end(&mut bytes) => {
            let error = ended.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("no first message within 2 s"), "{error}");
        }
    }
    assert_eq!(began.elapsed(), FIRST_MESSAGE);
}

#[tokio::test(start_paused = true)]
async fn who_said_a_first_message_has_the_time_of_a_handshake() {
    let (mut member, io) = tokio::io::duplex(1 << 16);
    let places = Places::default();
    let place = places.give(&"/ip4/192.0.2.1/tcp/2".parse().unwrap());
    let mut watched = places.watch(io.compat(), &inside(2));
    member.write_all(&[7; FIRST_BYTES]).await.unwrap();
    watched.read_exact(&mut [0; FIRST_BYTES]).await.unwrap();
    assert!(!place.is_silent());
    let wait = tokio::time::timeout(FIRST_MESSAGE * 10, watched.read(&mut [0; 1])).await;
    assert!(wait.is_err(), "nothing ends it here");
    place.over();
    place.spoke();
    member.write_all(b"x").await.unwrap();
    assert_eq!(watched.read(&mut [0; 1]).await.unwrap(), 1);
    assert!(watched.watch.is_none(), "a session is not watched");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_taken_away_ends_its_connection_at_once() {
    let (_silent, io) = tokio::io::duplex(64);
    let places = Places::default();
    let place = places.give(&"/ip4/192.0.2.1/tcp/2".parse().unwrap());
    let mut watched = places.watch(io.compat(), &inside(2));
    assert!(places.0.lock().unwrap().is_empty());
    let began = Instant::now();
    let taken = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        place.take_away();
    };
    let mut byte = [0; 1];
    let (read, ()) = tokio::join!(watched.read(&mut byte), taken);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    assert!(began.elapsed() < Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_ones_own_is_not_watched() {
    let (_other, io) = tokio::io::duplex(64);
    let address = "/ip4/192.0.2.1/tcp/2".parse().unwrap();
    let point = ConnectedPoint::Dialer {
        address,
        role_override: libp2p::core::Endpoint::Dialer,
        port_use: libp2p::core::transport::PortUse::Reuse,
    };
    let mut watched = Places::default().watch(io.compat(), &point);
    assert!(tokio::time::timeout(FIRST_MESSAGE * 10, watched.read(&mut [0; 1])).await.is_err());
}
