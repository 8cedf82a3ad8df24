//! Web pages: which addresses may be fetched, how they are fetched, and how a response is presented to the model.

mod allowlist;
mod charset;
mod client;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/unit/fixture.rs"]
pub mod fixture;
mod html;
mod ip_ranges;
mod markdown;
mod target;

pub use allowlist::WebAllowlist;
pub use charset::decode;
#[cfg(any(test, feature = "testing"))]
pub use client::FetchLimits;
pub use client::{BodyError, read_large_body};
pub use client::{Page, WebClient, media_type};
pub use client::{error_chain, read_body};
pub use html::{Document, read_html};
pub use ip_ranges::special_purpose;
pub use target::Target;
