//! The engine's HTTP interface: handlers extract their arguments, call one function, and respond.

mod a2a;
mod admin;
mod admission;
mod agui;
mod approvals;
mod assets;
mod auth;
mod browser_tokens;
mod cassettes;
mod content_type;
mod conversations;
mod document;
mod download_body;
mod error;
mod examples;
mod execute;
mod facts;
mod file_response;
mod front_schemas;
mod health;
mod hitl;
mod json_rpc;
mod learning;
mod mcp_server;
mod media;
mod memory;
mod openai;
mod projection;
mod questions;
mod rpc;
mod rpc_assets;
mod rpc_cassettes;
mod rpc_gateway;
mod rpc_memory;
mod rpc_skills;
mod rpc_tools;
mod schedules;
mod skills;
mod steering;
mod tasks;
mod token_scopes;
mod transfer;
mod turns;
mod usage;
mod user_servers;
mod webhook;
mod workspace;
mod workspace_uploads;

use std::sync::Arc;
use std::time::Duration;

use api::KeyHash;
use auth::KeyGuard;
use axum::Router;
pub(crate) use browser_tokens::BrowserTokens;
use document::KeyScheme;
pub(crate) use download_body::download_body;
use http_service::clock::Clock;
use http_service::http::cors::Cors;
use http_service::http::{LayerOptions, apply_layers_with};
use mcp::Mcp;
use store::Brain;
use tools::user_files::UserFiles;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::agent::{Agent, CatalogReloader};
use crate::backups::Backups;
use crate::config::ActiveConfig;

/// The maximum size of a body, in bytes.
const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;

/// The state of the handlers.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// What callers are authenticated with.
pub(crate) struct Credentials {
    /// The hash of the engine's key.
    pub(crate) key_hash: KeyHash,
    /// The browser tokens.
    pub(crate) browser_tokens: BrowserTokens,
    /// What sends backups, with a key of its own.
    pub(crate) backups: Arc<Backups>,
}

struct Shared {
    agent: Arc<Agent>,
    mcp: Mcp,
    mcp_calls: mcp_server::CallSignals,
    brain: Brain,
    files: UserFiles,
    active_config: Arc<ActiveConfig>,
    reloader: CatalogReloader,
    key_guard: KeyGuard,
    browser_tokens: BrowserTokens,
    backups: Arc<Backups>,
    clock: Arc<dyn Clock>,
    started_at: Duration,
}

impl AppState {
    /// Creates the state of an engine that starts now.
    pub(crate) fn new(
        agent: Arc<Agent>,
        brain: Brain,
        files: UserFiles,
        active_config: Arc<ActiveConfig>,
        reloader: CatalogReloader,
        credentials: Credentials,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let Credentials { key_hash, browser_tokens, backups } = credentials;
        Self(Arc::new(Shared {
            mcp: agent.mcp().clone(),
            mcp_calls: mcp_server::CallSignals::new(),
            agent,
            brain,
            active_config,
            files,
            reloader,
            key_guard: KeyGuard::new(key_hash),
            browser_tokens,
            backups,
            started_at: clock.monotonic(),
            clock,
        }))
    }
}

