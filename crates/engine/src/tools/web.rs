//! Pages of the web: which addresses may be asked, how they are asked, and what a model is given of the answer.

mod address;
mod allowed;
mod charset;
mod client;
mod html;
mod markdown;
#[cfg(test)]
pub(super) mod rig;
mod target;

pub(crate) use address::special;
pub use allowed::Allowed;
pub(super) use charset::decode;
#[cfg(test)]
pub(super) use client::Limits;
pub(super) use client::{BodyError, read_large_body};
pub(super) use client::{Page, Web, media_type};
pub(crate) use client::{chain, read_body};
pub(super) use html::{Document, read_html};
pub(super) use target::Target;
