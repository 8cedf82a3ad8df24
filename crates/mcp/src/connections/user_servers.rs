//! Changes of the servers that the user has added. They take turns with those of connections, so that an
//! approval is of exactly the tools that are listed then.

use std::sync::Arc;

use store::ErasureScope;

use super::Connections;
use crate::definition::tool_name_prefix;
use crate::oauth::user_issuer_key;
use crate::user_servers::StoredServer;
use crate::{McpError, ToolDefinition};

impl Connections {
    /// Adds a server, unless there are `max`. Returns whether there was room.
    pub(crate) async fn add_user_server(&self, server: StoredServer, max: u64) -> Result<bool, McpError> {
        let _write_lock = self.write_lock.lock().await;
        let row = server.to_row();
        let is_added = self.brain.write(move |rows| rows.insert_user_server(&row, max)).await?;
        if is_added {
            self.user_servers.put(server);
        }
        Ok(is_added)
    }

    /// Replaces a server by the result of `change`, which gets the server and the tools that it lists. The
    /// words that it replaces are erased.
    pub(crate) async fn change_user_server(
        &self,
        name: &str,
        change: impl FnOnce(&StoredServer, &[Arc<ToolDefinition>]) -> Result<StoredServer, McpError>,
    ) -> Result<(), McpError> {
        let _write_lock = self.write_lock.lock().await;
        let unknown = || McpError::UnknownUserServer(name.to_owned());
        let before = self.user_servers.find(name).ok_or_else(unknown)?;
        let listed = before.spec.as_ref().map(|spec| self.listed_tools(spec)).unwrap_or_default();
        let mut after = change(&before, &listed)?;
        after.updated_at = self.now();
        let (row, is_reworded) =
            (after.to_row(), before.definition.description != after.definition.description);
        let updated = self.brain.write(move |rows| {
            if is_reworded {
                rows.enqueue_erasure(&ErasureScope::default())?;
            }
            rows.update_user_server(&row)
        });
        if !updated.await? {
            return Err(unknown());
        }
        self.user_servers.put(after);
        self.bump_generation();
        Ok(())
    }

    /// Deletes a server with its connection, its credentials and the grants for its tools. The caller holds
    /// the server's lock.
    pub(crate) async fn remove_user_server(&self, name: &str) -> Result<(), McpError> {
        let _write_lock = self.write_lock.lock().await;
        // The catalog may use the name for another server by now.
        let has_connection = self.is_of_user(name);
        let (server, tools) = (name.to_owned(), tool_name_prefix(name));
        let registrations = user_issuer_key(name, "");
        self.brain
            .write(move |rows| {
                if has_connection {
                    rows.delete_connection(&server)?;
                    rows.delete_grants_by_tool_prefix(&tools)?;
                }
                rows.delete_client_registrations(&registrations)?;
                rows.delete_user_server(&server)?;
                rows.enqueue_erasure(&ErasureScope::default())
            })
            .await?;
        if has_connection {
            self.cached.lock().retain(|known| known.server != name);
        }
        self.user_servers.remove(name);
        self.bump_generation();
        Ok(())
    }

    /// Reads the servers and their connections again, after an import has changed them.
    pub(crate) async fn reload_user_servers(&self) -> Result<(), McpError> {
        let _write_lock = self.write_lock.lock().await;
        let brain = self.brain.clone();
        let read = move || Ok::<_, store::StoreError>((brain.user_servers()?, brain.connections()?));
        let (servers, connections) =
            resources::threads::run_blocking(read).await.ok_or(McpError::Stopping)??;
        self.user_servers.replace_all(servers);
        let is_kept = |server: &str| connections.iter().any(|connection| connection.server == server);
        self.cached.lock().retain(|known| !known.is_of_user() || is_kept(&known.server));
        self.bump_generation();
        Ok(())
    }
}
