//! Calls with an `Idempotency-Key`: each is executed once, and whoever makes it again gets the first one's answer.
//!
//! Whoever comes first executes the call; those who come meanwhile wait for the answer. A call is stored before it is
//! executed, and the transaction that commits its change marks it. So if it was cut off, by a kill or by a registry that
//! did not answer, the mark tells whether the change was made: then the call is answered, and otherwise it is executed
//! again. Only the orchestrator that holds the registry executes calls, so one that this process is not at was cut off.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use api::ProductId;
use futures::future::{Either, select};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::execute::Executor;
use super::products::Products;
use super::shared::Shared;
use crate::domain::idempotency::{
    CallEnd, CallId, CallState, CallStep, EngineClaim, Fingerprint, KeyHolder, MAX_UNDER_WAY_OF_CALLER,
    decide,
};
use crate::keys::{KeyError, Purpose, Vault};
use crate::registry::{CallMark, ClaimingCall, NewCall, RegistryError, StoredAnswer, StoredCall};

/// How often calls that are no longer kept are removed.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallAnswer {
    pub(crate) status: u16,
    /// A JSON document.
    pub(crate) body: Arc<str>,
    /// Of an answer that is not kept.
    pub(crate) retry_after_s: Option<u64>,
}

/// A request with an `Idempotency-Key`.
#[derive(Clone, Debug)]
pub(crate) struct KeyedRequest {
    pub(crate) call_id: CallId,
    pub(crate) holder: KeyHolder,
    pub(crate) fingerprint: Fingerprint,
    /// The product with which the call is removed.
    pub(crate) product_id: Option<ProductId>,
}

/// What to do about a request.
pub(crate) enum Begun {
    /// Execute it.
    Execute(CallPermit),
    /// It was answered like this.
    Answered(CallAnswer),
}

/// A call that is being executed, as those see it who make its change.
#[derive(Clone)]
pub(crate) struct Call {
    id: CallId,
    is_applied: bool,
    vault: Arc<Vault>,
}

impl Call {
    /// Whether its change is committed already.
    pub(super) const fn is_applied(&self) -> bool {
        self.is_applied
    }

    /// Says in the transaction that commits the change that it does.
    pub(super) fn applied(&self) -> CallMark {
        CallMark::Applied { call_id: self.id.clone(), sealed_answer: None, product_id: None }
    }

    /// The same, with the answer.
    pub(super) fn applied_with<T: Serialize>(&self, answer: &T) -> Result<CallMark, RegistryError> {
        let sealed_answer = Some(self.seal(answer)?);
        Ok(CallMark::Applied { call_id: self.id.clone(), sealed_answer, product_id: None })
    }

    /// The same, if the change makes this product.
    pub(super) fn created<T: Serialize>(
        &self,
        product_id: ProductId,
        answer: &T,
    ) -> Result<CallMark, RegistryError> {
        let (call_id, sealed_answer) = (self.id.clone(), Some(self.seal(answer)?));
        Ok(CallMark::Applied { call_id, sealed_answer, product_id: Some(product_id) })
    }

    /// Says in the transaction that claims an engine that it does so for this call.
    pub(super) fn claiming(&self) -> ClaimingCall {
        ClaimingCall { call_id: self.id.clone(), sealed_answer: None }
    }

    /// The same, with the answer once the change is made.
    pub(super) fn claiming_with<T: Serialize>(&self, answer: &T) -> Result<ClaimingCall, RegistryError> {
        Ok(ClaimingCall { call_id: self.id.clone(), sealed_answer: Some(self.seal(answer)?) })
    }

    fn seal<T: Serialize>(&self, answer: &T) -> Result<String, RegistryError> {
        let text =
            serde_json::to_string(answer).map_err(|_| RegistryError::Unreadable { column: "answer" })?;
        seal(&self.vault, &self.id, &text).map_err(RegistryError::AnswerNotSealed)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Call").field(&self.id).finish()
    }
}

fn seal(vault: &Vault, call_id: &CallId, text: &str) -> Result<String, KeyError> {
    vault.seal(call_id.as_str(), Purpose::IdempotentAnswer, text)
}

/// The calls of all callers.
pub(crate) struct IdempotentCalls {
    shared: Arc<Shared>,
    products: Arc<Products>,
    executor: Arc<Executor>,
    /// The calls that this process is at.
    under_way: Mutex<HashMap<CallId, UnderWay>>,
    /// How long a caller waits for the answer to another one.
    wait: Duration,
    /// Refuses every call as one whose answer did not come in time.
    #[cfg(test)]
    pub(crate) always_in_use: std::sync::atomic::AtomicBool,
}

