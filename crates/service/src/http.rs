//! HTTP as both services speak it: every refusal in the one envelope, every request with an id.

mod error;
mod extract;
mod layers;

pub use error::ApiError;
pub use extract::{Json, Path, Query, fields};
pub use layers::{finish, finish_counting};
