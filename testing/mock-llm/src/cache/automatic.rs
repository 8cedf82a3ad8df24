//! Caches without marks (<https://platform.openai.com/docs/guides/prompt-caching>): from 1,024 tokens on, the
//! prefix that a prompt has in common with an earlier one is read in steps of 128 tokens, and writing is free.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::{BYTES_PER_TOKEN, CacheMatch, MIN_PREFIX_TOKENS, Piece, PrefixHash};

const STEP_TOKENS: usize = 128;

pub(super) fn count(prefixes: &mut HashSet<PrefixHash>, start: Sha256, pieces: &[Piece]) -> CacheMatch {
    let text: Vec<u8> = pieces.iter().flat_map(|piece| piece.text.bytes()).collect();
    let mut hash = start;
    let mut read = 0;
    let mut written = Vec::new();
    for (index, step) in text.chunks_exact(STEP_TOKENS * BYTES_PER_TOKEN).enumerate() {
        hash.update(step);
        let tokens = (index + 1) * STEP_TOKENS;
        if tokens < MIN_PREFIX_TOKENS {
            continue;
        }
        let prefix: PrefixHash = hash.clone().finalize().into();
        if prefixes.contains(&prefix) {
            read = tokens;
        }
        written.push(prefix);
    }
    prefixes.extend(written);
    CacheMatch { read, written: 0 }
}
