//! The user's engine, wherever it is now: it may sleep, or be restarted on another port or with another key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ErrorCode, UserId};
use parking_lot::Mutex;

use crate::client::{ClientError, Engine, Orchestrator};

/// How long a request that may not have arrived is sent again. Within that time the orchestrator has noticed that the
/// engine is gone, and waits for the next one itself.
const MAX_RESEND_TIME: Duration = Duration::from_secs(10);
/// How long an engine may be away. A fleet restarts it within seconds; one that has failed is not waited for longer.
pub(crate) const MAX_AWAY: Duration = Duration::from_mins(3);
/// The pause before another attempt to reach the engine.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The engine, and the orchestrator that knows its address.
#[derive(Clone)]
pub(crate) struct Remote {
    orchestrator: Arc<Orchestrator>,
    user: UserId,
    engine: Arc<Mutex<Arc<Engine>>>,
}

impl Remote {
    /// Admits the user.
    pub(crate) async fn admit(orchestrator: Orchestrator, user: UserId) -> Result<Self, ClientError> {
        let engine = orchestrator.admit(&user).await?;
        Ok(Self {
            orchestrator: Arc::new(orchestrator),
            user,
            engine: Arc::new(Mutex::new(Arc::new(engine))),
        })
    }

    /// The engine as it was last seen.
    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine.lock())
    }

    /// Asks the orchestrator where the engine is.
    pub(crate) async fn find_again(&self) -> Result<Arc<Engine>, ClientError> {
        let engine = Arc::new(self.orchestrator.admit(&self.user).await?);
        *self.engine.lock() = Arc::clone(&engine);
        Ok(engine)
    }

    /// Makes a request that can be repeated, until it has been answered.
    pub(crate) async fn call<T>(
        &self,
        request: impl AsyncFn(Arc<Engine>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let begun = Instant::now();
        let mut is_resent = false;
        loop {
            match request(self.engine()).await {
                Err(error) if begun.elapsed() < MAX_RESEND_TIME && is_retryable(&error) => {
                    if is_resent {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    is_resent = true;
                    self.find_again().await?;
                }
                answer => return answer,
            }
        }
    }

    /// Makes a request that can be repeated, also while the engine is away: until it has been answered.
    pub(crate) async fn call_patiently<T>(
        &self,
        request: impl AsyncFn(Arc<Engine>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let begun = Instant::now();
        loop {
            match self.call(&request).await {
                Err(error) if is_retryable(&error) && begun.elapsed() < MAX_AWAY => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}

/// Whether the request may succeed once the engine was found again.
fn is_retryable(error: &ClientError) -> bool {
    match error {
        // The engine is about to sleep, has another key, or cannot be reached by the proxy.
        ClientError::Refused { code, .. } => matches!(
            code,
            ErrorCode::Quiesced
                | ErrorCode::ShuttingDown
                | ErrorCode::InvalidEngineKey
                | ErrorCode::EngineNotRunning
                | ErrorCode::BackendError
        ),
        ClientError::Failed(_) => true,
    }
}
