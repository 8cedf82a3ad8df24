//! An HTTP client of the orchestrator and of engines, for the interactive commands.

mod chat_calls;
mod document;
mod operator_calls;
mod session_calls;

use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use api::assets::{
    Callback, CallbackOutcome, Connect, ConnectOutcome, Connection, ConnectionList, Disconnected, Server,
    ServerList,
};
use api::cassettes::{CassetteReport, ReplayWith};
use api::engine::{ENGINE_KEY_HEADER, Execute, HitlPending, HitlRespond, PendingRequest, Replay};
use api::event::SentEvent;
use api::orchestrator::{
    ADMIN_KEY_HEADER, Admission, Admit, DenialReason, EngineRecord, PLATFORM_KEY_HEADER, PRODUCT_ID_HEADER,
};
use api::rpc::{RpcError, RpcResult};
use api::{ConnectionId, EngineId, ErrorBody, ErrorCode, PlatformKey, ProductId, TaskId, TurnId, UserId};
use futures::{Stream, StreamExt as _};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use sse_stream::SseStream;

pub(crate) use self::document::Document;
pub(crate) use self::operator_calls::Call;

/// The longest time until a response begins: a boot takes at most a minute, plus a margin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(110);

/// The longest time until a cassette has been run: as long as the engine lets it run, plus a margin.
const RUN_TIMEOUT: Duration = Duration::from_mins(11);

/// What it means that the orchestrator does not respond.
const NO_ORCHESTRATOR: &str = "the orchestrator does not answer (is `roundhouse up` running?)";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The service returned an error response.
    #[error("{message} ({code})")]
    Refused {
        /// The error code of the response.
        code: ErrorCode,
        /// The message of the response.
        message: String,
    },
    /// The service did not respond, or its response could not be understood.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// An error response that is none of a Roundhouse service: of a proxy, or of another program at its address.
#[derive(Debug, thiserror::Error)]
#[error("the response {status} is not from a Roundhouse service")]
pub(crate) struct ForeignResponse {
    pub(crate) status: StatusCode,
}

/// As whom an orchestrator is called.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    headers: HeaderMap,
    /// Where the key is from, to be named if it is refused.
    origin: String,
}

impl Credential {
    /// The product that `key` belongs to.
    pub(crate) fn product(key: &PlatformKey, origin: String) -> anyhow::Result<Self> {
        let key = secret_header(key.expose()).with_context(|| origin.clone())?;
        Ok(Self {
            headers: HeaderMap::from_iter([(HeaderName::from_static(PLATFORM_KEY_HEADER), key)]),
            origin,
        })
    }

    /// The operator, who has the admin key; on behalf of a product if one is given.
    pub(crate) fn operator(key: &str, product: Option<ProductId>, origin: String) -> anyhow::Result<Self> {
        let key = secret_header(key).with_context(|| origin.clone())?;
        let mut headers = HeaderMap::from_iter([(HeaderName::from_static(ADMIN_KEY_HEADER), key)]);
        if let Some(product) = product {
            let product = HeaderValue::try_from(product.to_string())?;
            headers.insert(HeaderName::from_static(PRODUCT_ID_HEADER), product);
        }
        Ok(Self { headers, origin })
    }
}

/// The access to an orchestrator of a product, or of the operator.
#[derive(Clone)]
pub(crate) struct Orchestrator {
    http: reqwest::Client,
    base: Url,
    credential: Credential,
    /// Whether engines are reached through it.
    is_proxy: bool,
}

impl Orchestrator {
    /// Creates a client of the orchestrator at `base`.
    pub(crate) fn new(base: Url, credential: Credential) -> anyhow::Result<Self> {
        // Engines are on this machine or in its network, and a proxy must not see their keys.
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy().build()?;
        Ok(Self { http, base, credential, is_proxy: false })
    }

    /// Reaches engines through the orchestrator's proxy.
    pub(crate) fn through_proxy(self) -> Self {
        Self { is_proxy: true, ..self }
    }

