//! What others made, for connections: MCP servers of the official SDK and a server that misbehaves, an authorization
//! server, and the person who agrees there.
//!
//! `.ci/peers` installs them and says where (`ROUNDHOUSE_TEST_PEERS`). Servers over stdio run in the sandbox, which reaches
//! `/usr` and the catalog: they are run by the system's own Python, with the SDK linked into the catalog's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io, os};

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use serde_json::{Value, json};

use super::http::{client, send};
use super::{EngineFixture, Program, ProgramExit, StandaloneEngine, TestEnv, skip};

/// The address of the product whose engines are tested; nothing is there, and nobody goes there.
pub(crate) const PRODUCT_URL: &str = "https://product.example";
/// What the credentials of a tested engine are sealed under.
pub(crate) const SECRETS_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
/// What runs the servers.
const PYTHON: &str = "/usr/bin/python3";

/// Where the peers are installed.
#[derive(Debug)]
pub(crate) struct Peers {
    folder: PathBuf,
}

/// Which version of the SDK a server is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SdkVersion {
    /// The newest: all revisions up to the one without sessions and handshake.
    Newest,
    /// The last one with a handshake alone, revision 2025-11-25.
    V1_30,
    /// That of the first revision, 2024-11-05. Its servers end when they are asked for what they do not know.
    V1_6,
}

/// A peer that listens, until this is dropped.
#[derive(Debug)]
pub(crate) struct PeerServer {
    /// Where it listens.
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

/// What the authorization server sends the person back to the product with.
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
    /// Those that are installed; says that a story is skipped where they are not.
    pub(crate) fn installed() -> Option<Self> {
        let Some(folder) = env::var_os("ROUNDHOUSE_TEST_PEERS").filter(|folder| !folder.is_empty()) else {
            skip("MCP servers and an authorization server: `eval \"$(.ci/peers DIR)\"` installs them");
            return None;
        };
        Some(Self { folder: folder.into() })
    }

    /// The entry of `mcp.json` for a server over stdio: a file of the peers' with its arguments, or a module of the SDK's
    /// folder with `-m`.
    pub(crate) fn stdio_entry(&self, place: &StandaloneEngine, sdk: SdkVersion, line: &[&str]) -> Value {
        let folder = Path::new(&place.variables["CATALOG_DIR"]).join("peers");
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

    /// The server of the newest SDK over HTTP.
    pub(crate) async fn start_http(&self, options: &[&str]) -> PeerServer {
        self.start_python(SdkVersion::Newest, &[&["server.py", "http"], options].concat()).await
    }

    /// A server of an earlier SDK over `http`, or over `sse` as the first revision has it.
    pub(crate) async fn start_old_http(&self, sdk: SdkVersion, transport: &str) -> PeerServer {
        self.start_python(sdk, &["old_server.py", transport]).await
    }

    /// Tries the peers with the official SDK's own client.
    pub(crate) async fn run_official_client(&self, arguments: &[&str]) -> ProgramExit {
        let path = self.folder.join(SdkVersion::Newest.folder()).to_str().unwrap().to_owned();
        let check = sources_folder().join("check.py");
        let line = [&[PYTHON, check.to_str().unwrap()], arguments].concat();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        TestEnv::new().run_program(&line, &variables.into()).wait().await
    }

    /// A server of the newest Python SDK that is its own authorization server, without the settings of
    /// [`Peers::authority`].
    pub(crate) async fn start_combined_server(&self) -> AuthorizationServer {
        AuthorizationServer { peer: self.start_python(SdkVersion::Newest, &["oauth_server.py"]).await }
    }

    /// The same, made with the TypeScript SDK.
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

    /// An authorization server whose access tokens live so long, and that knows clients by `dynamic` registration or by
    /// `document`.
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

    async fn start_node(&self, file: &str, variables: BTreeMap<String, String>) -> PeerServer {
        let home = TestEnv::new();
        // Node looks for libraries beside the program.
        os::unix::fs::symlink(self.folder.join("node/node_modules"), home.path().join("node_modules"))
            .unwrap();
        let program = home.path().join(file);
        fs::copy(sources_folder().join(file), &program).unwrap();
        let node = self.folder.join("node/node");
        let line = [node, program].map(|path| path.to_str().unwrap().to_owned());
        PeerServer::start(home, &line, &variables).await
    }
}

/// Whether the server that misbehaves can run here; says that a story is skipped where it cannot.
pub(crate) fn has_python() -> bool {
    let found = Path::new(PYTHON).is_file();
    if !found {
        skip(PYTHON);
    }
    found
}

/// The entry of `mcp.json` for the server that misbehaves, over stdio.
pub(crate) fn misbehaving_stdio_entry(place: &StandaloneEngine, fault: &str) -> Value {
    let folder = Path::new(&place.variables["CATALOG_DIR"]).join("peers");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(sources_folder().join("misbehaving.py"), folder.join("misbehaving.py")).unwrap();
    json!({"command": PYTHON, "args": in_folder(&folder, &["misbehaving.py", fault])})
}

/// The server that misbehaves, over HTTP.
pub(crate) async fn start_misbehaving_http(fault: &str) -> PeerServer {
    let line =
        [vec![PYTHON.to_owned()], in_folder(&sources_folder(), &["misbehaving.py", fault, "http"])].concat();
    PeerServer::start(TestEnv::new(), &line, &BTreeMap::new()).await
}

/// A line of arguments whose first one is a file of this folder, or an option.
fn in_folder(folder: &Path, line: &[&str]) -> Vec<String> {
    let [first, rest @ ..] = line else { return Vec::new() };
    let first = if first.starts_with('-') { PathBuf::from(first) } else { folder.join(first) };
    let rest = rest.iter().map(|&part| part.to_owned());
    [first.to_str().unwrap().to_owned()].into_iter().chain(rest).collect()
}

/// Makes `to` the same folder as `from`, with the same files where the disk allows.
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
        let said = program
            .wait_for_output("\"}\n")
            .await
            .unwrap_or_else(|ended| panic!("the peer ended: {ended:?}"));
        let told = said.lines().find(|line| line.starts_with("{\"url\"")).expect("it says where it listens");
        let url = serde_json::from_str::<Value>(told).unwrap()["url"].as_str().unwrap().to_owned();
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

