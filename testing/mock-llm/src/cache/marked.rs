//! Anthropic's cache (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>): a mark writes one
//! prefix, the one that ends with its block. What is read is the longest prefix that an earlier request wrote and
//! that is found from a mark backwards: at most twenty places, the mark's own the first, where a run of calls or of
//! results is one place.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::{BYTES_PER_TOKEN, CacheMatch, MIN_PREFIX_TOKENS, Piece, PrefixHash};

const LOOKBACK_PLACES: usize = 20;

/// A place where a prefix ends.
struct PrefixEnd<'a> {
    piece: &'a Piece,
    hash: PrefixHash,
    tokens: usize,
}

pub(super) fn count(prefixes: &mut HashSet<PrefixHash>, start: Sha256, pieces: &[Piece]) -> CacheMatch {
    let ends = prefix_ends(start, pieces);
    let marks: Vec<usize> = (0..ends.len())
        .filter(|index| {
            ends.get(*index).is_some_and(|end| end.piece.is_marked && end.tokens >= MIN_PREFIX_TOKENS)
        })
        .collect();
    let last = marks.last().and_then(|last| ends.get(*last)).map_or(0, |end| end.tokens);
    let found =
        marks.iter().rev().find_map(|mark| longest_prefix(prefixes, ends.get(..=*mark).unwrap_or_default()));
    let read = found.unwrap_or(0);
    prefixes.extend(marks.iter().filter_map(|mark| ends.get(*mark)).map(|end| end.hash));
    CacheMatch { read, written: last - read }
}

fn prefix_ends<'a>(start: Sha256, pieces: &'a [Piece]) -> Vec<PrefixEnd<'a>> {
    let mut hash = start;
    let mut bytes = 0;
    let mut end = |piece: &'a Piece| {
        for part in [piece.scope.as_deref().unwrap_or_default(), &piece.text] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        bytes += piece.text.len();
        PrefixEnd { piece, hash: hash.clone().finalize().into(), tokens: bytes / BYTES_PER_TOKEN }
    };
    pieces.iter().map(&mut end).collect()
}

/// The longest prefix that is found from the last of these ends backwards.
fn longest_prefix(prefixes: &HashSet<PrefixHash>, ends: &[PrefixEnd<'_>]) -> Option<usize> {
    let mut places = 0;
    let mut behind = None;
    for end in ends.iter().rev() {
        if end.piece.run.is_none() || end.piece.run != behind {
            places += 1;
        }
        behind = end.piece.run;
        if places > LOOKBACK_PLACES {
            return None;
        }
        if prefixes.contains(&end.hash) {
            return Some(end.tokens);
        }
    }
    None
}
