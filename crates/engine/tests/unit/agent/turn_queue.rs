//! The queue against a model of it: a list of messages per task, whatever happens to them in whatever order.

use proptest::prelude::*;
use testkit::task_id;

use super::*;

const TASKS: usize = 3;

/// An action on the queue. Entries are named by an index into those that there have been.
#[derive(Clone, Copy, Debug)]
enum Action {
    Push {
        task: usize,
        mib: u64,
        interrupts: bool,
    },
    Accept(usize),
    Discard(usize),
    /// Takes the next entry, given which tasks are free.
    Take([bool; TASKS]),
    Begun(usize),
    StartFailed(usize),
    Delay(usize),
    EndDelay(usize),
    BeginEnd(usize),
    /// Its turn could never begin.
    GiveUp(usize),
    Ended(usize),
    EndFailed(usize),
    /// The engine is killed and starts again with what was stored.
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let entry = 0..64_usize;
    let task = 0..TASKS;
    prop_oneof![
        6 => (task, 0..40_u64, prop::bool::weighted(0.2))
            .prop_map(|(task, mib, interrupts)| Action::Push { task, mib, interrupts }),
        6 => entry.clone().prop_map(Action::Accept),
        1 => entry.clone().prop_map(Action::Discard),
        5 => any::<[bool; TASKS]>().prop_map(Action::Take),
        4 => entry.clone().prop_map(Action::Begun),
        2 => entry.clone().prop_map(Action::StartFailed),
        2 => entry.clone().prop_map(Action::Delay),
        2 => entry.clone().prop_map(Action::EndDelay),
        2 => entry.clone().prop_map(Action::BeginEnd),
        1 => entry.clone().prop_map(Action::GiveUp),
        2 => entry.clone().prop_map(Action::Ended),
        1 => entry.prop_map(Action::EndFailed),
        1 => Just(Action::Restart),
    ]
}

/// An entry in the model.
struct Modelled {
    task: usize,
    turn_id: TurnId,
    bytes: u64,
    number: i64,
    interrupts: bool,
    /// `None` once it has left the queue.
    state: Option<EntryState>,
    progress: watch::Receiver<QueueProgress>,
    /// What its last watcher must have seen.
    expected: Option<QueueProgress>,
}

#[derive(Default)]
struct Model {
    entries: Vec<Modelled>,
    /// The turns that have begun, in order.
    begun: Vec<TurnId>,
}

impl Model {
    /// The entries of a task in their order.
    fn of_task(&self, task: usize) -> impl Iterator<Item = &Modelled> {
        let is_of_task = move |entry: &&Modelled| entry.task == task && entry.state.is_some();
        let of_kind = move |interrupts: bool| {
            self.entries.iter().filter(move |entry| is_of_task(entry) && entry.interrupts == interrupts)
        };
        of_kind(true).chain(of_kind(false))
    }

    /// Moves an entry from one state to another. Returns it if it was in the first.
    fn transition(
        &mut self,
        index: usize,
        from: EntryState,
        to: Option<EntryState>,
    ) -> Option<(TaskId, TurnId)> {
        let entry = self.entries.get_mut(index).filter(|entry| entry.state == Some(from))?;
        entry.state = to;
        Some((task(entry.task), entry.turn_id))
    }

    fn room(&self, task: usize, bytes: u64) -> Result<(), QueueFull> {
        let size = |entries: &mut dyn Iterator<Item = &Modelled>| {
            entries.fold((0, bytes), |(count, sum), entry| (count + 1, sum + entry.bytes))
        };
        let own = size(&mut self.of_task(task));
        let all = size(&mut self.entries.iter().filter(|entry| entry.state.is_some()));
        if own.0 >= QUEUE_LIMITS.task_entries {
            Err(QueueFull::TaskEntries)
        } else if own.1 > QUEUE_LIMITS.task_bytes {
            Err(QueueFull::TaskBytes)
        } else if all.0 >= QUEUE_LIMITS.engine_entries {
            Err(QueueFull::EngineEntries)
        } else if all.1 > QUEUE_LIMITS.engine_bytes {
            Err(QueueFull::EngineBytes)
        } else {
            Ok(())
        }
    }

    /// The oldest first entry of a free task that waits for nothing else.
    fn next(&self, free: [bool; TASKS]) -> Option<usize> {
        let startable = |task: usize| {
            let first = self.of_task(task).next()?;
            let can_start = free[task] && first.state == Some(EntryState::Waiting);
            can_start.then_some(first.number)
        };
        let number = (0..TASKS).filter_map(startable).min()?;
        self.entries.iter().position(|entry| entry.number == number)
    }

