//! Ranks search results: fuses several ranked lists of candidates into one, and moves repetitions to the end.
//! Pure.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use api::MessageId;

/// The constant `k` of reciprocal rank fusion, which dampens the influence of top positions: the usual 60.
const RRF_K: f64 = 60.0;

/// Fuses weighted lists, each sorted best first, by reciprocal rank, and returns the keys with their scores, best
/// first. Ties are resolved in favour of the key that an earlier list contains first.
pub(super) fn reciprocal_rank_fusion<K: Copy + Eq + Hash>(lists: &[(f64, Vec<K>)]) -> Vec<(K, f64)> {
    let mut scores: HashMap<K, (usize, f64)> = HashMap::new();
    for (weight, list) in lists {
        let mut rank = RRF_K;
        for key in list {
            rank += 1.0;
            let order = scores.len();
            scores.entry(*key).or_insert((order, 0.0)).1 += weight / rank;
        }
    }
    let mut fused: Vec<_> = scores.into_iter().collect();
    fused.sort_by(|(_, (one, first)), (_, (other, second))| second.total_cmp(first).then(one.cmp(other)));
    fused.into_iter().map(|(key, (_, score))| (key, score)).collect()
}

/// The part of a conversation that a candidate shows.
#[derive(Clone, Debug)]
pub(super) enum ConversationSpan {
    Nothing,
    /// The episode of a turn.
    Turn(i64),
    /// A window of messages: the turn of each message, and the ids of the messages that match the query.
    Messages {
        turns: Vec<i64>,
        matched: Vec<MessageId>,
    },
}

/// The share of a turn's score that is added to messages which show the turn with its context.
const TURN_SCORE_SHARE: f64 = 0.5;

/// Ranks candidates with scores, and assigns new scores in descending order. A candidate that shows nothing beyond
/// better ones comes after all others, because the next result should be informative. A turn is best shown by
/// messages with their context.
pub(super) fn diversify(candidates: &[(f64, ConversationSpan)]) -> Vec<(usize, f64)> {
    let mut numbered: Vec<(usize, f64, bool)> = candidates
        .iter()
        .enumerate()
        .map(|(index, (score, span))| {
            let turn_scores: f64 = covered_turn_scores(span, candidates).sum();
            (index, score + TURN_SCORE_SHARE * turn_scores, is_covered_by_messages(span, candidates))
        })
        .collect();
    numbered.sort_by(|(_, one, _), (_, other, _)| other.total_cmp(one));
    let mut shown: HashSet<MessageId> = HashSet::new();
    for (index, _, is_repetition) in &mut numbered {
        if let Some((_, ConversationSpan::Messages { matched, .. })) = candidates.get(*index) {
            *is_repetition = !matched.is_empty() && matched.iter().all(|id| shown.contains(id));
            shown.extend(matched);
        }
    }
    let highest = numbered.first().map_or(1.0, |(_, score, _)| *score);
    let lowest =
        numbered.iter().rfind(|(_, _, is_repetition)| !is_repetition).map_or(highest, |(_, score, _)| *score);
    let ordered = |repetitions: bool| {
        let matching = numbered.iter().filter(move |(_, _, is_repetition)| *is_repetition == repetitions);
        matching.map(move |(index, score, is_repetition)| {
            (*index, if *is_repetition { score * lowest / highest } else { *score })
        })
    };
    ordered(false).chain(ordered(true)).collect()
}

/// The scores of the turns that a window of messages shows.
fn covered_turn_scores<'a>(
    span: &'a ConversationSpan,
    candidates: &'a [(f64, ConversationSpan)],
) -> impl Iterator<Item = f64> + 'a {
    candidates.iter().filter_map(|(score, turn)| covers_turn(span, turn).then_some(*score))
}

/// Whether any window of messages shows the turn.
fn is_covered_by_messages(turn: &ConversationSpan, candidates: &[(f64, ConversationSpan)]) -> bool {
    candidates.iter().any(|(_, messages)| covers_turn(messages, turn))
}

/// Whether `messages` show `turn`: at least two of its messages, the user's and the agent's.
fn covers_turn(messages: &ConversationSpan, turn: &ConversationSpan) -> bool {
    match (messages, turn) {
        (ConversationSpan::Messages { turns, .. }, ConversationSpan::Turn(turn)) => {
            turns.iter().filter(|one| *one == turn).count() > 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_again_comes_last_and_scores_go_down() {
        let ids: Vec<MessageId> = (0..4).map(|_| MessageId::new()).collect();
        let messages = |turns: &[i64], matched: &[MessageId]| ConversationSpan::Messages {
            turns: turns.to_vec(),
            matched: matched.to_vec(),
        };
        let candidates = [
            (0.9, ConversationSpan::Turn(1)),
            (0.8, messages(&[1, 1, 2, 2], &ids[..2])),
            (0.7, messages(&[2, 2, 3], &ids[1..2])),
            (0.6, ConversationSpan::Nothing),
            (0.5, messages(&[3], &ids[2..3])),
            (0.4, ConversationSpan::Turn(9)),
        ];
        let ranked = diversify(&candidates);
        let order: Vec<usize> = ranked.iter().map(|(number, _)| *number).collect();
        assert_eq!(order, [1, 3, 4, 5, 0, 2]);
        assert!(ranked.is_sorted_by(|(_, one), (_, other)| one >= other), "{ranked:?}");
        assert!(ranked[0].1 > 0.8, "the turn counts for the messages that show it");
        assert!(super::diversify(&[]).is_empty());
    }

    #[test]
    fn what_several_lists_name_beats_what_one_names_first() {
        let fused =
            reciprocal_rank_fusion(&[(1.0, vec!['a', 'b', 'c']), (1.0, vec!['d', 'b']), (1.0, vec![])]);
        let order: String = fused.iter().map(|(key, _)| key).collect();
        assert_eq!(order, "badc");
        assert!(fused.is_sorted_by(|(_, first), (_, second)| first >= second));
        assert_eq!(reciprocal_rank_fusion::<u8>(&[]), []);
        assert_eq!(reciprocal_rank_fusion(&[(1.0, vec!['a', 'b']), (3.0, vec!['b', 'a'])])[0].0, 'b');
    }
}
