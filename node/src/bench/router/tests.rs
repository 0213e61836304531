//! Gates of the router: what it must be worth in a simulated mesh, at sizes that take seconds.
use super::*;

/// The rows of one setting, ours first and the oracle second.
fn rows(setting: &Setting) -> Vec<Row> {
    Policy::iter().map(|policy| row(setting, policy).unwrap()).collect()
}

fn usual(nodes: usize, steps: usize) -> Setting {
    Setting { steps, ..settings(nodes, 3)[0] }
}

fn better_than_all_baselines(rows: &[Row], what: &str) {
    let [ours, _, baselines @ ..] = rows else { panic!("{rows:?}") };
    for other in baselines {
        assert!(
            ours.mean_s < other.mean_s && ours.p99_s < other.p99_s && ours.unfinished == 0,
            "{what}: {ours:?} against {other:?}"
        );
    }
}

#[test]
fn near_the_oracle_with_right_estimates_and_old_adverts() {
    let rows = rows(&usual(64, 15_000));
    let (ours, oracle) = (&rows[0], &rows[1]);
    assert!(ours.mean_s <= 1.5 * oracle.mean_s, "{ours:?} against {oracle:?}");
    assert!(ours.p99_s <= 1.6 * oracle.p99_s, "{ours:?} against {oracle:?}");
    assert!(ours.refusals_per_step <= 0.4, "{ours:?}");
    let ratio = ours.estimate_ratio.unwrap();
    assert!((0.5..=2.0).contains(&ratio), "what is promised is about what is kept: {ours:?}");
    better_than_all_baselines(&rows, "usual");
}

#[test]
fn wrong_estimates_cost_less_than_blind_sending() {
    let rows = rows(&Setting { estimate_error: 2.0, ..usual(64, 15_000) });
    let (ours, oracle) = (&rows[0], &rows[1]);
    assert!(ours.p99_s <= 3.0 * oracle.p99_s, "{ours:?} against {oracle:?}");
    assert!(ours.refusals_per_step <= 0.4, "{ours:?}");
    better_than_all_baselines(&rows, "wrong estimates");
}

#[test]
fn better_than_all_baselines_at_every_setting() {
    for setting in settings(64, 3) {
        let setting = Setting { steps: 3000, ..setting };
        better_than_all_baselines(&rows(&setting), &format!("{setting:?}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_rows() {
    let options = |seed| {
        let setting = Setting { steps: 800, scenario: Scenario::Trouble, seed, ..usual(8, 0) };
        format!("{:?}", rows(&setting))
    };
    assert_eq!(options(5), options(5));
    assert_ne!(options(5), options(6));
}

#[test]
fn every_step_ends_though_executors_die_and_drain() {
    let setting = Setting { steps: 8000, ..settings(64, 3)[8] };
    assert_eq!(setting.scenario, Scenario::Trouble);
    let ours = row(&setting, Policy::Octomesh).unwrap();
    assert_eq!(ours.unfinished, 0, "{ours:?}");
    assert!(ours.turned_away_per_step < 0.05, "{ours:?}");
}

#[test]
fn a_picture_has_a_line_for_each_policy() {
    let rows = Policy::iter().map(|policy| row(&usual(3, 50), policy).unwrap()).collect();
    let picture = svg(&Report { rows, seed: 1 });
    assert_eq!(picture.matches("<polyline").count(), 2 * Policy::iter().count());
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
}
