//! What others made, for connections: MCP servers of the official SDK and a server that misbehaves, an authorization
//! server, and the person who agrees there.
//!
//! `.ci/peers` installs them and says where (`ROUNDHOUSE_TEST_PEERS`). Servers over stdio run on the leash, which reaches
//! `/usr` and the catalog: they are run by the system's own Python, with the SDK linked into the catalog's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io, os};

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use serde_json::{Value, json};

use super::http::{ask, client};
use super::{Ended, Home, LoneEngine, Program, Rig, skip};

/// The address of the product whose engines are tested; nothing is there, and nobody goes there.
pub(crate) const PRODUCT: &str = "https://product.example";
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
pub(crate) enum Sdk {
    /// The newest: all revisions up to the one without sessions and handshake.
    Newest,
    /// The last one with a handshake alone, revision 2025-11-25.
    V1_30,
    /// That of the first revision, 2024-11-05. Its servers end when they are asked for what they do not know.
    V1_6,
}

/// A peer that listens, until this is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Where it listens.
    pub(crate) url: String,
    // The program ends with its home.
    _program: Program,
    _home: Home,
}

/// An authorization server.
#[derive(Debug)]
pub(crate) struct Authority {
    peer: Peer,
}

/// What the authorization server sends the person back to the product with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Returned(pub(crate) BTreeMap<String, String>);

/// The folder of the peers' own files.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

impl Sdk {
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
    pub(crate) fn found() -> Option<Self> {
        let Some(folder) = env::var_os("ROUNDHOUSE_TEST_PEERS").filter(|folder| !folder.is_empty()) else {
            skip("MCP servers and an authorization server: `eval \"$(.ci/peers DIR)\"` installs them");
            return None;
        };
        Some(Self { folder: folder.into() })
    }

    /// The entry of `mcp.json` for a server over stdio: a file of the peers' with its arguments, or a module of the SDK's
    /// folder with `-m`.
    pub(crate) fn stdio(&self, place: &LoneEngine, sdk: Sdk, line: &[&str]) -> Value {
        let folder = Path::new(&place.variables["CATALOG_DIR"]).join("peers");
        let packages = folder.join(sdk.folder());
        if !packages.exists() {
            link(&self.folder.join(sdk.folder()), &packages);
        }
        for name in ["server.py", "old_server.py"] {
            fs::copy(sources().join(name), folder.join(name)).unwrap();
        }
        json!({
            "command": PYTHON,
            "args": in_folder(&folder, line),
            "env": {"PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
        })
    }

    /// The server of the newest SDK over HTTP.
    pub(crate) async fn http(&self, options: &[&str]) -> Peer {
        self.serving(Sdk::Newest, &[&["server.py", "http"], options].concat()).await
    }

    /// A server of an earlier SDK over `http`, or over `sse` as the first revision has it.
    pub(crate) async fn old_http(&self, sdk: Sdk, transport: &str) -> Peer {
        self.serving(sdk, &["old_server.py", transport]).await
    }

    /// Tries the peers with the official SDK's own client.
    pub(crate) async fn check(&self, arguments: &[&str]) -> Ended {
        let path = self.folder.join(Sdk::Newest.folder()).to_str().unwrap().to_owned();
        let check = sources().join("check.py");
        let line = [&[PYTHON, check.to_str().unwrap()], arguments].concat();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        Home::new().run_program(&line, &variables.into()).ended().await
    }

    /// A server of the newest Python SDK that is its own authorization server, without the settings of
    /// [`Peers::authority`].
    pub(crate) async fn own_authority(&self) -> Authority {
        Authority { peer: self.serving(Sdk::Newest, &["oauth_server.py"]).await }
    }

    /// The same, made with the TypeScript SDK.
    pub(crate) async fn own_authority_in_typescript(&self) -> Authority {
        Authority { peer: self.serving_by_node("oauth_server.mjs", BTreeMap::new()).await }
    }

    async fn serving(&self, sdk: Sdk, line: &[&str]) -> Peer {
        let path = self.folder.join(sdk.folder()).to_str().unwrap().to_owned();
        let variables =
            [("PYTHONPATH".to_owned(), path), ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())];
        let line = [vec![PYTHON.to_owned()], in_folder(&sources(), line)].concat();
        Peer::start(Home::new(), &line, &variables.into()).await
    }

    /// An authorization server whose access tokens live so long, and that knows clients by `dynamic` registration or by
    /// `document`.
    pub(crate) async fn authority(&self, access_token_ttl_s: u32, registration: &str) -> Authority {
        let variables = BTreeMap::from([
            ("ACCESS_TOKEN_TTL_S".to_owned(), access_token_ttl_s.to_string()),
            ("REGISTRATION".to_owned(), registration.to_owned()),
        ]);
        Authority { peer: self.serving_by_node("authorization_server.mjs", variables).await }
    }

