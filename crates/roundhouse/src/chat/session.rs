//! What happens when a person, or a program, says something: decided from the state of the conversation alone, without
//! doing anything.

use super::command::{Command, Typed};

/// How many messages and commands can wait for the end of a turn.
pub(super) const MAX_QUEUED: usize = 16;

/// The state of the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// No turn is running here.
    #[default]
    Idle,
    /// A turn is running.
    Running,
    /// The agent waits for an answer.
    Asked,
    /// A turn is running that is to be cancelled.
    Cancelling,
}

impl Phase {
    pub(super) const fn is_idle(self) -> bool {
        matches!(self, Self::Idle)
    }
}

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Line(Typed),
    /// Ctrl-C.
    Interrupt {
        /// Whether a text was thrown away by it.
        had_text: bool,
    },
    /// Ctrl-D, or the end of the input.
    End,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Send(String),
    /// Send or run it once the turn has ended.
    Queue(Typed),
    /// Too many wait already.
    RefuseToQueue,
    Answer(String),
    Run(Command),
    Explain(String),
    Cancel,
    /// Say that another Ctrl-C leaves.
    WarnBeforeLeaving,
    Leave,
}

/// The session: the phase, and whether the next Ctrl-C leaves.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) phase: Phase,
    leaves_next: bool,
}

impl Session {
    /// Decides what to do, and changes the phase where that does not wait for the engine. `queued` says how
    /// many messages and commands wait.
    pub(super) fn decide(&mut self, said: Said, queued: usize) -> Action {
        let leaves_next = std::mem::take(&mut self.leaves_next);
        match said {
            Said::Interrupt { had_text: true } => Action::Nothing,
            Said::Interrupt { had_text: false } => self.interrupt(leaves_next),
            Said::Line(Typed::Mistake(text)) => Action::Explain(text),
            Said::End | Said::Line(Typed::Command(Command::Quit)) => Action::Leave,
            Said::Line(Typed::Command(command))
                if self.phase.is_idle() || !changes_conversation(&command) =>
            {
                Action::Run(command)
            }
            // An empty answer is answered with what is expected.
            Said::Line(Typed::Message(text)) if self.phase == Phase::Asked => Action::Answer(text),
            Said::Line(Typed::Message(text)) if text.trim().is_empty() => Action::Nothing,
            Said::Line(Typed::Message(text)) if self.phase.is_idle() => Action::Send(text),
            Said::Line(_) if queued >= MAX_QUEUED => Action::RefuseToQueue,
            Said::Line(typed) => Action::Queue(typed),
        }
    }

    fn interrupt(&mut self, leaves_next: bool) -> Action {
        match self.phase {
            _ if leaves_next => Action::Leave,
            Phase::Cancelling => Action::Leave,
            Phase::Idle => {
                self.leaves_next = true;
                Action::WarnBeforeLeaving
            }
            Phase::Running | Phase::Asked => {
                self.phase = Phase::Cancelling;
                self.leaves_next = true;
                Action::Cancel
            }
        }
    }
}

/// Whether the command begins a turn, or goes to another conversation.
const fn changes_conversation(command: &Command) -> bool {
    matches!(command, Command::New(_) | Command::Open(_) | Command::Edit(_) | Command::Retry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::command::parse;
    use super::*;

    const PHASES: [Phase; 4] = [Phase::Idle, Phase::Running, Phase::Asked, Phase::Cancelling];

    fn session(phase: Phase) -> Session {
        Session { phase, leaves_next: false }
    }

    #[test]
    fn lines_go_where_the_phase_wants_them() {
        let line = |phase, text: &str| session(phase).decide(Said::Line(parse(text)), 0);
        assert_eq!(line(Phase::Idle, "hi"), Action::Send("hi".into()));
        assert_eq!(line(Phase::Running, "hi"), Action::Queue(parse("hi")));
        assert_eq!(line(Phase::Cancelling, "hi"), Action::Queue(parse("hi")));
        assert_eq!(line(Phase::Asked, "y"), Action::Answer("y".into()));
        assert_eq!(line(Phase::Asked, ""), Action::Answer(String::new()));
        assert_eq!(line(Phase::Idle, " "), Action::Nothing);
        assert_eq!(line(Phase::Running, "/retry"), Action::Queue(parse("/retry")));
        assert_eq!(line(Phase::Running, "/tasks"), Action::Run(Command::Tasks));
        assert_eq!(line(Phase::Running, "/tasks x"), Action::Queue(parse("/tasks x")));
        for phase in PHASES {
            assert_eq!(line(phase, "/quit"), Action::Leave);
            assert_eq!(line(phase, "/help"), Action::Run(Command::Help));
            assert!(matches!(line(phase, "/nothing"), Action::Explain(_)));
        }
        let full = session(Phase::Running).decide(Said::Line(parse("hi")), MAX_QUEUED);
        assert_eq!(full, Action::RefuseToQueue);
    }

    #[test]
    fn ctrl_c_cancels_and_twice_leaves() {
        let interrupt = Said::Interrupt { had_text: false };
        for phase in PHASES {
            let mut session = session(phase);
            let first = session.decide(interrupt.clone(), 0);
            match phase {
                Phase::Idle => assert_eq!(first, Action::WarnBeforeLeaving),
                Phase::Running | Phase::Asked => {
                    assert_eq!((first, session.phase), (Action::Cancel, Phase::Cancelling));
                }
                Phase::Cancelling => assert_eq!(first, Action::Leave),
            }
            // Also if the turn has ended in between.
            session.phase = Phase::Idle;
            if phase != Phase::Cancelling {
                assert_eq!(session.decide(interrupt.clone(), 0), Action::Leave);
            }
        }
        for phase in PHASES {
            let thrown_away = session(phase).decide(Said::Interrupt { had_text: true }, 0);
            assert_eq!(thrown_away, Action::Nothing);
        }
        let mut writing = session(Phase::Idle);
        assert_eq!(writing.decide(interrupt.clone(), 0), Action::WarnBeforeLeaving);
        writing.decide(Said::Line(parse("hi")), 0);
        assert_eq!(writing.decide(interrupt, 0), Action::WarnBeforeLeaving, "a message is in between");
    }

    fn any_said() -> impl Strategy<Value = Said> {
        prop_oneof![
            prop::sample::select(vec!["", "hi", "/help", "/new", "/edit", "/nothing", "//x"])
                .prop_map(|line| Said::Line(parse(line))),
            any::<bool>().prop_map(|had_text| Said::Interrupt { had_text }),
        ]
    }

    proptest! {
        #[test]
        fn only_an_idle_conversation_is_sent_messages_and_only_a_question_is_answered(
            said in prop::collection::vec((any_said(), prop::sample::select(PHASES.to_vec())), 0..30),
        ) {
            let mut session = Session::default();
            for (said, phase) in said {
                session.phase = phase;
                match session.decide(said, 0) {
                    Action::Send(_) => prop_assert_eq!(phase, Phase::Idle),
                    Action::Answer(_) => prop_assert_eq!(phase, Phase::Asked),
                    Action::Cancel => prop_assert!(matches!(phase, Phase::Running | Phase::Asked)),
                    Action::Run(command) => prop_assert!(phase == Phase::Idle || !changes_conversation(&command)),
                    _ => {}
                }
            }
            let interrupt = Said::Interrupt { had_text: false };
            let twice = [session.decide(interrupt.clone(), 0), session.decide(interrupt, 0)];
            prop_assert!(twice.contains(&Action::Leave), "{twice:?}");
        }
    }
}
