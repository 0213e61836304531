//! A machine that sleeps and has the only tool of that name.
use super::*;

/// Wakes `near` in the view, a moment later, when it may.
struct Alarm {
    may: bool,
    view: watch::Sender<Arc<MeshView>>,
    called: Mutex<Vec<NodeId>>,
}

impl Alarm {
    fn set(&self, state: MemberState) {
        self.view.send_modify(|view| {
            let mut new = MeshView::clone(view);
            for member in new.members.values_mut().filter(|m| m.name.as_str() == "near") {
                Arc::make_mut(member).state = state;
            }
            *view = Arc::new(new);
        });
    }
}

impl Wakes for Alarm {
    fn wake(&self, node: NodeId) -> bool {
        self.called.lock().unwrap().push(node);
        if self.may {
            self.set(MemberState::Alive);
        }
        self.may
    }
}

async fn asleep(may: bool, with_far: bool) -> (House, Arc<Alarm>) {
    let house = House::new(Effect::Once, Script::Works, with_far).await;
    let alarm = Arc::new(Alarm { may, view: house._view.clone(), called: Mutex::default() });
    alarm.set(MemberState::Down);
    let wakes: Arc<dyn Wakes> = alarm.clone();
    house.dispatcher.wake_with(wakes);
    (house, alarm)
}

#[tokio::test]
async fn the_only_machine_with_the_tool_is_woken_and_waited_for() {
    let (house, alarm) = asleep(true, false).await;
    let done = house.call(LONG, &CancellationToken::new()).await;
    assert_eq!((done.status, house.counts()), (StepStatus::Ok, (1, 0)), "{done:?}");
    assert_eq!(alarm.called.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn nobody_is_woken_who_is_not_needed_or_may_not_be() {
    let (house, alarm) = asleep(true, true).await;
    let done = house.call(LONG, &CancellationToken::new()).await;
    assert_eq!((done.status, house.counts()), (StepStatus::Ok, (0, 1)), "{done:?}");
    assert!(alarm.called.lock().unwrap().is_empty(), "far is awake and has it");
    let (house, alarm) = asleep(false, false).await;
    let done = house.call(LONG, &CancellationToken::new()).await;
    assert!(done.no_capacity, "{done:?}");
    assert_eq!(alarm.called.lock().unwrap().len(), 1, "asked once, not at each look");
}
