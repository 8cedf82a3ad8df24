//! A user's engine as its product reaches it from anywhere: through the orchestrator, and as it is. It is neither made
//! nor, unless that is wanted, woken. The admin key does not open it.

use api::UserId;
use reqwest::{Body, Method, Response};
use serde_json::json;

use super::session::{Session, named};
use crate::client::{Call, ClientError, Document, Engine};
use crate::engine_access::{AccessOptions, parse_user};
use crate::error::Failure;

/// Which engine a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UserOptions {
    /// The user whose engine to use; your login name by default.
    #[arg(long, env = "USER", default_value = "me")]
    user: String,
    /// Wake the engine if it sleeps.
    #[arg(long)]
    wake: bool,
    #[command(flatten)]
    access: AccessOptions,
}

/// A user's engine.
pub(super) struct UserEngine {
    session: Session,
    user: UserId,
    engine: Engine,
}

impl UserOptions {
    pub(super) async fn open(self) -> Result<UserEngine, Failure> {
        let user = parse_user(self.user)?;
        let session = Session::product(self.access)?;
        if self.wake {
            wake(&session, &user).await?;
        }
        Ok(UserEngine { engine: session.orchestrator.proxied_engine(&user)?, session, user })
    }
}

/// Wakes an engine that sleeps. That it cannot be woken shows in the request that follows.
async fn wake(session: &Session, user: &UserId) -> Result<(), Failure> {
    let body = json!({"auto_provision": false, "auto_wake": true});
    let path = ["engines", user.as_str(), "admit"];
    session.call(&Call::new(Method::POST, &path).json(&body)).await.map(drop)
}

impl UserEngine {
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Document, Failure> {
        self.engine.call(call).await.map_err(|error| self.failure(error))
    }

    pub(super) async fn open(&self, call: &Call<'_>) -> Result<Response, Failure> {
        self.engine.open(call).await.map_err(|error| self.failure(error))
    }

    pub(super) async fn upload(&self, call: &Call<'_>, body: Body) -> Result<Document, Failure> {
        self.engine.upload(call, body).await.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ClientError) -> Failure {
        self.session.failure(named(error, self.user.as_str()))
    }
}
