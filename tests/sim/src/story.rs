//! What happens in the run of a seed: a storm of joins first, then faults in an order that the seed decides. After each, views must
//! become the truth.
use std::time::Duration;

use crate::{
    entropy::Choices,
    mesh::{Mesh, Outcome},
    oracle::{CALM, DEATH_SEEN, Fate, SETTLED},
};

/// How long a fault lasts at least: long enough for everybody to notice.
const LASTS: u64 = 35;
/// A window without faults, in which every message arrives.
const QUIET: Duration = Duration::from_secs(20);

/// In a mesh of so many the partition comes first.
const WHOLE: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Two halves; a node of one dies meanwhile and comes back before the heal.
    Partition,
    /// Killed, and started again at once: the others have not seen its end.
    QuickRestart,
    /// Killed, seen dead, and started again with the same identity.
    Restart,
    /// Killed for good.
    Kill,
    /// Without power for a while.
    Unplug,
    /// Nothing goes from one node to another; the way back is open.
    OneWay,
    /// All that goes to and from a node takes long.
    Slow,
    /// Stopped in order and started again.
    Stop,
    /// Gone for good.
    Leave,
    /// Thrown out; it goes on trying.
    Revoke,
}

const FAULTS: [Fault; 10] = [
    Fault::Partition,
    Fault::QuickRestart,
    Fault::Restart,
    Fault::Kill,
    Fault::Unplug,
    Fault::OneWay,
    Fault::Slow,
    Fault::Stop,
    Fault::Leave,
    Fault::Revoke,
];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One node that runs and is no admin.
fn victim(mesh: &Mesh, choices: &mut Choices) -> Outcome<u64> {
    let mut candidates = mesh.running();
    candidates.retain(|number| *number > 2 && mesh.truth.fates.get(number).is_some_and(|fate| fate.runs()));
    choices.shuffle(&mut candidates);
    candidates.first().copied().ok_or_else(|| "nobody is left".to_owned())
}

/// What the laws are told that is not true, to see that they find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A dead node lives.
    Lives,
    /// A node that lives is dead.
    Died,
}

impl Lie {
    pub(crate) fn of(text: &str) -> Option<Self> {
        match text {
            "lives" => Some(Self::Lives),
            "died" => Some(Self::Died),
            _ => None,
        }
    }
}

/// Everything that happens to a mesh of `nodes`.
pub(crate) async fn tell(mesh: &mut Mesh, nodes: u64, seed: u64, lie: Option<Lie>) -> Outcome {
    let mut choices = Choices::new(seed);
    join_storm(mesh, nodes, &mut choices).await?;
    mesh.settle().await?;
    if let Some(lie) = lie {
        // What was before is over, so that nothing excuses what comes.
        mesh.go_on(CALM).await?;
        let victim = victim(mesh, &mut choices)?;
        match lie {
            Lie::Lives => mesh.die_unsaid(victim)?,
            Lie::Died => mesh.live_unsaid(victim),
        }
        mesh.go_on(SETTLED).await?;
        return mesh.settle().await;
    }
    let mut faults = FAULTS;
    choices.shuffle(&mut faults);
    if nodes >= WHOLE {
        // While everybody is there: ten and ten.
        faults.sort_by_key(|fault| *fault != Fault::Partition);
    }
    for fault in faults {
        befall(mesh, fault, &mut choices).await?;
        mesh.settle().await?;
    }
    let before = mesh.messages().await?;
    mesh.go_on(QUIET).await?;
    let after = mesh.messages().await?;
    after.all_arrived_since(before)?;
    after.all_accounted_for()
}

/// All start within two seconds; each knows one that started before it.
async fn join_storm(mesh: &mut Mesh, nodes: u64, choices: &mut Choices) -> Outcome {
    let mut order: Vec<u64> = (1..=nodes).collect();
    choices.shuffle(&mut order);
    for (at, number) in order.iter().enumerate() {
        let before = order.get(..at).unwrap_or_default();
        let peer = if before.is_empty() { None } else { before.get(index(choices, before.len())) };
        mesh.start(*number, peer.map(std::slice::from_ref).unwrap_or_default()).await?;
        mesh.go_on(Duration::from_millis(choices.below(2000 / nodes + 1))).await?;
    }
    Ok(())
}