    /// Admits `user`; the engine is created or woken if needed.
    pub(crate) async fn admit(&self, user: &UserId) -> Result<Engine, ClientError> {
        let url = self.url(&["engines", user.as_str(), "admit"])?;
        let body = Admit { auto_provision: true, auto_wake: true };
        let request = self.http.post(url).headers(self.credential.headers.clone());
        let response = send(request.json(&body)).await?;
        let admission: Admission =
            response.json().await.context("the response to the admit could not be parsed")?;
        match admission {
            Admission { engine: Some(record), .. } => Ok(self.engine(user, record)?),
            Admission { reason, .. } => Err(anyhow::anyhow!(denial_message(reason)).into()),
        }
    }

    fn engine(&self, user: &UserId, record: EngineRecord) -> anyhow::Result<Engine> {
        let http = self.http.clone();
        if self.is_proxy {
            return self.proxied_engine(user);
        }
        let base = record.summary.url.context("the engine has no address")?;
        let keys = HeaderMap::from_iter([(
            HeaderName::from_static(ENGINE_KEY_HEADER),
            secret_header(record.api_key.expose())?,
        )]);
        Ok(Engine { http, base, keys, is_proxied: false })
    }

    /// Returns a client of `user`'s engine through the orchestrator's proxy. It is not asked whether there is one.
    pub(crate) fn proxied_engine(&self, user: &UserId) -> anyhow::Result<Engine> {
        let base = self.url(&["engines", user.as_str(), "proxy"])?.into();
        Ok(Engine { http: self.http.clone(), base, keys: self.credential.headers.clone(), is_proxied: true })
    }

    /// Returns the id of `user`'s engine without waking it.
    pub(crate) async fn engine_id(&self, user: &UserId) -> Result<EngineId, ClientError> {
        let url = self.url(&["engines", user.as_str()])?;
        let request = self.http.get(url).headers(self.credential.headers.clone());
        let record: EngineRecord =
            send(request).await?.json().await.context("the engine's record could not be parsed")?;
        Ok(record.summary.engine_id)
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow::anyhow!("{} cannot be an orchestrator's address", self.base))?
            .pop_if_empty()
            .extend(path);
        Ok(url)
    }
}

/// Explains why there is no engine to talk to, and what to do about it.
fn denial_message(reason: Option<DenialReason>) -> &'static str {
    match reason {
        Some(DenialReason::EngineStopped) => {
            "the engine is stopped: start it with POST /engines/{user_id}/start"
        }
        Some(DenialReason::EngineUnhealthy) => {
            "the engine has failed: see its engine.log, and start it again with POST /engines/{user_id}/start"
        }
        Some(DenialReason::EngineNotFound | DenialReason::EngineSleeping) | None => {
            "the user was not admitted"
        }
    }
}

/// A client of a user's engine.
pub(crate) struct Engine {
    http: reqwest::Client,
    base: String,
    keys: HeaderMap,
    /// Whether it is reached through the orchestrator's proxy.
    is_proxied: bool,
}

/// The events of a turn as they arrive.
pub(crate) type Events = Pin<Box<dyn Stream<Item = anyhow::Result<SentEvent>> + Send>>;

impl Engine {
    /// Sends a message. Repeating it with the same `client_request_id` does not add it twice.
    pub(crate) async fn execute(&self, message: &Execute) -> Result<Events, ClientError> {
        let request = self.http.post(format!("{}/execute", self.base)).json(message);
        Ok(event_stream(self.send(request).await?))
    }

