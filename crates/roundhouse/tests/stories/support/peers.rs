//! Third-party peers for connections: MCP servers of the official SDKs, an authorization server, and the person
//! who consents there; and a misbehaving MCP server.
//!
//! `.ci/peers` installs them and prints their folder (`ROUNDHOUSE_TEST_PEERS`). Servers over stdio run in the
//! sandbox, which can read only `/usr` and the catalog: the system's Python runs them, with the SDK linked into
//! the catalog's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io, os};

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use serde_json::{Value, json};

use super::http::{client, send};
use super::sdk_client::{self, SdkClient};
use super::{EngineFixture, Program, ProgramExit, StandaloneEngine, TestEnv, skip};

/// The product's URL. Nothing listens there, and no request is sent to it.
pub(crate) const PRODUCT_URL: &str = "https://product.example";
/// The key with which a tested engine seals credentials.
pub(crate) const SECRETS_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
/// The interpreter of the servers.
const PYTHON: &str = "/usr/bin/python3";

/// The installed peers.
#[derive(Debug)]
pub(crate) struct Peers {
    folder: PathBuf,
}

/// The version of the SDK that a server uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SdkVersion {
    /// The newest: all protocol revisions up to the one without sessions and handshake.
    Newest,
    /// The last version that supports only revisions with a handshake, up to 2025-11-25.
    V1_30,
    /// The version of the first revision, 2024-11-05. Its servers exit on unknown requests.
    V1_6,
}

/// A listening peer, which runs until this is dropped.
#[derive(Debug)]
pub(crate) struct PeerServer {
    /// The URL on which it listens.
    pub(crate) url: String,
    // The program ends with its home.
    _program: Program,
    _home: TestEnv,
}

/// An authorization server.
#[derive(Debug)]
pub(crate) struct AuthorizationServer {
    peer: PeerServer,
}

/// The query parameters with which the authorization server redirects the person to the product.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallbackParams(pub(crate) BTreeMap<String, String>);

/// The folder of the peers' own files.
fn sources_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

impl SdkVersion {
    fn folder(self) -> &'static str {
        match self {
            Self::Newest => "python",
            Self::V1_30 => "python-1.30",
            Self::V1_6 => "python-1.6",
        }
    }
}

impl Peers {
    /// The installed peers; skips the story and returns `None` if there are none.
    pub(crate) fn installed() -> Option<Self> {
        let Some(folder) = env::var_os("ROUNDHOUSE_TEST_PEERS").filter(|folder| !folder.is_empty()) else {
            skip("MCP servers and an authorization server: `eval \"$(.ci/peers DIR)\"` installs them");
            return None;
        };
        Some(Self { folder: folder.into() })
    }