fn index(choices: &mut Choices, length: usize) -> usize {
    usize::try_from(choices.below(length as u64)).unwrap_or(0)
}

async fn befall(mesh: &mut Mesh, fault: Fault, choices: &mut Choices) -> Outcome {
    let lasts = seconds(choices.between(LASTS, LASTS + 10));
    let victim = victim(mesh, choices)?;
    match fault {
        Fault::Partition => partition(mesh, victim, lasts, choices).await,
        Fault::QuickRestart => {
            mesh.kill(victim)?;
            mesh.go_on(Duration::from_millis(choices.between(50, 2_000))).await?;
            mesh.start(victim, &[]).await
        }
        Fault::Restart => {
            mesh.kill(victim)?;
            mesh.go_on(lasts).await?;
            mesh.start(victim, &[]).await
        }
        Fault::Kill => mesh.kill(victim),
        Fault::Unplug => {
            mesh.unplug(victim).await?;
            mesh.go_on(lasts).await?;
            mesh.plug_in(victim);
            mesh.start(victim, &[]).await
        }
        Fault::OneWay => one_way(mesh, victim, lasts, choices).await,
        Fault::Slow => {
            mesh.slow(victim, Duration::from_millis(choices.between(100, 400)));
            mesh.go_on(lasts).await?;
            mesh.slow(victim, Duration::ZERO);
            Ok(())
        }
        Fault::Stop => {
            mesh.stop(victim).await?;
            mesh.go_on(lasts).await?;
            mesh.start(victim, &[]).await
        }
        Fault::Leave => mesh.leave(victim).await,
        Fault::Revoke => mesh.revoke(choices.between(1, 2), victim).await,
    }
}

/// Two halves, each of which must go on as a mesh of its own.
async fn partition(mesh: &mut Mesh, victim: u64, lasts: Duration, choices: &mut Choices) -> Outcome {
    let mut order = mesh.running();
    choices.shuffle(&mut order);
    let (left, right) = order.split_at(order.len() / 2);
    mesh.partition([left, right], true);
    mesh.go_on(lasts).await?;
    for (viewers, others) in [(left, right), (right, left)] {
        for viewer in viewers.iter().filter(|viewer| mesh.truth.fates.get(viewer).is_some_and(|f| f.runs())) {
            let view = mesh.view(*viewer);
            if let Some(other) =
                others.iter().find(|other| view.get(other).is_some_and(|s| s.state.is_present()))
            {
                return Err(format!("n{viewer} still sees n{other}, which is behind the partition"));
            }
        }
    }
    mesh.kill(victim)?;
    mesh.go_on(Duration::from_millis(choices.between(50, 15_000))).await?;
    mesh.start(victim, &[]).await?;
    mesh.go_on(seconds(3)).await?;
    mesh.partition([left, right], false);
    Ok(())
}

/// The others still hear both, and the two hear of each other through them.
async fn one_way(mesh: &mut Mesh, from: u64, lasts: Duration, choices: &mut Choices) -> Outcome {
    let to = loop {
        let to = victim(mesh, choices)?;
        if to != from {
            break to;
        }
    };
    mesh.one_way(from, to, true);
    mesh.go_on(lasts.max(DEATH_SEEN)).await?;
    for viewer in mesh.running() {
        if matches!(mesh.truth.fates.get(&viewer), Some(Fate::Revoked { .. })) {
            continue;
        }
        let view = mesh.view(viewer);
        if let Some(other) = [from, to].iter().find(|n| view.get(n).is_some_and(|s| !s.state.is_present())) {
            return Err(format!("n{viewer} sees n{other} as dead for one way that is cut"));
        }
    }
    mesh.one_way(from, to, false);
    Ok(())
}
