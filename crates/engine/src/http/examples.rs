//! The examples of the OpenAPI document: a file for each tag, and the events. Running services have answered most of
//! them.

/// The texts, for `http_service::http::openapi::add_examples`.
pub(super) const EXAMPLES: [&str; 27] = [
    include_str!("examples/admin.json"),
    include_str!("examples/approvals.json"),
    include_str!("examples/assets.json"),
    include_str!("examples/cassettes.json"),
    include_str!("examples/conversations.json"),
    include_str!("examples/document.json"),
    include_str!("examples/events.json"),
    include_str!("examples/execute.json"),
    include_str!("examples/facts.json"),
    include_str!("examples/health.json"),
    include_str!("examples/hitl.json"),
    include_str!("examples/learning.json"),
    include_str!("examples/media.json"),
    include_str!("examples/memory.json"),
    include_str!("examples/openai.json"),
    include_str!("examples/rpc.json"),
    include_str!("examples/schedules.json"),
    include_str!("examples/skills.json"),
    include_str!("examples/steering.json"),
    include_str!("examples/tasks.json"),
    include_str!("examples/transfer.json"),
    include_str!("examples/turns.json"),
    include_str!("examples/usage.json"),
    include_str!("examples/user_servers.json"),
    include_str!("examples/webhook.json"),
    include_str!("examples/workspace.json"),
    include_str!("examples/workspace_uploads.json"),
];
