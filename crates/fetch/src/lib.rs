//! Web pages: which addresses may be fetched, how they are fetched, and how a response is presented to the model.
//! The HTTP clients for tool servers are built here too.

mod allowlist;
mod api_call;
mod charset;
mod client;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/unit/fixture.rs"]
pub mod fixture;
mod html;
mod http_client;
mod ip_ranges;
mod markdown;
mod target;

pub use allowlist::WebAllowlist;
pub use api_call::{ApiClient, ApiRequest, ApiResponse, ApiServer};
pub use charset::decode;
#[cfg(any(test, feature = "testing"))]
pub use client::FetchLimits;
pub use client::read_body;
pub use client::{BodyError, BodyMemory, FetchError, read_large_body};
pub use client::{Page, Wanted, WebClient, is_text, media_type};
pub use html::{Document, read_html};
pub use http_client::{
    build_client, client_for_outsider, guarded_client, operator_client, redirects_within_origin,
};
pub use ip_ranges::special_purpose;
pub use target::{Target, TargetError};
