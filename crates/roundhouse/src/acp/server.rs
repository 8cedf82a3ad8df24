//! The client's requests: which there are, and what they mean for an engine.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use api::TaskId;
use api::conversations::{Conversation, ConversationMessages};
use api::engine::Role;
use api::turns::TurnRecord;
use api::{MessageId, TurnId};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::config::{Choices, model_names};
use super::history::message_updates;
use super::params::{self, ClientFeatures, ClientServers};
use super::peer::Peer;
use super::rpc::{self, Incoming, RpcError};
use super::session::{Context, Input, Session, SessionHandle, SessionStart};
use super::session_requests::CWD_METADATA;
use super::stdio::{Line, MAX_LINE_BYTES};
use super::{log, prompt};
use crate::remote::Remote;

/// The version of the protocol.
const PROTOCOL_VERSION: u16 = 1;
/// How many sessions may be open at once.
const MAX_SESSIONS: usize = 64;
/// How many requests are answered at once, not counting prompts; more of them wait.
const MAX_REQUESTS: usize = 16;
/// How long requests may take that were made before the end of the input.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(10);
/// How many conversations a page has.
const CONVERSATIONS_PER_PAGE: u32 = 50;
/// How many messages are read at once.
const MESSAGES_PER_PAGE: u32 = 200;
/// The working directory of a conversation that no client has begun.
const NO_CWD: &str = "/";

/// The agent's side of the connection.
#[derive(Clone)]
pub(super) struct Server {
    remote: Remote,
    peer: Rc<Peer>,
    servers: ClientServers,
    /// What the client can do; none before it has said so.
    features: Rc<Cell<Option<ClientFeatures>>>,
    sessions: Rc<RefCell<HashMap<TaskId, SessionHandle>>>,
}

impl Server {
    pub(super) fn new(remote: Remote, peer: Rc<Peer>, servers: ClientServers) -> Self {
        Self { remote, peer, servers, features: Rc::default(), sessions: Rc::default() }
    }

    /// Answers the client until its input ends. Turns that are running then go on in the engine.
    pub(super) async fn serve(&self, mut lines: mpsc::Receiver<Line>) {
        let mut requests = JoinSet::new();
        while let Some(line) = lines.recv().await {
            if requests.len() >= MAX_REQUESTS {
                requests.join_next().await;
            }
            while requests.try_join_next().is_some() {}
            self.take(line, &mut requests).await;
        }
        let rest = async { while requests.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_REQUESTS_TIMEOUT, rest).await.is_err() {
            log("requests were not answered before the end of the input");
        }
    }

    async fn take(&self, line: Line, requests: &mut JoinSet<()>) {
        let message = match line {
            Line::Message(bytes) => rpc::parse(&bytes),
            Line::TooLong => {
                let error = format!("a message has at most {MAX_LINE_BYTES} bytes");
                Some(Incoming::Invalid { id: Value::Null, error: RpcError::invalid_request(error) })
            }
        };
        match message {
            None => {}
            Some(Incoming::Invalid { id, error }) => self.peer.respond(&id, Err(error)).await,
            Some(Incoming::Answer { id, answer }) => self.peer.settle(&id, answer),
            Some(Incoming::Notification { method, params }) => self.handle_notification(&method, params),
            // Prompts and cancellations of a session keep their order.
            Some(Incoming::Request { id, method, params }) if method == "session/prompt" => {
                if let Err(error) = self.prompt(&id, params) {
                    self.peer.respond(&id, Err(error)).await;
                }
            }
            Some(Incoming::Request { id, method, params }) => {
                let this = self.clone();
                requests.spawn_local(async move { this.answer(&id, &method, params).await });
            }
        }
    }

    fn handle_notification(&self, method: &str, params: Value) {
        let sent = match method {
            "session/cancel" => params::parse::<params::OfSession>(params)
                .and_then(params::OfSession::task)
                .and_then(|task| self.session(&task)?.send(Input::Cancel)),
            "$/cancel_request" => params::parse(params).map(|params::CancelRequest { request_id }| {
                for session in self.sessions.borrow().values() {
                    // Sessions of other prompts, and those that have ended, have nothing to cancel.
                    let _ = session.send(Input::CancelPrompt(request_id.clone()));
                }
            }),
            // Notifications that are not known are to be ignored.
            _ => Ok(()),
        };
        if let Err(error) = sent {
            log(&format!("`{method}` has no effect: {error:?}"));
        }
    }

    /// Answers a request. What a session then does follows the response.
    async fn answer(&self, id: &Value, method: &str, params: Value) {
        match self.call(method, params).await {
            Ok((result, None)) => self.peer.respond(id, Ok(result)).await,
            Ok((result, Some(start))) => {
                // Before the response, after which the client may use it. What it sends itself comes later.
                self.open(start);
                self.peer.respond(id, Ok(result)).await;
            }
            Err(error) => self.peer.respond(id, Err(error)).await,
        }
    }

