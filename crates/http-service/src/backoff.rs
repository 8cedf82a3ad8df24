//! Delays between repeated attempts: each is twice as long as the one before, up to a bound, and varies by a fifth,
//! so that those who failed together do not return together.

use std::time::Duration;

/// Returns the delay after `retries` earlier ones. `jitter` is from 0 to 1, see [`jitter`].
pub fn delay(base: Duration, max: Duration, retries: u32, jitter: f64) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(retries.min(31)));
    doubled.min(max).mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0))
}

/// Returns a random number from 0 to 1. Without randomness all return together, which is no reason to fail.
pub fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