    /// The entry of `mcp.json` for a server over stdio: a file of the peers with its arguments, or a module of the
    /// SDK with `-m`.
    pub(crate) fn stdio_entry(&self, setup: &StandaloneEngine, sdk: SdkVersion, line: &[&str]) -> Value {
        let folder = Path::new(&setup.variables["CATALOG_DIR"]).join("peers");
        let packages = folder.join(sdk.folder());
        if !packages.exists() {
            link_folder(&self.folder.join(sdk.folder()), &packages);
        }
        for name in ["server.py", "old_server.py"] {
            fs::copy(sources_folder().join(name), folder.join(name)).unwrap();
        }
        json!({
            "command": PYTHON,
            "args": in_folder(&folder, line),
            "env": {"PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
        })
    }

    /// Starts the server of the newest SDK over HTTP.
    pub(crate) async fn start_http(&self, options: &[&str]) -> PeerServer {
        self.start_python(SdkVersion::Newest, &[&["server.py", "http"], options].concat()).await
    }

    /// Starts a server of an earlier SDK over `http`, or over `sse`, the transport of the first revision.
    pub(crate) async fn start_old_http(&self, sdk: SdkVersion, transport: &str) -> PeerServer {
        self.start_python(sdk, &["old_server.py", transport]).await
    }

    /// Runs the official SDK's client against the peers.
    pub(crate) async fn run_official_client(&self, arguments: &[&str]) -> ProgramExit {
        let path = self.folder.join(SdkVersion::Newest.folder()).to_str().unwrap().to_owned();
        let check = sources_folder().join("check.py");
        let line = [&[PYTHON, check.to_str().unwrap()], arguments].concat();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        TestEnv::new().run_program(&line, &variables.into()).wait().await
    }

    /// Starts a program that uses an engine with the Python SDK in the folder `packages`.
    pub(crate) fn start_client(&self, packages: &str, file: &str, arguments: &[&str]) -> SdkClient {
        let path = self.folder.join(packages).to_str().unwrap().to_owned();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        let script = sdk_client::script(file);
        let line = [&[PYTHON, script.as_str()], arguments].concat();
        SdkClient::start(TestEnv::new(), &line, variables.into())
    }

    /// Starts a server of the newest Python SDK that is its own authorization server, without the settings of
    /// [`Peers::start_authorization_server`].
    pub(crate) async fn start_combined_server(&self) -> AuthorizationServer {
        AuthorizationServer { peer: self.start_python(SdkVersion::Newest, &["oauth_server.py"]).await }
    }

    /// Starts the same kind of server with the TypeScript SDK.
    pub(crate) async fn start_typescript_combined_server(&self) -> AuthorizationServer {
        AuthorizationServer { peer: self.start_node("oauth_server.mjs", BTreeMap::new()).await }
    }

    async fn start_python(&self, sdk: SdkVersion, line: &[&str]) -> PeerServer {
        let path = self.folder.join(sdk.folder()).to_str().unwrap().to_owned();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        let line = [vec![PYTHON.to_owned()], in_folder(&sources_folder(), line)].concat();
        PeerServer::start(TestEnv::new(), &line, &variables.into()).await
    }

    /// Starts an authorization server whose access tokens have this lifetime, and that registers clients
    /// dynamically (`dynamic`) or by a client metadata document (`document`).
    pub(crate) async fn start_authorization_server(
        &self,
        access_token_ttl_s: u32,
        registration: &str,
    ) -> AuthorizationServer {
        let variables = BTreeMap::from([
            ("ACCESS_TOKEN_TTL_S".to_owned(), access_token_ttl_s.to_string()),
            ("REGISTRATION".to_owned(), registration.to_owned()),
        ]);
        AuthorizationServer { peer: self.start_node("authorization_server.mjs", variables).await }
    }

    /// The installed Node.
    pub(crate) fn node(&self) -> PathBuf {
        self.folder.join("node/node")
    }

    /// The command line of a client with the Python SDKs of other protocols, and its variables.
    pub(crate) fn front_client(&self, file: &str) -> (Vec<String>, BTreeMap<String, String>) {
        let packages = self.folder.join("python-fronts").to_str().unwrap().to_owned();
        let variables =
            [("PYTHONPATH".to_owned(), packages), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        let program = sources_folder().join(file).to_str().unwrap().to_owned();
        (vec![PYTHON.to_owned(), program], variables.into())
    }

    /// An environment for programs of Node, with the installed libraries.
    pub(crate) fn node_home(&self) -> TestEnv {
        let home = TestEnv::new();
        // Node searches for libraries beside the program.
        os::unix::fs::symlink(self.folder.join("node/node_modules"), home.path().join("node_modules"))
            .unwrap();
        home
    }

    async fn start_node(&self, file: &str, variables: BTreeMap<String, String>) -> PeerServer {
        let home = self.node_home();
        let program = home.path().join(file);
        fs::copy(sources_folder().join(file), &program).unwrap();
        let line = [self.node(), program].map(|path| path.to_str().unwrap().to_owned());
        PeerServer::start(home, &line, &variables).await
    }
}

/// Whether the misbehaving server can run here; if not, skips the story.
pub(crate) fn has_python() -> bool {
    let found = Path::new(PYTHON).is_file();
    if !found {
        skip(PYTHON);
    }
    found
}

/// The entry of `mcp.json` for the misbehaving server, over stdio.
pub(crate) fn misbehaving_stdio_entry(setup: &StandaloneEngine, fault: &str) -> Value {
    let folder = Path::new(&setup.variables["CATALOG_DIR"]).join("peers");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(sources_folder().join("misbehaving.py"), folder.join("misbehaving.py")).unwrap();
    json!({"command": PYTHON, "args": in_folder(&folder, &["misbehaving.py", fault])})
}

/// Starts the misbehaving server over HTTP.
pub(crate) async fn start_misbehaving_http(fault: &str) -> PeerServer {
    let line =
        [vec![PYTHON.to_owned()], in_folder(&sources_folder(), &["misbehaving.py", fault, "http"])].concat();
    PeerServer::start(TestEnv::new(), &line, &BTreeMap::new()).await
}

/// A command line whose first argument is a file of this folder, or an option.
fn in_folder(folder: &Path, line: &[&str]) -> Vec<String> {
    let [first, rest @ ..] = line else { return Vec::new() };
    let first = if first.starts_with('-') { PathBuf::from(first) } else { folder.join(first) };
    let rest = rest.iter().map(|&part| part.to_owned());
    [first.to_str().unwrap().to_owned()].into_iter().chain(rest).collect()
}

/// Copies the folder `from` to `to`, with hard links where the file system allows it.
fn link_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            link_folder(&entry.path(), &target);
        } else if let Err(error) = fs::hard_link(entry.path(), &target) {
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices, "{}: {error}", target.display());
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

impl PeerServer {
    async fn start(home: TestEnv, line: &[String], variables: &BTreeMap<String, String>) -> Self {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let mut program = home.run_program(&line, variables);
        let output =
            program.wait_for_output("\"}\n").await.unwrap_or_else(|exit| panic!("the peer ended: {exit:?}"));
        let line = output.lines().find(|line| line.starts_with("{\"url\"")).expect("it prints its URL");
        let url = serde_json::from_str::<Value>(line).unwrap()["url"].as_str().unwrap().to_owned();
        Self { url, _program: program, _home: home }
    }