    fn rows(&self) -> Vec<QueuedTurnRow> {
        let stored = |entry: &&Modelled| entry.state.is_some_and(|state| state != EntryState::Storing);
        let row = |entry: &Modelled| QueuedTurnRow {
            entry: entry.number,
            task_id: task(entry.task),
            turn_id: entry.turn_id,
            bytes: entry.bytes,
            request: None,
            interrupts: entry.interrupts,
        };
        (0..TASKS).flat_map(|task| self.of_task(task)).filter(stored).map(row).collect()
    }
}

fn task(index: usize) -> TaskId {
    task_id(&format!("task-{index}"))
}

fn is_free(free: [bool; TASKS]) -> impl Fn(&TaskId) -> bool {
    move |task_id| (0..TASKS).any(|index| free[index] && task(index) == *task_id)
}

fn apply(queue: &mut TurnQueue, model: &mut Model, action: Action) -> Result<(), TestCaseError> {
    use EntryState::{Delayed, Ending, Starting, Storing, Waiting};
    match action {
        Action::Push { task: index, mib, interrupts } => {
            let (turn_id, bytes) = (TurnId::new(), mib << 20);
            let pushed = queue.push(&task(index), turn_id, bytes, None, interrupts);
            prop_assert_eq!(pushed.as_ref().map(|_| ()).map_err(|full| *full), model.room(index, bytes));
            if let Ok((number, progress)) = pushed {
                let state = Some(Storing);
                model.entries.push(Modelled {
                    task: index,
                    turn_id,
                    bytes,
                    number,
                    interrupts,
                    state,
                    progress,
                    expected: None,
                });
            }
        }
        Action::Accept(index) => {
            if let Some((task, turn)) = model.transition(index, Storing, Some(Waiting)) {
                queue.accept(&task, turn);
            }
        }
        Action::Discard(index) => {
            if let Some((task, turn)) = model.transition(index, Storing, None) {
                queue.discard(&task, turn);
            }
        }
        Action::Take(free) => {
            let next = model.next(free);
            prop_assert_eq!(queue.can_start(is_free(free)), next.is_some());
            let expected = next.map(|index| {
                let entry = &mut model.entries[index];
                entry.state = Some(Starting);
                (task(entry.task), entry.turn_id, entry.bytes)
            });
            prop_assert_eq!(queue.take_next(is_free(free)), expected);
        }
        Action::Begun(index) => {
            if let Some((task, turn)) = model.transition(index, Starting, None) {
                queue.begun(&task, turn, 7);
                model.begun.push(turn);
                model.entries[index].expected = Some(QueueProgress::Begun { events_after: 7 });
            }
        }
        Action::StartFailed(index) => {
            if let Some((task, turn)) = model.transition(index, Starting, Some(Waiting)) {
                queue.start_failed(&task, turn);
            }
        }
        Action::Delay(index) => {
            if let Some((task, turn)) = model.transition(index, Starting, Some(Delayed)) {
                queue.delay(&task, turn);
            }
        }
        Action::EndDelay(index) => {
            // Also of what has been taken out meanwhile.
            if let Some(entry) = model.entries.get(index) {
                queue.end_delay(&task(entry.task), entry.turn_id);
                model.transition(index, Delayed, Some(Waiting));
            }
        }
        Action::BeginEnd(index) => {
            if let Some(entry) = model.entries.get(index) {
                let taken = queue.begin_end(&task(entry.task), entry.turn_id);
                let expected = [Waiting, Delayed].map(|state| model.transition(index, state, Some(Ending)));
                prop_assert_eq!(taken, expected.iter().any(Option::is_some));
            }
        }
        Action::GiveUp(index) => {
            if let Some((task, turn)) = model.transition(index, Starting, None) {
                queue.ended(&task, turn, QueueEnd::Failed);
                model.entries[index].expected = Some(QueueProgress::Ended(QueueEnd::Failed));
            }
        }
        Action::Ended(index) => {
            if let Some((task, turn)) = model.transition(index, Ending, None) {
                queue.ended(&task, turn, QueueEnd::Cancelled);
                model.entries[index].expected = Some(QueueProgress::Ended(QueueEnd::Cancelled));
            }
        }
        Action::EndFailed(index) => {
            if let Some((task, turn)) = model.transition(index, Ending, Some(Waiting)) {
                queue.end_failed(&task, turn);
            }
        }
        Action::Restart => {
            let next = model.entries.iter().map(|entry| entry.number + 1).max().unwrap_or(1);
            *queue = TurnQueue::default();
            queue.load(model.rows(), next);
            for entry in &mut model.entries {
                entry.state = entry.state.filter(|state| *state != Storing).map(|_| Waiting);
                if entry.state.is_some() {
                    entry.progress = queue.subscribe(&task(entry.task), entry.turn_id).unwrap();
                }
            }
        }
    }
    Ok(())
}

