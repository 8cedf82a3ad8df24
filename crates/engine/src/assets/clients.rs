//! Clients of tool servers: one per server, made when it is first needed and gone when it is idle.
//!
//! A server is not trusted: whatever it does, a call ends in time with a reason, and the next one gets a client that
//! works. Nothing that a server may have done already is asked of it again, unless it is the same twice.

mod call;
mod connecting;
mod content;
mod desk;
mod elicitation;
mod failure;
mod http;
mod http_sse;
mod line;
mod live;
#[cfg(test)]
mod rig;
mod stdio;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::CallId;
use contract::assets::ConnectionStatus;
use leash::Leash;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::access::{Access, AccessError};
use super::connections::Connections;
use super::{CONNECTING, ToolDefinition};
use crate::catalog::ServerSpec;
use crate::tools::Question;

use call::Call;
use connecting::{Made, Record};
use failure::Lost;
use live::Live;

/// The most bytes of a message of a server.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// How long a client is kept that nobody needs.
const IDLE: Duration = Duration::from_mins(5);
/// Why something fails while its connection is removed or renewed.
const ENDED: &str = "the connection was ended";

/// See the module.
#[derive(Clone)]
pub(super) struct Clients(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    leash: Option<Arc<Leash>>,
    times: Times,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// How long things may take.
#[derive(Clone, Copy)]
struct Times {
    /// That nobody needs a client.
    idle: Duration,
    /// That a server is connected.
    connecting: Duration,
}

/// A server's place among the clients.
#[derive(Default)]
struct Slot {
    /// Ends whatever is in it.
    ended: CancellationToken,
    /// Held while a client is made: who needs it too waits for that.
    record: tokio::sync::Mutex<Record>,
    live: Mutex<Option<Arc<Live>>>,
}

/// A call of a tool.
#[derive(Clone)]
pub(super) struct ToolCall<'a> {
    pub(super) id: CallId,
    /// The tool's name at the server.
    pub(super) tool: &'a str,
    pub(super) input: Value,
    /// What a person answered to what the server asked last, if it asked.
    pub(super) answer: Option<&'a str>,
    /// Whether there is a person who can be asked.
    pub(super) may_ask: bool,
    /// Whether doing it twice is as good as once.
    pub(super) idempotent: bool,
}

/// How far a call came.
#[derive(Debug)]
pub(super) enum Called {
    /// To its end: what the model is told.
    Done(String),
    /// To a question for a person. Called again with the same id and the answer, it goes on.
    Ask(Question),
}

/// Why a server did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    /// It cannot be reached, does not answer, answers nonsense, or refuses.
    #[error("{0}")]
    Failed(String),
    /// It does not take what shows it who the user is, or wants more leave.
    #[error("{0}")]
    NotLetIn(String),
    /// The tool says that it failed.
    #[error("{0}")]
    Tool(String),
    /// What shows it who the user is cannot be had.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Who wants a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The user connects the server: what there is about it is put aside.
    Connect,
    /// The agent calls a tool.
    Call,
}

impl Clients {
    pub(super) fn new(connections: Arc<Connections>, leash: Option<Arc<Leash>>) -> Self {
        Self::with(connections, leash, Times { idle: IDLE, connecting: CONNECTING })
    }

    fn with(connections: Arc<Connections>, leash: Option<Arc<Leash>>, times: Times) -> Self {
        Self(Arc::new(Inner { connections, leash, times, slots: Mutex::default() }))
    }

    /// Asks a server for its tools; a client is made where there is none.
    pub(super) async fn list_tools(
        &self,
        spec: &Arc<ServerSpec>,
        access: Access,
    ) -> Result<Vec<ToolDefinition>, ClientError> {
        loop {
            match self.client(spec, &access, Purpose::Connect).await? {
                (_, Some(tools)) => return Ok(tools),
                (live, None) => {
                    let Some(_in_use) = live.in_use() else { continue };
                    match live.list_tools().await {
                        // It may be the client's own fault: a new one shows.
                        Err(error) => live.line.end(error.to_string()),
                        listed => return listed,
                    }
                }
            }
        }
    }