struct UnderWay {
    holder: KeyHolder,
    fingerprint: Fingerprint,
    answer: watch::Receiver<Option<CallAnswer>>,
}

/// Whether a caller is the first one.
enum Entered {
    First(CallPermit),
    /// Another one is at it, with the same request or another one.
    Wait {
        answer: watch::Receiver<Option<CallAnswer>>,
        is_same: bool,
    },
}

impl IdempotentCalls {
    pub(super) fn new(
        shared: &Arc<Shared>,
        products: &Arc<Products>,
        executor: &Arc<Executor>,
        wait: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            products: Arc::clone(products),
            executor: Arc::clone(executor),
            under_way: Mutex::default(),
            wait,
            #[cfg(test)]
            always_in_use: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// Begins a call, or finds its answer. If somebody is at it, waits for the answer.
    pub(crate) async fn begin(self: &Arc<Self>, request: KeyedRequest) -> Result<Begun, FleetError> {
        #[cfg(test)]
        if self.always_in_use.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(FleetError::IdempotencyKeyInUse);
        }
        let mut deadline = Box::pin(self.shared.clock.sleep(self.wait));
        loop {
            let (mut answer, is_same) = match self.enter(&request)? {
                Entered::First(permit) => return Box::pin(self.begin_first(permit)).await,
                Entered::Wait { answer, is_same } => (answer, is_same),
            };
            if !is_same && self.is_of_another_request(&request).await? {
                return Err(FleetError::IdempotencyKeyReused);
            }
            let answered = Box::pin(async move {
                let answer = answer.wait_for(Option::is_some).await;
                answer.ok().and_then(|answer| answer.clone()).filter(|_| is_same)
            });
            match select(answered, deadline).await {
                Either::Left((Some(answer), _)) => return Ok(Begun::Answered(answer)),
                // Whoever was at it has left without an answer to this request.
                Either::Left((None, rest)) => deadline = rest,
                Either::Right(_) => return Err(FleetError::IdempotencyKeyInUse),
            }
        }
    }

    /// Whether another request is stored with the key. One that is under way may be the one that is refused.
    async fn is_of_another_request(&self, request: &KeyedRequest) -> Result<bool, FleetError> {
        let stored = self.shared.registry.call(&request.call_id, self.shared.clock.now()).await?;
        Ok(stored.is_some_and(|stored| stored.fingerprint != request.fingerprint))
    }

    fn enter(self: &Arc<Self>, request: &KeyedRequest) -> Result<Entered, FleetError> {
        let mut under_way = self.under_way.lock();
        if let Some(other) = under_way.get(&request.call_id) {
            let is_same = other.fingerprint == request.fingerprint;
            return Ok(Entered::Wait { answer: other.answer.clone(), is_same });
        }
        if under_way.values().filter(|other| other.holder == request.holder).count()
            >= MAX_UNDER_WAY_OF_CALLER
        {
            return Err(FleetError::TooManyKeyedCalls { max: MAX_UNDER_WAY_OF_CALLER });
        }
        let (sender, answer) = watch::channel(None);
        let (holder, fingerprint) = (request.holder.clone(), request.fingerprint.clone());
        under_way.insert(request.call_id.clone(), UnderWay { holder, fingerprint, answer });
        let calls = Arc::clone(self);
        Ok(Entered::First(CallPermit { calls, request: request.clone(), is_applied: false, answer: sender }))
    }

