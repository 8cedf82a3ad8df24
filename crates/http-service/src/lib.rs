//! What both HTTP services of Roundhouse share, so that they behave alike: the accept loop and its drain,
//! the error envelope, extraction, request ids, configuration from the environment, the clock, logs, sealed
//! secrets.
//!
//! Nothing here knows what a product, an engine or a turn is.

pub mod clock;
pub mod env;
pub mod http;
mod ids;
pub mod lock;
pub mod logging;
pub mod rlimits;
pub mod serve;
pub mod signals;
pub mod trace_context;
pub mod vault;
