//! What the tests of authorizations share: an engine's part that has them, and a strict server.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::Timestamp;
use contract::assets::{Callback, ConnectOutcome, ConnectionStatus};
use reqwest::Url;
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret as _, SecretString};
use service::clock::ManualClock;
use service::vault::MasterKey;

use super::strict::Strict;
use super::{Finished, OAuth};
pub(crate) use crate::assets::access::AccessError;
use crate::assets::access::Bearer;
use crate::assets::connections::Connections;
use crate::assets::{Assets, AssetsError, Settings, ToolDefinition};
use crate::brain::Brain;
use crate::catalog::{Auth, OAuthClient, ServerSpec, Transport};
use crate::testing::within;
use crate::tools::Allowed;

pub(crate) const SERVER: &str = "notes";
pub(crate) const REDIRECT_URI: &str = "https://product.example/app/assets/oauth/callback";
pub(crate) const CLIENT_METADATA: &str = "https://product.example/client.json";

/// See the module.
pub(crate) struct Rig {
    pub(crate) strict: Strict,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) spec: Arc<ServerSpec>,
    pub(crate) assets: Assets,
    pub(in crate::assets) connections: Arc<Connections>,
    brain: Option<Brain>,
    key: MasterKey,
    folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// With a server at this address of the machine.
    pub(crate) async fn at(address: IpAddr) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_800_000_000_000)));
        let strict = Strict::start(address, Arc::clone(&clock)).await;
        let (folder, key) = (tempfile::tempdir().unwrap(), MasterKey::generate().unwrap());
        let spec = Arc::new(spec(&strict.resource(), Vec::new(), None));
        let (brain, assets) = open(folder.path(), &key, &clock);
        assets.set_directory(&[Arc::clone(&spec)]);
        let connections = Arc::clone(&assets.0.connections);
        Self { strict, clock, spec, assets, connections, brain: Some(brain), key, folder }
    }

    /// The same engine, started again.
    pub(crate) async fn restart(&mut self) {
        self.assets.close().await;
        if let Some(brain) = self.brain.take() {
            brain.close().await;
        }
        let (brain, assets) = open(self.folder.path(), &self.key, &self.clock);
        assets.set_directory(&[Arc::clone(&self.spec)]);
        self.connections = Arc::clone(&assets.0.connections);
        (self.brain, self.assets) = (Some(brain), assets);
    }

    pub(in crate::assets) fn oauth(&self) -> &OAuth {
        &self.assets.0.oauth
    }

    pub(crate) fn brain(&self) -> &Brain {
        self.brain.as_ref().unwrap()
    }

    /// From now on nothing can be stored.
    pub(crate) async fn fail_writes(&self) {
        if let Some(brain) = &self.brain {
            brain.close().await;
        }
    }

    pub(crate) fn set_spec(&mut self, scopes: &[&str], client: Option<OAuthClient>) {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        self.spec = Arc::new(spec(&self.strict.resource(), scopes, client));
        self.assets.set_directory(&[Arc::clone(&self.spec)]);
    }

    /// Begins an authorization: where the user gives leave.
    pub(crate) async fn authorize(&self) -> Result<String, AssetsError> {
        let back = Url::parse("https://product.example/done").unwrap();
        match within(self.oauth().authorize(&self.spec, Some(back))).await? {
            ConnectOutcome::AuthorizationRequired { authorization_url, state } => {
                assert!(authorization_url.contains(&state));
                Ok(authorization_url)
            }
            ConnectOutcome::Connected { .. } => panic!("connected without leave"),
        }
    }

    pub(in crate::assets) async fn finish(&self, callback: Callback) -> Result<Finished, AssetsError> {
        within(self.oauth().finish(callback)).await
    }

    /// Has the user give leave, and the connection stand.
    pub(crate) async fn connect(&self) {
        let url = self.authorize().await.unwrap();
        self.finish(self.strict.give_leave(&url)).await.map(drop).unwrap();
        self.stand().await;
    }

    /// The server has listed its tools.
    pub(crate) async fn stand(&self) {
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
    pub(crate) async fn disconnect(&self) {
        within(self.oauth().revoke(&self.spec)).await;
        self.connections.remove(SERVER).await.unwrap();
    }

    pub(crate) fn bearer(&self) -> Arc<dyn Bearer> {
        self.oauth().bearer(&self.spec)
    }

    /// A token for a call.
    pub(crate) async fn token(&self) -> Result<String, AccessError> {
        self.token_but(None).await
    }

    /// A token other than one that was refused.
    pub(crate) async fn token_but(&self, refused: Option<&str>) -> Result<String, AccessError> {
        let refused = refused.map(SecretString::from);
        let token = within(self.bearer().token(refused.as_ref())).await?;
        Ok(token.expose_secret().to_owned())
    }

    pub(crate) fn status(&self) -> Option<ConnectionStatus> {
        self.connections.status(SERVER)
    }

    pub(crate) fn pass(&self, seconds: f64) {
        self.clock.advance(Duration::from_secs_f64(seconds));
    }

    /// Nothing was asked in a way that it must not be.
    pub(crate) fn check(&self) {
        assert_eq!(self.strict.books().broken, Vec::<String>::new());
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn spec(url: &str, scopes: Vec<String>, client: Option<OAuthClient>) -> ServerSpec {
    ServerSpec {
        name: SERVER.into(),
        description: String::new(),
        transport: Transport::Http { url: Url::parse(url).unwrap(), headers: HeaderMap::default() },
        auth: Auth::OAuth { scopes, client },
        trust_annotations: false,
        timeout: Duration::from_mins(1),
    }
}

fn open(folder: &Path, key: &MasterKey, clock: &Arc<ManualClock>) -> (Brain, Assets) {
    let brain = Brain::open(&folder.join("brain.sqlite")).unwrap();
    let settings = Settings {
        key: Some(key.clone()),
        redirect_base: Some(Url::parse("https://product.example/app/").unwrap()),
        client_metadata: Some(Url::parse(CLIENT_METADATA).unwrap()),
        web: Allowed::default(),
    };
    let clock: Arc<ManualClock> = Arc::clone(clock);
    let assets = Assets::open(&brain, settings, None, clock).unwrap();
    (brain, assets)
}
