//! The report as a picture: for each size of mesh two panels, mean and p99 over the age of what nodes know of each other. Plain SVG,
//! black on white, so that it can be read on any page.
use std::fmt::Write as _;

use strum::IntoEnumIterator as _;

use super::{LOAD, Policy, Report, Row, Scenario};

/// Size of one panel and the space around it, in pixels.
const PANEL: (f64, f64) = (360.0, 230.0);
const LEFT: f64 = 62.0;
const TOP: f64 = 44.0;
const GAP: f64 = 84.0;
const LEGEND: f64 = 150.0;
/// Decades shown, as powers of ten in seconds.
const DECADES: (i32, i32) = (-2, 3);

const fn colour(policy: Policy) -> &'static str {
    match policy {
        Policy::Octomesh => "#c2185b",
        Policy::Oracle => "#000000",
        Policy::Random => "#9e9e9e",
        Policy::RoundRobin => "#6d8b74",
        Policy::LeastLoaded => "#1565c0",
        Policy::OptimclawDoc => "#ef6c00",
        Policy::OptimclawCode => "#8d6e63",
        Policy::TwoChoices => "#00897b",
        Policy::PeakEwma => "#7b1fa2",
    }
}

/// Rows that differ in the age of adverts only.
fn line(report: &Report, nodes: usize, policy: Policy) -> Vec<&Row> {
    let usual = |r: &&Row| {
        r.nodes == nodes
            && r.policy == policy
            && r.scenario == Scenario::Steady
            && (r.load - LOAD).abs() < 1e-9
            && (r.estimate_error - 1.0).abs() < 1e-9
    };
    let mut rows: Vec<&Row> = report.rows.iter().filter(usual).collect();
    rows.sort_by(|a, b| a.gossip_s.total_cmp(&b.gossip_s));
    rows
}

/// From 0.1 to 15 s on a logarithmic scale.
fn x(gossip_s: f64) -> f64 {
    PANEL.0 * (gossip_s / 0.1).log10() / 150f64.log10()
}

fn y(seconds: f64) -> f64 {
    let (low, high) = (f64::from(DECADES.0), f64::from(DECADES.1));
    let place = (seconds.max(1e-9).log10().clamp(low, high) - low) / (high - low);
    PANEL.1 * (1.0 - place)
}

/// A picture of the report in SVG.
pub(crate) fn svg(report: &Report) -> String {
    let mut sizes: Vec<usize> = report.rows.iter().map(|r| r.nodes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    #[expect(clippy::cast_precision_loss, reason = "a few panels")]
    let height = TOP + (PANEL.1 + GAP) * sizes.len().max(1) as f64;
    let width = LEFT + 2.0 * PANEL.0 + GAP + LEGEND;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (place, nodes) in sizes.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a few panels")]
        let top = TOP + (PANEL.1 + GAP) * place as f64;
        panel(&mut out, report, *nodes, (LEFT, top), "mean", |r| r.mean_s);
        panel(&mut out, report, *nodes, (LEFT + PANEL.0 + GAP, top), "99th percentile", |r| r.p99_s);
    }
    legend(&mut out, (LEFT + 2.0 * PANEL.0 + GAP + 18.0, TOP + 12.0));
    out.push_str("</svg>\n");
    out
}

fn panel(
    out: &mut String,
    report: &Report,
    nodes: usize,
    (left, top): (f64, f64),
    what: &str,
    value: fn(&Row) -> f64,
) {
    let text = format!(
        "<g transform=\"translate({left:.0} {top:.0})\">\n\
         <text x=\"0\" y=\"-12\" font-weight=\"bold\">{nodes} nodes: {what} of a step, in seconds</text>\n\
         <rect width=\"{:.0}\" height=\"{:.0}\" fill=\"none\" stroke=\"#444\"/>\n",
        PANEL.0, PANEL.1
    );
    out.push_str(&text);
    for power in DECADES.0..=DECADES.1 {
        let seconds = 10f64.powi(power);
        let at = y(seconds);
        // silent-ok: writing to a string cannot fail
        let _ = writeln!(
            out,
            "<line x1=\"0\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{seconds}</text>",
            PANEL.0,
            at + 4.0
        );
    }
    for gossip_s in [0.1, 1.0, 5.0, 15.0] {
        // silent-ok: writing to a string cannot fail
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{gossip_s}</text>",
            x(gossip_s),
            PANEL.1 + 16.0
        );
    }
    // silent-ok: writing to a string cannot fail
    let _ = writeln!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">seconds between adverts, load {LOAD}</text>",
        PANEL.0 / 2.0,
        PANEL.1 + 34.0
    );
    for policy in Policy::iter() {
        let rows = line(report, nodes, policy);
        let points: Vec<String> =
            rows.iter().map(|r| format!("{:.1},{:.1}", x(r.gossip_s), y(value(r)))).collect();
        let thick = if matches!(policy, Policy::Octomesh | Policy::Oracle) { 3 } else { 1 };
        // silent-ok: writing to a string cannot fail
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{thick}\"/>",
            points.join(" "),
            colour(policy)
        );
    }
    out.push_str("</g>\n");
}

fn legend(out: &mut String, (left, top): (f64, f64)) {
    for (place, policy) in Policy::iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a few lines")]
        let at = top + 20.0 * place as f64;
        let name: &str = policy.into();
        // silent-ok: writing to a string cannot fail
        let _ = writeln!(
            out,
            "<line x1=\"{left:.0}\" x2=\"{:.0}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"{}\" stroke-width=\"3\"/><text x=\"{:.0}\" y=\"{:.0}\">{name}</text>",
            left + 22.0,
            colour(policy),
            left + 28.0,
            at + 4.0
        );
    }
}
