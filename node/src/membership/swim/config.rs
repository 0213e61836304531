//! Times and bounds of SWIM here, each with its reason. What they cost and how soon a dead node is seen is measured in `sim`.
use std::{
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
};

use foca::{Config, PeriodicParams};
use octomesh_protocol::limits;

/// Members remembered, tombstones included: the same bound as that of the member table above.
pub(super) const MEMBERS: usize = 1024;
/// Nodes that were forgotten or revoked: nothing that is told of them counts. More than a mesh has members; the one with the
/// smallest id makes room.
pub(super) const BARRED: usize = 1024;

/// One member is probed in each period, so the load of a node does not grow with the mesh.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// A direct answer that takes longer is asked for through others. Long enough for one lost TCP segment (200 ms and more).
const PROBE_RTT: Duration = Duration::from_millis(500);
/// How many others are asked.
pub(super) const HELPERS: usize = 3;
/// How long a suspected member has to refute, in a mesh of up to ten; it grows with the logarithm of the mesh, because so does
/// the time for news to reach everybody (Lifeguard: Dadgar, Phillips, Currey, 2017).
const SUSPICION: Duration = Duration::from_secs(4);
/// A third less than proportional: a suspected member is also asked directly, twice a second, by everybody who is connected.
const SUSPICION_GROWTH: f64 = 0.7;
/// News wait for the next probe at most this long.
const GOSSIP_EVERY: Duration = Duration::from_millis(250);
/// Each time this many are told.
const GOSSIP_FAN_OUT: usize = 2;
/// A random part of the member list is fetched from a random member this often: what no gossip reached heals.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(30);

/// How long others may answer for a member whose last connection closed and whose port refuses.
pub(super) const REFUSED_GRACE: Duration = Duration::from_millis(500);
/// How long a member whose last connection closed is looked for before the mesh is asked to suspect it.
pub(super) const CLOSED_GRACE: Duration = Duration::from_secs(1);
/// A member that is connected and not suspected here is asked for this long before a relayed `down` is believed.
pub(super) const CONFIRM: Duration = Duration::from_secs(1);
/// How often a suspected member that is connected is told so and asked for an answer.
pub(super) const CONFRONT_EVERY: Duration = Duration::from_millis(500);
/// How long a new session alone stands against a tombstone: the member needs a round trip to learn of it and to step beyond it.
pub(super) const PROVISIONAL: Duration = Duration::from_secs(3);
/// How long a packet waits for the session that it needs.
pub(super) const HELD: Duration = Duration::from_secs(1);
/// Who is not connected is dialled for a probe at most this often.
pub(super) const DIAL_EVERY: Duration = Duration::from_secs(2);

/// The longest time between two inputs while the process runs. The driver asks at least this often.
pub(crate) const IDLE: Duration = Duration::from_millis(500);
/// A longer gap than this was a pause of this process or machine (SIGSTOP, sleep, a debugger), not a busy moment.
pub(super) const PAUSE: Duration = Duration::from_millis(1_500);
/// For this long after a pause nobody is declared down: first it has to show who still hears us.
pub(super) const SELF_DOUBT: Duration = Duration::from_secs(3);

/// The member list is fetched when the first session opens, and again after these times: when many join at once the first peer
/// knows little more than oneself.
pub(super) const PULLS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(4), Duration::from_secs(15)];
/// And so often after that, for what no gossip reached: 40 bytes a member, 140 B/s in a mesh of a thousand.
pub(super) const PULL_EVERY: Duration = Duration::from_secs(300);
/// A page that does not come in this time is asked for again, so often in all.
pub(super) const PULL_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const PAGE_TRIES: u8 = 3;
/// Pages that one peer may ask for at once, and how many more it may each second: a whole list of 1,024 is 40 pages.
pub(super) const PAGES: u32 = 64;
pub(super) const PAGES_PER_SECOND: u32 = 4;

/// Incarnations are unix seconds, or one more than the last. A relayed one that is further ahead than this was made up.
pub(super) const INCARNATION_AHEAD: u64 = 24 * 3600;

/// How long a suspected member of a mesh of `size` has to refute.
pub(super) fn suspicion(size: usize) -> Duration {
    let size = u32::try_from(size).unwrap_or(u32::MAX).max(10);
    SUSPICION.mul_f64(1.0 + (f64::from(size).log10() - 1.0) * SUSPICION_GROWTH)
}

/// The configuration for a mesh of `size`.
pub(super) fn config(size: usize) -> Config {
    // Each piece of news is told 4·log10(n + 1) times by each node that has it, as in memberlist and foca; small meshes get
    // a few more, since losing all of four is not rare on bad radio.
    let doublings = usize::BITS - size.max(1).leading_zeros();
    let transmissions = u8::try_from(4 + doublings).unwrap_or(u8::MAX);
    let one = NonZeroUsize::MIN;
    Config {
        probe_period: PROBE_PERIOD,
        probe_rtt: PROBE_RTT,
        num_indirect_probes: NonZeroUsize::new(HELPERS).unwrap_or(one),
        max_transmissions: NonZeroU8::new(transmissions).unwrap_or(NonZeroU8::MIN),
        suspect_to_down_after: suspicion(size),
        // A tombstone stays until it is evicted for want of room.
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(limits::SWIM_BYTES).unwrap_or(one),
        notify_down_members: true,
        periodic_announce: Some(PeriodicParams { frequency: ANNOUNCE_EVERY, num_members: one }),
        // Who is down is dialled by the member table; a new session begins with an announcement.
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams {
            frequency: GOSSIP_EVERY,
            num_members: NonZeroUsize::new(GOSSIP_FAN_OUT).unwrap_or(one),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspicion_grows_slowly() {
        assert_eq!(suspicion(2), Duration::from_secs(4));
        assert_eq!(suspicion(10), Duration::from_secs(4));
        assert!(suspicion(64) < Duration::from_secs(7));
        assert!(suspicion(1000) < Duration::from_secs(10));
    }

    #[test]
    fn news_are_told_more_often_in_larger_meshes() {
        let told = |size| config(size).max_transmissions.get();
        assert_eq!((told(1), told(10), told(64), told(1000)), (5, 8, 11, 14));
    }
}
