//! The agent card: how other agents discover this one. It is made from the catalog.

use api::skills::SkillSummary;
use axum::http::{HeaderMap, header};
use catalog::Identity;
use serde_json::{Value, json};

/// The name of an agent whose catalog gives it none.
const DEFAULT_NAME: &str = "Roundhouse agent";
/// The description of an agent whose catalog gives it none.
const DEFAULT_DESCRIPTION: &str = "A person's own assistant, which remembers what they have worked on.";

pub(super) fn agent_card(headers: &HeaderMap, identity: &Identity, skills: &[SkillSummary]) -> Value {
    let skills: Vec<Value> = skills.iter().map(skill).collect();
    json!({
        "name": identity.name.as_deref().unwrap_or(DEFAULT_NAME),
        "description": identity.description.as_deref().unwrap_or(DEFAULT_DESCRIPTION),
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [
            {"url": format!("{}/a2a", base_url(headers)), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ],
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": false},
        "securitySchemes": {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "engine_key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Engine-Key"}},
        },
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}, {"schemes": {"engine_key": {"list": []}}}],
        "defaultInputModes": ["text/plain", "image/*", "audio/*", "application/pdf"],
        "defaultOutputModes": ["text/plain"],
        "skills": skills,
    })
}

fn skill(skill: &SkillSummary) -> Value {
    let SkillSummary { name, description, category, capabilities, .. } = skill;
    let tags: Vec<&str> = category.iter().chain(capabilities).map(String::as_str).collect();
    json!({
        "id": name, "name": name, "description": description.as_deref().unwrap_or_default(), "tags": tags,
    })
}

/// The address under which the caller sees the engine, also through a proxy that says so.
fn base_url(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("x-forwarded-host").or_else(|| text(header::HOST.as_str())).unwrap_or("localhost");
    let scheme = text("x-forwarded-proto").unwrap_or("http");
    let prefix = text("x-forwarded-prefix").unwrap_or_default().trim_end_matches('/');
    format!("{scheme}://{host}{prefix}")
}
