//! Scores the results of a search for a question's answer. A pure function.

use api::TaskId;

use super::conversations::{Conversation, MessageNumber, Question};

/// A search result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Its messages, in the order in which it shows them.
    pub(crate) messages: Vec<MessageNumber>,
    /// Those of its excerpt, which a turn is told unasked; `None` if it is not relevant enough.
    pub(crate) told: Option<Vec<MessageNumber>>,
    /// The task that it belongs to.
    pub(crate) task: Option<TaskId>,
}

/// The numbers of first results that are scored.
pub(crate) const FIRST: [usize; 2] = [5, 10];
/// The number of requested results: so many that they fill the characters of ten windows, if there are so
/// many.
pub(crate) const RESULT_LIMIT: usize = 100;
/// Of how many results a turn looks for relevant ones, and how many it is told at most: of a task the best.
const MAX_CONSIDERED: usize = 18;
const MAX_TOLD: usize = 6;
/// The approximate number of characters per token.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// Whether some, and whether all, of the evidence is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) any: bool,
    pub(crate) all: bool,
}

/// The score of one search.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// Among the first 5 and 10 results.
    pub(crate) first: [Found; 2],
    /// Among as many characters as six-message windows show for their first 5 and 10 results; `None` if there
    /// are no windows to compare with.
    pub(crate) equal: Option<[Found; 2]>,
    /// Approximate tokens of the first 5 and 10 results.
    pub(crate) tokens: [f64; 2],
    /// Whether anything among the first 5 and 10 results is relevant enough for a turn.
    pub(crate) is_relevant: [bool; 2],
    /// What a turn is told unasked: whether that is anything, and whether it has evidence.
    pub(crate) is_told: bool,
    pub(crate) told: Found,
}

impl Score {
    /// Scores the results of a question, the best first. `room` is the characters that windows show for it.
    pub(crate) fn compute(
        conversation: &Conversation,
        question: &Question,
        hits: &[Hit],
        room: Option<[usize; 2]>,
    ) -> Self {
        let first = |count: usize| hits.get(..count.min(hits.len())).unwrap_or_default();
        let evidence = &question.evidence;
        let told = told(hits);
        Self {
            first: FIRST.map(|count| find(evidence, &shown(first(count)))),
            equal: room.map(|room| {
                room.map(|characters| find(evidence, &within(conversation, &shown(hits), characters)))
            }),
            tokens: shown_characters(conversation, hits).map(to_tokens),
            is_relevant: FIRST.map(|count| first(count).iter().any(|hit| hit.told.is_some())),
            is_told: !told.is_empty(),
            told: find(evidence, &told),
        }
    }
}

/// The characters of the first 5 and 10 results.
pub(crate) fn shown_characters(conversation: &Conversation, hits: &[Hit]) -> [usize; 2] {
    FIRST.map(|count| {
        let hits = hits.iter().take(count).flat_map(|hit| &hit.messages);
        hits.map(|message| conversation.shown_characters(*message)).sum()
    })
}

fn shown(hits: &[Hit]) -> Vec<MessageNumber> {
    hits.iter().flat_map(|hit| hit.messages.iter().copied()).collect()
}

/// The first messages that fit into so many characters, in the order of the results. A message counts as
/// often as it is shown.
fn within(conversation: &Conversation, messages: &[MessageNumber], characters: usize) -> Vec<MessageNumber> {
    let mut left = characters;
    let mut fits = |message: &&MessageNumber| {
        let rest = left.checked_sub(conversation.shown_characters(**message));
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    messages.iter().take_while(|message| fits(message)).copied().collect()
}

/// The messages that a turn is told.
fn told(hits: &[Hit]) -> Vec<MessageNumber> {
    let mut told: Vec<(&Hit, &[MessageNumber])> = Vec::new();
    for hit in hits.iter().take(MAX_CONSIDERED) {
        let is_new_task = told.iter().all(|(other, _)| hit.task.is_none() || other.task != hit.task);
        if let Some(messages) = hit.told.as_ref().filter(|_| is_new_task && told.len() < MAX_TOLD) {
            told.push((hit, messages));
        }
    }
    told.into_iter().flat_map(|(_, messages)| messages.iter().copied()).collect()
}

fn find(evidence: &[MessageNumber], messages: &[MessageNumber]) -> Found {
    let mut is_found = evidence.iter().map(|message| messages.contains(message));
    Found {
        any: is_found.clone().any(|found| found),
        all: !evidence.is_empty() && is_found.all(|found| found),
    }
}

#[expect(clippy::cast_precision_loss, reason = "results are short")]
fn to_tokens(characters: usize) -> f64 {
    characters as f64 / CHARACTERS_PER_TOKEN
}

#[cfg(test)]
mod tests {
    use super::super::conversations::{Message, Speaker};
    use super::*;

    const ANY: Found = Found { any: true, all: false };
    const ALL: Found = Found { any: true, all: true };
    const NONE: Found = Found { any: false, all: false };

    fn conversation() -> Conversation {
        let message = Message { speaker: Speaker::User, text: "x".repeat(28) };
        Conversation { messages: vec![message; 100], ..Conversation::default() }
    }

    fn hit(messages: &[MessageNumber], told: Option<&[MessageNumber]>, task: &str) -> Hit {
        Hit {
            messages: messages.to_vec(),
            told: told.map(<[_]>::to_vec),
            task: Some(TaskId::new(task).unwrap()),
        }
    }

    fn question(evidence: &[MessageNumber]) -> Question {
        Question { kind: "k".into(), text: "?".into(), evidence: evidence.to_vec() }
    }

    #[test]
    fn evidence_counts_among_the_first_results_and_in_the_same_room() {
        let mut hits = vec![hit(&[90, 91], None, "a"); 5];
        hits.push(hit(&[3, 4], None, "b"));
        hits.push(hit(&[7], None, "b"));
        let (conversation, question) = (conversation(), question(&[4, 7]));
        let characters = conversation.shown_characters(0);
        assert_eq!(characters, 40);
        // The last message does not fit as a whole.
        let room = Some([11 * 40, 13 * 40 - 1]);
        let score = Score::compute(&conversation, &question, &hits, room);
        assert_eq!(score.first, [NONE, ALL]);
        assert_eq!(score.equal, Some([NONE, ANY]));
        assert_eq!(score.tokens.map(|tokens| format!("{tokens:.1}")), ["100.0", "130.0"]);
        assert_eq!(shown_characters(&conversation, &hits), [400, 520]);
        assert_eq!(Score::compute(&conversation, &question, &hits, None).equal, None);
    }

    #[test]
    fn a_turn_is_told_the_best_of_each_task_and_nothing_is_better_than_noise() {
        let hits = [
            hit(&[1, 2], None, "a"),
            hit(&[3, 4], Some(&[3]), "a"),
            hit(&[5, 6], Some(&[6]), "a"),
            hit(&[7, 8], Some(&[7]), "b"),
        ];
        let score = |evidence| Score::compute(&conversation(), &question(evidence), &hits, None);
        assert_eq!(score(&[3, 7]).told, ALL);
        assert_eq!(score(&[3, 6]).told, ANY);
        assert_eq!(score(&[4]).told, NONE);
        assert_eq!((score(&[]).told, score(&[]).is_told, score(&[]).is_relevant), (NONE, true, [true, true]));
        let nothing = Score::compute(&conversation(), &question(&[]), &hits[..1], None);
        assert_eq!((nothing.is_told, nothing.is_relevant), (false, [false, false]));
    }
}