    async fn call(&self, method: &str, params: Value) -> Result<(Value, Option<SessionStart>), RpcError> {
        if method == "initialize" {
            return self.initialize(params).map(|result| (result, None));
        }
        self.features()?;
        let plain = |result: Value| Ok((result, None));
        match method {
            "session/new" => self.new_session(params).await,
            "session/load" => self.load(params, true).await,
            "session/resume" => self.load(params, false).await,
            "session/list" => plain(self.list(params).await?),
            "session/close" => plain(self.close(params)?),
            "session/delete" => plain(self.delete(params).await?),
            "session/set_config_option" => plain(self.set_config_option(params).await?),
            "authenticate" => Err(RpcError::invalid_params(
                "`methodId`: there are no methods; whoever starts this program has access",
            )),
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    fn initialize(&self, params: Value) -> Result<Value, RpcError> {
        let request: params::Initialize = params::parse(params)?;
        if self.features.get().is_some() {
            return Err(RpcError::invalid_request("the connection is initialized already"));
        }
        self.features.set(Some(request.features()));
        Ok(json!({
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "roundhouse", "title": "Roundhouse", "version": env!("CARGO_PKG_VERSION")},
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": {"image": true, "audio": true, "embeddedContext": true},
                "mcpCapabilities": {"http": false, "sse": false},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
            },
            "authMethods": [],
        }))
    }

    fn features(&self) -> Result<ClientFeatures, RpcError> {
        let missing = || RpcError::invalid_request("`initialize` comes first");
        self.features.get().ok_or_else(missing)
    }

    fn session(&self, task: &TaskId) -> Result<SessionHandle, RpcError> {
        let missing = || RpcError::not_found("the session is not open: load or resume it");
        self.sessions.borrow().get(task).cloned().ok_or_else(missing)
    }

    /// Opens a session.
    fn open(&self, start: SessionStart) {
        let context = Context {
            remote: self.remote.clone(),
            peer: Rc::clone(&self.peer),
            features: self.features.get().unwrap_or_default(),
        };
        let task = start.task.clone();
        self.detach(&task);
        self.sessions.borrow_mut().insert(task, Session::spawn(context, start));
    }

    /// Ends the session of a task, if it is open. Its turn goes on.
    fn detach(&self, task: &TaskId) {
        if let Some(session) = self.sessions.borrow_mut().remove(task) {
            // If it has ended, there is nothing to end.
            let _ = session.send(Input::Detach);
        }
    }

    fn check_room(&self, task: Option<&TaskId>) -> Result<(), RpcError> {
        let sessions = self.sessions.borrow();
        let is_open = task.is_some_and(|task| sessions.contains_key(task));
        if sessions.len() >= MAX_SESSIONS && !is_open {
            let message = format!("{MAX_SESSIONS} sessions are open: close one (`session/close`)");
            return Err(RpcError::invalid_request(message));
        }
        Ok(())
    }

    async fn new_session(&self, params: Value) -> Result<(Value, Option<SessionStart>), RpcError> {
        let cwd = params::parse::<params::Surroundings>(params)?.check(self.servers)?;
        self.check_room(None)?;
        let task = TaskId::new(format!("acp-{}", Uuid::now_v7().simple()))
            .map_err(|error| RpcError::internal(error.to_string()))?;
        let options = Choices::default().options(&self.models().await?);
        let result = json!({"sessionId": task, "configOptions": options});
        let choices = Rc::default();
        let start = SessionStart { task, new_in: Some(cwd), choices, last_ts: 0, is_running: false };
        Ok((result, Some(start)))
    }

    /// Opens a session again; with its history if it is wanted.
    async fn load(
        &self,
        params: Value,
        with_history: bool,
    ) -> Result<(Value, Option<SessionStart>), RpcError> {
        let task = params::parse::<params::OfSession>(params.clone())?.task()?;
        params::parse::<params::Surroundings>(params)?.check(self.servers)?;
        self.check_room(Some(&task))?;
        let found = self.remote.call(async |engine| engine.conversation(&task).await).await?;
        let choices = self.session(&task).map(|session| session.choices).unwrap_or_default();
        let models = self.models().await?;
        let options = choices.borrow().options(&models);
        let result = json!({"configOptions": options});
        let Some(conversation) = found else {
            // One that was opened here and has no prompt yet is not known to the engine.
            self.session(&task).map_err(|_| RpcError::not_found("there is no such session"))?;
            return Ok((result, None));
        };
        self.detach(&task);
        let running = self.remote.call(async |engine| engine.running_turn(&task).await).await?;
        if with_history {
            self.send_history(&task, running.as_ref().map(|turn| turn.turn_id)).await?;
        }
        let begun = running.as_ref().and_then(|turn: &TurnRecord| turn.started_at);
        let last_ts = begun.map_or(conversation.updated_at.unix_ms(), |begun| begun.unix_ms() - 1);
        Ok((
            result,
            Some(SessionStart { task, new_in: None, choices, last_ts, is_running: running.is_some() }),
        ))
    }