    /// Calls a tool of a server. Dropped, the call is cancelled.
    pub(super) async fn call(
        &self,
        spec: &Arc<ServerSpec>,
        access: Access,
        call: ToolCall<'_>,
    ) -> Result<Called, ClientError> {
        if let Some(answer) = call.answer {
            return self.take_up(spec, access, &call, answer).await;
        }
        let mut again = true;
        loop {
            let found = self.client_for_call(spec, &access).await;
            let (live, is_new) = found.map_err(|error| named(spec, error))?;
            let Some(in_use) = live.in_use() else { continue };
            let sent = Call::send(&live, &call).await;
            let gone = match sent {
                Ok(sent) => match go_on(&live, sent, &call).await {
                    Ok(called) => return Ok(called),
                    Err(lost) => lost,
                },
                Err(lost) => lost,
            };
            drop(in_use);
            match gone {
                Lost::Unsent(reason) if again && !is_new => live.line.end(reason),
                // Not where it was disconnected meanwhile, or is another one by now.
                Lost::Unknown(_) if again && call.idempotent && self.0.connections.is_connected_to(spec) => {}
                lost => {
                    if let Lost::NotLetIn(reason) = &lost {
                        live.line.end(reason.as_str());
                    }
                    return Err(self.told(spec, &access, &call, lost).await);
                }
            }
            again = false;
        }
    }

    /// Ends the client of a server, if there is one; what it has under way fails.
    pub(super) fn forget(&self, server: &str) {
        let slot = self.slots().remove(server);
        if let Some(slot) = slot {
            slot.ended.cancel();
        }
    }

    /// The tools that the client of a server has listed are on record: from now on changes of them are.
    pub(super) fn on_record(&self, server: &str) {
        let slot = self.slots().get(server).cloned();
        if let Some(live) = slot.and_then(|slot| slot.live().clone()) {
            live.on_record.cancel();
        }
    }

