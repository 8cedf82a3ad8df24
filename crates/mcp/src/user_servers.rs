//! The servers that the user has added, as they are stored, and which of them can be used.

mod definition;
mod operations;

use std::sync::Arc;

use api::Timestamp;
use api::user_servers::{UserServerDefinition, UserServerName, UserServerStatus};
use catalog::{Catalog, McpServerSpec, Transport, UserServerPolicy};
pub(super) use definition::parse_spec;
use fetch::WebAllowlist;
use parking_lot::Mutex;
use store::{Brain, UserServerRow};

use super::ToolDefinition;
use super::definition::tool_name_prefix;

/// The servers that the user has added.
pub(super) struct UserServers {
    web_allowlist: WebAllowlist,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the catalog permits.
    policy: Option<UserServerPolicy>,
    /// The names of the catalog's own tools.
    catalog_tools: Vec<String>,
    /// The oldest first.
    servers: Vec<Arc<StoredServer>>,
}

/// A server that the user has added.
#[derive(Clone)]
pub(super) struct StoredServer {
    pub(super) name: UserServerName,
    pub(super) definition: UserServerDefinition,
    /// How it is reached, or why it cannot be.
    pub(super) spec: Result<Arc<McpServerSpec>, String>,
    /// The approved definitions of its tools.
    pub(super) pins: Arc<[Arc<ToolDefinition>]>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

impl StoredServer {
    /// Reads a stored server; `None` if this version cannot.
    fn from_row(row: UserServerRow, web_allowlist: &WebAllowlist) -> Option<Self> {
        let UserServerRow { name, definition, pins, created_at, updated_at } = row;
        let parsed = (UserServerName::new(name.as_str()).ok(), serde_json::from_str(&definition).ok());
        let (Some(name), Some(definition)) = parsed else {
            tracing::warn!(server = name, "A tool server of the user cannot be read; it is not used.");
            return None;
        };
        let pins = serde_json::from_str::<Vec<ToolDefinition>>(&pins).unwrap_or_else(|_| {
            tracing::warn!(server = name.as_str(), "The approved tools of a server cannot be read.");
            Vec::new()
        });
        let pins = pins.into_iter().map(Arc::new).collect();
        let spec = parse_spec(&name, &definition, web_allowlist).map(Arc::new);
        Some(Self { name, definition, spec, pins, created_at, updated_at })
    }

    pub(super) fn to_row(&self) -> UserServerRow {
        // Strings and JSON values can always be serialized.
        let pins: Vec<&ToolDefinition> = self.pins.iter().map(|tool| &**tool).collect();
        UserServerRow {
            name: self.name.as_str().to_owned(),
            definition: serde_json::to_string(&self.definition).unwrap_or_default(),
            pins: serde_json::to_string(&pins).unwrap_or_else(|_| "[]".into()),
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}

impl UserServers {
    /// Reads the servers from the brain. None can be used before the policy of the catalog is known.
    pub(super) fn open(brain: &Brain, web_allowlist: &WebAllowlist) -> Result<Self, store::StoreError> {
        let servers = Self { web_allowlist: web_allowlist.clone(), state: Mutex::default() };
        servers.replace_all(brain.user_servers()?);
        Ok(servers)
    }

    pub(super) fn replace_all(&self, rows: Vec<UserServerRow>) {
        let read = rows.into_iter().filter_map(|row| StoredServer::from_row(row, &self.web_allowlist));
        self.state.lock().servers = read.map(Arc::new).collect();
    }

    /// Sets what the catalog permits, and which names its tools take.
    pub(super) fn set_catalog(&self, catalog: &Catalog) {
        let tools = catalog.tools.iter().map(|tool| tool.name.clone());
        let mut state = self.state.lock();
        state.policy.clone_from(&catalog.permissions.user_servers);
        state.catalog_tools = tools.collect();
    }

    fn policy(&self) -> Option<UserServerPolicy> {
        self.state.lock().policy.clone()
    }

    fn all(&self) -> Vec<Arc<StoredServer>> {
        self.state.lock().servers.clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<StoredServer>> {
        self.state.lock().servers.iter().find(|server| server.name.as_str() == name).cloned()
    }

    /// Returns the approved definitions of a server's tools.
    pub(super) fn pins(&self, name: &str) -> Arc<[Arc<ToolDefinition>]> {
        self.find(name).map(|server| Arc::clone(&server.pins)).unwrap_or_default()
    }

    /// Replaces a server by its new state, or adds it.
    pub(super) fn put(&self, server: StoredServer) {
        let mut state = self.state.lock();
        let server = Arc::new(server);
        match state.servers.iter_mut().find(|known| known.name == server.name) {
            Some(known) => *known = server,
            None => state.servers.push(server),
        }
    }

    pub(super) fn remove(&self, name: &str) {
        self.state.lock().servers.retain(|server| server.name.as_str() != name);
    }

    /// Returns the servers that can be used beside those of the catalog.
    pub(super) fn usable(&self, catalog: &[Arc<McpServerSpec>]) -> Vec<Arc<McpServerSpec>> {
        let usable = self.all().into_iter().filter(|server| self.obstacle(server, catalog).is_none());
        usable.filter_map(|server| server.spec.clone().ok()).collect()
    }

    /// Returns why a server cannot be used, whether or not it is connected.
    fn obstacle(
        &self,
        server: &StoredServer,
        catalog: &[Arc<McpServerSpec>],
    ) -> Option<(UserServerStatus, Option<String>)> {
        let spec = match &server.spec {
            Ok(spec) => spec,
            Err(reason) => return Some((UserServerStatus::Error, Some(reason.clone()))),
        };
        if let Err(reason) = self.check_permitted(spec) {
            return Some((UserServerStatus::NotPermitted, Some(reason)));
        }
        if self.is_taken(server.name.as_str(), catalog) {
            let reason = "the catalog has a server of this name, or tools with its prefix, now: add this one again \
                          under another name";
            return Some((UserServerStatus::NameTaken, Some(reason.into())));
        }
        (!server.definition.enabled).then_some((UserServerStatus::Disabled, None))
    }

    /// Whether the catalog has a server of this name, or tools named like those of such a server. What differs in
    /// its case alone would be mistaken for it.
    fn is_taken(&self, name: &str, catalog: &[Arc<McpServerSpec>]) -> bool {
        let prefix = tool_name_prefix(name);
        let has_prefix =
            |tool: &String| tool.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&prefix));
        catalog.iter().any(|spec| spec.name.eq_ignore_ascii_case(name))
            || self.state.lock().catalog_tools.iter().any(has_prefix)
    }

    /// Checks that the catalog permits this server.
    ///
    /// # Errors
    /// The reason, for a person.
    fn check_permitted(&self, spec: &McpServerSpec) -> Result<(), String> {
        let Transport::Http { url, .. } = &spec.transport else {
            return Err("only servers at an address can be added".into());
        };
        match self.policy() {
            None => Err(NOT_PERMITTED.into()),
            Some(policy) if policy.permits(url) => Ok(()),
            Some(_) => Err(format!(
                "the catalog does not permit tool servers at `{}`: `user_mcp_servers` of permissions.json says which \
                 hosts it permits",
                url.host_str().unwrap_or_default()
            )),
        }
    }
}

/// The catalog permits no servers of the user.
const NOT_PERMITTED: &str = "the catalog does not permit users to have tool servers of their own; the operator can \
                             permit it with `user_mcp_servers` in permissions.json";
