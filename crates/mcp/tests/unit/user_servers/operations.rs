//! Tests of what a user is shown of servers of their own.

use api::user_servers::{UserServerDefinition, UserServerName};
use fetch::WebAllowlist;
use http_service::clock::SystemClock;
use serde_json::json;
use store::Brain;

use super::*;
use crate::McpSettings;

#[tokio::test]
async fn the_digest_is_that_of_the_tools_that_are_shown_and_not_of_a_later_list() {
    let folder = tempfile::tempdir().unwrap();
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let settings = McpSettings {
        encryption_key: None,
        redirect_base: None,
        client_metadata_url: None,
        web_allowlist: WebAllowlist::default(),
    };
    let documents = tools::documents::DocumentReader::new(None, std::path::Path::new("/nonexistent"));
    let mcp = Mcp::open(&brain, settings, None, Arc::new(SystemClock::new()), documents).unwrap();
    let name = UserServerName::new("notes").unwrap();
    let definition = UserServerDefinition {
        url: "https://mcp.example.com/".into(),
        description: None,
        auth: AuthKind::None,
        api_key_header: None,
        enabled: true,
    };
    let spec = Arc::new(parse_spec(&name, &definition, &WebAllowlist::default()).unwrap());
    let now = mcp.0.connections.now();
    let (created_at, updated_at, pins) = (now, now, Arc::default());
    let server = StoredServer { name, definition, spec: Ok(Arc::clone(&spec)), pins, created_at, updated_at };
    let tool = |description: &str| ToolDefinition {
        name: "look".into(),
        description: description.into(),
        input_schema: json!({"type": "object"}),
        read_only: false,
        idempotent: false,
    };
    mcp.0.connections.establish(&spec, vec![tool("Shown.")], None).await.unwrap();
    let listed = mcp.listed_tools(&server);
    // The server changes the tool between the two.
    mcp.0.connections.update_tools(&spec, vec![tool("Changed.")]).await.unwrap();
    let shown = mcp.show(&server, &listed).unwrap();
    assert_eq!(shown.digest, Some(pins::digest("notes", &listed)));
    let later = mcp.show(&server, &mcp.listed_tools(&server)).unwrap();
    assert_ne!(later.digest, shown.digest);
}
