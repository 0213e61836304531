//! How far it got on the way to a member: for whoever asks why one can't be reached.
use std::collections::BTreeSet;

/// Who told of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// The ticket of this node, or an earlier run of it.
    AddressBook,
    /// The configuration.
    Config,
    /// Multicast DNS.
    Mdns,
    /// Another member.
    Member,
    /// It came by itself.
    Session,
}

impl Source {
    const fn sentence(self) -> &'static str {
        match self {
            Self::AddressBook => "the ticket or an earlier run",
            Self::Config => "the configuration",
            Self::Mdns => "multicast DNS",
            Self::Member => "another member",
            Self::Session => "its own connection",
        }
    }
}

/// The step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Nobody told where it is.
    NotHeard,
    /// Its address is known, and was not dialled yet.
    NotDialled,
    /// It was dialled, in vain.
    Dialled,
    /// A session was open and ended.
    Lost,
}

/// What happened on the way to one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    heard_from: BTreeSet<Source>,
    /// Why the last session ended.
    lost: Option<String>,
    /// Where the last dial in vain went, when that is known, and what came of it.
    dialled: Option<(Option<String>, String)>,
    /// What came of looking for a member that relays.
    relayed: Option<String>,
}

impl Reach {
    /// Who told of it.
    #[must_use]
    pub fn heard_from(&self) -> &BTreeSet<Source> {
        &self.heard_from
    }

    pub(super) fn heard(&mut self, source: Source) {
        self.heard_from.insert(source);
    }

    pub(super) fn connected(&mut self) {
        (self.lost, self.dialled, self.relayed) = (None, None, None);
    }

    pub(super) fn lost(&mut self, reason: &str) {
        (self.lost, self.dialled, self.relayed) = (Some(reason.to_owned()), None, None);
    }

    pub(super) fn failed(&mut self, address: Option<&str>, reason: &str) {
        self.dialled = Some((address.map(str::to_owned), reason.to_owned()));
    }

    pub(super) fn not_relayed(&mut self, said: String) {
        self.relayed = Some(said);
    }

    /// Where it stands for a member without a session; `has_address` says whether an address of it is known.
    #[must_use]
    pub fn step(&self, has_address: bool) -> Step {
        match (&self.lost, &self.dialled) {
            (Some(_), _) => Step::Lost,
            (None, Some(_)) => Step::Dialled,
            (None, None) if has_address => Step::NotDialled,
            (None, None) => Step::NotHeard,
        }
    }

    /// The same in a sentence.
    #[must_use]
    pub fn sentence(&self, has_address: bool) -> String {
        let dialled = |again: &str| {
            let (address, reason) = self.dialled.as_ref()?;
            let address = address.as_ref().map(|a| format!(" {a}")).unwrap_or_default();
            Some(format!("dialled{again}{address}, but: {reason}"))
        };
        let sources: Vec<&str> = self.heard_from.iter().map(|s| s.sentence()).collect();
        let sources = if sources.is_empty() { "nobody".to_owned() } else { sources.join(", ") };
        let relayed = self.relayed.as_ref().map(|said| format!("; {said}")).unwrap_or_default();
        match self.step(has_address) {
            Step::NotHeard => format!("known from {sources}, but nobody told where it is{relayed}"),
            Step::NotDialled => format!("heard of from {sources}, not dialled yet"),
            Step::Dialled => {
                format!("{} (heard of from {sources}){relayed}", dialled("").unwrap_or_default())
            }
            Step::Lost => {
                let lost = self.lost.as_deref().unwrap_or_default();
                let again = dialled(" again").map(|again| format!("; {again}")).unwrap_or_default();
                format!("connected, then lost: {lost}{again}{relayed}")
            }
        }
    }
}

/// An address that leads to nobody known (yet): configured, or heard on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// `IP:PORT`, or `HOST:PORT` as it was configured.
    pub address: String,
    /// Who told of it.
    pub source: Source,
    /// What came of the last dial; absent before the first one ended.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_sentence() {
        let mut reach = Reach::default();
        reach.heard(Source::AddressBook);
        assert_eq!(reach.step(false), Step::NotHeard);
        assert!(reach.sentence(false).contains("nobody told where"));
        assert_eq!(reach.sentence(true), "heard of from the ticket or an earlier run, not dialled yet");
        reach.heard(Source::Mdns);
        reach.failed(Some("192.0.2.7:9400"), "Connection refused");
        assert_eq!(reach.step(true), Step::Dialled);
        assert_eq!(
            reach.sentence(true),
            "dialled 192.0.2.7:9400, but: Connection refused (heard of from the ticket or an earlier run, multicast DNS)"
        );
        reach.connected();
        reach.lost("closed");
        assert_eq!(
            (reach.step(true), reach.sentence(true).as_str()),
            (Step::Lost, "connected, then lost: closed")
        );
        reach.failed(None, "no answer");
        assert_eq!(reach.sentence(true), "connected, then lost: closed; dialled again, but: no answer");
    }
}