    /// The entry of `mcp.json` for it.
    pub(crate) fn mcp_entry(&self, auth: &str) -> Value {
        json!({"type": "http", "url": self.url, "auth": auth})
    }
}

impl AuthorizationServer {
    /// Its issuer.
    pub(crate) fn url(&self) -> &str {
        &self.peer.url
    }

    /// The requests to its endpoint with this path, with the status of the responses.
    pub(crate) async fn requests_to(&self, path: &str) -> Vec<Value> {
        let log = self.get("/test/log").await;
        log.as_array().unwrap().iter().filter(|entry| entry["path"] == path).cloned().collect()
    }

    /// The numbers of successful and failed token refreshes.
    pub(crate) async fn refresh_counts(&self) -> (usize, usize) {
        let requests = self.requests_to("/token").await;
        let refreshes: Vec<_> = requests.iter().filter(|entry| entry["grant"] == "refresh_token").collect();
        let successful = refreshes.iter().filter(|entry| entry["status"] == 200).count();
        (successful, refreshes.len() - successful)
    }

    /// The tokens that it issued, and whether each is still active.
    pub(crate) async fn tokens(&self) -> Vec<(String, bool)> {
        let tokens = self.get("/test/tokens").await;
        let token =
            |token: &Value| (token["value"].as_str().unwrap().to_owned(), token["active"].as_bool().unwrap());
        tokens.as_array().unwrap().iter().map(token).collect()
    }

    /// Changes its settings.
    pub(crate) async fn configure(&self, settings: Value) {
        self.post("/test/settings", &settings).await;
    }