    /// Sends what was said, the oldest first, in pages. What a running turn has said comes with its events.
    async fn send_history(&self, task: &TaskId, running: Option<TurnId>) -> Result<(), RpcError> {
        let page = async |before: Option<MessageId>| {
            self.remote.call(async |engine| engine.message_page(task, MESSAGES_PER_PAGE, before).await).await
        };
        // Pages are found from the newest one on. Only where they end is kept of all but one.
        let mut ends = Vec::new();
        let mut current = page(None).await?;
        while let Some(first) = current.messages.first().filter(|_| current.has_older) {
            let end = first.message_id;
            ends.push(end);
            current = page(Some(end)).await?;
        }
        loop {
            self.send_messages(task, &current, running).await;
            if ends.pop().is_none() {
                return Ok(());
            }
            current = page(ends.last().copied()).await?;
        }
    }

    async fn send_messages(&self, task: &TaskId, page: &ConversationMessages, running: Option<TurnId>) {
        for message in &page.messages {
            let is_running = running == Some(message.turn_id) && message.role == Role::Assistant;
            if !is_running {
                self.peer.update(task.as_str(), message_updates(message)).await;
            }
        }
    }

    async fn list(&self, params: Value) -> Result<Value, RpcError> {
        let params::ListSessions { cwd, cursor } =
            params::parse(if params.is_null() { json!({}) } else { params })?;
        let cwd = cwd.map(params::absolute).transpose()?;
        let cursor = cursor.as_deref();
        let page = async |engine: std::sync::Arc<crate::client::Engine>| {
            engine.conversation_page(CONVERSATIONS_PER_PAGE, cursor).await
        };
        let (conversations, next) = self.remote.call(page).await?;
        let sessions: Vec<Value> = conversations
            .iter()
            .filter(|conversation| cwd.is_none() || cwd.as_deref() == conversation_cwd(conversation))
            .map(session_info)
            .collect();
        let mut result = json!({"sessions": sessions});
        if let (Some(next), Some(fields)) = (next, result.as_object_mut()) {
            fields.insert("nextCursor".to_owned(), json!(next));
        }
        Ok(result)
    }

    fn close(&self, params: Value) -> Result<Value, RpcError> {
        let task = params::parse::<params::OfSession>(params)?.task()?;
        self.session(&task)?;
        if let Some(session) = self.sessions.borrow_mut().remove(&task) {
            // If it has ended, there is nothing to close.
            let _ = session.send(Input::Close);
        }
        Ok(json!({}))
    }

    async fn delete(&self, params: Value) -> Result<Value, RpcError> {
        let task = params::parse::<params::OfSession>(params)?.task()?;
        if let Some(session) = self.sessions.borrow_mut().remove(&task) {
            // If it has ended, there is nothing to close.
            let _ = session.send(Input::Close);
        }
        self.remote.call(async |engine| engine.delete_task(&task).await).await?;
        Ok(json!({}))
    }

    async fn set_config_option(&self, params: Value) -> Result<Value, RpcError> {
        let params::SetConfigOption { session_id, config_id, value } = params::parse(params)?;
        let session = self.session(&params::task(session_id)?)?;
        let models = self.models().await?;
        let mut choices = session.choices.borrow_mut();
        choices.set(&config_id, &value, &models)?;
        Ok(json!({"configOptions": choices.options(&models)}))
    }

    async fn models(&self) -> Result<Vec<String>, RpcError> {
        let configuration = self.remote.call(async |engine| engine.gateway_config().await).await?;
        Ok(model_names(&configuration))
    }

    fn prompt(&self, id: &Value, params: Value) -> Result<(), RpcError> {
        self.features()?;
        let params::Prompt { session_id, prompt } = params::parse(params)?;
        let session = self.session(&params::task(session_id)?)?;
        let message = prompt::message(prompt)?;
        session.send(Input::Prompt { id: id.clone(), message })
    }
}

fn conversation_cwd(conversation: &Conversation) -> Option<&str> {
    conversation.metadata.get(CWD_METADATA).map(String::as_str)
}

fn session_info(conversation: &Conversation) -> Value {
    json!({
        "sessionId": conversation.task_id,
        "cwd": conversation_cwd(conversation).unwrap_or(NO_CWD),
        "title": conversation.title,
        "updatedAt": conversation.updated_at,
    })
}
