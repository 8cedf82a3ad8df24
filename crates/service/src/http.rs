//! HTTP as both services speak it: every refusal in the one envelope, every request with an id.

mod error;
mod extract;
mod layers;
mod wording;

pub use error::{ApiError, Stalled, is_stalled};
pub use extract::{BodyAdmission, Json, Path, Query, admitted_body, fields, from_json};
pub(crate) use layers::identified;
pub use layers::{ClientAddress, finish, finish_counting};
