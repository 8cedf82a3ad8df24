//! Routes a server's elicitation to the call during which the server asks it.

use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationCapability, ErrorData, FormElicitationCapability, Implementation, ProtocolVersion, RequestId,
    UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext, RoleClient};
use tokio::sync::{Notify, mpsc, oneshot};

/// How many questions of one call may be queued; further ones are declined.
const MAX_QUEUED_ELICITATIONS: usize = 4;

/// A server's elicitation, and where the answer goes.
pub(super) struct ElicitationRequest {
    pub(super) params: ElicitRequestParams,
    pub(super) answer: oneshot::Sender<ElicitResult>,
}

/// The calls in progress, oldest first.
#[derive(Default)]
pub(super) struct ElicitationRouter {
    calls: Mutex<Vec<RegisteredCall>>,
}

/// A registered call.
struct RegisteredCall {
    sender: mpsc::Sender<ElicitationRequest>,
    /// The id of its current request at the server, once known.
    request: Option<RequestId>,
    may_elicit: bool,
    waiting_for_user: bool,
}

/// The registration of a call, which ends when this is dropped.
pub(super) struct CallRegistration {
    router: Arc<ElicitationRouter>,
    sender: mpsc::Sender<ElicitationRequest>,
}

impl ElicitationRouter {
    /// Registers a call; returns the registration and the receiver of its elicitations. If nobody may be asked,
    /// all elicitations are declined.
    pub(super) fn register(
        self: &Arc<Self>,
        may_elicit: bool,
    ) -> (CallRegistration, mpsc::Receiver<ElicitationRequest>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_ELICITATIONS);
        self.calls.lock().push(RegisteredCall {
            sender: sender.clone(),
            request: None,
            may_elicit,
            waiting_for_user: false,
        });
        (CallRegistration { router: Arc::clone(self), sender }, receiver)
    }

    /// Hands a question to the call with the request `origin`; if the origin is unknown, to the newest call that
    /// does not already wait for a person. Returns `None` if nobody can be asked.
    fn route(
        &self,
        params: ElicitRequestParams,
        origin: Option<&RequestId>,
    ) -> Option<oneshot::Receiver<ElicitResult>> {
        let calls = self.calls.lock();
        let known = origin.and_then(|origin| calls.iter().find(|call| call.request.as_ref() == Some(origin)));
        let call = known.or_else(|| calls.iter().rev().find(|call| !call.waiting_for_user))?;
        if !call.may_elicit {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        call.sender.try_send(ElicitationRequest { params, answer }).ok()?;
        Some(answered)
    }
}

impl CallRegistration {
    /// Sets the id of the call's current request at the server.
    pub(super) fn set_request(&self, id: &RequestId) {
        self.update(|call| call.request = Some(id.clone()));
    }

    /// Records whether the call waits for a person.
    pub(super) fn set_waiting_for_user(&self, waiting: bool) {
        self.update(|call| call.waiting_for_user = waiting);
    }

    fn update(&self, change: impl FnOnce(&mut RegisteredCall)) {
        if let Some(call) =
            self.router.calls.lock().iter_mut().find(|call| call.sender.same_channel(&self.sender))
        {
            change(call);
        }
    }
}

impl Drop for CallRegistration {
    fn drop(&mut self) {
        self.router.calls.lock().retain(|call| !call.sender.same_channel(&self.sender));
    }
}

/// Answers the server's requests to the client. It offers neither sampling nor roots.
pub(super) struct SessionHandler {
    pub(super) router: Arc<ElicitationRouter>,
    /// Notified when the server reports that its tools have changed.
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
