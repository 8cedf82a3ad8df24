//! How what was found is put in order: several lists of candidates, each in an order of its own, become one, and what
//! is shown twice goes behind. Pure.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use contract::MessageId;

/// How little a candidate's place at the top of a list counts against its places in others: the usual 60.
const RRF_K: f64 = 60.0;

/// Fuses lists, each with what it counts and the best of it first, by reciprocal rank: the best first, each with its
/// score. Where scores are the same, the one that an earlier list names first is better.
pub(super) fn reciprocal_rank_fusion<K: Copy + Eq + Hash>(lists: &[(f64, Vec<K>)]) -> Vec<(K, f64)> {
    let mut scores: HashMap<K, (usize, f64)> = HashMap::new();
    for (weight, list) in lists {
        let mut place = RRF_K;
        for key in list {
            place += 1.0;
            let order = scores.len();
            scores.entry(*key).or_insert((order, 0.0)).1 += weight / place;
        }
    }
    let mut fused: Vec<_> = scores.into_iter().collect();
    fused.sort_by(|(_, (one, first)), (_, (other, second))| second.total_cmp(first).then(one.cmp(other)));
    fused.into_iter().map(|(key, (_, score))| (key, score)).collect()
}

/// What of conversations a candidate shows.
#[derive(Clone, Debug)]
pub(super) enum ConversationSpan {
    Nothing,
    /// What came of a turn.
    Turn(i64),
    /// Messages: the turns that they are of, one for each, and those that have something of what is looked for.
    Messages {
        turns: Vec<i64>,
        matched: Vec<MessageId>,
    },
}

/// How much of a turn's score the messages get that show the turn and what was said around it.
const TURN_SCORE_SHARE: f64 = 0.5;

/// Puts candidates, each with its score, in order, and gives them scores in that order. What shows nothing that a better
/// one does not show comes behind all others: the next result is to tell something new. A turn is shown best by
/// messages with what was said around it.
pub(super) fn diversify(candidates: &[(f64, ConversationSpan)]) -> Vec<(usize, f64)> {
    let mut numbered: Vec<(usize, f64, bool)> = candidates
        .iter()
        .enumerate()
        .map(|(number, (score, shows))| {
            let around: f64 = covered_turn_scores(shows, candidates).sum();
            (number, score + TURN_SCORE_SHARE * around, is_covered_by_messages(shows, candidates))
        })
        .collect();
    numbered.sort_by(|(_, one, _), (_, other, _)| other.total_cmp(one));
    let mut shown: HashSet<MessageId> = HashSet::new();
    for (number, _, again) in &mut numbered {
        if let Some((_, ConversationSpan::Messages { matched, .. })) = candidates.get(*number) {
            *again = !matched.is_empty() && matched.iter().all(|id| shown.contains(id));
            shown.extend(matched);
        }
    }
    let highest = numbered.first().map_or(1.0, |(_, score, _)| *score);
    let lowest = numbered.iter().rfind(|(_, _, again)| !again).map_or(highest, |(_, score, _)| *score);
    let ordered = |wanted: bool| {
        let of = numbered.iter().filter(move |(_, _, again)| *again == wanted);
        of.map(move |(number, score, again)| {
            (*number, if *again { score * lowest / highest } else { *score })
        })
    };
    ordered(false).chain(ordered(true)).collect()
}

/// The scores of the turns that messages show.
fn covered_turn_scores<'a>(
    shows: &'a ConversationSpan,
    candidates: &'a [(f64, ConversationSpan)],
) -> impl Iterator<Item = f64> + 'a {
    candidates.iter().filter_map(|(score, turn)| covers_turn(shows, turn).then_some(*score))
}

/// Whether messages show a turn.
fn is_covered_by_messages(turn: &ConversationSpan, candidates: &[(f64, ConversationSpan)]) -> bool {
    candidates.iter().any(|(_, messages)| covers_turn(messages, turn))
}

/// Whether `messages` show `turn`: the user's, and the agent's.
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
        let spread = diversify(&candidates);
        let order: Vec<usize> = spread.iter().map(|(number, _)| *number).collect();
        assert_eq!(order, [1, 3, 4, 5, 0, 2]);
        assert!(spread.is_sorted_by(|(_, one), (_, other)| one >= other), "{spread:?}");
        assert!(spread[0].1 > 0.8, "the turn counts for the messages that show it");
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
