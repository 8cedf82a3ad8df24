//! Which encoding of a response a request accepts.

use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, HeaderName};

/// Whether a request accepts a response that gzip has compressed. One that says nothing is not asked to.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let mut any = None;
    for (name, weight) in weights(headers, &ACCEPT_ENCODING) {
        match name.as_str() {
            "gzip" | "x-gzip" => return weight > 0.0,
            "*" => any = Some(weight > 0.0),
            _ => {}
        }
    }
    any.unwrap_or(false)
}

/// The values of a header with their weights; one that cannot be read is left out.
fn weights(headers: &HeaderMap, name: &HeaderName) -> Vec<(String, f32)> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let parse = |entry: &str| {
        let mut parts = entry.split(';');
        let coding = parts.next()?.trim().to_ascii_lowercase();
        let weight = parts.find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
        });
        Some((coding, weight.unwrap_or(1.0)))
    };
    values.flat_map(|value| value.split(',').filter_map(parse)).collect()
}
