//! Which turns count as being at work, whatever happens to them in whatever order.

use contract::TaskId;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::brain::Brain;
use crate::channel::Channels;
use crate::testing::{HastyClock, task_id};

const TASKS: usize = 3;

/// What can happen, to the turn of one task or to all.
#[derive(Clone, Debug)]
enum Act {
    Begin(usize),
    Rest(usize),
    /// A person's answer is on its way.
    Answer(usize),
    /// The turn takes an answer, or something else that it was told.
    Take(usize),
    /// Who answered is gone before the turn took it.
    Lose(usize),
    /// Clients see the turn's end; it itself is over later.
    End(usize),
    Forget(usize),
    /// A learning batch begins or goes on.
    Learn,
    /// It ends, or waits for its model.
    LearnNoMore,
    Quiesce,
    Lift,
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let task = 0..TASKS;
    prop_oneof![
        3 => task.clone().prop_map(Act::Begin),
        3 => task.clone().prop_map(Act::Rest),
        3 => task.clone().prop_map(Act::Answer),
        2 => task.clone().prop_map(Act::Take),
        1 => task.clone().prop_map(Act::Lose),
        1 => task.clone().prop_map(Act::End),
        1 => task.prop_map(Act::Forget),
        1 => Just(Act::Learn),
        1 => Just(Act::LearnNoMore),
        4 => Just(Act::Quiesce),
        2 => Just(Act::Lift),
        2 => (0_u64..90).prop_map(Act::Pass),
    ]
}

/// A turn as the test knows it.
struct Turn {
    registration: Registration,
    _inbox: Inbox,
    /// None once clients have seen its end.
    recorder: Option<Recorder>,
    rests: bool,
    answers: Vec<AtWork>,
}

impl Turn {
    fn is_at_work(&self) -> bool {
        self.recorder.is_some() && (!self.rests || !self.answers.is_empty())
    }
}

struct World {
    running: Running,
    channels: Channels,
    turns: [Option<Turn>; TASKS],
    learns: bool,
    now: Duration,
    quiesced_until: Duration,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        Self {
            running: Running::default(),
            channels: Channels::new(brain, Arc::new(HastyClock::new())),
            turns: [const { None }; TASKS],
            learns: false,
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

    fn at_work(&self) -> usize {
        self.turns.iter().flatten().filter(|turn| turn.is_at_work()).count()
    }

    fn do_it(&mut self, act: &Act) {
        match *act {
            Act::Begin(task) => self.begin(task),
            Act::Answer(task) => self.answer(task),
            Act::Rest(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.registration.rest();
                    turn.rests = true;
                }
            }
            Act::Take(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.registration.work();
                    turn.rests = false;
                    turn.answers.pop();
                }
            }
            Act::Lose(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.answers.pop();
                }
            }
            Act::End(task) => {
                if let Some(turn) = &mut self.turns[task] {
                    turn.recorder = None;
                }
            }
            Act::Forget(task) => self.turns[task] = None,
            Act::Learn => {
                let begun = self.running.turns().learn(self.now);
                assert_eq!(begun.is_err(), self.is_quiesced());
                self.learns |= begun.is_ok();
            }
            Act::LearnNoMore => {
                self.running.turns().learn_no_more();
                self.learns = false;
            }
            Act::Quiesce => {
                let idle = self.at_work() == 0 && !self.learns;
                assert_eq!(self.running.turns().quiesce(self.now), idle);
                if idle {
                    self.quiesced_until = self.now + Duration::from_mins(1);
                }
            }
            Act::Lift => {
                self.running.turns().lift();
                self.quiesced_until = Duration::ZERO;
            }
            Act::Pass(seconds) => self.now += Duration::from_secs(seconds),
        }
    }

    /// As the agent does it.
    fn begin(&mut self, task: usize) {
        if self.turns[task].as_ref().is_some_and(|turn| turn.recorder.is_some()) {
            return;
        }
        let mut turns = self.running.turns();
        let admitted = turns.admit(self.now);
        assert_eq!(matches!(admitted, Err(AgentError::Quiesced)), self.is_quiesced());
        if admitted.is_err() {
            return;
        }
        let recorder = self.channels.open(&Self::name(task)).unwrap().begin(TurnId::new()).unwrap();
        let (registration, inbox) = self.running.register(&mut turns, &recorder, None, 0);
        drop(turns);
        // One that clients have seen the end of gives way only now.
        self.turns[task] = Some(Turn {
            registration,
            _inbox: inbox,
            recorder: Some(recorder),
            rests: false,
            answers: Vec::new(),
        });
    }

    fn answer(&mut self, task: usize) {
        let quiesced = self.is_quiesced();
        let going_on = self.running.going_on(&Self::name(task), self.now);
        match (&mut self.turns[task], going_on) {
            (None, Err(AgentError::NotRunning)) => {}
            (Some(_), Err(AgentError::Quiesced)) => assert!(quiesced),
            (Some(turn), Ok((_, at_work))) => {
                assert!(!quiesced);
                turn.answers.push(at_work);
            }
            (turn, outcome) => panic!("{}: {:?}", turn.is_some(), outcome.map(drop)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_engine_knows_what_is_at_work_and_quiesces_only_where_nothing_is(
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut world = World::new();
        for (number, act) in acts.iter().enumerate() {
            world.do_it(act);
            prop_assert_eq!(world.running.turns().at_work(), world.at_work(), "after {:?}", &acts[..=number]);
        }
    }
}

#[test]
fn it_lapses_after_a_minute_and_asking_again_begins_a_new_one() {
    let running = Running::default();
    let at = Duration::from_millis;
    assert!(running.turns().quiesce(at(5_000)));
    assert!(running.turns().admit(at(64_999)).is_err());
    assert!(running.turns().admit(at(65_000)).is_ok());
    assert!(running.turns().quiesce(at(6_000)));
    assert!(running.turns().admit(at(65_999)).is_err());
    running.turns().lift();
    assert!(running.turns().admit(at(6_000)).is_ok());
}