    /// Begins a call that nobody is at.
    async fn begin_first(&self, mut permit: CallPermit) -> Result<Begun, FleetError> {
        let (registry, request) = (&self.shared.registry, permit.request.clone());
        let KeyedRequest { call_id, holder, fingerprint, product_id } = &request;
        let (call_id, product_id) = (call_id.clone(), *product_id);
        let new = NewCall { call_id, caller: holder.name(), product_id, fingerprint: fingerprint.clone() };
        // Most that are repeated were answered, and are only read.
        let stored = registry.call(&new.call_id, self.shared.clock.now()).await?;
        let mut stored = match stored {
            Some(stored) if matches!(stored.state, CallState::Answered(_)) => stored,
            _ => registry.begin_call(&new, self.shared.clock.now()).await?,
        };
        let mut claim_ended = None;
        loop {
            let StoredCall { fingerprint: first, state, product_id } = stored;
            match decide((&first, state), fingerprint, claim_ended) {
                CallStep::Refuse => return Err(FleetError::IdempotencyKeyReused),
                CallStep::Execute { applied } => {
                    permit.is_applied = applied;
                    return Ok(Begun::Execute(permit));
                }
                CallStep::AwaitClaim(claim) => {
                    self.await_claim(claim).await?;
                    claim_ended = Some(claim);
                    stored = registry.begin_call(&new, self.shared.clock.now()).await?;
                }
                CallStep::Replay(answer) => return self.answered(permit, &answer),
                CallStep::Conclude(answer) => {
                    // This process may have failed to learn that the change was committed.
                    if let Some(product_id) = product_id {
                        self.products.catch_up(product_id).await?;
                    }
                    registry.answer_call(&new.call_id, &answer, self.shared.clock.now()).await?;
                    return self.answered(permit, &answer);
                }
            }
        }
    }

    fn answered(&self, permit: CallPermit, answer: &StoredAnswer) -> Result<Begun, FleetError> {
        let owner = permit.request.call_id.as_str();
        let text = self.shared.vault.open(owner, Purpose::IdempotentAnswer, &answer.sealed_body)?;
        let body = Arc::from(text.as_str());
        let answer = CallAnswer { status: answer.status, body, retry_after_s: None };
        permit.hand_out(answer.clone());
        Ok(Begun::Answered(answer))
    }

    /// Waits for the end of a change of an engine. If nobody is at it, ends it.
    async fn await_claim(&self, claim: EngineClaim) -> Result<(), FleetError> {
        let ended = Box::pin(async {
            while let Some(row) = self.shared.registry.engine_by_id(claim.engine_id).await?
                && row.claim.is_some()
                && row.claimed() == claim
            {
                self.executor.end_change(&row).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        });
        match select(ended, self.shared.clock.sleep(self.wait)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => Err(FleetError::OperationTimeout),
        }
    }

    /// Removes calls that are no longer kept, until `shutdown`.
    pub(super) async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let sweep = async {
            loop {
                self.shared.clock.sleep(SWEEP_INTERVAL).await;
                if let Err(error) = self.shared.registry.forget_expired_calls(self.shared.clock.now()).await {
                    let error: &dyn std::error::Error = &error;
                    tracing::info!(
                        error,
                        "Old calls with an `Idempotency-Key` could not be removed; retrying."
                    );
                }
            }
        };
        shutdown.run_until_cancelled(sweep).await;
    }
}

/// The right to execute a call. Whoever drops it without an answer leaves the call to the next caller.
pub(crate) struct CallPermit {
    calls: Arc<IdempotentCalls>,
    request: KeyedRequest,
    is_applied: bool,
    answer: watch::Sender<Option<CallAnswer>>,
}

impl CallPermit {
    /// The call, for those who make its change.
    pub(crate) fn call(&self) -> Call {
        let (id, vault) = (self.request.call_id.clone(), Arc::clone(&self.calls.shared.vault));
        Call { id, is_applied: self.is_applied, vault }
    }

    /// Stores the answer if it is to be kept, and hands it out to those who wait for it.
    pub(crate) async fn finish(self, answer: CallAnswer) {
        let stored = match CallEnd::of(answer.status) {
            CallEnd::Keep => self.store(&answer).await,
            CallEnd::Forget => {
                let registry = &self.calls.shared.registry;
                registry.forget_call(&self.request.call_id).await.map_err(FleetError::from)
            }
            CallEnd::LeaveOpen => Ok(()),
        };
        if let Err(error) = stored {
            tracing::warn!(
                %error,
                "The answer to a call with an `Idempotency-Key` could not be stored; whoever repeats the call gets what \
                 was committed with its change."
            );
        }
        self.hand_out(answer);
    }

    async fn store(&self, answer: &CallAnswer) -> Result<(), FleetError> {
        let (shared, call_id) = (&self.calls.shared, &self.request.call_id);
        let sealed_body = seal(&shared.vault, call_id, &answer.body)?;
        let answer = StoredAnswer { status: answer.status, sealed_body };
        Ok(shared.registry.answer_call(call_id, &answer, shared.clock.now()).await?)
    }

    fn hand_out(self, answer: CallAnswer) {
        self.answer.send_replace(Some(answer));
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.calls.under_way.lock().remove(&self.request.call_id);
    }
}
