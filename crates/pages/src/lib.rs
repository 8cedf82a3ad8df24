//! The pages for browsers that the binary serves. They are part of it, compressed, and load nothing from elsewhere.
//!
//! A [`Site`] is pages at addresses of their own, and assets below it whose address has the hash of them all. A page is
//! asked for anew each time, which costs a few bytes while nothing has changed; an asset is kept for ever.
//!
//! Pages need no key: what they show, they ask the API for with the key that their user enters.

mod authorization;
mod encoding;
mod site;

use axum::Router;
use axum::routing::get;

pub use self::site::{Asset, Site};
pub use self::sites::{CONSOLE, DOCS};

/// All sites.
pub static SITES: [&Site; 2] = [&CONSOLE, &DOCS];

/// The templates of all routes.
pub fn paths() -> impl Iterator<Item = String> {
    SITES.iter().flat_map(|site| site.paths()).chain([authorization::CALLBACK.to_owned()])
}

/// The routes of all sites, and the one that leads back to the console.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let callback = Router::new().route(authorization::CALLBACK, get(authorization::call_back));
    SITES.iter().fold(callback, |routes, site| routes.merge(site.routes()))
}

/// The tables that the build has written.
#[expect(clippy::unreadable_literal, reason = "nobody reads a size that is generated")]
mod sites {
    use crate::site::{Asset, Site};

    include!(concat!(env!("OUT_DIR"), "/sites.rs"));
}
