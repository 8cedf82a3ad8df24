//! The code shared by both HTTP services of Roundhouse, so that they behave alike: the accept loop and its drain,
//! the error envelope, extractors, request ids, configuration from the environment, the clock, backoff, logging,
//! and sealed secrets.
//!
//! Nothing here knows about products, engines or turns.

pub mod backoff;
pub mod clock;
pub mod env;
pub mod http;
pub mod lock;
pub mod log_filter;
pub mod logging;
pub mod rlimits;
pub mod serve;
pub mod signals;
pub mod trace_context;
pub mod trace_settings;
pub mod vault;
