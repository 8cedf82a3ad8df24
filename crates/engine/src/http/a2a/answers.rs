//! The messages that answered a question, so that one that is sent again does not answer the next question. Only as
//! many as a client may repeat soon are kept; an answer that names its question needs none of this.

use std::collections::VecDeque;

use api::TurnId;
use parking_lot::Mutex;

/// How many messages are known.
const CAPACITY: usize = 1_024;

/// The newest messages that answered something.
#[derive(Default)]
pub(in crate::http) struct AnsweredMessages(Mutex<VecDeque<(TurnId, String)>>);

impl AnsweredMessages {
    /// Notes that a message answers a turn's question; returns whether it is a new one.
    pub(super) fn insert(&self, turn_id: TurnId, message_id: &str) -> bool {
        let mut known = self.0.lock();
        if known.iter().any(|(turn, id)| *turn == turn_id && id == message_id) {
            return false;
        }
        if known.len() == CAPACITY {
            known.pop_front();
        }
        known.push_back((turn_id, message_id.to_owned()));
        true
    }

    /// The message answered nothing after all.
    pub(super) fn remove(&self, turn_id: TurnId, message_id: &str) {
        self.0.lock().retain(|(turn, id)| *turn != turn_id || id != message_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_answers_once() {
        let (known, turn, other) = (AnsweredMessages::default(), TurnId::new(), TurnId::new());
        assert!(known.insert(turn, "a") && known.insert(turn, "b") && known.insert(other, "a"));
        assert!(!known.insert(turn, "a"));
        known.remove(turn, "a");
        assert!(known.insert(turn, "a") && !known.insert(other, "a"));
        for number in 0..CAPACITY {
            assert!(known.insert(turn, &format!("m{number}")));
        }
        assert_eq!(known.0.lock().len(), CAPACITY);
    }
}
