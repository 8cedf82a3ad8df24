//! What a user can do with servers of their own.

use std::sync::Arc;

use api::assets::{AuthKind, ConnectOutcome, ConnectionStatus};
use api::user_servers::{
    AddUserServer, ApproveTools, ConnectUserServer, ToolState, UpdateUserServer, UserServer,
    UserServerDefinition, UserServerList, UserServerStatus, UserServerTool,
};
use catalog::{McpServerSpec, Transport};
use resources::threads::run_blocking;
use tools::approval;

use super::{NOT_PERMITTED, StoredServer, parse_spec};
use crate::definition::tool_name_prefix;
use crate::pins::{self, ReviewedTool};
use crate::{Mcp, McpError, ToolDefinition};

/// The tools that a server listed last.
type ListedTools = Arc<[Arc<ToolDefinition>]>;

impl Mcp {
    /// Returns the servers that the user has added.
    pub async fn user_servers(&self) -> Result<UserServerList, McpError> {
        let mcp = self.clone();
        // Comparing and hashing all tools takes a while.
        let listing = run_blocking(move || {
            let servers = mcp.0.connections.user_servers();
            let limit = servers.policy().map(|policy| policy.max);
            let shown = servers.all().into_iter().map(|server| mcp.show(&server, &mcp.listed_tools(&server)));
            Ok(UserServerList {
                servers: shown.collect::<Result<_, McpError>>()?,
                permitted: limit.is_some(),
                limit: limit.unwrap_or(0),
            })
        });
        listing.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Returns a server that the user has added, with its tools.
    pub async fn user_server(&self, name: &str) -> Result<UserServer, McpError> {
        let (mcp, server) = (self.clone(), self.stored_server(name)?);
        // Read once: the digest is that of exactly the tools that are shown.
        let listed = self.listed_tools(&server);
        // Differences take a while to compute.
        let showing = run_blocking(move || {
            let mut shown = mcp.show(&server, &listed)?;
            let reviewed = pins::review(&server.pins, &listed).into_iter();
            shown.tools = Some(reviewed.map(|tool| show_tool(server.name.as_str(), &tool)).collect());
            Ok(shown)
        });
        showing.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Returns the tools that a server listed last.
    fn listed_tools(&self, server: &StoredServer) -> ListedTools {
        server.spec.as_ref().map(|spec| self.0.connections.listed_tools(spec)).unwrap_or_default()
    }

    /// Adds a server, or returns the one that the same request has added before. Returns whether it is new.
    /// It runs to completion even if the caller goes away, as the other changes do.
    pub async fn add_user_server(&self, request: AddUserServer) -> Result<(UserServer, bool), McpError> {
        let mcp = self.clone();
        let adding = self.0.connections.spawn(async move { mcp.add_locked(request).await });
        adding.await.unwrap_or(Err(McpError::Stopping))
    }

    async fn add_locked(&self, request: AddUserServer) -> Result<(UserServer, bool), McpError> {
        let connections = &self.0.connections;
        let servers = connections.user_servers();
        let policy = servers.policy().ok_or_else(|| McpError::NotPermitted(NOT_PERMITTED.into()))?;
        let AddUserServer { name, url, description, auth, api_key_header } = request;
        let auth = auth.unwrap_or(AuthKind::None);
        let mut definition = UserServerDefinition { url, description, auth, api_key_header, enabled: true };
        let spec = parse_spec(&name, &definition, connections.web_allowlist()).map_err(McpError::Invalid)?;
        if let Transport::Http { url, .. } = &spec.transport {
            definition.url = url.as_str().to_owned();
        }
        servers.check_permitted(&spec).map_err(McpError::NotPermitted)?;
        let _lock = connections.lock_server(name.as_str()).await;
        if let Some(existing) = servers.find(name.as_str()) {
            let same = UserServerDefinition { enabled: existing.definition.enabled, ..definition };
            if same != existing.definition {
                return Err(McpError::ServerExists(format!(
                    "there is a server `{name}` with another definition already; delete it first, or choose another \
                     name"
                )));
            }
            return Ok((self.show(&existing, &self.listed_tools(&existing))?, false));
        }
        if servers.is_taken(name.as_str(), &self.0.directory.catalog()) {
            let message = format!(
                "the catalog has a server `{name}`, or tools whose names begin with `{name}__`, already; choose another \
                 name"
            );
            return Err(McpError::ServerExists(message));
        }
        let now = connections.now();
        let server = StoredServer {
            name,
            definition,
            spec: Ok(Arc::new(spec)),
            pins: Arc::default(),
            created_at: now,
            updated_at: now,
        };
        if !connections.add_user_server(server.clone(), policy.max).await? {
            return Err(McpError::ServerLimit(policy.max));
        }
        self.refresh_servers(None);
        tracing::info!(server = server.name.as_str(), "The user has added a tool server.");
        Ok((self.show(&server, &self.listed_tools(&server))?, true))
    }

    /// Changes a server's description, or whether it is used.
    pub async fn update_user_server(
        &self,
        name: &str,
        change: UpdateUserServer,
    ) -> Result<UserServer, McpError> {
        let (mcp, name) = (self.clone(), name.to_owned());
        let changing = self.0.connections.spawn(async move {
            let changed = mcp.0.connections.change_user_server(&name, |server, _| {
                let mut server = server.clone();
                let UpdateUserServer { description, enabled } = change;
                server.definition.description = description.or(server.definition.description);
                server.definition.enabled = enabled.unwrap_or(server.definition.enabled);
                Ok(server)
            });
            changed.await?;
            mcp.refresh_servers(None);
            mcp.user_server(&name).await
        });
        changing.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Connects a server and lists its tools, or returns what the user must do first.
    pub async fn connect_user_server(
        &self,
        name: &str,
        request: ConnectUserServer,
    ) -> Result<ConnectOutcome, McpError> {
        let (mcp, name) = (self.clone(), name.to_owned());
        let connecting = self.0.connections.spawn(async move {
            let spec = mcp.usable_spec(&name)?;
            let ConnectUserServer { credentials, redirect_to } = request;
            mcp.connect_locked(spec, credentials, redirect_to).await
        });
        connecting.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Approves the tools that a server lists, if they are those that the user was shown.
    pub async fn approve_tools(&self, name: &str, request: ApproveTools) -> Result<UserServer, McpError> {
        let (mcp, name) = (self.clone(), name.to_owned());
        let approving = self.0.connections.spawn(async move {
            mcp.usable_spec(&name)?;
            let approved = mcp.0.connections.change_user_server(&name, |server, listed| {
                if pins::digest(&name, listed) != request.digest {
                    return Err(McpError::ToolsChanged(name.clone()));
                }
                Ok(StoredServer { pins: listed.into(), ..server.clone() })
            });
            approved.await?;
            tracing::info!(server = name, "The tools of a server were approved.");
            mcp.user_server(&name).await
        });
        approving.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Deletes a server: revokes its credentials if possible, and removes it with everything that belongs to
    /// it. What is left of it in the brain's file is for the caller to erase.
    pub async fn delete_user_server(&self, name: &str) -> Result<(), McpError> {
        let (mcp, name) = (self.clone(), name.to_owned());
        let deleting = self.0.connections.spawn(async move {
            let connections = &mcp.0.connections;
            mcp.stored_server(&name)?;
            let _lock = connections.lock_server(&name).await;
            let server = mcp.stored_server(&name)?;
            if let Ok(spec) = &server.spec
                && connections.is_of_user(&name)
            {
                mcp.0.clients.drop_client(&name);
                mcp.0.oauth.revoke(spec).await;
            }
            connections.remove_user_server(&name).await?;
            // A client that a call has created meanwhile goes with the server.
            mcp.refresh_servers(None);
            tracing::info!(server = name, "The user has deleted a tool server.");
            Ok(())
        });
        deleting.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Reads the user's servers again, after an import has changed them.
    pub async fn reload_user_servers(&self) -> Result<(), McpError> {
        self.0.connections.reload_user_servers().await?;
        self.refresh_servers(None);
        Ok(())
    }

    fn stored_server(&self, name: &str) -> Result<Arc<StoredServer>, McpError> {
        let found = self.0.connections.user_servers().find(name);
        found.ok_or_else(|| McpError::UnknownUserServer(name.to_owned()))
    }

    /// Returns how a server is reached, if it can be used.
    fn usable_spec(&self, name: &str) -> Result<Arc<McpServerSpec>, McpError> {
        let server = self.stored_server(name)?;
        let obstacle = self.0.connections.user_servers().obstacle(&server, &self.0.directory.catalog());
        let Some((status, reason)) = obstacle else {
            return server.spec.clone().map_err(McpError::Invalid);
        };
        let reason = reason.unwrap_or_else(|| format!("the server `{name}` is disabled; enable it first"));
        Err(match status {
            UserServerStatus::NotPermitted => McpError::NotPermitted(reason),
            UserServerStatus::NameTaken => McpError::ServerExists(reason),
            _ => McpError::Invalid(reason),
        })
    }

    /// Returns a server that lists these tools, without them.
    fn show(&self, server: &StoredServer, listed: &ListedTools) -> Result<UserServer, McpError> {
        let connections = &self.0.connections;
        let connection = match &server.spec {
            Ok(spec) => connections.connection(spec)?,
            Err(_) => None,
        };
        let has_listed = connection.as_ref().is_some_and(|known| known.status != ConnectionStatus::Pending)
            || !listed.is_empty();
        let obstacle = connections.user_servers().obstacle(server, &self.0.directory.catalog());
        let (status, error) = obstacle.unwrap_or_else(|| match connection {
            None => (UserServerStatus::NotConnected, None),
            Some(connection) => (connection_status(connection.status), connection.error),
        });
        Ok(UserServer {
            name: server.name.clone(),
            definition: server.definition.clone(),
            status,
            error,
            awaiting_approval: pins::awaits_approval(&server.pins, listed),
            digest: has_listed.then(|| pins::digest(server.name.as_str(), listed)),
            tools: None,
            created_at: server.created_at,
            updated_at: server.updated_at,
        })
    }
}

fn connection_status(status: ConnectionStatus) -> UserServerStatus {
    match status {
        ConnectionStatus::Connected => UserServerStatus::Connected,
        ConnectionStatus::Pending => UserServerStatus::Pending,
        ConnectionStatus::Expired => UserServerStatus::Expired,
        ConnectionStatus::Error => UserServerStatus::Error,
    }
}

fn show_tool(server: &str, tool: &ReviewedTool) -> UserServerTool {
    let ReviewedTool { state, definition, before } = tool;
    let diff = before.as_ref().map(|before| {
        approval::definition_diff(&pins::definition_text(before), &pins::definition_text(definition))
    });
    let (diff, truncated) = diff.unzip();
    debug_assert_eq!(diff.is_some(), *state == ToolState::Changed, "only a change has a difference");
    UserServerTool {
        name: definition.name.clone(),
        tool: format!("{}{}", tool_name_prefix(server), definition.name),
        state: *state,
        description: definition.description.clone(),
        input_schema: definition.input_schema.clone(),
        diff,
        diff_truncated: truncated.unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/user_servers/operations.rs"]
mod tests;
