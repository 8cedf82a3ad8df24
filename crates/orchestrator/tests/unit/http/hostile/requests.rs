//! Strategies for requests. Every part of a request may be unusual, but at most one is broken.

use api::ErrorCode;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::bodies::body;
use super::paths::{PRODUCT, path, query};
use crate::testing::ApiOperation;

/// The broken part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    Key,
    Method,
    Path,
    Query,
    Body,
}

#[derive(Clone, Debug)]
pub(super) enum Key {
    Right,
    Wrong(Vec<u8>),
    Missing,
}

/// The keys of a deployment, and the product whose policy is replaced.
pub(super) struct Deployment {
    pub(super) platform_key: String,
    pub(super) admin_key: &'static str,
    pub(super) product_id: String,
}

#[derive(Clone)]
pub(super) struct HostileRequest {
    /// The operation that the request targets.
    pub(super) operation: &'static ApiOperation,
    pub(super) method: &'static str,
    pub(super) target: String,
    pub(super) key: Key,
    pub(super) headers: Vec<(&'static str, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

/// Abbreviates bodies, paths and header values, which may be long.
impl std::fmt::Debug for HostileRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let abbreviate = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
        write!(f, "{} {} ({} bytes)", self.method, abbreviate(self.target.as_bytes()), self.target.len())?;
        write!(f, ", key {:?}, headers", self.key)?;
        for (name, value) in &self.headers {
            write!(f, " {name}: {};", abbreviate(value))?;
        }
        write!(f, " body of {} bytes: {}", self.body.len(), abbreviate(&self.body))
    }
}

impl HostileRequest {
    /// Returns all headers, including the key.
    pub(super) fn headers(&self, deployment: &Deployment) -> Vec<(&'static str, Vec<u8>)> {
        let mut headers = self.headers.clone();
        let (name, valid_key) = if self.operation.invalid_key_code == Some(ErrorCode::InvalidAdminKey) {
            ("x-admin-key", deployment.admin_key)
        } else {
            ("x-platform-key", deployment.platform_key.as_str())
        };
        match &self.key {
            Key::Right => headers.push((name, valid_key.as_bytes().to_vec())),
            Key::Wrong(bytes) => headers.push((name, bytes.clone())),
            Key::Missing => {}
        }
        headers
    }

    /// Returns the path and query.
    pub(super) fn target(&self, deployment: &Deployment) -> String {
        self.target.replace(PRODUCT, &deployment.product_id)
    }

    pub(super) fn request(&self, deployment: &Deployment) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.target(deployment));
        for (name, value) in self.headers(deployment) {
            request = request.header(HeaderName::from_static(name), HeaderValue::from_bytes(&value).unwrap());
        }
        request.body(Body::from(self.body.clone())).unwrap()
    }
}

/// Where another method would refuse what the other requests are for.
pub(super) const REFUSES_OTHERS: [&str; 2] = ["/fleet/drain", "/fleet/maintenance"];

/// A strategy for requests to `operation`.
pub(super) fn request_for(operation: &'static ApiOperation) -> BoxedStrategy<HostileRequest> {
    let broken = prop_oneof![
        62 => Just(Broken::Nothing),
        6 => Just(Broken::Key),
        5 => Just(Broken::Method),
        9 => Just(Broken::Path),
        9 => Just(Broken::Query),
        9 => Just(Broken::Body),
    ];
    broken.prop_flat_map(move |broken| request_with(operation, broken)).boxed()
}

fn request_with(operation: &'static ApiOperation, broken: Broken) -> impl Strategy<Value = HostileRequest> {
    let route = operation.path.as_str();
    let path = path(route, broken != Broken::Path);
    let query = prop::option::of(query(route, broken != Broken::Query));
    let target = (path, query).prop_map(|(path, query)| match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    });
    let method = if broken == Broken::Method && REFUSES_OTHERS.contains(&route) {
        select(&["HEAD", "PATCH", "OPTIONS", "TRACE", "BREW", "get", "M-SEARCH"][..]).boxed()
    } else if broken == Broken::Method {
        select(
            &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get", "M-SEARCH"]
                [..],
        )
        .boxed()
    } else {
        Just(operation.method.as_str()).boxed()
    };
    let key = if broken == Broken::Key {
        prop_oneof![1 => Just(Key::Missing), 3 => header_value().prop_map(Key::Wrong)].boxed()
    } else {
        Just(Key::Right).boxed()
    };
    (method, target, key, headers(route, broken), body(route, broken != Broken::Body)).prop_map(
        move |(method, target, key, headers, body)| HostileRequest {
            operation,
            method,
            target,
            key,
            headers,
            body,
        },
    )
}

/// Bytes that are allowed in a header value.
fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => 0x20..0x7f_u8, 1 => 0x80..=0xff_u8, 1 => Just(b'\t')];
    prop_oneof![9 => prop::collection::vec(byte, 0..60), 1 => Just(vec![b'x'; 8_000])]
}

fn headers(route: &str, broken: Broken) -> BoxedStrategy<Vec<(&'static str, Vec<u8>)>> {
    let unusual: &[(&'static str, &[u8])] = &[
        ("x-request-id", b"a"),
        ("x-request-id", b"\xff\xfe"),
        ("x-request-id", b"a b\tc"),
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("traceparent", b"00-00000000000000000000000000000000-0000000000000000-00"),
        ("traceparent", b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x"),
        ("traceparent", b""),
        ("content-type", b"text/plain; charset=\xff"),
        ("content-type", b"multipart/form-data"),
        ("content-length", b"-1"),
        ("content-length", b"99999999999999999999"),
        ("transfer-encoding", b"chunked, gzip"),
        ("accept-encoding", b"gzip;q=NaN, *;q=9"),
        ("accept", b"text/event-stream, \xff"),
        ("expect", b"something"),
        ("connection", b"x-platform-key, \xff, close"),
        ("upgrade", b"websocket"),
        ("host", b"a:b:c/\xff"),
        ("cookie", b"a=b; a=c"),
        ("if-none-match", b"*"),
        ("range", b"bytes=9-1"),
    ];
    let unusual: Vec<_> = unusual.iter().map(|(name, value)| (*name, value.to_vec())).collect();
    let random =
        (select(&["x-request-id", "traceparent", "content-type", "x-engine-key"][..]), header_value());
    let has_position = matches!(route, "/events" | "/fleet/events") && broken == Broken::Query;
    let last_event_id = prop::collection::vec(
        header_value().prop_map(|value| ("last-event-id", value)),
        usize::from(has_position),
    );
    (subsequence(unusual, 0..=8), random, last_event_id)
        .prop_map(|(unusual, random, last)| [unusual, vec![random], last].concat())
        .prop_shuffle()
        .boxed()
}
