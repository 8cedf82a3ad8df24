//! Mutants: edits of the product's source, each of which switches one guarantee off, to prove that the test
//! of that guarantee can fail.
//!
//! The product itself contains none of them. The binary of this package makes a copy of the workspace in
//! which they are applied and the edited crates depend on this library. The environment variable
//! `ROUNDHOUSE_MUTANT` names the mutant that is active in a process; without it, the copy behaves like the
//! product.

use std::borrow::Cow;
use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Returns whether the mutant is active.
pub fn active(name: &str) -> bool {
    static ACTIVE: LazyLock<Option<String>> = LazyLock::new(|| env::var("ROUNDHOUSE_MUTANT").ok());
    ACTIVE.as_deref() == Some(name)
}

/// Returns whether the mutant is active for this call; an active one applies to every fifth call.
pub fn active_every_fifth_time(name: &str) -> bool {
    static CALLS: AtomicU32 = AtomicU32::new(1);
    active(name) && CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(5)
}

/// Blocks for 20 ms if the mutant is active, so that a kill is likely to expose its effect.
pub fn pause_for_kill(name: &str) {
    if active(name) {
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Returns the system prompt, which the mutant `bust_cache` changes each time.
pub fn bust_prompt_cache(system: &str) -> Cow<'_, str> {
    static TIMES: AtomicU64 = AtomicU64::new(0);
    if !active("bust_cache") {
        return system.into();
    }
    let times = TIMES.fetch_add(1, Ordering::Relaxed);
    format!("{system} It is {times} o'clock.").into()
}

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
