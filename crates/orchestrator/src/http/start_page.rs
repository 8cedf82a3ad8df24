//! The page at `/`, for a person who opens the orchestrator's address in a browser. It needs no key, and says nothing
//! that the OpenAPI document does not say.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::Html;
use axum::routing::{MethodRouter, get};

use super::AppState;
use super::auth::Ready;
use crate::config::VERSION;

/// The path of the page.
pub(super) const START_PAGE_PATH: &str = "/";
/// The page, in which `{version}` stands for the version.
const PAGE: &str = include_str!("start_page.html");
/// Nothing is loaded, run, framed or sent; the hash is that of the page's own style sheet.
const POLICY: &str = "default-src 'none'; style-src 'sha256-usQotYd6pnOK//l+XXwCiGuUHJMe1HmYGpIpi/E5HZY='; \
                                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the route that serves the page.
pub(super) fn serve() -> MethodRouter<AppState> {
    let page = PAGE.replace("{version}", VERSION);
    let headers = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    get(move |_: Ready| std::future::ready((headers.clone(), Html(page.clone()))))
}
