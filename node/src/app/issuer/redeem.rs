//! A ticket is redeemed: who may have which certificate.
use std::sync::Arc;

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::{NodeId, NodeName},
    join::{JoinAnswer, JoinGrant, JoinRefusal},
    limits,
    sync::MemberAddress,
    trust::{
        CLOCK_TOLERANCE_S, Certificate, CertificateChain, CertificateError, CertificateRequest, clocks_differ,
    },
};
use tokio::time::Instant;

use super::{
    Issuer,
    rows::{Redeemed, Row, Rows},
};
use crate::{app::events::NodeEvent, membership::Member, net::join::JoinAsk, trust::Exclusion};

impl Issuer {
    pub(super) fn redeem(&mut self, ask: &JoinAsk, rows: &mut Rows) -> JoinAnswer {
        let trust = self.signer.trust();
        if trust.is_revoked(ask.keys.node_id()) {
            return refuse(JoinRefusal::Revoked, String::new());
        }
        if let Some(exclusion) = trust.exclusion().filter(|e| !matches!(e, Exclusion::Told { .. })) {
            return refuse(JoinRefusal::Unavailable, format!("the issuer itself is out: {exclusion}"));
        }
        let id = ask.ticket.to_string();
        let Some(row) = rows.get(&id).cloned() else {
            return refuse(JoinRefusal::UnknownTicket, String::new());
        };
        let node_id = ask.keys.node_id().to_string();
        if let Some(before) = row.redeemed.iter().find(|r| r.node_id == node_id) {
            return match before.chain() {
                Some(chain) if chain.leaf().is_some_and(|own| own.keys() == ask.keys) => {
                    match self.clocks(&chain, ask) {
                        Some(detail) => refuse(JoinRefusal::Clocks, detail),
                        None => self.grant(chain),
                    }
                }
                Some(_) => {
                    refuse(JoinRefusal::Used, "this node has a certificate for another ML-DSA key".to_owned())
                }
                None => refuse(JoinRefusal::Unavailable, "the stored certificate is damaged".to_owned()),
            };
        }
        let now = self.now();
        if row.withdrawn {
            return refuse(JoinRefusal::Withdrawn, String::new());
        }
        if now > row.expires {
            return refuse(JoinRefusal::Expired, String::new());
        }
        if row.redeemed.len() >= row.uses as usize {
            return refuse(JoinRefusal::Used, String::new());
        }
        if self.is_taken(rows, ask.keys.node_id(), &ask.name) {
            return refuse(JoinRefusal::NameTaken, format!("`{}` is a member already", ask.name));
        }
        let chain = match self.certify(&row, ask, now) {
            Ok(chain) => chain,
            Err(detail) => return refuse(JoinRefusal::Unavailable, detail),
        };
        // Nothing is written yet, so the ticket stays good.
        if let Some(detail) = self.clocks(&chain, ask) {
            return refuse(JoinRefusal::Clocks, detail);
        }
        let Ok(bytes) = chain.to_bytes() else {
            return refuse(JoinRefusal::Unavailable, "the certificate is too large".to_owned());
        };
        let redeemed = Redeemed {
            node_id: node_id.clone(),
            name: ask.name.clone(),
            chain: HEXLOWER.encode(&bytes),
            gone: false,
        };
        let changed = rows.change(now, |rows| {
            if let Some(row) = rows.iter_mut().find(|r| r.id == id) {
                row.redeemed.push(redeemed);
            }
        });
        if let Err(error) = changed {
            return refuse(JoinRefusal::Unavailable, error.to_string());
        }
        self.record.hand_out(ask.keys.node_id(), ask.name.clone(), Instant::now());
        tracing::info!(node = %ask.name, id = node_id, role = %row.role, "certificate issued");
        // silent-ok: nobody watches
        let _ = self.events.send(NodeEvent::Joined { node: ask.name.to_string(), node_id });
        self.grant(chain)
    }

    fn certify(&mut self, row: &Row, ask: &JoinAsk, now: u64) -> Result<CertificateChain, String> {
        let request = CertificateRequest {
            keys: ask.keys.clone(),
            name: ask.name.clone(),
            role: row.role,
            grants: row.grants.clone(),
            serial: self.next_serial(now),
            now,
            lifetime_s: self.signer.lifetime_s,
        };
        self.signer.issue(request).map_err(|e| e.to_string())
    }

