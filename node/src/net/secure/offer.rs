//! What a peer offers before there is any security. Negotiation is done by multistream-select, which does not tell what it turned
//! down; so it is looked for in what the peer said, unless one of our protocols is among it.
use octomesh_protocol::{join, session};

use crate::net::printable;

/// Proposals told, and the longest text of them.
const TOLD: usize = 3;
const TOLD_CHARS: usize = 96;

/// The proposals in the beginning of a negotiation: `length varint │ text │ \n`, each. `None` if one of ours is there, or none at all.
pub(super) fn offered(mut bytes: &[u8]) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    // Lines of 128 bytes and more are no protocol of anybody.
    while let Some((length @ 1..0x80, rest)) = bytes.split_first() {
        let Some((line, after)) = rest.split_at_checked(usize::from(*length)) else { break };
        bytes = after;
        match line.strip_suffix(b"\n").map(std::str::from_utf8) {
            Some(Ok(ours)) if ours == session::PROTOCOL || ours == join::PROTOCOL => return None,
            Some(Ok(other)) if other.starts_with("/multistream/") => {}
            Some(Ok(other)) if other.starts_with('/') && found.len() < TOLD => {
                if !found.iter().any(|f| f == other) {
                    found.push(other.to_owned());
                }
            }
            _ => break,
        }
    }
    (!found.is_empty()).then(|| printable(&found.join(", "), TOLD_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<u8> {
        lines
            .iter()
            .flat_map(|line| [&[u8::try_from(line.len() + 1).unwrap()][..], line.as_bytes(), b"\n"].concat())
            .collect()
    }

    #[test]
    fn proposals_are_found_and_ours_are_none() {
        let header = "/multistream/1.0.0";
        assert_eq!(offered(&lines(&[header, "/noise"])).unwrap(), "/noise");
        assert_eq!(
            offered(&lines(&[header, "/tls/1.0.0", "/noise", "/noise"])).unwrap(),
            "/tls/1.0.0, /noise"
        );
        assert_eq!(offered(&lines(&[header, "/noise", session::PROTOCOL])), None);
        assert_eq!(offered(&lines(&[header, join::PROTOCOL])), None);
        assert_eq!(offered(&lines(&[header])), None);
        assert_eq!(offered(b""), None);
        // Cut, junk behind it, or nothing of the kind.
        assert_eq!(offered(&lines(&[header, "/noise", "/tls/1.0.0"])[..30]).unwrap(), "/noise");
        assert_eq!(
            offered(&[&lines(&[header, "/noise"])[..], &[0, 32], &[7; 32]].concat()).unwrap(),
            "/noise"
        );
        assert_eq!(offered(b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(offered(&[0xff; 256]), None);
    }

    #[test]
    fn what_a_stranger_says_is_short_and_printable() {
        let told = offered(&lines(&["/a\u{1b}[2J\r\u{202e}", &format!("/{}", "x".repeat(120))])).unwrap();
        assert!(told.chars().count() <= TOLD_CHARS && !told.chars().any(char::is_control), "{told:?}");
    }
}