    /// Streams the events of a task after `after`.
    pub(crate) async fn replay(&self, task_id: &TaskId, after: i64) -> Result<Events, ClientError> {
        let query = Replay { after: after.try_into().ok(), task_id: Some(task_id.clone()) };
        let query = serde_json::to_value(query).context("the query could not be serialized")?;
        let mut url = Url::parse(&format!("{}/execute/replay", self.base))
            .context("the engine's address is not a URL")?;
        for (name, value) in query.as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            url.query_pairs_mut().append_pair(name, &value);
        }
        Ok(event_stream(self.send(self.http.get(url)).await?))
    }

    /// Returns the requests that await an answer of the user, over all tasks.
    pub(crate) async fn pending(&self) -> Result<Vec<PendingRequest>, ClientError> {
        let request = self.http.get(format!("{}/hitl/pending", self.base));
        let response = self.send(request).await?;
        let HitlPending { pending } =
            response.json().await.context("the list of pending requests could not be parsed")?;
        Ok(pending)
    }

    /// Sends the user's answer to a request.
    pub(crate) async fn respond(&self, answer: &HitlRespond) -> Result<(), ClientError> {
        let request = self.http.post(format!("{}/hitl/respond", self.base)).json(answer);
        self.send(request).await.map(drop)
    }

    /// Returns the tool servers that the catalog names.
    pub(crate) async fn servers(&self) -> Result<Vec<Server>, ClientError> {
        let ServerList { servers } = self.send_json(self.http.get(self.url_of("/assets/servers"))).await?;
        Ok(servers)
    }

    /// Returns the user's connections to tool servers.
    pub(crate) async fn connections(&self) -> Result<Vec<Connection>, ClientError> {
        let ConnectionList { connections } =
            self.send_json(self.http.get(self.url_of("/assets/connections"))).await?;
        Ok(connections)
    }

    /// Connects a tool server, or returns the URL at which the user must authorize the connection.
    pub(crate) async fn connect(&self, connect: &Connect) -> Result<ConnectOutcome, ClientError> {
        self.send_json(self.http.post(self.url_of("/assets/connect")).json(connect)).await
    }

    /// Forwards the parameters with which an authorization server redirected the user's browser.
    pub(crate) async fn finish_authorization(
        &self,
        callback: &Callback,
    ) -> Result<ConnectionId, ClientError> {
        let request = self.http.post(self.url_of("/assets/callback")).json(callback);
        let CallbackOutcome { connection, .. } = self.send_json(request).await?;
        Ok(connection)
    }

    /// Removes a connection.
    pub(crate) async fn disconnect(&self, connection: ConnectionId) -> Result<(), ClientError> {
        let request = self.http.delete(self.url_of(&format!("/assets/connections/{connection}")));
        let Disconnected { .. } = self.send_json(request).await?;
        Ok(())
    }

    /// Returns the cassette of a turn.
    pub(crate) async fn export_cassette(
        &self,
        turn: TurnId,
        task: Option<&TaskId>,
    ) -> Result<Box<RawValue>, ClientError> {
        let call = json!({"method": "cassette.export", "params": {"turn_id": turn, "task_id": task}});
        let request = self.http.post(self.url_of("/rpc")).json(&call);
        let RpcResult { result } = self.send_json(request).await?;
        Ok(result)
    }

    /// Runs a cassette.
    pub(crate) async fn run_cassette(
        &self,
        cassette: &RawValue,
        with: &ReplayWith,
    ) -> Result<CassetteReport, ClientError> {
        let body = CassetteRun { cassette, with };
        let request = self.http.post(self.url_of("/cassettes/run")).json(&body);
        let response = self.send_within(RUN_TIMEOUT, request).await?;
        Ok(response.json().await.context("the report could not be parsed")?)
    }

    fn url_of(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Sends a request and parses the JSON response.
    async fn send_json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        parse(self.send(request).await?).await
    }

    /// Sends a request with the key.
    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        self.send_within(ANSWER_TIMEOUT, request).await
    }

    /// Like [`Engine::send`], with another time limit.
    async fn send_within(&self, limit: Duration, request: RequestBuilder) -> Result<Response, ClientError> {
        let request = request.headers(self.keys.clone());
        let no_response = || {
            if self.is_proxied {
                return NO_ORCHESTRATOR.to_owned();
            }
            format!(
                "the engine does not answer at {} (if that is an address inside a container, use --proxy)",
                self.base
            )
        };
        send_within(limit, request, no_response).await
    }
}

fn secret_header(key: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::from_str(key).context("the key contains invalid characters")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Body of `POST /cassettes/run`, with the cassette as it is.
#[derive(Serialize)]
struct CassetteRun<'a> {
    cassette: &'a RawValue,
    with: &'a ReplayWith,
}