    /// Why the joiner could not use `chain`: by its clock it has ended or not begun.
    fn clocks(&self, chain: &CertificateChain, ask: &JoinAsk) -> Option<String> {
        match chain.verify(chain.root().mesh_id(), ask.unix_time, CLOCK_TOLERANCE_S) {
            Err(CertificateError::Expired { .. } | CertificateError::NotYetValid { .. }) => {
                Some(clocks_differ(ask.unix_time, self.now(), &format!("{}'s", ask.name)))
            }
            // Whatever else may be wrong with it, the joiner finds out and says so.
            _ => None,
        }
    }

    /// Whether another node than `node` has that name: a member, or one that has a certificate and was not seen yet. The machine that
    /// replaces one that was revoked, has left for good or was forgotten may have its name.
    pub(super) fn is_taken(&self, rows: &Rows, node: NodeId, name: &NodeName) -> bool {
        let view = self.view.borrow().clone();
        let trust = self.signer.trust();
        let other = |holder: NodeId| holder != node && !trust.is_revoked(holder);
        let holds = |certificate: &Certificate| trust.check(certificate).is_ok();
        let member = |m: &Member| other(m.node) && !m.is_gone() && m.certificate.as_deref().is_none_or(holds);
        let issued = |r: &Redeemed| {
            let chain = r.chain();
            let over = |end: u64| self.now() > end.saturating_add(CLOCK_TOLERANCE_S);
            let void = |c: &CertificateChain| c.ends().is_none_or(over) || !c.leaf().is_some_and(holds);
            // A damaged one says nothing of its end.
            !r.gone && r.node_id.parse().is_ok_and(other) && !chain.is_some_and(|c| void(&c))
        };
        view.members.values().any(|m| m.name == *name && member(m))
            || rows.redeemed().any(|r| r.name == *name && issued(r))
            || self.record.handed(name, Instant::now()).any(other)
    }

    /// Who is gone for good by now leaves its name to others, also after a restart.
    pub(super) fn free_names(&mut self, rows: &mut Rows) {
        let gone = Arc::clone(&self.view.borrow().gone);
        if gone == self.record.gone {
            return;
        }
        let is_gone = |r: &Redeemed| !r.gone && r.node_id.parse().is_ok_and(|n| gone.contains(&n));
        self.record.handed.retain(|(node, _, _)| !gone.contains(node));
        if rows.redeemed().any(is_gone) {
            let changed = rows.change(self.now(), |rows| {
                let redeemed = rows.iter_mut().flat_map(|r| &mut r.redeemed);
                redeemed.filter(|r| is_gone(r)).for_each(|r| r.gone = true);
            });
            if let Err(error) = changed {
                // The next change of the view tries again.
                tracing::warn!(%error, "the name of a member that is gone for good is not free yet");
                return;
            }
        }
        self.record.gone = gone;
    }

    fn grant(&self, chain: CertificateChain) -> JoinAnswer {
        let view = self.view.borrow().clone();
        let members = view
            .members
            .values()
            .filter(|m| !m.addresses.is_empty())
            .map(|m| MemberAddress { node: m.node, name: m.name.clone(), addresses: m.addresses.clone() })
            .collect();
        let trust = self.signer.trust();
        let mut newest: Vec<_> =
            trust.revocations.nodes().filter_map(|n| trust.revocations.signed(n)).collect();
        newest.sort_by_key(|signed| std::cmp::Reverse(signed.unverified().at));
        let newest = newest.into_iter().take(limits::JOIN_REVOCATIONS);
        let revocations = newest.filter_map(|signed| signed.to_bytes().ok()).collect();
        let mesh_secret = trust.secrets.current.clone();
        JoinAnswer::Granted(JoinGrant { chain, mesh_secret, members, revocations })
    }
}

fn refuse(reason: JoinRefusal, detail: String) -> JoinAnswer {
    JoinAnswer::Refused { reason, detail }
}