    /// Expires all access tokens at once.
    pub(crate) async fn expire_access_tokens(&self) {
        self.post("/test/end", &Value::Null).await;
    }

    /// Revokes all grants of the person.
    pub(crate) async fn revoke_grants(&self) {
        self.post("/test/revoke", &Value::Null).await;
    }

    async fn post(&self, path: &str, body: &Value) {
        let answer = send(client().post(format!("{}{path}", self.url())).json(body)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    async fn get(&self, path: &str) -> Value {
        let answer = send(client().get(format!("{}{path}", self.url()))).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Follows the redirects as the browser of a person who signs in and consents, until it is redirected to the
    /// product.
    pub(crate) async fn authorize_in_browser(&self, authorization_url: &str) -> CallbackParams {
        let browser = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        let mut cookies = BTreeMap::new();
        let mut url = Url::parse(authorization_url).unwrap();
        assert!(
            authorization_url.starts_with(self.url()),
            "the URL is on another server: {authorization_url}"
        );
        for _ in 0..10 {
            let cookie_pairs: Vec<String> =
                cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let response =
                browser.get(url.clone()).header("cookie", cookie_pairs.join("; ")).send().await.unwrap();
            for cookie in response.headers().get_all("set-cookie") {
                let (name, value) = cookie.to_str().unwrap().split_once('=').unwrap();
                let value = value.split(';').next().unwrap();
                cookies.insert(name.to_owned(), value.to_owned());
            }
            cookies.retain(|_, value| !value.is_empty());
            let Some(location) = response.headers().get("location") else {
                panic!("{url} does not redirect: {} {}", response.status(), response.text().await.unwrap());
            };
            url = url.join(location.to_str().unwrap()).unwrap();
            if url.as_str().starts_with(PRODUCT_URL) {
                assert_eq!(url.path(), "/assets/oauth/callback");
                return CallbackParams(url.query_pairs().into_owned().collect());
            }
        }
        panic!("the redirects from {authorization_url} do not end");
    }
}

impl CallbackParams {
    /// Replaces one of the parameters; `None` removes it.
    pub(crate) fn with_param(mut self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.0.insert(name.to_owned(), value.to_owned()),
            None => self.0.remove(name),
        };
        self
    }

    /// The body of `POST /assets/callback`.
    pub(crate) fn body(&self) -> Value {
        json!(self.0)
    }

    /// The path of the callback with the query.
    pub(crate) fn path(&self) -> String {
        let mut url = Url::parse(PRODUCT_URL).unwrap();
        url.query_pairs_mut().extend_pairs(&self.0);
        format!("/assets/oauth/callback?{}", url.query().unwrap())
    }
}

impl StandaloneEngine {
    /// Gives it a catalog with these servers, and the variables that connections need.
    pub(crate) fn with_servers(self, servers: &Value) -> Self {
        self.with_catalog_file("mcp.json", &json!({"mcpServers": servers}).to_string())
            .with_env("AD_ENCRYPTION_KEY", SECRETS_KEY)
            .with_env("OAUTH_REDIRECT_BASE_URL", PRODUCT_URL)
            .allowing_unconfined()
    }
}

impl EngineFixture {
    /// An engine whose catalog has these servers.
    pub(crate) async fn with_servers(servers: Value) -> Self {
        Self::with_servers_and_setup(|_| servers, |setup| setup).await
    }

    /// An engine whose catalog has these servers, which may depend on its setup, and whose setup is changed by
    /// `configure` before the start.
    pub(crate) async fn with_servers_and_setup(
        servers: impl FnOnce(&StandaloneEngine) -> Value,
        configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
    ) -> Self {
        let configure_all = |setup: StandaloneEngine| {
            let servers = servers(&setup);
            configure(setup.with_servers(&servers))
        };
        Self::with_setup("anthropic", [], configure_all).await
    }
}
