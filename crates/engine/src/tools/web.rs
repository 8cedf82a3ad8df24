//! Web pages: which addresses may be fetched, how they are fetched, and how a response is presented to the model.

mod allowlist;
mod charset;
mod client;
#[cfg(test)]
pub(super) mod fixture;
mod html;
mod ip_ranges;
mod markdown;
mod target;

pub use allowlist::WebAllowlist;
pub(super) use charset::decode;
#[cfg(test)]
pub(super) use client::FetchLimits;
pub(super) use client::{BodyError, read_large_body};
pub(super) use client::{Page, WebClient, media_type};
pub(crate) use client::{error_chain, read_body};
pub(super) use html::{Document, read_html};
pub(crate) use ip_ranges::special_purpose;
pub(super) use target::Target;
