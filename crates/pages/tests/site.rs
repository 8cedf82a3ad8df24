//! A site over HTTP, as a browser gets it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::Read as _;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use flate2::read::GzDecoder;
use http_body_util::BodyExt as _;
use pages::{CONSOLE, SITES};
use pretty_assertions::assert_eq;
use tower::ServiceExt as _;

async fn send(method: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let router = pages::routes().with_state::<()>(());
    let response = Router::oneshot(router, request.body(Body::empty()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    (head.status, head.headers, body.collect().await.unwrap().to_bytes().to_vec())
}

async fn get(path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
    send("GET", path, headers).await
}

fn asset_path(path: &str) -> String {
    format!("/console/{}/{path}", CONSOLE.hash)
}

fn decompressed(body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    GzDecoder::new(body).read_to_end(&mut content).unwrap();
    content
}

/// The addresses of all pages.
fn all_pages() -> Vec<String> {
    let pages =
        SITES.iter().flat_map(|site| site.pages.iter().map(|page| format!("/{}/{}", site.mount, page.path)));
    SITES.iter().map(|site| format!("/{}", site.mount)).chain(pages).collect()
}

#[tokio::test]
async fn each_page_is_asked_for_each_time_and_has_a_strict_policy() {
    let pages = all_pages();
    assert!(pages.len() > 70, "{pages:?}");
    for page in pages {
        assert_strict(&page).await;
    }
}

async fn assert_strict(path: &str) {
    let (status, headers, body) = get(path, &[]).await;
    assert_eq!(
        (status, headers["content-type"].to_str().unwrap()),
        (StatusCode::OK, "text/html; charset=utf-8")
    );
    assert_eq!(headers["cache-control"], "no-cache");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert!(!headers.contains_key("set-cookie"));
    let policy = headers["content-security-policy"].to_str().unwrap();
    let rules: Vec<&str> = policy.split(';').map(str::trim).collect();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ] {
        assert!(rules.contains(&rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    let page = String::from_utf8(body).unwrap();
    for active in ["<script>", " onload=", " onclick=", " style=", "<style", "<iframe", "src=\"http"] {
        assert!(!page.contains(active), "{path}: {active}");
    }
    for placeholder in ["{assets}", "{title}", "{content}", "{nav}"] {
        assert!(!page.contains(placeholder), "{path}: {placeholder}");
    }
}

/// The addresses that a page names, relative to the page's.
fn named(page: &str) -> Vec<String> {
    let quoted = ["href=\"", "src=\""].into_iter().flat_map(|mark| page.split(mark).skip(1));
    let address = |rest: &str| rest.split('"').next().unwrap().replace("&amp;", "&");
    quoted
        .map(address)
        .filter(|address| !address.contains("://") && !address.starts_with("mailto:"))
        .collect()
}

/// The path to which an address on a page leads, and the name after `#`.
fn followed(page: &str, address: &str) -> (String, Option<String>) {
    let (path, anchor) = match address.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (address, None),
    };
    if path.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut names: Vec<&str> = page.split('/').filter(|name| !name.is_empty()).collect();
    names.pop();
    for name in path.split('/') {
        if name == ".." {
            assert!(names.pop().is_some(), "{page}: {address}");
        } else {
            names.push(name);
        }
    }
    (format!("/{}", names.join("/")), anchor)
}

#[tokio::test]
async fn every_link_of_every_page_leads_somewhere() {
    let (mut checked, mut seen) = (0, BTreeMap::new());
    for page in all_pages() {
        let (_, _, text) = get(&page, &[]).await;
        for address in named(&String::from_utf8(text).unwrap()) {
            let (path, anchor) = followed(&page, &address);
            if !seen.contains_key(&path) {
                let (status, headers, target) = get(&path, &[]).await;
                assert_eq!(status, StatusCode::OK, "{page} has a link to {address}");
                let is_page = headers["content-type"] == "text/html; charset=utf-8";
                let kept = if is_page { "no-cache" } else { "public, max-age=31536000, immutable" };
                assert_eq!(headers["cache-control"], kept, "{path}");
                seen.insert(path.clone(), String::from_utf8_lossy(&target).into_owned());
            }
            if let Some(anchor) = anchor {
                let id = format!("id=\"{anchor}\"");
                assert!(seen[&path].contains(&id), "{page} has a link to {address}");
            }
            checked += 1;
        }
    }
    assert!(checked > 2_000, "{checked}");
}

/// A module that is not there would be noticed only by whoever comes to the page that imports it.
#[test]
fn everything_that_a_module_imports_is_there() {
    for site in SITES {
        for asset in site.assets.iter().filter(|asset| asset.content_type.starts_with("text/javascript")) {
            let text = String::from_utf8(asset.content().unwrap()).unwrap();
            let folder = asset.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            for mark in ["from \"", "from\"", "import(\""] {
                for imported in text.split(mark).skip(1).filter_map(|rest| rest.split('"').next()) {
                    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
                    for name in imported.split('/') {
                        match name {
                            "." => {}
                            ".." => assert!(names.pop().is_some(), "{imported}"),
                            name => names.push(name),
                        }
                    }
                    assert!(site.asset(&names.join("/")).is_some(), "{} imports {imported}", asset.path);
                }
            }
        }
    }
}

#[tokio::test]
async fn an_index_that_is_known_is_not_sent_again() {
    let (_, headers, _) = get("/console", &[]).await;
    let etag = headers["etag"].to_str().unwrap();
    for known in [etag.to_owned(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
        let (status, headers, body) = get("/console", &[("if-none-match", &known)]).await;
        assert_eq!(
            (status, body.len(), headers["etag"].to_str().unwrap()),
            (StatusCode::NOT_MODIFIED, 0, etag)
        );
        assert!(headers.contains_key("content-security-policy"));
    }
    let (status, _, _) = get("/console", &[("if-none-match", "\"other\"")]).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_file_is_compressed_for_whoever_accepts_that() {
    let path = asset_path("app.js");
    let (_, plain_headers, plain) = get(&path, &[]).await;
    assert!(!plain_headers.contains_key("content-encoding"));
    assert_eq!(plain, CONSOLE.asset("app.js").unwrap().content().unwrap());
    for accepted in ["gzip", "br, GZIP;q=0.5", "*", "deflate;q=0, x-gzip"] {
        let (_, headers, body) = get(&path, &[("accept-encoding", accepted)]).await;
        assert_eq!(
            (headers["content-encoding"].to_str().unwrap(), headers["vary"].to_str().unwrap()),
            ("gzip", "accept-encoding")
        );
        assert!(body.len() < plain.len());
        assert_eq!(decompressed(&body), plain);
    }
    for refused in ["", "identity", "br", "gzip;q=0", "gzip; q=0.0, *", "*;q=0", "gzip;q=x"] {
        let (_, headers, body) = get(&path, &[("accept-encoding", refused)]).await;
        assert!(!headers.contains_key("content-encoding"), "{refused}");
        assert_eq!(body, plain, "{refused}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_404_in_the_envelope() {
    let wrong_hash = format!("/console/{}/app.js", "0".repeat(16));
    let no_page = "/docs/nothing".to_owned();
    let inside =
        [asset_path("nothing.js"), asset_path("../app.js"), asset_path("index.html"), wrong_hash, no_page];
    for path in inside {
        let (status, headers, body) = get(&path, &[]).await;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (status, body["error"]["code"].as_str().unwrap()),
            (StatusCode::NOT_FOUND, "NOT_FOUND"),
            "{path}"
        );
        assert!(!headers.contains_key("cache-control"), "{path}");
    }
}

#[tokio::test]
async fn a_slash_too_many_is_taken_away() {
    let (status, headers, _) = get("/console/", &[]).await;
    assert_eq!(
        (status, headers["location"].to_str().unwrap()),
        (StatusCode::PERMANENT_REDIRECT, "../console")
    );
}

#[tokio::test]
async fn a_browser_that_comes_back_from_an_authorization_server_gets_to_the_page() {
    let (status, headers, _) = get("/console/assets/oauth/callback?code=a%26b&state=c", &[]).await;
    assert_eq!(
        (status, headers["location"].to_str().unwrap(), headers["cache-control"].to_str().unwrap()),
        (StatusCode::SEE_OTHER, "../../../console#/authorized?code=a%26b&state=c", "no-store")
    );
}

#[tokio::test]
async fn a_head_is_a_get_without_its_body() {
    for path in ["/console".to_owned(), "/docs/memory".to_owned(), asset_path("app.js")] {
        let (get_status, get_headers, _) = get(&path, &[]).await;
        let (status, headers, body) = send("HEAD", &path, &[]).await;
        assert_eq!(
            (status, headers["content-type"].clone()),
            (get_status, get_headers["content-type"].clone())
        );
        assert_eq!(body.len(), 0);
    }
    let (status, _, _) = send("POST", "/console", &[]).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
#[expect(clippy::print_stdout, reason = "the sizes are printed for runs with --nocapture")]
fn sites_are_small() {
    let mut total = 0;
    for site in SITES {
        let files = site.pages.iter().chain(site.assets).chain([&site.index]);
        let bytes: usize = files.map(|asset| asset.gzip.len()).sum();
        println!("/{} has {bytes} bytes", site.mount);
        total += bytes;
    }
    assert!(total < 3 * 1024 * 1024, "{total} bytes");
}
