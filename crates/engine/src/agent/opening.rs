//! How a turn is opened: what bears on it is looked for, and it goes on record with what it is told of that.

use std::ops::RangeInclusive;

use tokio::runtime::Handle;

use contract::event::{Event, Lifecycle};

use super::branch::Branch;
use super::life::Life;
use super::recall::{Bounds, Recalled};
use super::skills_told::SkillsTold;
use super::thread::Thread;
use super::{AgentError, loading};
use crate::brain::steps::{Base, Opened, Step};
use crate::brain::{Brain, Cut, NewTurn, RequestName, TaskRow};
use crate::channel::{Record, Recorder};

/// The conversation before a turn.
pub(super) enum Before {
    /// It was not read.
    Unread,
    /// As it was read.
    Read(Box<Branch>),
}

impl Before {
    /// Reads it, if it was not and can be. Blocks.
    fn or_read(self, brain: &Brain, task: TaskRow) -> Self {
        match self {
            Self::Unread => {
                let loaded = loading::load_ended(brain, task, Base::End);
                loaded.map_or(Self::Unread, |branch| Self::Read(Box::new(branch)))
            }
            read @ Self::Read(_) => read,
        }
    }

    /// The conversation with the turn that goes on from it.
    fn thread(self, opened: Opened, stamps: RangeInclusive<i64>) -> Option<Thread> {
        match self {
            Self::Read(before) => Some(Thread::open(*before, opened, stamps)),
            Self::Unread => None,
        }
    }
}

/// A turn that is to be opened.
pub(super) struct Opening {
    /// The request that begins it, where the caller named it.
    pub(super) request: Option<RequestName>,
    pub(super) opened: Opened,
    pub(super) cut: Cut,
    pub(super) before: Before,
}

impl Opening {
    /// Opens it. Returns its life, and the conversation that it goes on with where that could be read: where not, that
    /// is tried again once the turn is open.
    pub(super) async fn of(self, life: Life) -> Result<(Life, Option<Thread>), AgentError> {
        let runtime = Handle::current();
        // At one go, and sent from there: to be told of each part first takes longer than to do it.
        let brain = life.brain.clone();
        let begun = brain.opening(move |_| {
            let (record, opened, before) = self.told(&life);
            let before_it = life.recorder.last_ts();
            let committing = runtime.block_on(life.recorder.send(record));
            // While it is being stored.
            let thread = before.thread(opened, before_it + 1..=life.recorder.last_ts());
            (life, thread, committing)
        });
        // None where the runtime is shutting down.
        let (life, thread, committing) = begun.await.ok_or(AgentError::Stopping)?;
        committing?.stored().await?;
        Ok((life, thread))
    }

    /// What opens it, with what it is told before the user's message. Blocks.
    fn told(self, life: &Life) -> (Record, Opened, Before) {
        let Self { request, mut opened, cut, before } = self;
        let (brain, task) = (&life.brain, life.recorder.channel().task());
        let recalled = Recalled::look(brain, Bounds::of(&life.means), task, (opened.base, &opened.message));
        let skills = SkillsTold::look(brain, &life.kit, task, opened.base);
        opened.notes.extend(recalled.notes());
        opened.notes.extend(skills.note());
        let before = before.or_read(brain, task);
        if let Before::Read(branch) = &before {
            opened.notes.extend(branch.notes());
        }
        let record = recalled.tell(record(&life.recorder, request, &opened, cut));
        (skills.tell(record), opened, before)
    }
}

/// What opens a turn.
pub(super) fn record(recorder: &Recorder, request: Option<RequestName>, opened: &Opened, cut: Cut) -> Record {
    let message_id = opened.message_id;
    let mut record = Record::new();
    if cut != Cut::default() {
        record = record.cut(cut);
    }
    record = record.begin(NewTurn { turn_id: recorder.turn_id(), message_id, request });
    let started = Event::ThreadLifecycle(Lifecycle::Started { message_id });
    record.attached(&opened.media).step(Step::Opened(opened.clone())).event(started)
}
