//! A site: its files, and the routes that serve them.

use std::io::Read as _;

use api::ErrorCode;
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use flate2::read::GzDecoder;
use http_service::http::ApiError;

use crate::encoding::accepts_gzip;

/// What a page may do: run and show what its own origin serves, and talk to that. No script or style can come with
/// data, nothing can be sent elsewhere, and nobody can frame it. Text is never parsed as HTML by a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
/// Features of browsers that no page uses.
const PERMISSIONS: &str = "camera=(), geolocation=(), microphone=(), payment=(), usb=()";
/// The headers of every answer of a site.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), PERMISSIONS),
];
/// For a file whose address names its content.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// A folder of pages with all that they load.
#[derive(Debug)]
pub struct Site {
    /// The first part of its address, as in `/console`.
    pub mount: &'static str,
    /// The hash of all its files, the second part of its assets' addresses.
    pub hash: &'static str,
    /// The page at its address.
    pub index: Asset,
    /// The pages below its address, sorted by path, which is one name.
    pub pages: &'static [Asset],
    /// What its pages load, sorted by path.
    pub assets: &'static [Asset],
}

/// A file of a site.
#[derive(Debug)]
pub struct Asset {
    /// Its path in the site.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// The hash of its content, in quotation marks as in the header.
    pub etag: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its content, compressed.
    pub gzip: &'static [u8],
}

impl Site {
    /// The routes' templates.
    pub fn paths(&self) -> Vec<String> {
        let mount = self.mount;
        let mut paths =
            vec![format!("/{mount}"), format!("/{mount}/"), format!("/{mount}/{{name}}/{{*path}}")];
        if !self.pages.is_empty() {
            paths.push(format!("/{mount}/{{name}}"));
        }
        paths
    }

    /// Returns the routes. They have no state and need no key, so they work whatever state the service is in.
    pub fn routes<S: Clone + Send + Sync + 'static>(&'static self) -> Router<S> {
        let mount = self.mount;
        // Without the slash: the index names its assets relative to it.
        let location = format!("../{mount}");
        let redirect = move || std::future::ready(redirect(&location));
        let index = async |headers: HeaderMap| self.index.revalidated(&headers);
        let asset = async |Path((hash, path)): Path<(String, String)>, headers: HeaderMap| {
            self.serve(&hash, &path, &headers)
        };
        let routes = Router::new()
            .route(&format!("/{mount}"), get(index))
            .route(&format!("/{mount}/"), get(redirect))
            .route(&format!("/{mount}/{{name}}/{{*path}}"), get(asset));
        if self.pages.is_empty() {
            return routes;
        }
        let page = async |Path(name): Path<String>, headers: HeaderMap| self.serve_page(&name, &headers);
        routes.route(&format!("/{mount}/{{name}}"), get(page))
    }

    /// The asset at a path.
    pub fn asset(&self, path: &str) -> Option<&'static Asset> {
        find(self.assets, path)
    }

    /// The page of a name.
    pub fn page(&self, name: &str) -> Option<&'static Asset> {
        find(self.pages, name)
    }

    fn serve_page(&'static self, name: &str, headers: &HeaderMap) -> Response {
        match self.page(name) {
            Some(page) => page.revalidated(headers),
            None => self.not_found("there is no such page"),
        }
    }

    fn serve(&'static self, hash: &str, path: &str, headers: &HeaderMap) -> Response {
        let asset = self.asset(path).filter(|_| hash == self.hash);
        let Some(asset) = asset else { return self.not_found("there is no such file") };
        let mut response = asset.response(headers);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
        response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
        secured(response)
    }

    fn not_found(&self, what: &str) -> Response {
        let message = format!("{what}; GET /{} is the page that names those of its version", self.mount);
        secured(ApiError::new(ErrorCode::NotFound, message).into_response())
    }
}

/// The file of a path in a table that is sorted by it.
fn find(files: &'static [Asset], path: &str) -> Option<&'static Asset> {
    let index = files.binary_search_by_key(&path, |asset| asset.path).ok()?;
    files.get(index)
}

impl Asset {
    /// The content, for a browser that asks each time: it is sent unless the browser has it.
    fn revalidated(&'static self, headers: &HeaderMap) -> Response {
        let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
        let is_known = known
            .flat_map(|tags| tags.split(','))
            .any(|tag| tag.trim().trim_start_matches("W/") == self.etag || tag.trim() == "*");
        let mut response =
            if is_known { StatusCode::NOT_MODIFIED.into_response() } else { self.response(headers) };
        let headers = response.headers_mut();
        headers.insert(ETAG, HeaderValue::from_static(self.etag));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        secured(response)
    }

    /// The content, compressed if the request accepts that.
    fn response(&'static self, headers: &HeaderMap) -> Response {
        let mut response = if accepts_gzip(headers) {
            let mut response = Body::from(self.gzip).into_response();
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        } else {
            match self.content() {
                Ok(content) => Body::from(content).into_response(),
                Err(error) => {
                    tracing::error!(error = %error, path = self.path, "A file of a page cannot be decompressed.");
                    return ApiError::internal().into_response();
                }
            }
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response
    }

    /// The content as it was before it was compressed.
    ///
    /// # Errors
    /// Fails only if the binary is damaged.
    pub fn content(&self) -> std::io::Result<Vec<u8>> {
        let mut content = Vec::with_capacity(self.size);
        GzDecoder::new(self.gzip).read_to_end(&mut content)?;
        Ok(content)
    }
}

pub(crate) fn redirect(location: &str) -> Response {
    let mut response = StatusCode::PERMANENT_REDIRECT.into_response();
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    secured(response)
}

fn secured(mut response: Response) -> Response {
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
