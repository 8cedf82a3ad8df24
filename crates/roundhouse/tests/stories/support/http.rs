//! HTTP requests: through a client, and as raw bytes where a client would normalize them.

use std::fmt::Write as _;
use std::sync::LazyLock;

use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kubernetes::EngineNames;
use super::{assert_fields, with_deadline};

/// A complete response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The JSON body; null if the body is no JSON.
    pub(crate) body: Value,
    /// The request, for messages.
    request: String,
}

/// The tests' client. It keeps no idle connections, because one would belong to the runtime of the test that
/// opened it.
pub(crate) fn client() -> Client {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| {
        let builder = Client::builder().no_proxy().pool_max_idle_per_host(0);
        builder.dns_resolver(EngineNames).build().unwrap()
    });
    CLIENT.clone()
}

/// Sends a request and reads the response.
pub(crate) async fn send(request: RequestBuilder) -> HttpResponse {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let description = format!("{} {}", request.method(), request.url());
    let response = with_deadline(&description, client.execute(request))
        .await
        .unwrap_or_else(|e| panic!("{description}: {e:?}"));
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = with_deadline(&description, response.bytes()).await.unwrap();
    HttpResponse {
        status,
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
        request: description,
    }
}

/// Sends a request exactly as given. `head` is the request line without its version.
pub(crate) async fn send_raw(base: &str, head: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
    let description = format!("{head} {headers:?}");
    with_deadline(&description, exchange(base, head, headers, body)).await
}

async fn exchange(base: &str, head: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
    let address = base.strip_prefix("http://").unwrap();
    let mut request = format!("{head} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    let _ = write!(request, "content-length: {}\r\n\r\n", body.len());
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let request = [request.as_bytes(), body].concat();
    // A server may respond and close before it has read everything, so write errors do not matter.
    let writing = tokio::spawn(async move {
        let _ = writer.write_all(&request).await;
        writer
    });
    let mut response = Vec::new();
    let _ = reader.read_to_end(&mut response).await;
    writing.abort();
    parse_response(head, &response)
}

fn parse_response(request: &str, response: &[u8]) -> HttpResponse {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end =
        end.unwrap_or_else(|| panic!("{request}: not a response: {:?}", String::from_utf8_lossy(response)));
    let head = std::str::from_utf8(&response[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(name.parse::<reqwest::header::HeaderName>().unwrap(), value.parse().unwrap());
    }
    let body = serde_json::from_slice(&response[end + 4..]).unwrap_or_default();
    HttpResponse { status, headers, body, request: request.to_owned() }
}

impl HttpResponse {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Asserts success with exactly `fields`; returns the body.
    #[track_caller]
    pub(crate) fn assert_ok(self, fields: &str) -> Value {
        assert_eq!(self.status, 200, "{}: {}", self.request, self.body);
        assert!(self.header("x-request-id").is_some(), "{}: no X-Request-Id", self.request);
        assert_fields(&self.body, fields);
        self.body
    }

    /// Asserts this status with exactly `fields` in the body.
    #[track_caller]
    pub(crate) fn assert_fields_of(&self, status: u16, fields: &str) {
        assert_eq!(self.status, status, "{}: {}", self.request, self.body);
        assert_fields(&self.body, fields);
    }

    /// Asserts an error in the flat form of `/rpc` with this status and code; returns the message.
    #[track_caller]
    pub(crate) fn assert_flat_error(&self, status: u16, code: &str) -> &str {
        let found = (self.status, self.body["error"].as_str());
        assert_eq!(found, (status, Some(code)), "{}: {}", self.request, self.body);
        assert_fields(&self.body, "error:text message:text");
        assert!(self.header("x-request-id").is_some(), "{}: no X-Request-Id", self.request);
        let message = self.body["message"].as_str().unwrap();
        assert!(!message.is_empty(), "{}: no message", self.request);
        message
    }

    /// Asserts an error in the nested envelope with this status and code; returns the message.
    #[track_caller]
    pub(crate) fn assert_error(&self, status: u16, code: &str) -> &str {
        let found = (self.status, self.body["error"]["code"].as_str());
        assert_eq!(found, (status, Some(code)), "{}: {}", self.request, self.body);
        assert_fields(&self.body, "error:object");
        assert_fields(&self.body["error"], "code:text message:text");
        assert!(self.header("x-request-id").is_some(), "{}: no X-Request-Id", self.request);
        let message = self.body["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty(), "{}: no message", self.request);
        message
    }
}

/// `text` as one path segment; every byte except ASCII letters and digits is escaped.
pub(crate) fn path_segment(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