    /// Gives up a call that waits for a person, if it does: it is cancelled at its server.
    pub(super) fn give_up(&self, call: CallId) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        for slot in slots {
            let live = slot.live().clone();
            drop(live.and_then(|live| live.unpark(call)));
        }
    }

    /// Ends all of them.
    pub(super) fn close(&self) {
        let slots = std::mem::take(&mut *self.slots());
        for slot in slots.into_values() {
            slot.ended.cancel();
        }
    }

    /// Goes on with a call that waited for a person's answer.
    async fn take_up(
        &self,
        spec: &Arc<ServerSpec>,
        access: Access,
        call: &ToolCall<'_>,
        answer: &str,
    ) -> Result<Called, ClientError> {
        let slot = self.slots().get(&spec.name).cloned();
        let live = slot.and_then(|slot| slot.live().clone());
        let Some((live, mut parked)) = live.and_then(|live| live.unpark(call.id).map(|call| (live, call)))
        else {
            let reason = "it waits for the answer no more".to_owned();
            return Err(self.told(spec, &access, call, Lost::Unknown(reason)).await);
        };
        let _in_use = live.in_use();
        if let Some(question) = parked.answer(&live, answer) {
            live.park(call.id, parked);
            return Ok(Called::Ask(question));
        }
        match go_on(&live, parked, call).await {
            Ok(called) => Ok(called),
            Err(lost) => Err(self.told(spec, &access, call, lost).await),
        }
    }

    /// A client for a call, and whether it is new; how the connection fares by that is taken down.
    async fn client_for_call(
        &self,
        spec: &Arc<ServerSpec>,
        access: &Access,
    ) -> Result<(Arc<Live>, bool), ClientError> {
        let connections = &self.0.connections;
        match self.client(spec, access, Purpose::Call).await {
            Ok((live, None)) => Ok((live, false)),
            Ok((live, Some(tools))) => {
                connections.recovered(spec, tools).await;
                live.on_record.cancel();
                Ok((live, true))
            }
            Err(error) => {
                match &error {
                    ClientError::Failed(reason) if reason != ENDED => {
                        connections.failed(&spec.name, ConnectionStatus::Error, reason).await;
                    }
                    ClientError::NotLetIn(reason) => {
                        connections.failed(&spec.name, access.status_if_refused(), reason).await;
                    }
                    ClientError::Failed(_) | ClientError::Tool(_) | ClientError::Access(_) => {}
                }
                Err(error)
            }
        }
    }

    /// The client of a server; with the server's tools where it was made just now.
    async fn client(
        &self,
        spec: &Arc<ServerSpec>,
        access: &Access,
        purpose: Purpose,
    ) -> Result<(Arc<Live>, Option<Vec<ToolDefinition>>), ClientError> {
        let slot = Arc::clone(self.slots().entry(spec.name.clone()).or_default());
        tokio::select! {
            biased;
            () = slot.ended.cancelled() => Err(ClientError::Failed(ENDED.into())),
            made = self.client_in(&slot, spec, access, purpose) => made,
        }
    }

    async fn client_in(
        &self,
        slot: &Arc<Slot>,
        spec: &Arc<ServerSpec>,
        access: &Access,
        purpose: Purpose,
    ) -> Result<(Arc<Live>, Option<Vec<ToolDefinition>>), ClientError> {
        let mut record = slot.record.lock().await;
        let there = slot.live().clone();
        if let Some(live) = there.filter(|live| live.serves(spec, access)) {
            return Ok((live, None));
        }
        record.may_start(purpose == Purpose::Connect).await?;
        let (leash, times) = (self.0.leash.as_deref(), self.0.times);
        // Large, and seldom run.
        let connecting = Box::pin(record.connect(spec, access, leash, &slot.ended, times.connecting));
        let connected = connecting.await;
        let Made { live, service, tools } =
            connected.inspect_err(|error| record.failed(error.to_string()))?;
        if let Some(old) = slot.live().replace(Arc::clone(&live)) {
            old.line.end("it was connected anew");
        }
        let (slot, kept) = (Arc::clone(slot), Arc::clone(&live));
        let connections = Arc::clone(&self.0.connections);
        tokio::spawn(async move {
            kept.keep(service, &connections, times.idle).await;
            slot.record.lock().await.ended(&kept);
            slot.live().take_if(|live| Arc::ptr_eq(live, &kept));
        });
        Ok((live, Some(tools)))
    }

    /// What the model is told of a call without a result.
    async fn told(&self, spec: &ServerSpec, access: &Access, call: &ToolCall<'_>, lost: Lost) -> ClientError {
        match lost {
            Lost::Refused(error) => named(spec, error),
            Lost::Unsent(reason) => {
                self.0.connections.failed(&spec.name, ConnectionStatus::Error, &reason).await;
                named(spec, ClientError::Failed(reason))
            }
            Lost::NotLetIn(reason) => {
                self.0.connections.failed(&spec.name, access.status_if_refused(), &reason).await;
                named(spec, ClientError::NotLetIn(reason))
            }
            Lost::Late(reason) | Lost::Unknown(reason) => {
                let unknown = format!(
                    "Whether `{}` took effect is not known: look before you call it again",
                    call.tool
                );
                named(spec, ClientError::Failed(format!("{reason}. {unknown}")))
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn live(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes on with a call; where it asks something it waits, and the client with it.
async fn go_on(live: &Arc<Live>, mut under_way: Call, call: &ToolCall<'_>) -> Result<Called, Lost> {
    let called = under_way.go_on(live).await?;
    if matches!(called, Called::Ask(_)) {
        live.park(call.id, under_way);
    }
    Ok(called)
}

/// Says whose failure it is.
fn named(spec: &ServerSpec, error: ClientError) -> ClientError {
    let failed = |reason: String| format!("the tool server `{}` failed: {reason}", spec.name);
    match error {
        ClientError::Failed(reason) => ClientError::Failed(failed(reason)),
        ClientError::NotLetIn(reason) => ClientError::NotLetIn(failed(reason)),
        ClientError::Tool(text) => ClientError::Tool(text),
        ClientError::Access(error) => ClientError::Access(error),
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
