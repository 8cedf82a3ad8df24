//! Anthropic's cache (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>): a mark writes the
//! prefix that ends with its block. A lookup reads the longest prefix that an earlier request wrote. It goes
//! backwards from each mark, over at most twenty positions including the mark's own, and counts a run of tool
//! calls or of tool results as one position.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::{BYTES_PER_TOKEN, CacheMatch, MIN_PREFIX_TOKENS, Piece, PrefixHash};

const LOOKBACK_PLACES: usize = 20;

/// The end of a prefix.
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
    let marked_tokens = marks.last().and_then(|last| ends.get(*last)).map_or(0, |end| end.tokens);
    let found =
        marks.iter().rev().find_map(|mark| longest_prefix(prefixes, ends.get(..=*mark).unwrap_or_default()));
    let read = found.unwrap_or(0);
    prefixes.extend(marks.iter().filter_map(|mark| ends.get(*mark)).map(|end| end.hash));
    CacheMatch { read, written: marked_tokens - read }
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

/// Looks for the longest cached prefix, backwards from the last of these ends. Returns its number of tokens.
fn longest_prefix(prefixes: &HashSet<PrefixHash>, ends: &[PrefixEnd<'_>]) -> Option<usize> {
    let mut positions = 0;
    let mut following_run = None;
    for end in ends.iter().rev() {
        if end.piece.run.is_none() || end.piece.run != following_run {
            positions += 1;
        }
        following_run = end.piece.run;
        if positions > LOOKBACK_PLACES {
            return None;
        }
        if prefixes.contains(&end.hash) {
            return Some(end.tokens);
        }
    }
    None
}
