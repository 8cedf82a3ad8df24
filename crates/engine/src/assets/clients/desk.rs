//! The desk: where a server that asks something is brought together with the call in whose course it asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationCapability, ErrorData, FormElicitationCapability, Implementation, ProtocolVersion, RequestId,
    UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext, RoleClient};
use tokio::sync::{Notify, mpsc, oneshot};

/// How many questions of one call may wait for each other; more are declined.
const MAX_WAITING: usize = 4;

/// Something that a server asks, and where the answer goes.
pub(super) struct Asked {
    pub(super) params: ElicitRequestParams,
    pub(super) answer: oneshot::Sender<ElicitResult>,
}

/// The calls under way, the oldest first.
#[derive(Default)]
pub(super) struct Desk {
    places: Mutex<Vec<Place>>,
}

/// What the desk knows of a call.
struct Place {
    asked: mpsc::Sender<Asked>,
    /// The request that it is at the server now, once that is known.
    request: Option<RequestId>,
    may_ask: bool,
    is_parked: bool,
}

/// A call's place at the desk, which it leaves when this is dropped.
pub(super) struct Seat {
    desk: Arc<Desk>,
    asked: mpsc::Sender<Asked>,
}

impl Desk {
    /// Gives a call a place, and what it is asked. Where nobody may be asked all is declined.
    pub(super) fn take_place(self: &Arc<Self>, may_ask: bool) -> (Seat, mpsc::Receiver<Asked>) {
        let (asked, asks) = mpsc::channel(MAX_WAITING);
        self.places().push(Place { asked: asked.clone(), request: None, may_ask, is_parked: false });
        (Seat { desk: Arc::clone(self), asked }, asks)
    }

    /// Hands a question to the call that belongs to the request `origin`; where that is not known, to the newest one
    /// that does not wait for a person already. None where nobody can be asked.
    fn ask(
        &self,
        params: ElicitRequestParams,
        origin: Option<&RequestId>,
    ) -> Option<oneshot::Receiver<ElicitResult>> {
        let places = self.places();
        let known =
            origin.and_then(|origin| places.iter().find(|place| place.request.as_ref() == Some(origin)));
        let place = known.or_else(|| places.iter().rev().find(|place| !place.is_parked))?;
        if !place.may_ask {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        place.asked.try_send(Asked { params, answer }).ok()?;
        Some(answered)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The call is this request at the server.
    pub(super) fn is_request(&self, id: &RequestId) {
        self.change(|place| place.request = Some(id.clone()));
    }

    /// The call waits for a person, or does so no more.
    pub(super) fn set_parked(&self, is_parked: bool) {
        self.change(|place| place.is_parked = is_parked);
    }

    fn change(&self, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.desk.places().iter_mut().find(|place| place.asked.same_channel(&self.asked))
        {
            change(place);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.desk.places().retain(|place| !place.asked.same_channel(&self.asked));
    }
}

/// What a client answers its server. It samples nothing, and names no roots.
pub(super) struct Handler {
    pub(super) desk: Arc<Desk>,
    /// Told when the server says that it has other tools.
    pub(super) tools_changed: Arc<Notify>,
}

impl ClientHandler for Handler {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let origin = match context.extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id),
            _ => None,
        };
        let Some(answer) = self.desk.ask(request, origin) else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let cancelled = || ElicitResult::new(ElicitationAction::Cancel);
        tokio::select! {
            answer = answer => Ok(answer.unwrap_or_else(|_| cancelled())),
            () = context.ct.cancelled() => Ok(cancelled()),
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::default())
            .with_url(UrlElicitationCapability::default());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(elicitation);
        ClientConfig::new(capabilities, Implementation::new("roundhouse", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