/// The body of an error response: in the envelope, or in the flat form of `/rpc`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Refusal {
    Envelope(ErrorBody),
    Flat(RpcError),
}

/// Sends a request to the orchestrator.
async fn send(request: RequestBuilder) -> Result<Response, ClientError> {
    send_within(ANSWER_TIMEOUT, request, || NO_ORCHESTRATOR.to_owned()).await
}

/// Sends a request and returns a successful response; an error response becomes a [`ClientError`]. `no_response` says
/// what it means that nobody listens.
async fn send_within(
    limit: Duration,
    request: RequestBuilder,
    no_response: impl FnOnce() -> String,
) -> Result<Response, ClientError> {
    let response = tokio::time::timeout(limit, request.send())
        .await
        .context("there was no response in time")?
        .with_context(no_response)?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let body = Document::read(response).await?;
    let refusal: Refusal = body.parse().map_err(|_| anyhow::Error::new(ForeignResponse { status }))?;
    Err(match refusal {
        Refusal::Envelope(ErrorBody { error }) => {
            ClientError::Refused { code: error.code, message: error.message }
        }
        Refusal::Flat(RpcError { error: code, message }) => ClientError::Refused { code, message },
    })
}

/// Parses a JSON response.
async fn parse<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    let body = tokio::time::timeout(ANSWER_TIMEOUT, response.json()).await;
    Ok(body.context("the response was not complete in time")?.context("the response could not be parsed")?)
}

fn event_stream(response: Response) -> Events {
    let events = SseStream::from_bytes_stream(response.bytes_stream()).filter_map(|event| async {
        let event = match event {
            Ok(event) => event,
            Err(error) => return Some(Err(anyhow::Error::new(error).context("the stream was interrupted"))),
        };
        let (kind, data) = (event.event?, event.data?);
        // A later engine may send event types that this client does not know; they are skipped.
        SentEvent::from_sse(&kind, &data).ok().map(Ok)
    });
    Box::pin(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_reached_at_their_address_or_through_the_proxy() {
        let record = || -> EngineRecord {
            serde_json::from_value(json!({
                "engine_id": EngineId::new(), "user_id": "a/b", "status": "running",
                "url": "http://127.0.0.1:9001", "engine_version": "svc-engine:0.1.0",
                "created_at": "2026-11-20T13:21:17.160Z", "last_health_at": null, "api_key": "sk-svc-x",
            }))
            .unwrap()
        };
        let open =
            |credential| Orchestrator::new("http://10.0.0.1:8000".parse().unwrap(), credential).unwrap();
        let key = PlatformKey::from_text("pk-svc-x".to_owned());
        let orchestrator = || open(Credential::product(&key, String::new()).unwrap());
        let user = UserId::new("a/b".to_owned()).unwrap();
        let reached = |engine: Engine| {
            let header = |(name, value): (&HeaderName, &HeaderValue)| {
                assert!(value.is_sensitive() || name == PRODUCT_ID_HEADER);
                format!("{name}: {}", value.to_str().unwrap())
            };
            (engine.base, engine.keys.iter().map(header).collect::<Vec<_>>())
        };
        let direct = reached(orchestrator().engine(&user, record()).unwrap());
        assert_eq!(direct, ("http://127.0.0.1:9001".into(), vec!["x-engine-key: sk-svc-x".to_owned()]));
        let base = || "http://10.0.0.1:8000/engines/a%2Fb/proxy".to_owned();
        let proxied = reached(orchestrator().through_proxy().engine(&user, record()).unwrap());
        assert_eq!(proxied, (base(), vec!["x-platform-key: pk-svc-x".to_owned()]));
        let id = ProductId::new();
        let operator = open(Credential::operator("secret", Some(id), String::new()).unwrap());
        let keys = vec!["x-admin-key: secret".to_owned(), format!("x-product-id: {id}")];
        assert_eq!(reached(operator.proxied_engine(&user).unwrap()), (base(), keys));
    }
}
