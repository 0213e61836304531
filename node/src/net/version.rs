//! What a program speaks that does not speak our sessions: perhaps a node of another version.
//!
//! multistream-select tells the one who dials no more than "not that one"; but it can be asked for its list (`ls`).
use std::time::Duration;

use octomesh_protocol::session::PROTOCOL;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Connecting, asking and listening together.
const PATIENCE: Duration = Duration::from_secs(3);
/// A list of protocols is short; more is not read.
const LIST_BYTES: u64 = 1024;
/// Header and question, each with its length before it.
const QUESTION: &[u8] = b"\x13/multistream/1.0.0\n\x03ls\n";

/// Whether a dial failed because the other side has no session of ours to offer.
pub(crate) fn is_worth_asking(reason: &str) -> bool {
    reason.contains("offers no post-quantum session")
}

/// Why `address` speaks no session, if it is because it speaks another version of them.
pub(crate) async fn skew(address: &str) -> Option<String> {
    let list = timeout(PATIENCE, ask(address)).await.ok()?.ok()?;
    let other = version_in(&list)?;
    Some(format!(
        "the other side speaks another version of the protocol ({other}; this node speaks {PROTOCOL}): bring both to the same \
         version of octomesh"
    ))
}

async fn ask(address: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(QUESTION).await?;
    let mut list = Vec::new();
    let mut chunk = [0; 256];
    // It keeps the connection open for our choice, so the end of its list shows only in what came.
    while list.len() < usize::try_from(LIST_BYTES).unwrap_or(0) {
        let count = stream.read(&mut chunk).await?;
        list.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if count == 0 || version_in(&list).is_some() {
            break;
        }
    }
    Ok(list)
}

/// A session protocol with another number than ours.
fn version_in(list: &[u8]) -> Option<String> {
    let family = PROTOCOL.trim_end_matches(|c: char| c.is_ascii_digit());
    let text: String = list.iter().map(|b| char::from(*b)).collect();
    let found = text.split('\n').filter_map(|line| {
        let number = line.get(line.find(family)? + family.len()..)?;
        let plain = (1..=6).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| format!("{family}{number}"))
    });
    found.into_iter().find(|protocol| protocol != PROTOCOL)
}

#[cfg(test)]
mod tests {
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;
    use crate::net::secure::SecureError;

    #[test]
    fn the_refusal_that_is_followed_up() {
        assert!(is_worth_asking(&SecureError::ClassicalOnly.to_string()));
        assert!(!is_worth_asking(&SecureError::HungUp.to_string()));
    }

    #[test]
    fn lists() {
        assert_eq!(
            version_in(b"\x13/multistream/1.0.0\n\x20\x12/octomesh/pq/2\n\n"),
            Some("/octomesh/pq/2".into())
        );
        for none in [
            &b""[..],
            b"\x10/octomesh/pq/1\n",
            b"/octomesh/pq/\n",
            b"/octomesh/pq/x\n",
            b"/octomesh/pq/1234567\n",
            b"/noise\n",
        ] {
            assert_eq!(version_in(none), None);
        }
    }

    async fn listener(protocols: Vec<&'static str>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        #[expect(clippy::disallowed_methods, reason = "a peer of the test")]
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            multistream_select::listener_select_proto(socket.compat(), protocols).await.ok();
        });
        address
    }

    #[tokio::test]
    async fn a_newer_node_is_told_from_another_program() {
        let newer = listener(vec!["/octomesh/pq/2", "/octomesh/join/2"]).await;
        let said = skew(&newer).await.unwrap();
        assert!(said.contains("another version") && said.contains("/octomesh/pq/2"), "{said}");
        assert_eq!(skew(&listener(vec!["/noise"]).await).await, None);
        assert_eq!(skew("127.0.0.1:1").await, None, "nobody there");
    }
}
