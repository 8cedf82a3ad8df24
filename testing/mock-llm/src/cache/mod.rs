//! A simulation of the vendors' prompt caches: how many tokens of a request were read from the cache, written to
//! it, or neither.
//!
//! There are two kinds: Anthropic's, in which the client marks prefixes (`marked`), and the others', which detect
//! common prefixes by themselves (`automatic`). Entries never expire, because tests do not last for minutes.

mod automatic;
mod marked;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::captured::Wire;

/// Four characters per token, the usual rule of thumb.
const BYTES_PER_TOKEN: usize = 4;
/// The shortest prefix that is cached, in tokens. It differs between models; all vendors use this value for some.
const MIN_PREFIX_TOKENS: usize = 1024;

/// The cache use of the requests so far, see
/// [`MockProvider::cache_stats`](crate::MockProvider::cache_stats). All counts are tokens.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct CacheStats {
    /// The answered requests, in order.
    pub requests: Vec<RequestCacheStats>,
}

/// The cache use of one request. The three counts are disjoint.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct RequestCacheStats {
    /// The wire on which it arrived.
    pub wire: Wire,
    /// The requested model.
    pub model: String,
    /// Tokens that were neither read from the cache nor written to it.
    pub input: u64,
    /// Tokens that were read from the cache.
    pub read: u64,
    /// Tokens that were written to the cache. Always 0 if the vendor does not charge for that.
    pub written: u64,
}

impl CacheStats {
    /// Tokens that were neither read from the cache nor written to it.
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
    /// A value that must be equal for two requests to share entries.
    pub(crate) scope: String,
    pub(crate) kind: CacheKind,
    pub(crate) pieces: Vec<Piece>,
}

/// The kind of a cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CacheKind {
    /// The client marks the ends of prefixes.
    Marked,
    /// The vendor detects common prefixes.
    Automatic,
}

/// A tool, a block of the system prompt or of a message.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its canonical JSON, without cache marks.
    pub(crate) text: String,
    pub(crate) is_marked: bool,
    /// Marked caches only: a further value that must be equal from this piece on. It does not count as tokens.
    pub(crate) scope: Option<String>,
    /// Marked caches only: consecutive pieces of the same kind count as one position in the lookup.
    pub(crate) run: Option<BlockRun>,
}

/// The kinds of blocks of which several in a row count as one.
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

/// Creates a prompt for an automatic cache from these members of the body, in this order and with lists item by
/// item.
pub(crate) fn automatic_prompt(scope: &str, body: &Value, members: &[&str]) -> Prompt {
    let values = members.iter().filter_map(|name| body.get(name)).flat_map(|value| match value {
        Value::Array(items) => items.iter().collect(),
        other => vec![other],
    });
    let pieces = values.map(Piece::new).collect();
    Prompt { scope: scope.to_owned(), kind: CacheKind::Automatic, pieces }
}

/// Removes the cache marks of a value, at all depths at which the API allows them: on the value, and on the items
/// of its `content`. Schemas and arguments may have a member of that name that is not a mark.
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

/// All cached prefixes, and the statistics of the requests.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    prefixes: HashSet<PrefixHash>,
    pub(crate) stats: CacheStats,
}

impl Cache {
    /// Counts the tokens of a request and caches its prefixes.
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
        let stats = RequestCacheStats {
            wire,
            model: model.to_owned(),
            input: tokens((total / BYTES_PER_TOKEN).saturating_sub(cached)),
            read: tokens(found.read),
            written: tokens(found.written),
        };
        self.stats.requests.push(stats.clone());
        stats
    }
}

/// The numbers of tokens that were read from the cache and written to it.
#[derive(Clone, Copy, Debug, Default)]
struct CacheMatch {
    read: usize,
    written: usize,
}
