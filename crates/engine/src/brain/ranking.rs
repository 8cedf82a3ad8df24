//! How what was found is put in order: several lists of candidates, each in an order of its own, become one. Pure.

use std::collections::HashMap;
use std::hash::Hash;

/// How little a candidate's place at the top of a list counts against its places in others: the usual 60.
const EVEN: f64 = 60.0;

/// Fuses lists, the best of each first, by reciprocal rank: the best first, each with its score. Where scores are
/// the same, the one that an earlier list names first is better.
pub(super) fn fuse<K: Copy + Eq + Hash>(lists: &[Vec<K>]) -> Vec<(K, f64)> {
    let mut scores: HashMap<K, (usize, f64)> = HashMap::new();
    for list in lists {
        let mut place = EVEN;
        for key in list {
            place += 1.0;
            let order = scores.len();
            scores.entry(*key).or_insert((order, 0.0)).1 += 1.0 / place;
        }
    }
    let mut fused: Vec<_> = scores.into_iter().collect();
    fused.sort_by(|(_, (one, first)), (_, (other, second))| second.total_cmp(first).then(one.cmp(other)));
    fused.into_iter().map(|(key, (_, score))| (key, score)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_lists_name_beats_what_one_names_first() {
        let fused = fuse(&[vec!['a', 'b', 'c'], vec!['d', 'b'], vec![]]);
        let order: String = fused.iter().map(|(key, _)| key).collect();
        assert_eq!(order, "badc");
        assert!(fused.is_sorted_by(|(_, first), (_, second)| first >= second));
        assert_eq!(fuse::<u8>(&[]), []);
    }
}
