//! What happens in the mesh, for one watcher of the API.
use serde_json::{Map, Value};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::{entry, events::NodeEvent, supervise::Supervisor};
use crate::api::types::MeshEvent;

/// Events that wait for a client's connection; those after them wait in the node's own queue, which loses the oldest.
const WAITING: usize = 16;

/// Follows `events` in a task of its own until the watcher goes or the node stops.
pub(super) fn watch(
    events: broadcast::Receiver<NodeEvent>,
    supervisor: &Supervisor,
) -> mpsc::Receiver<MeshEvent> {
    let (sender, receiver) = mpsc::channel(WAITING);
    supervisor.spawn("mesh watcher", follow(events, sender, supervisor.stop_token().clone()));
    receiver
}

async fn follow(
    mut events: broadcast::Receiver<NodeEvent>,
    watcher: mpsc::Sender<MeshEvent>,
    stop: CancellationToken,
) {
    let mut seq = 0;
    loop {
        let happened = tokio::select! {
            () = stop.cancelled() => return,
            // A mesh in which nothing happens would otherwise keep the task of a client that has gone.
            () = watcher.closed() => return,
            happened = events.recv() => happened,
        };
        let body = match happened {
            Ok(happened) => body(&happened),
            Err(broadcast::error::RecvError::Lagged(lost)) => {
                seq += lost;
                Map::from_iter([("type".to_owned(), "lagged".into()), ("lost".to_owned(), lost.into())])
            }
            Err(broadcast::error::RecvError::Closed) => return,
        };
        seq += 1;
        tokio::select! {
            () = stop.cancelled() => return,
            sent = watcher.send(MeshEvent { seq, body }) => if sent.is_err() { return },
        }
    }
}

fn body(happened: &NodeEvent) -> Map<String, Value> {
    let shown = entry::show(happened);
    let mut body = shown.fields;
    body.insert("type".to_owned(), shown.event.into());
    body.insert("message".to_owned(), shown.sentence.into());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_loses_the_oldest_and_is_told() {
        let (events, happening) = broadcast::channel(8);
        let supervisor = Supervisor::new();
        let mut watcher = watch(happening, &supervisor);
        let total: u64 = 100;
        for n in 0..total {
            let joined = NodeEvent::Joined { node: n.to_string(), node_id: String::new() };
            events.send(joined).unwrap();
            // Lets the follower fill the watcher's queue and then wait for it.
            tokio::task::yield_now().await;
        }
        let (mut last, mut seen, mut lost) = (0, 0, 0);
        while seen + lost < total {
            let event = watcher.recv().await.unwrap();
            assert!(event.seq > last);
            last = event.seq;
            match event.kind() {
                "joined" => seen += 1,
                "lagged" => lost += event.body["lost"].as_u64().unwrap(),
                other => panic!("{other}"),
            }
        }
        assert!(lost > 0 && seen >= 8, "{seen} seen, {lost} lost");
        drop(watcher);
        assert!(supervisor.join(std::time::Duration::from_secs(5)).await, "its task has ended");
    }
}
