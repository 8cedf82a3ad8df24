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
const MAX_QUEUED_ELICITATIONS: usize = 4;

/// Something that a server asks, and where the answer goes.
pub(super) struct ElicitationRequest {
    pub(super) params: ElicitRequestParams,
    pub(super) answer: oneshot::Sender<ElicitResult>,
}

/// The calls under way, the oldest first.
#[derive(Default)]
pub(super) struct ElicitationRouter {
    calls: Mutex<Vec<RegisteredCall>>,
}

/// What the desk knows of a call.
struct RegisteredCall {
    sender: mpsc::Sender<ElicitationRequest>,
    /// The request that it is at the server now, once that is known.
    request: Option<RequestId>,
    may_elicit: bool,
    waiting_for_user: bool,
}

/// A call's place at the desk, which it leaves when this is dropped.
pub(super) struct CallRegistration {
    router: Arc<ElicitationRouter>,
    sender: mpsc::Sender<ElicitationRequest>,
}

impl ElicitationRouter {
    /// Gives a call a place, and what it is asked. Where nobody may be asked all is declined.
    pub(super) fn register(
        self: &Arc<Self>,
        may_elicit: bool,
    ) -> (CallRegistration, mpsc::Receiver<ElicitationRequest>) {
        let (asked, asks) = mpsc::channel(MAX_QUEUED_ELICITATIONS);
        self.calls().push(RegisteredCall {
            sender: asked.clone(),
            request: None,
            may_elicit,
            waiting_for_user: false,
        });
        (CallRegistration { router: Arc::clone(self), sender: asked }, asks)
    }

    /// Hands a question to the call that belongs to the request `origin`; where that is not known, to the newest one
    /// that does not wait for a person already. None where nobody can be asked.
    fn route(
        &self,
        params: ElicitRequestParams,
        origin: Option<&RequestId>,
    ) -> Option<oneshot::Receiver<ElicitResult>> {
        let places = self.calls();
        let known =
            origin.and_then(|origin| places.iter().find(|place| place.request.as_ref() == Some(origin)));
        let place = known.or_else(|| places.iter().rev().find(|place| !place.waiting_for_user))?;
        if !place.may_elicit {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        place.sender.try_send(ElicitationRequest { params, answer }).ok()?;
        Some(answered)
    }

    fn calls(&self) -> MutexGuard<'_, Vec<RegisteredCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallRegistration {
    /// The call is this request at the server.
    pub(super) fn set_request(&self, id: &RequestId) {
        self.update(|place| place.request = Some(id.clone()));
    }

    /// The call waits for a person, or does so no more.
    pub(super) fn set_waiting_for_user(&self, is_parked: bool) {
        self.update(|place| place.waiting_for_user = is_parked);
    }

    fn update(&self, change: impl FnOnce(&mut RegisteredCall)) {
        if let Some(place) =
            self.router.calls().iter_mut().find(|place| place.sender.same_channel(&self.sender))
        {
            change(place);
        }
    }
}

impl Drop for CallRegistration {
    fn drop(&mut self) {
        self.router.calls().retain(|place| !place.sender.same_channel(&self.sender));
    }
}

/// What a client answers its server. It samples nothing, and names no roots.
pub(super) struct SessionHandler {
    pub(super) router: Arc<ElicitationRouter>,
    /// Told when the server says that it has other tools.
    pub(super) tools_changed: Arc<Notify>,
}

impl ClientHandler for SessionHandler {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let origin = match context.extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id),
            _ => None,
        };
        let Some(answer) = self.router.route(request, origin) else {
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
