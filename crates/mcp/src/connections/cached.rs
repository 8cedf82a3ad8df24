//! A connection in memory, and its row in the brain.

use std::sync::Arc;

use api::assets::ConnectionStatus;
use api::{ConnectionId, Timestamp};
use store::{ConnectionRow, USER_SERVER_IDENTITY};

use crate::ToolDefinition;

/// A connection in memory.
#[derive(Clone)]
pub(super) struct CachedConnection {
    pub(super) id: ConnectionId,
    pub(super) server: String,
    pub(super) status: ConnectionStatus,
    pub(super) error: Option<String>,
    pub(super) identity: String,
    pub(super) tools: Arc<[Arc<ToolDefinition>]>,
    pub(super) created_at: Timestamp,
}

impl CachedConnection {
    /// Whether it leads to a server that the user has added.
    pub(super) fn is_of_user(&self) -> bool {
        self.identity.starts_with(USER_SERVER_IDENTITY)
    }

    pub(super) fn from_row(row: ConnectionRow) -> Self {
        let ConnectionRow { id, server, status, error, identity, tools, created_at } = row;
        let tools = serde_json::from_str::<Vec<ToolDefinition>>(&tools).unwrap_or_else(|error| {
            tracing::warn!(server, %error, "The tools of a connection cannot be read; connect it again.");
            Vec::new()
        });
        let tools = tools.into_iter().map(Arc::new).collect();
        Self { id, server, status, error, identity, tools, created_at }
    }

    pub(super) fn to_row(&self) -> ConnectionRow {
        let Self { id, server, status, error, identity, tools, created_at } = self.clone();
        // Strings and JSON values can always be serialized.
        let tools: Vec<&ToolDefinition> = tools.iter().map(|tool| &**tool).collect();
        let tools = serde_json::to_string(&tools).unwrap_or_else(|_| "[]".into());
        ConnectionRow { id, server, status, error, identity, tools, created_at }
    }
}