fn check(queue: &TurnQueue, model: &Model) -> Result<(), TestCaseError> {
    for index in 0..TASKS {
        let entries: Vec<_> = model.of_task(index).collect();
        prop_assert_eq!(queue.holds(&task(index)), !entries.is_empty());
        let first = entries.first();
        let interrupts =
            first.is_some_and(|first| first.interrupts && first.state == Some(EntryState::Waiting));
        prop_assert_eq!(queue.interrupted_tasks().any(|other| *other == task(index)), interrupts);
        for entry in &entries {
            let is_first = first.is_some_and(|first| first.turn_id == entry.turn_id);
            prop_assert_eq!(queue.is_first(&task(index), entry.turn_id), is_first);
        }
        prop_assert_eq!(queue.task_bytes(&task(index)), entries.iter().map(|entry| entry.bytes).sum::<u64>());
        for (position, entry) in (1..).zip(entries) {
            let seen = *entry.progress.borrow();
            let expected = match entry.state {
                Some(EntryState::Storing) => QueueProgress::Storing,
                _ => QueueProgress::Waiting { position },
            };
            prop_assert_eq!(seen, expected);
        }
    }
    prop_assert_eq!(queue.is_empty(), (0..TASKS).all(|index| !queue.holds(&task(index))));
    prop_assert_eq!(queue.is_active(|_| true), !queue.is_empty());
    let is_moving =
        |entry: &Modelled| entry.state.is_some_and(|state| state != EntryState::Waiting || entry.interrupts);
    let is_moving = model.entries.iter().any(is_moving);
    prop_assert_eq!(queue.is_active(|_| false), is_moving);
    for entry in model.entries.iter().filter(|entry| entry.state.is_none()) {
        if let Some(expected) = entry.expected {
            prop_assert_eq!(*entry.progress.borrow(), expected);
        }
    }
    // In the order in which they were sent, those that interrupt apart, and each once.
    for (index, interrupts) in (0..TASKS).flat_map(|index| [(index, true), (index, false)]) {
        let is_of_kind = |entry: &&Modelled| entry.task == index && entry.interrupts == interrupts;
        let sent = model.entries.iter().filter(is_of_kind).map(|entry| entry.turn_id);
        let sent: Vec<_> = sent.filter(|turn| model.begun.contains(turn)).collect();
        let begun = model.begun.iter().copied().filter(|turn| sent.contains(turn));
        prop_assert_eq!(begun.collect::<Vec<_>>(), sent);
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_begin_once_and_in_order_and_none_is_lost(actions in prop::collection::vec(action(), 1..120)) {
        let (mut queue, mut model) = (TurnQueue::default(), Model::default());
        queue.load(Vec::new(), 1);
        for action in actions {
            apply(&mut queue, &mut model, action)?;
            check(&queue, &model)?;
        }
    }
}

#[test]
fn each_limit_is_named() {
    let mut queue = TurnQueue::default();
    for _ in 0..QUEUE_LIMITS.task_entries {
        queue.push(&task(0), TurnId::new(), 0, None, false).unwrap();
    }
    let refused = |queue: &mut TurnQueue, task: &TaskId, bytes| {
        queue.push(task, TurnId::new(), bytes, None, false).map(drop).unwrap_err().to_string()
    };
    assert!(refused(&mut queue, &task(0), 0).contains("at most 32 messages"));
    assert!(refused(&mut queue, &task(1), QUEUE_LIMITS.task_bytes + 1).contains("at most 48 MiB"));
    for other in 1..QUEUE_LIMITS.engine_entries / QUEUE_LIMITS.task_entries {
        for _ in 0..QUEUE_LIMITS.task_entries {
            queue.push(&task_id(&format!("other-{other}")), TurnId::new(), 0, None, false).unwrap();
        }
    }
    assert!(refused(&mut queue, &task(1), 0).contains("at most 256 messages"));
    let mut queue = TurnQueue::default();
    for full in 0..2 {
        queue.push(&task(full), TurnId::new(), QUEUE_LIMITS.task_bytes, None, false).unwrap();
    }
    assert!(refused(&mut queue, &task(2), QUEUE_LIMITS.task_bytes).contains("at most 128 MiB"));
}
