//! A member asks for another certificate: because its own ends, or under another name.
use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::{NodeId, NodeName},
    sync::{RenewRefusal, Renewal, SyncReply},
    trust::{CLOCK_TOLERANCE_S, Certificate, CertificateChain, CertificateRequest},
};
use tokio::time::{Duration, Instant};

use super::{Issuer, SignerError, rows::Rows};
use crate::{
    membership::renewals::{RenewAsk, not_renewed},
    trust::Exclusion,
};

/// A node asks at most once in this time: it needs a certificate in half a year, and each question costs signatures.
const GAP: Duration = Duration::from_secs(1);
/// Nodes remembered for that; the oldest go first. More than ask in one such time.
const ASKERS: usize = 64;

type Refused = (RenewRefusal, String);

impl Issuer {
    pub(super) fn renew(&mut self, ask: RenewAsk, rows: &mut Rows) {
        let answer = match self.another(ask.node, &ask.renewal, rows) {
            Ok(chain) => {
                if let Some(new) = chain.leaf() {
                    tracing::info!(node = %new.name, id = ask.node.short(), "certificate renewed");
                }
                SyncReply::Renewed(Box::new(chain))
            }
            Err((why, detail)) => {
                tracing::info!(id = ask.node.short(), %why, detail, "no certificate renewed");
                not_renewed(why, detail)
            }
        };
        // silent-ok: the asker is gone; it asks again
        let _ = ask.reply.send(answer);
    }

    fn another(
        &mut self,
        node: NodeId,
        renewal: &Renewal,
        rows: &mut Rows,
    ) -> Result<CertificateChain, Refused> {
        // First: what is refused costs signatures too.
        self.not_too_often(node)?;
        let old = self.current(node, &renewal.chain)?;
        let name = match &renewal.name {
            Some(name) if *name != old.name => {
                if self.is_taken(rows, node, name) {
                    return Err((RenewRefusal::NameTaken, format!("`{name}` is a member already")));
                }
                name.clone()
            }
            _ => old.name.clone(),
        };
        let now = self.now();
        let request = CertificateRequest {
            keys: old.keys(),
            name: name.clone(),
            role: old.role,
            grants: old.grants,
            serial: self.next_serial(now),
            now,
            lifetime_s: self.signer.lifetime_s,
        };
        let chain = self.signer.issue(request).map_err(|error| match error {
            SignerError::Root(_) | SignerError::NotAdmin => (RenewRefusal::NotIssuer, error.to_string()),
            SignerError::Certificate(_) => (RenewRefusal::Certificate, error.to_string()),
        })?;
        self.remember(node, &name, &chain, rows)?;
        self.record.hand_out(node, name, Instant::now());
        Ok(chain)
    }

    /// The asker's certificate, when it may be renewed: it holds, is the asker's own, and none is newer.
    fn current(&self, node: NodeId, chain: &CertificateChain) -> Result<Certificate, Refused> {
        let trust = self.signer.trust();
        if let Some(exclusion) = trust.exclusion().filter(|e| !matches!(e, Exclusion::Told { .. })) {
            return Err((RenewRefusal::NotIssuer, format!("the issuer itself is out: {exclusion}")));
        }
        if trust.is_revoked(node) {
            return Err((RenewRefusal::Revoked, String::new()));
        }
        let invalid = |why: String| (RenewRefusal::Certificate, why);
        // This node's own, of a time when its clock was ahead: nobody else can put it right. Others could not have a session with one.
        let begins = chain.leaf().map_or(0, |leaf| leaf.not_before);
        let at = if node == trust.node { self.now().max(begins) } else { self.now() };
        let verified = chain.verify(trust.mesh, at, CLOCK_TOLERANCE_S).map_err(|e| invalid(e.to_string()))?;
        let old = verified.certificate;
        if old.node != node {
            return Err(invalid(format!("it is {}'s", old.name)));
        }
        trust.check(&old).map_err(|e| (RenewRefusal::Revoked, e.to_string()))?;
        let view = self.view.borrow().clone();
        if let Some(shown) = view.members.get(&node).and_then(|m| m.certificate.as_ref()) {
            if shown.keys() != old.keys() {
                return Err(invalid("it has another ML-DSA key than the session".to_owned()));
            }
            if shown.not_before > old.not_before {
                return Err((RenewRefusal::Old, format!("{} has a newer one", shown.name)));
            }
        }
        Ok(old)
    }

    fn not_too_often(&mut self, node: NodeId) -> Result<(), Refused> {
        let now = Instant::now();
        self.record.renewed.retain(|(_, at)| now.duration_since(*at) < GAP);
        if self.record.renewed.iter().any(|(asker, _)| *asker == node) {
            return Err((RenewRefusal::Busy, "asked twice within a second".to_owned()));
        }
        if self.record.renewed.len() >= ASKERS {
            return Err((RenewRefusal::Busy, "too many ask".to_owned()));
        }
        self.record.renewed.push((node, now));
        Ok(())
    }

    /// Who redeemed a ticket here has this certificate and this name from now on.
    fn remember(
        &self,
        node: NodeId,
        name: &NodeName,
        chain: &CertificateChain,
        rows: &mut Rows,
    ) -> Result<(), Refused> {
        let id = node.to_string();
        if !rows.redeemed().any(|r| r.node_id == id) {
            return Ok(());
        }
        let bytes = chain.to_bytes().map_err(|e| (RenewRefusal::Certificate, e.to_string()))?;
        let text = HEXLOWER.encode(&bytes);
        let changed = rows.change(self.now(), |rows| {
            for redeemed in rows.iter_mut().flat_map(|r| &mut r.redeemed).filter(|r| r.node_id == id) {
                redeemed.name = name.clone();
                redeemed.chain.clone_from(&text);
                redeemed.gone = false;
            }
        });
        changed.map_err(|error| (RenewRefusal::Busy, error.to_string()))
    }
}

#[cfg(test)]
mod tests;