    async fn serving_by_node(&self, file: &str, variables: BTreeMap<String, String>) -> Peer {
        let home = Home::new();
        // Node looks for libraries beside the program.
        os::unix::fs::symlink(self.folder.join("node/node_modules"), home.path().join("node_modules"))
            .unwrap();
        let program = home.path().join(file);
        fs::copy(sources().join(file), &program).unwrap();
        let node = self.folder.join("node/node");
        let line = [node, program].map(|path| path.to_str().unwrap().to_owned());
        Peer::start(home, &line, &variables).await
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
pub(crate) fn misbehaving_stdio(place: &LoneEngine, fault: &str) -> Value {
    let folder = Path::new(&place.variables["CATALOG_DIR"]).join("peers");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(sources().join("misbehaving.py"), folder.join("misbehaving.py")).unwrap();
    json!({"command": PYTHON, "args": in_folder(&folder, &["misbehaving.py", fault])})
}

/// The server that misbehaves, over HTTP.
pub(crate) async fn misbehaving_http(fault: &str) -> Peer {
    let line = [vec![PYTHON.to_owned()], in_folder(&sources(), &["misbehaving.py", fault, "http"])].concat();
    Peer::start(Home::new(), &line, &BTreeMap::new()).await
}

/// A line of arguments whose first one is a file of this folder, or an option.
fn in_folder(folder: &Path, line: &[&str]) -> Vec<String> {
    let [first, rest @ ..] = line else { return Vec::new() };
    let first = if first.starts_with('-') { PathBuf::from(first) } else { folder.join(first) };
    let rest = rest.iter().map(|&part| part.to_owned());
    [first.to_str().unwrap().to_owned()].into_iter().chain(rest).collect()
}

/// Makes `to` the same folder as `from`, with the same files where the disk allows.
fn link(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            link(&entry.path(), &target);
        } else if let Err(error) = fs::hard_link(entry.path(), &target) {
            assert_eq!(error.kind(), io::ErrorKind::CrossesDevices, "{}: {error}", target.display());
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

impl Peer {
    async fn start(home: Home, line: &[String], variables: &BTreeMap<String, String>) -> Self {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let mut program = home.run_program(&line, variables);
        let said = program.says("\"}\n").await.unwrap_or_else(|ended| panic!("the peer ended: {ended:?}"));
        let told = said.lines().find(|line| line.starts_with("{\"url\"")).expect("it says where it listens");
        let url = serde_json::from_str::<Value>(told).unwrap()["url"].as_str().unwrap().to_owned();
        Self { url, _program: program, _home: home }
    }

    /// The entry of `mcp.json` for it.
    pub(crate) fn entry(&self, auth: &str) -> Value {
        json!({"type": "http", "url": self.url, "auth": auth})
    }
}

impl Authority {
    /// Its issuer.
    pub(crate) fn url(&self) -> &str {
        &self.peer.url
    }

    /// What its endpoint of this path was asked, with the answers' status.
    pub(crate) async fn asked(&self, path: &str) -> Vec<Value> {
        let log = self.get("/test/log").await;
        log.as_array().unwrap().iter().filter(|entry| entry["path"] == path).cloned().collect()
    }

    /// How often tokens were renewed, and how often in vain.
    pub(crate) async fn refreshes(&self) -> (usize, usize) {
        let asked = self.asked("/token").await;
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
    pub(crate) async fn set(&self, settings: Value) {
        self.post("/test/settings", &settings).await;
    }

    /// All access tokens end, before their time.
    pub(crate) async fn end_access_tokens(&self) {
        self.post("/test/end", &Value::Null).await;
    }

    /// The person takes all leave back.
    pub(crate) async fn revoke(&self) {
        self.post("/test/revoke", &Value::Null).await;
    }

    async fn post(&self, path: &str, body: &Value) {
        let answer = ask(client().post(format!("{}{path}", self.url())).json(body)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    async fn get(&self, path: &str) -> Value {
        let answer = ask(client().get(format!("{}{path}", self.url()))).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Goes where the person's browser goes, who signs in and agrees, until it is sent back to the product.
    pub(crate) async fn visit(&self, authorization_url: &str) -> Returned {
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
            if url.as_str().starts_with(PRODUCT) {
                assert_eq!(url.path(), "/assets/oauth/callback");
                return Returned(url.query_pairs().into_owned().collect());
            }
        }
        panic!("the way from {authorization_url} does not end");
    }
}

impl Returned {
    /// Another value of one of its fields; none removes it.
    pub(crate) fn with(mut self, name: &str, value: Option<&str>) -> Self {
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
        let mut url = Url::parse(PRODUCT).unwrap();
        url.query_pairs_mut().extend_pairs(&self.0);
        format!("/assets/oauth/callback?{}", url.query().unwrap())
    }
}

impl LoneEngine {
    /// Gives it a catalog with these servers, and what connections to them need.
    pub(crate) fn with_servers(self, servers: &Value) -> Self {
        self.with_file("mcp.json", &json!({"mcpServers": servers}).to_string())
            .with("AD_ENCRYPTION_KEY", SECRETS_KEY)
            .with("OAUTH_REDIRECT_BASE_URL", PRODUCT)
            .with_programs()
    }
}

impl Rig {
    /// An engine whose catalog has these servers.
    pub(crate) async fn with_servers(servers: Value) -> Self {
        Self::with_servers_of(|_| servers, |place| place).await
    }

    /// An engine whose catalog has these servers, which its place is known for, and that was made ready.
    pub(crate) async fn with_servers_of(
        servers: impl FnOnce(&LoneEngine) -> Value,
        ready: impl FnOnce(LoneEngine) -> LoneEngine,
    ) -> Self {
        let of = |place: LoneEngine| {
            let servers = servers(&place);
            ready(place.with_servers(&servers))
        };
        Self::of("anthropic", [], of).await
    }
}
