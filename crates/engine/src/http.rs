//! The engine's HTTP interface: extract, call one function, answer.

mod admin;
mod assets;
mod auth;
mod error;
mod execute;
mod health;
mod hitl;
mod learning;
mod memory;
mod rpc;
mod rpc_assets;
mod rpc_gateway;
mod rpc_memory;
mod rpc_skills;
mod rpc_tools;
mod skills;
mod steering;
mod tasks;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use contract::KeyHash;
use service::clock::Clock;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::agent::{Agent, Reloads};
use crate::assets::Assets;
use crate::brain::Brain;
use crate::config::InForce;
use auth::{Authenticated, Lock};

/// The largest body taken.
const MAX_BODY: usize = 32 * 1024 * 1024;

/// What handlers work with.
#[derive(Clone)]
pub struct State(Arc<Shared>);

struct Shared {
    agent: Arc<Agent>,
    assets: Assets,
    brain: Brain,
    in_force: Arc<InForce>,
    reloads: Reloads,
    lock: Lock,
    clock: Arc<dyn Clock>,
    started: Duration,
}

impl State {
    /// The engine has started now.
    pub(crate) fn new(
        agent: Arc<Agent>,
        brain: Brain,
        in_force: Arc<InForce>,
        reloads: Reloads,
        key_hash: KeyHash,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let started = clock.monotonic();
        let lock = Lock::new(key_hash);
        let assets = agent.assets().clone();
        Self(Arc::new(Shared { agent, assets, brain, in_force, reloads, lock, clock, started }))
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Roundhouse engine", description = "Runs one user's agent."),
    modifiers(&KeyScheme)
)]
struct Document;

/// Declares the scheme that the routes' `security` names.
struct KeyScheme;

impl utoipa::Modify for KeyScheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Engine-Key")));
        document.components.get_or_insert_default().add_security_scheme("engine_key", scheme);
    }
}

fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(health::health))
        .routes(routes!(execute::execute))
        .routes(routes!(execute::replay))
        .routes(routes!(steering::cancel))
        .routes(routes!(steering::steer))
        .routes(routes!(tasks::list))
        .routes(routes!(tasks::read, tasks::delete))
        .routes(routes!(hitl::respond))
        .routes(routes!(hitl::pending))
        .routes(routes!(hitl::grants))
        .routes(routes!(hitl::revoke))
        .routes(routes!(memory::search))
        .routes(routes!(memory::list, memory::save))
        .routes(routes!(memory::delete))
        .routes(routes!(memory::episodes))
        .routes(routes!(admin::reload_core_soul))
        .routes(routes!(admin::reload_catalog))
        .routes(routes!(skills::list))
        .routes(routes!(skills::create))
        .route(skills::CREATE, skills::called_create())
        .routes(routes!(skills::read, skills::update, skills::delete))
        .routes(routes!(skills::export))
        .routes(routes!(assets::servers))
        .routes(routes!(assets::connections))
        .routes(routes!(assets::connect))
        .routes(routes!(assets::callback))
        .routes(routes!(assets::oauth_callback))
        .routes(routes!(assets::disconnect))
        .routes(routes!(learning::give_feedback))
        .routes(routes!(learning::trigger))
        .routes(routes!(learning::lessons))
        .routes(routes!(learning::undo))
        .routes(routes!(transfer::export))
        .routes(routes!(transfer::import))
        .routes(routes!(rpc::rpc))
        .routes(routes!(openapi))
}

/// The engine's router.
pub fn router(state: State) -> Router {
    let (router, _) = routes().with_state(state).split_for_parts();
    service::http::finish(router, MAX_BODY)
}

/// The OpenAPI document of [`router`], made when it is asked for: an idle engine does not keep it.
pub fn document() -> OpenApi {
    routes().into_openapi()
}

/// This service's OpenAPI 3.1 document.
#[utoipa::path(
    get, path = "/openapi.json", security(("engine_key" = [])),
    responses((status = 200, description = "The document"), (status = 401, body = contract::ErrorBody)),
)]
async fn openapi(_: Authenticated) -> axum::Json<OpenApi> {
    axum::Json(document())
}

#[cfg(test)]
#[path = "http/admin_tests.rs"]
mod admin_tests;
#[cfg(test)]
#[path = "http/app.rs"]
pub(crate) mod app;
#[cfg(test)]
#[path = "http/assets_tests.rs"]
mod assets_tests;
#[cfg(test)]
#[path = "http/learning_tests.rs"]
mod learning_tests;
#[cfg(test)]
#[path = "http/memory_tests.rs"]
mod memory_tests;
#[cfg(test)]
#[path = "http/rpc_gateway_tests.rs"]
mod rpc_gateway_tests;
#[cfg(test)]
#[path = "http/rpc_tests.rs"]
mod rpc_tests;
#[cfg(test)]
#[path = "http/skills_tests.rs"]
mod skills_tests;
#[cfg(test)]
#[path = "http/stream_tests.rs"]
mod stream_tests;
#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
#[cfg(test)]
#[path = "http/transfer_tests.rs"]
mod transfer_tests;
