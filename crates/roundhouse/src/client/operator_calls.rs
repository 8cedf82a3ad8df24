//! The requests of the commands for operators and developers, whose responses are shown or passed on as they are.

use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use futures::{Stream, StreamExt as _};
use reqwest::{Body, Method, RequestBuilder, Response, Url};
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use super::{ClientError, Document, Engine, Orchestrator, send, send_within};

/// How long a stream of audit rows may be silent. Its service sends a comment every 15 seconds.
const MAX_SILENCE: Duration = Duration::from_secs(45);

/// The longest time until the response to an upload begins: a large document is checked and applied first.
const UPLOAD_TIMEOUT: Duration = Duration::from_hours(1);

/// Audit rows as they are committed.
type AuditStream = Pin<Box<dyn Stream<Item = anyhow::Result<Sse>> + Send>>;

/// A request to one of the services.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a [&'a str],
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<&'a Value>,
}

impl<'a> Call<'a> {
    pub(crate) const fn new(method: Method, path: &'a [&'a str]) -> Self {
        Self { method, path, query: Vec::new(), body: None }
    }

    pub(crate) const fn get(path: &'a [&'a str]) -> Self {
        Self::new(Method::GET, path)
    }

    /// Adds a parameter if it has a value.
    pub(crate) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    pub(crate) const fn json(mut self, body: &'a Value) -> Self {
        self.body = Some(body);
        self
    }

    fn add_query(&self, url: &mut Url) {
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
    }
}

impl Orchestrator {
    /// The address, as it may be shown: without credentials.
    pub(crate) fn address(&self) -> String {
        let mut shown = self.base.clone();
        // An address that cannot have credentials has none.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.to_string()
    }

    /// Where the key is from.
    pub(crate) fn key_origin(&self) -> &str {
        &self.credential.origin
    }

    /// Sends a request and returns the document of the response.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Document, ClientError> {
        let mut url = self.url(call.path)?;
        call.add_query(&mut url);
        let request = self.authorized(self.http.request(call.method.clone(), url));
        Ok(Document::read(send(with_body(request, call)).await?).await?)
    }

    /// Streams the audit rows after the one with this id; by default only new ones.
    pub(crate) async fn audit_stream(
        &self,
        path: &[&str],
        after: Option<&str>,
    ) -> Result<AuditStream, ClientError> {
        let mut request = self.authorized(self.http.get(self.url(path)?));
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let bytes = send(request).await?.bytes_stream();
        // Silence is measured on bytes, because comments do not arrive as messages.
        let bytes = futures::stream::unfold(Some(Box::pin(bytes)), async |bytes| {
            let mut bytes = bytes?;
            match tokio::time::timeout(MAX_SILENCE, bytes.next()).await {
                Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(bytes))),
                Ok(Some(Err(error))) => Some((Err(std::io::Error::other(error)), None)),
                Ok(None) => None,
                Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
            }
        });
        let messages = SseStream::from_bytes_stream(Box::pin(bytes));
        Ok(Box::pin(messages.map(|message| message.context("the stream was interrupted"))))
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        request.headers(self.credential.headers.clone())
    }
}

impl Engine {
    /// Sends a request and returns the document of the response.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Document, ClientError> {
        Ok(Document::read(self.open(call).await?).await?)
    }

    /// Sends a request whose response is read by the caller.
    pub(crate) async fn open(&self, call: &Call<'_>) -> Result<Response, ClientError> {
        let mut url = self.url_with(call.path, &[])?;
        call.add_query(&mut url);
        self.send(with_body(self.http.request(call.method.clone(), url), call)).await
    }

    /// Sends a document of any size.
    pub(crate) async fn upload(&self, call: &Call<'_>, document: Body) -> Result<Document, ClientError> {
        let mut url = self.url_with(call.path, &[])?;
        call.add_query(&mut url);
        let request = self.http.request(call.method.clone(), url).headers(self.keys.clone());
        let request = request.header("content-type", "application/json").body(document);
        let response = send_within(UPLOAD_TIMEOUT, request, || super::NO_ORCHESTRATOR.to_owned()).await?;
        Ok(Document::read(response).await?)
    }
}

fn with_body(request: RequestBuilder, call: &Call<'_>) -> RequestBuilder {
    match call.body {
        Some(body) => request.json(body),
        None => request,
    }
}
