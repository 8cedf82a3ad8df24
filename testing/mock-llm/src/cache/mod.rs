//! The vendors' prompt caches: what of a request was read from the cache, what was written to it, and the rest.
//!
//! Two kinds: Anthropic's, which a client marks (`marked`), and the others', which find what requests have in
//! common by themselves (`automatic`). Neither forgets: a test does not wait for minutes to pass.

mod automatic;
mod marked;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::captured::Wire;

/// The usual rule of thumb of four characters per token.
const BYTES_PER_TOKEN: usize = 4;
/// The shortest prefix that is cached, in tokens. The vendors' differ from model to model; this one is in use by
/// all of them.
const MIN_PREFIX_TOKENS: usize = 1024;

/// What the cache did for the requests so far, see
/// [`MockProvider::cache_stats`](crate::MockProvider::cache_stats). All counts are tokens.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct CacheStats {
    /// Each request that was answered, in order.
    pub requests: Vec<RequestCacheStats>,
}

/// What the cache did for one request. The three counts are disjoint.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct RequestCacheStats {
    /// The wire it came on.
    pub wire: Wire,
    /// The model it asked for.
    pub model: String,
    /// Tokens that the cache had nothing to do with.
    pub input: u64,
    /// Tokens that were read from the cache.
    pub read: u64,
    /// Tokens that were written to the cache; always none where that is free.
    pub written: u64,
}

impl CacheStats {
    /// Tokens that the cache had nothing to do with.
    pub fn input(&self) -> u64 {
        self.requests.iter().map(|request| request.input).sum()
    }

    /// Tokens that were read from the cache.
    pub fn read(&self) -> u64 {
        self.requests.iter().map(|request| request.read).sum()
    }

    /// Tokens that were written to the cache.
    pub fn written(&self) -> u64 {
        self.requests.iter().map(|request| request.written).sum()
    }

    /// The share of all input that was read from the cache, in whole percent, rounded down.
    pub fn read_percent(&self) -> u64 {
        let total = self.input() + self.read() + self.written();
        (self.read() * 100).checked_div(total).unwrap_or(0)
    }
}

/// A request's prompt as a cache sees it: its pieces in the order in which the model reads them.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// What must be the same for anything to be found.
    pub(crate) scope: String,
    pub(crate) kind: CacheKind,
    pub(crate) pieces: Vec<Piece>,
}

/// Whose cache it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CacheKind {
    /// The client marks where a prefix ends.
    Marked,
    /// The vendor finds what requests have in common.
    Automatic,
}

/// A tool, a block of the system prompt or of a message.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its canonical JSON, without marks.
    pub(crate) text: String,
    pub(crate) is_marked: bool,
    /// Marked caches only: what else must be the same from here on, but costs nothing.
    pub(crate) scope: Option<String>,
    /// Marked caches only: whether it and the same kind of piece before it are one place to look.
    pub(crate) run: Option<BlockRun>,
}

/// The blocks of which many in a row count as one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BlockRun {
    ToolCalls,
    ToolResults,
}

impl Piece {
    pub(crate) fn new(value: &Value) -> Self {
        Self { text: value.to_string(), is_marked: false, scope: None, run: None }
    }
}

/// The pieces of a prompt of the automatic kind: these members of the body in this order, lists item by item.
pub(crate) fn automatic_prompt(scope: &str, body: &Value, members: &[&str]) -> Prompt {
    let values = members.iter().filter_map(|name| body.get(name)).flat_map(|value| match value {
        Value::Array(items) => items.iter().collect(),
        other => vec![other],
    });
    let pieces = values.map(Piece::new).collect();
    Prompt { scope: scope.to_owned(), kind: CacheKind::Automatic, pieces }
}

/// A value without the cache marks at any depth that the APIs have them: on it, and on what its `content` lists.
/// Schemas and arguments may have a member of that name that is no mark.
pub(crate) fn without_marks(value: Value) -> Value {
    match value {
        Value::Array(values) => Value::Array(values.into_iter().map(without_marks).collect()),
        Value::Object(mut members) => {
            members.remove("cache_control");
            if let Some(content) = members.get_mut("content").filter(|content| content.is_array()) {
                *content = without_marks(content.take());
            }
            Value::Object(members)
        }
        other => other,
    }
}

/// A hash of a prefix.
type PrefixHash = [u8; 32];

/// All prefixes that were written, and the account of who did.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    prefixes: HashSet<PrefixHash>,
    pub(crate) stats: CacheStats,
}

impl Cache {
    /// Counts a request and remembers its prefixes.
    pub(crate) fn record(&mut self, wire: Wire, model: &str, prompt: &Prompt) -> RequestCacheStats {
        let mut start = Sha256::new();
        for scope in [model, &prompt.scope] {
            start.update(scope.as_bytes());
            start.update([0]);
        }
        let total: usize = prompt.pieces.iter().map(|piece| piece.text.len()).sum();
        let found = match prompt.kind {
            CacheKind::Marked => marked::count(&mut self.prefixes, start, &prompt.pieces),
            CacheKind::Automatic => automatic::count(&mut self.prefixes, start, &prompt.pieces),
        };
        let tokens = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let cached = found.read + found.written;
        let used = RequestCacheStats {
            wire,
            model: model.to_owned(),
            input: tokens((total / BYTES_PER_TOKEN).saturating_sub(cached)),
            read: tokens(found.read),
            written: tokens(found.written),
        };
        self.stats.requests.push(used.clone());
        used
    }
}

/// What was found of a prompt, and what was written, in tokens.
#[derive(Clone, Copy, Debug, Default)]
struct CacheMatch {
    read: usize,
    written: usize,
}
