//! A test fixture for authorizations: the engine's MCP part, and a strict authorization server.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic fails the test that uses it"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use api::assets::{Callback, ConnectOutcome, ConnectionStatus};
use catalog::{Auth, McpServerSpec, OAuthClientConfig, ServerOrigin, Transport};
use fetch::WebAllowlist;
use http_service::clock::ManualClock;
use http_service::vault::MasterKey;
use mock_auth::MockAuthServer;
use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret as _, SecretString};
use store::Brain;
use testkit::with_deadline;

use super::{CompletedAuthorization, OAuth};
use crate::connections::Connections;
pub use crate::request_auth::AuthError;
use crate::request_auth::TokenSource;
use crate::{Mcp, McpError, McpSettings, ToolDefinition};

pub(crate) const SERVER_NAME: &str = "notes";
/// The redirect URI of the authorizations.
pub const REDIRECT_URI: &str = "https://product.example/app/assets/oauth/callback";
pub(crate) const CLIENT_METADATA_URL: &str = "https://product.example/client.json";

/// The MCP part of an engine, with a mock authorization server.
pub struct OAuthFixture {
    /// The authorization server, and the MCP server behind it.
    pub auth_server: MockAuthServer,
    /// The clock of the engine and of the server.
    pub clock: Arc<ManualClock>,
    /// The server as the catalog names it.
    pub spec: Arc<McpServerSpec>,
    /// The engine's MCP part.
    pub mcp: Mcp,
    pub(crate) connections: Arc<Connections>,
    brain: Option<Brain>,
    key: MasterKey,
    folder: tempfile::TempDir,
}

impl OAuthFixture {
    /// Creates the fixture with the server on the IPv4 loopback address.
    pub async fn new() -> Self {
        Self::with_address(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Creates the fixture with the server at this local address.
    pub(crate) async fn with_address(address: IpAddr) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_800_000_000_000)));
        let auth_server = MockAuthServer::start(address, Arc::clone(&clock)).await;
        let (folder, key) = (tempfile::tempdir().unwrap(), MasterKey::generate().unwrap());
        let spec = Arc::new(spec(&auth_server.resource_url(), Vec::new(), None));
        let (brain, mcp) = open(folder.path(), &key, &clock);
        mcp.set_server_specs(&[Arc::clone(&spec)]);
        let connections = Arc::clone(&mcp.0.connections);
        Self { auth_server, clock, spec, mcp, connections, brain: Some(brain), key, folder }
    }

    /// Restarts the engine.
    pub async fn restart(&mut self) {
        self.mcp.close().await;
        if let Some(brain) = self.brain.take() {
            brain.close().await;
        }
        let (brain, mcp) = open(self.folder.path(), &self.key, &self.clock);
        mcp.set_server_specs(&[Arc::clone(&self.spec)]);
        self.connections = Arc::clone(&mcp.0.connections);
        (self.brain, self.mcp) = (Some(brain), mcp);
    }

    pub(crate) fn oauth(&self) -> &OAuth {
        &self.mcp.0.oauth
    }

    /// Returns the engine's store.
    pub fn brain(&self) -> &Brain {
        self.brain.as_ref().unwrap()
    }

    /// Makes all further writes fail.
    pub async fn fail_writes(&self) {
        if let Some(brain) = &self.brain {
            brain.close().await;
        }
    }

    /// Replaces the server's entry in the catalog.
    pub fn set_spec(&mut self, scopes: &[&str], client: Option<OAuthClientConfig>) {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        self.spec = Arc::new(spec(&self.auth_server.resource_url(), scopes, client));
        self.mcp.set_server_specs(&[Arc::clone(&self.spec)]);
    }

    /// Begins an authorization; returns the URL at which the user gives consent.
    pub(crate) async fn authorize(&self) -> Result<String, McpError> {
        let back = Url::parse("https://product.example/done").unwrap();
        match with_deadline(self.oauth().authorize(&self.spec, Some(back))).await? {
            ConnectOutcome::AuthorizationRequired { authorization_url, state } => {
                assert!(authorization_url.contains(&state));
                Ok(authorization_url)
            }
            ConnectOutcome::Connected { .. } => panic!("connected without authorization"),
        }
    }

    pub(crate) async fn finish(&self, callback: Callback) -> Result<CompletedAuthorization, McpError> {
        with_deadline(self.oauth().finish(callback)).await
    }

    /// Connects the server with the user's consent.
    pub async fn connect(&self) {
        let url = self.authorize().await.unwrap();
        self.finish(self.auth_server.approve(&url)).await.map(drop).unwrap();
        self.establish().await;
    }

    /// Stores the server's list of tools.
    pub(crate) async fn establish(&self) {
        let tool = ToolDefinition {
            name: "look".into(),
            description: String::new(),
            input_schema: serde_json::json!({"type": "object"}),
            read_only: true,
            idempotent: true,
        };
        self.connections.establish(&self.spec, vec![tool], None).await.unwrap();
    }

    /// Ends the connection.
    pub async fn disconnect(&self) {
        with_deadline(self.oauth().revoke(&self.spec)).await;
        self.connections.remove(SERVER_NAME).await.unwrap();
    }

    pub(crate) fn token_source(&self) -> Arc<dyn TokenSource> {
        self.oauth().token_source(&self.spec)
    }

    /// Returns a token for a call.
    pub async fn token(&self) -> Result<String, AuthError> {
        self.token_except(None).await
    }

    /// Returns a token other than the refused one.
    pub(crate) async fn token_except(&self, refused: Option<&str>) -> Result<String, AuthError> {
        let refused = refused.map(SecretString::from);
        let token = with_deadline(self.token_source().token(refused.as_ref())).await?;
        Ok(token.expose_secret().to_owned())
    }

    /// Returns the state of the user's connection, if there is one.
    pub fn status(&self) -> Option<ConnectionStatus> {
        self.connections.status(SERVER_NAME)
    }

    /// Advances the clock.
    pub fn advance_clock(&self, seconds: f64) {
        self.clock.advance(Duration::from_secs_f64(seconds));
    }

    /// Asserts that no request violated the specifications.
    pub fn assert_no_violations(&self) {
        assert_eq!(self.auth_server.state().violations, Vec::<String>::new());
    }

    /// Returns the folder of the store.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn spec(url: &str, scopes: Vec<String>, client: Option<OAuthClientConfig>) -> McpServerSpec {
    McpServerSpec {
        name: SERVER_NAME.into(),
        description: String::new(),
        origin: ServerOrigin::Catalog,
        transport: Transport::Http { url: Url::parse(url).unwrap(), headers: HeaderMap::default() },
        auth: Auth::OAuth { scopes, client },
        trust_annotations: false,
        timeout: Duration::from_mins(1),
    }
}

fn open(folder: &Path, key: &MasterKey, clock: &Arc<ManualClock>) -> (Brain, Mcp) {
    let brain = Brain::open(&folder.join("brain.sqlite")).unwrap();
    let settings = McpSettings {
        encryption_key: Some(key.clone()),
        redirect_base: Some(Url::parse("https://product.example/app/").unwrap()),
        client_metadata_url: Some(Url::parse(CLIENT_METADATA_URL).unwrap()),
        web_allowlist: WebAllowlist::default(),
    };
    let clock: Arc<ManualClock> = Arc::clone(clock);
    let documents = tools::documents::DocumentReader::new(None, folder);
    let mcp = Mcp::open(&brain, settings, None, clock, documents).unwrap();
    (brain, mcp)
}