http_service::routes! {
    AppState,
    openapi(
        info(title = "Roundhouse engine", description = "Runs one user's agent."),
        servers((url = "/", description = "The address that the orchestrator hands out for the engine")),
        tags(
            (name = "a2a", description = "The Agent2Agent protocol"),
            (name = "admin", description = "Reloads of the catalog, for the operator"),
            (name = "agui", description = "AG-UI, with its own form of errors"),
            (name = "approvals", description = "Tool calls that wait for a person's decision"),
            (name = "assets", description = "Tool servers of the catalog, and the user's connections to them"),
            (name = "cassettes", description = "Recorded turns, which can be run again"),
            (name = "conversations", description = "Tasks as a product shows them"),
            (name = "document", description = "This document"),
            (name = "execute", description = "Turns and their event streams"),
            (name = "facts", description = "What the agent knows, with its history"),
            (name = "health", description = "The health of the engine"),
            (name = "hitl", description = "Questions of the agent to a person"),
            (name = "learning", description = "Feedback, and the lessons learned from it"),
            (name = "mcp", description = "The engine as a server of the Model Context Protocol"),
            (name = "media", description = "Files that are attached to messages"),
            (name = "memory", description = "Knowledge and episodes"),
            (name = "openai", description = "OpenAI's API, with its own form of errors"),
            (name = "rpc", description = "Calls without the agent's loop"),
            (name = "schedules", description = "Messages that the engine sends itself at given times"),
            (name = "skills", description = "The platform's and the user's own skills"),
            (name = "steering", description = "Control of a running turn"),
            (name = "tasks", description = "Conversation threads and their working memory"),
            (name = "transfer", description = "Export and import of the whole memory"),
            (name = "turns", description = "The turns of a task, and its queue"),
            (name = "usage", description = "Tokens, costs and caps"),
            (name = "user_servers", description = "The user's own tool servers"),
            (name = "webhook", description = "Deliveries to the product's webhook"),
            (name = "workspace", description = "The files of the agent's workspace"),
            (name = "workspace_uploads", description = "Uploads into the workspace"),
        ),
        components(schemas(api::files::FolderFormat, api::engine::Forget)),
        modifiers(&KeyScheme)
    ),
    health::health,
    execute::execute,
    execute::replay,
    steering::cancel,
    steering::steer,
    tasks::list,
    tasks::read,
    tasks::memory,
    tasks::set_memory,
    tasks::delete_memory,
    tasks::delete,
    media::list,
    media::read,
    cassettes::export,
    cassettes::run,
    turns::list,
    turns::read,
    turns::result,
    turns::queue,
    turns::cancel_queued,
    schedules::create,
    schedules::list,
    schedules::read,
    schedules::update,
    schedules::run,
    schedules::delete,
    conversations::list,
    conversations::search,
    conversations::read,
    conversations::update,
    conversations::messages,
    conversations::fork,
    conversations::replace_memory,
    conversations::clear_memory,
    usage::read,
    usage::of_task,
    usage::caps,
    hitl::respond,
    hitl::pending,
    hitl::grants,
    hitl::revoke,
    approvals::approvals,
    approvals::answer_approval,
    approvals::approval_grants,
    approvals::revoke_approval,
    memory::search,
    memory::list,
    memory::save,
    memory::delete,
    memory::episodes,
    facts::list,
    facts::read,
    facts::correct,
    facts::forget,
    admin::reload_core_soul,
    admin::reload_catalog,
    skills::list,
    skills::create,
    skills::read,
    skills::update,
    skills::delete,
    skills::export,
    assets::servers,
    assets::connections,
    assets::connect,
    assets::callback,
    assets::oauth_callback,
    assets::disconnect,
    user_servers::add,
    user_servers::list,
    user_servers::read,
    user_servers::update,
    user_servers::delete,
    user_servers::connect,
    user_servers::approve,
    webhook::status,
    webhook::deliveries,
    webhook::retry,
    webhook::test,
    learning::give_feedback,
    learning::trigger,
    learning::lessons,
    learning::undo,
    transfer::export,
    transfer::import,
    workspace::list_root,
    workspace::read,
    workspace::delete,
    workspace_uploads::put,
    workspace_uploads::status,
    workspace_uploads::append,
    workspace_uploads::cancel,
    agui::run_agui_agent,
    openai::list_models,
    openai::read_model,
    openai::create_chat_completion,
    openai::create_response,
    openai::read_response,
    openai::cancel_response,
    openai::delete_response,
    mcp_server::mcp,
    mcp_server::resume_mcp,
    a2a::agent_card,
    a2a::a2a,
    rpc::rpc,
    document::openapi,
}

/// Returns the engine's router.
pub fn router(state: AppState) -> Router {
    let engine_id = state.0.browser_tokens.engine_id().map(|id| id.to_string().into());
    let backups = crate::backups::routes(Arc::clone(&state.0.backups));
    let router = table()
        .merge(backups)
        .route(skills::CREATE_PATH, skills::routes_of_skill_named_create())
        .route(openai::OTHER_PATHS, axum::routing::any(openai::unknown_path))
        .with_state(state);
    let options = LayerOptions { max_body_bytes: MAX_BODY_BYTES, forwarded_route: None, engine_id };
    apply_layers_with(router, options, |_| {})
}

/// Returns what the engine serves: its router, for pages of the product's origins too.
pub fn service(state: AppState) -> Cors<Router, AppState> {
    Cors::new(router(state.clone()), state)
}

/// Returns the OpenAPI document of [`router`], created on request: an idle engine does not keep it.
pub fn document() -> OpenApi {
    let mut document = Document::openapi();
    document::describe_tokens(&mut document);
    http_service::http::openapi::complete(&mut document);
    http_service::http::openapi::add_examples(&mut document, &examples::EXAMPLES);
    document
}

#[cfg(test)]
#[path = "../tests/unit/http/admin.rs"]
mod admin_tests;
#[cfg(test)]
#[path = "../tests/unit/http/app.rs"]
pub(crate) mod app;
#[cfg(test)]
#[path = "../tests/unit/http/assets.rs"]
mod assets_tests;
#[cfg(test)]
#[path = "../tests/unit/http/browser_tokens.rs"]
mod browser_tokens_tests;
#[cfg(test)]
#[path = "../tests/unit/http/learning.rs"]
mod learning_tests;
#[cfg(test)]
#[path = "../tests/unit/http/memory.rs"]
mod memory_tests;
#[cfg(test)]
#[path = "../tests/unit/http/rpc_gateway.rs"]
mod rpc_gateway_tests;
#[cfg(test)]
#[path = "../tests/unit/http/rpc.rs"]
mod rpc_tests;
#[cfg(test)]
#[path = "../tests/unit/http/skills.rs"]
mod skills_tests;
#[cfg(test)]
#[path = "../tests/unit/http/stream.rs"]
mod stream_tests;
#[cfg(test)]
#[path = "../tests/unit/http.rs"]
mod tests;
#[cfg(test)]
#[path = "../tests/unit/http/transfer.rs"]
mod transfer_tests;
#[cfg(test)]
#[path = "../tests/unit/http/unknown_fields.rs"]
mod unknown_fields_tests;
#[cfg(test)]
#[path = "../tests/unit/http/workspace.rs"]
mod workspace_tests;
