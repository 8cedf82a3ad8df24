//! Which turns count as active, whatever happens to them in whatever order.

use api::TaskId;
use proptest::prelude::*;
use store::Brain;
use store::event_log::EventLogs;
use tempfile::TempDir;
use testkit::{SkippingClock, task_id};

use super::*;

const TASKS: usize = 3;

/// An action on the turn of one task or on the whole registry.
#[derive(Clone, Debug)]
enum Action {
    Begin(usize),
    AwaitHuman(usize),
    /// A user's answer is in transit.
    Answer(usize),
    /// The turn receives an answer or another command.
    Take(usize),
    /// The caller who answered is gone before the turn received it.
    DropAnswer(usize),
    /// Clients see the turn's end; its registration ends later.
    End(usize),
    Forget(usize),
    /// A learning batch begins or continues.
    BeginLearning,
    /// The batch ends or waits for its model.
    EndLearning,
    Quiesce,
    Lift,
    Advance(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let task = 0..TASKS;
    prop_oneof![
        3 => task.clone().prop_map(Action::Begin),
        3 => task.clone().prop_map(Action::AwaitHuman),
        3 => task.clone().prop_map(Action::Answer),
        2 => task.clone().prop_map(Action::Take),
        1 => task.clone().prop_map(Action::DropAnswer),
        1 => task.clone().prop_map(Action::End),
        1 => task.prop_map(Action::Forget),
        1 => Just(Action::BeginLearning),
        1 => Just(Action::EndLearning),
        4 => Just(Action::Quiesce),
        2 => Just(Action::Lift),
        2 => (0_u64..90).prop_map(Action::Advance),
    ]
}

/// A turn in the test's model.
struct Turn {
    registration: Registration,
    _commands: Commands,
    /// `None` once clients have seen its end.
    recorder: Option<Recorder>,
    awaits_human: bool,
    answers: Vec<BusyGuard>,
}

impl Turn {
    fn is_active(&self) -> bool {
        self.recorder.is_some() && (!self.awaits_human || !self.answers.is_empty())
    }
}

struct ReferenceModel {
    registry: TurnRegistry,
    event_logs: EventLogs,
    turns: [Option<Turn>; TASKS],
    is_learning: bool,
    now: Duration,
    quiesced_until: Duration,
    _folder: TempDir,
}

impl ReferenceModel {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        Self {
            registry: TurnRegistry::default(),
            event_logs: EventLogs::new(brain, Arc::new(SkippingClock::new())),
            turns: [const { None }; TASKS],
            is_learning: false,
            now: Duration::from_secs(1_000),
            quiesced_until: Duration::ZERO,
            _folder: folder,
        }
    }

    fn name(task: usize) -> TaskId {
        task_id(&format!("task-{task}"))
    }

    fn is_quiesced(&self) -> bool {
        self.now < self.quiesced_until
    }

    fn active_count(&self) -> usize {
        self.turns.iter().flatten().filter(|turn| turn.is_active()).count()
    }

    fn apply(&mut self, action: &Action) {
        match *action {
            Action::Begin(task) => self.begin(task),
            Action::Answer(task) => self.answer(task),
            Action::AwaitHuman(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.registration.mark_idle();
                    turn.awaits_human = true;
                }
            }
            Action::Take(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.registration.mark_busy();
                    turn.awaits_human = false;
                    turn.answers.pop();
                }
            }
            Action::DropAnswer(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.answers.pop();
                }
            }
            Action::End(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.recorder = None;
                }
            }
            Action::Forget(task) => self.turns[task] = None,
            Action::BeginLearning => {
                let result = self.registry.lock().begin_learning(self.now);
                assert_eq!(result.is_err(), self.is_quiesced());
                self.is_learning |= result.is_ok();
            }
            Action::EndLearning => {
                self.registry.lock().end_learning();
                self.is_learning = false;
            }
            Action::Quiesce => {
                let idle = self.active_count() == 0 && !self.is_learning;
                assert_eq!(self.registry.lock().quiesce(self.now), idle);
                if idle {
                    self.quiesced_until = self.now + Duration::from_mins(1);
                }
            }
            Action::Lift => {
                self.registry.lock().lift_quiesce();
                self.quiesced_until = Duration::ZERO;
            }
            Action::Advance(seconds) => self.now += Duration::from_secs(seconds),
        }
    }

    /// Begins a turn as the agent does.
    fn begin(&mut self, task: usize) {
        if self.turns[task].as_ref().is_some_and(|turn| turn.recorder.is_some()) {
            return;
        }
        let mut locked = self.registry.lock();
        let admitted = locked.check_not_quiesced(self.now);
        assert_eq!(matches!(admitted, Err(AgentError::Quiesced)), self.is_quiesced());
        if admitted.is_err() {
            return;
        }
        let recorder = self.event_logs.open(&Self::name(task)).unwrap().begin_turn(TurnId::new()).unwrap();
        let (registration, commands) = self.registry.register(&mut locked, &recorder, None, 0);
        drop(locked);
        // A turn whose end clients have seen is replaced only now.
        self.turns[task] = Some(Turn {
            registration,
            _commands: commands,
            recorder: Some(recorder),
            awaits_human: false,
            answers: Vec::new(),
        });
    }

    fn answer(&mut self, task: usize) {
        let quiesced = self.is_quiesced();
        let begin_respond = self.registry.begin_respond(&Self::name(task), self.now);
        match (&mut self.turns[task], begin_respond) {
            (None, Err(AgentError::NotRunning)) => {}
            (Some(_), Err(AgentError::Quiesced)) => assert!(quiesced),
            (Some(turn), Ok((_, guard))) => {
                assert!(!quiesced);
                turn.answers.push(guard);
            }
            (turn, outcome) => panic!("{}: {:?}", turn.is_some(), outcome.map(drop)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_engine_knows_what_is_at_work_and_quiesces_only_where_nothing_is(
        actions in prop::collection::vec(action(), 1..120),
    ) {
        let mut model = ReferenceModel::new();
        for (number, action) in actions.iter().enumerate() {
            model.apply(action);
            prop_assert_eq!(model.registry.lock().active_count(), model.active_count(), "after {:?}", &actions[..=number]);
        }
    }
}

#[test]
fn it_lapses_after_a_minute_and_asking_again_begins_a_new_one() {
    let registry = TurnRegistry::default();
    let ms = Duration::from_millis;
    assert!(registry.lock().quiesce(ms(5_000)));
    assert!(registry.lock().check_not_quiesced(ms(64_999)).is_err());
    assert!(registry.lock().check_not_quiesced(ms(65_000)).is_ok());
    assert!(registry.lock().quiesce(ms(6_000)));
    assert!(registry.lock().check_not_quiesced(ms(65_999)).is_err());
    registry.lock().lift_quiesce();
    assert!(registry.lock().check_not_quiesced(ms(6_000)).is_ok());
}