    /// What its endpoint of this path was asked, with the answers' status.
    pub(crate) async fn requests_to(&self, path: &str) -> Vec<Value> {
        let log = self.get("/test/log").await;
        log.as_array().unwrap().iter().filter(|entry| entry["path"] == path).cloned().collect()
    }

    /// How often tokens were renewed, and how often in vain.
    pub(crate) async fn refresh_counts(&self) -> (usize, usize) {
        let asked = self.requests_to("/token").await;
        let refreshes: Vec<_> = asked.iter().filter(|entry| entry["grant"] == "refresh_token").collect();
        let well = refreshes.iter().filter(|entry| entry["status"] == 200).count();
        (well, refreshes.len() - well)
    }

    /// The tokens that it gave, and whether each is still worth something.
    pub(crate) async fn tokens(&self) -> Vec<(String, bool)> {
        let tokens = self.get("/test/tokens").await;
        let token =
            |token: &Value| (token["value"].as_str().unwrap().to_owned(), token["active"].as_bool().unwrap());
        tokens.as_array().unwrap().iter().map(token).collect()
    }

    /// Changes how it works from now on.
    pub(crate) async fn configure(&self, settings: Value) {
        self.post("/test/settings", &settings).await;
    }

    /// All access tokens end, before their time.
    pub(crate) async fn expire_access_tokens(&self) {
        self.post("/test/end", &Value::Null).await;
    }

    /// The person takes all leave back.
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

    /// Goes where the person's browser goes, who signs in and agrees, until it is sent back to the product.
    pub(crate) async fn authorize_in_browser(&self, authorization_url: &str) -> CallbackParams {
        let browser = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        let mut cookies = BTreeMap::new();
        let mut url = Url::parse(authorization_url).unwrap();
        assert!(authorization_url.starts_with(self.url()), "it is another's page: {authorization_url}");
        for _ in 0..10 {
            let shown: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let response = browser.get(url.clone()).header("cookie", shown.join("; ")).send().await.unwrap();
            for cookie in response.headers().get_all("set-cookie") {
                let (name, value) = cookie.to_str().unwrap().split_once('=').unwrap();
                let value = value.split(';').next().unwrap();
                cookies.insert(name.to_owned(), value.to_owned());
            }
            cookies.retain(|_, value| !value.is_empty());
            let Some(next) = response.headers().get("location") else {
                panic!("{url} leads nowhere: {} {}", response.status(), response.text().await.unwrap());
            };
            url = url.join(next.to_str().unwrap()).unwrap();
            if url.as_str().starts_with(PRODUCT_URL) {
                assert_eq!(url.path(), "/assets/oauth/callback");
                return CallbackParams(url.query_pairs().into_owned().collect());
            }
        }
        panic!("the way from {authorization_url} does not end");
    }
}

impl CallbackParams {
    /// Another value of one of its fields; none removes it.
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

    /// The path of the callback with its query.
    pub(crate) fn path(&self) -> String {
        let mut url = Url::parse(PRODUCT_URL).unwrap();
        url.query_pairs_mut().extend_pairs(&self.0);
        format!("/assets/oauth/callback?{}", url.query().unwrap())
    }
}

impl StandaloneEngine {
    /// Gives it a catalog with these servers, and what connections to them need.
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
        Self::with_servers_and_setup(|_| servers, |place| place).await
    }

    /// An engine whose catalog has these servers, which its place is known for, and that was made ready.
    pub(crate) async fn with_servers_and_setup(
        servers: impl FnOnce(&StandaloneEngine) -> Value,
        ready: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
    ) -> Self {
        let of = |place: StandaloneEngine| {
            let servers = servers(&place);
            ready(place.with_servers(&servers))
        };
        Self::with_setup("anthropic", [], of).await
    }
}
