//! A decision for people and for scripts: the JSON of `place` and `why`, and one sentence.
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::{Candidate, Decision, FilterReason, Filtered, Refusal, Terms};

/// Nodes named in a sentence beside the chosen one; a large mesh still gives one line.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct CandidateJson<'a> {
    node: &'a str,
    cost_ms: f64,
    terms: Terms,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<&'a str>,
}

#[derive(Serialize)]
struct FilteredJson<'a> {
    node: &'a str,
    reason: FilterReason,
    detail: &'a str,
}

#[derive(Serialize)]
struct RefusalJson<'a> {
    node: &'a str,
    reason: &'a str,
    detail: &'a str,
}

#[derive(Serialize)]
struct PlaceJson<'a> {
    decision_id: String,
    tool: &'a str,
    chosen: Option<&'a str>,
    candidates: Vec<CandidateJson<'a>>,
    filtered: Vec<FilteredJson<'a>>,
    sentence: String,
}

#[derive(Serialize)]
struct WhyJson<'a> {
    #[serde(flatten)]
    place: PlaceJson<'a>,
    step: String,
    refusals: Vec<RefusalJson<'a>>,
    ran_on: Option<&'a str>,
    predicted_ms: Option<f64>,
    took_ms: Option<u64>,
}

/// A hundredth of a millisecond is finer than any estimate.
fn rounded(ms: f64) -> f64 {
    (ms * 100.0).round() / 100.0
}

impl Terms {
    fn rounded(self) -> Self {
        Self {
            rtt: rounded(self.rtt),
            wait: rounded(self.wait),
            transfer: rounded(self.transfer),
            exec: rounded(self.exec),
            cold: rounded(self.cold),
            risk: rounded(self.risk),
        }
    }
}

impl Candidate {
    fn json(&self) -> CandidateJson<'_> {
        CandidateJson {
            node: self.name.as_str(),
            cost_ms: rounded(self.cost_ms),
            terms: self.terms.rounded(),
            gpu: self.gpu.as_deref(),
        }
    }

    /// "tower: 212 ms expected (rtt 2, wait 0, transfer 10, exec 200)"; `cold` and `risk` only where they matter.
    fn sentence(&self) -> String {
        let t = self.terms;
        let mut text = format!(
            "{}: {:.0} ms expected (rtt {:.0}, wait {:.0}, transfer {:.0}, exec {:.0}",
            self.name, self.cost_ms, t.rtt, t.wait, t.transfer, t.exec
        );
        for (name, ms) in [("cold", t.cold), ("risk", t.risk)] {
            if ms >= 0.5 {
                // silent-ok: writing to a string cannot fail
                let _ = write!(text, ", {name} {ms:.0}");
            }
        }
        text.push(')');
        if let Some(gpu) = &self.gpu {
            // silent-ok: the same
            let _ = write!(text, " on {gpu}");
        }
        text
    }
}

impl Decision {
    /// The reason in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        if let Some(kept) = &self.kept {
            return kept.clone();
        }
        let mut parts = vec![match &self.chosen {
            Some(chosen) => chosen.sentence(),
            None => format!("no node can run {}", self.tool),
        }];
        // A node that refused is among the filtered afterwards, with more words.
        let again = |f: &Filtered| matches!(f.reason, FilterReason::Lost | FilterReason::Refused);
        let told = |r: &&Refusal| !self.filtered_for(r.node).is_some_and(again);
        parts.extend(self.refusals.iter().filter(told).map(|r| format!("{} refused ({})", r.name, r.reason)));
        let chosen = self.chosen.as_ref().map(|c| c.node);
        let others = self.candidates.iter().filter(|c| Some(c.node) != chosen);
        let others = others.map(|c| format!("{} {:.0} ms", c.name, c.cost_ms));
        let filtered = self.filtered.iter().map(|f| format!("{} {} ({})", f.name, f.detail, f.reason));
        let mut rest: Vec<String> = others.chain(filtered).collect();
        let more = rest.len().saturating_sub(SHOWN);
        rest.truncate(SHOWN);
        parts.extend(rest);
        if more > 0 {
            parts.push(format!("{more} more"));
        }
        parts.join("; ")
    }

    fn place(&self) -> PlaceJson<'_> {
        PlaceJson {
            decision_id: self.id.to_string(),
            tool: self.tool.as_str(),
            chosen: self.chosen.as_ref().map(|c| c.name.as_str()),
            candidates: self.candidates.iter().map(Candidate::json).collect(),
            filtered: self
                .filtered
                .iter()
                .map(|f| FilteredJson { node: f.name.as_str(), reason: f.reason, detail: &f.detail })
                .collect(),
            sentence: self.sentence(),
        }
    }

    /// What `place` prints.
    #[must_use]
    pub fn to_place_json(&self) -> Value {
        to_value(&self.place())
    }

    /// What `why` prints and the journal keeps.
    #[must_use]
    pub fn to_why_json(&self) -> Value {
        to_value(&WhyJson {
            place: self.place(),
            step: self.key.to_string(),
            refusals: self
                .refusals
                .iter()
                .map(|r| RefusalJson { node: r.name.as_str(), reason: &r.reason, detail: &r.detail })
                .collect(),
            ran_on: self.ran_on.as_ref().map(|n| n.as_str()),
            predicted_ms: self.predicted_ms.map(rounded),
            took_ms: self.took_ms,
        })
    }
}

fn to_value(json: &impl Serialize) -> Value {
    // Strings, finite numbers and lists always have a JSON form; a number that is not finite becomes null.
    serde_json::to_value(json).unwrap_or(Value::Null)
}
