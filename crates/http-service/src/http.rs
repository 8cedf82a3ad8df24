//! HTTP conventions of both services: every error has the same envelope, and every request has an id.

mod bearer;
pub mod cors;
mod error;
mod extract;
mod known_fields;
mod layers;
pub mod openapi;
mod routes;
mod serde_errors;
mod traced;
mod unknown_fields;

pub use bearer::{browser_token, refusal_code};
pub use error::{ApiError, BodyTimeout, is_body_timeout};
pub use extract::{
    BodyAdmission, Json, LenientJson, Path, Query, buffer_body, parse_fields, read_admitted_body,
};
pub(crate) use layers::with_request_id;
pub use layers::{
    ClientAddress, LayerOptions, apply_layers, apply_layers_counting_errors, apply_layers_with,
};
#[doc(hidden)]
pub use routes::described;
pub use traced::{end_with_body, note_engine, note_product, set_status};
pub use unknown_fields::{
    ResponseWarnings, UnknownFields, WARNING_HEADER, parse_json_noting_unknown, parse_json_refusing_unknown,
};
#[doc(hidden)]
pub use utoipa_axum::paste;
