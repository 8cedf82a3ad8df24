//! One engine without an orchestrator.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use contract::EngineKey;
use serde_json::json;
use strict_provider::StrictProvider;

use super::home::BINARY;
use super::http::{ask, client};
use super::{Engine, Home, Program, eventually};

/// The place of an engine: what its container contract's variables say.
#[derive(Debug)]
pub(crate) struct LoneEngine {
    pub(crate) home: Home,
    pub(crate) variables: BTreeMap<String, String>,
    key: EngineKey,
    landlock: bool,
    /// What it reads for `/etc/resolv.conf`.
    resolver: Option<PathBuf>,
}

/// Starts a program for which the kernel has no Landlock: a filter answers the call that makes a ruleset, which has the
/// same number on all processors, as a kernel does that does not know it.
const WITHOUT_LANDLOCK: &str = "
import ctypes, os, struct, sys
step = lambda code, yes, no, value: struct.pack('HBBI', code, yes, no, value)
steps = step(0x20, 0, 0, 0) + step(0x15, 0, 1, 444) + step(6, 0, 0, 0x50000 | 38) + step(6, 0, 0, 0x7fff0000)
steps = ctypes.create_string_buffer(steps)
program = ctypes.create_string_buffer(struct.pack('H6xQ', 4, ctypes.addressof(steps)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// Starts a program that finds names as a file says.
const ELSEWHERE_NAMED: &str = r#"mount --bind "$1" /etc/resolv.conf && shift && exec "$@""#;

impl LoneEngine {
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let key = EngineKey::generate().unwrap();
        let catalog = home.path().join("catalog");
        fs::create_dir(&catalog).unwrap();
        let variables = [
            ("ENGINE_KEY_HASH", key.hash().to_hex()),
            ("SQLITE_DB_PATH", home.path().join("brain.sqlite").to_str().unwrap().to_owned()),
            ("CATALOG_DIR", catalog.to_str().unwrap().to_owned()),
            ("ENGINE_HOST", "127.0.0.1".to_owned()),
            ("ENGINE_PORT", home.ports.first().to_string()),
            ("LLM_PROVIDER", "scripted".to_owned()),
        ];
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { home, variables, key, landlock: true, resolver: None }
    }

    /// Sets a variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// Lets it talk to the strict provider in the words of `wire`.
    pub(crate) fn with_provider(self, wire: &str, provider: &StrictProvider) -> Self {
        let base = if wire == "openai" { provider.openai_base_url() } else { provider.base_url() };
        self.with("LLM_PROVIDER", wire).with("LLM_BASE_URL", base).with("LLM_API_KEY", "provider-key")
    }

    /// Runs it as on a kernel that has no Landlock. It needs `python3`.
    pub(crate) fn without_landlock(self) -> Self {
        Self { landlock: false, ..self }
    }

    /// Runs it as on a machine whose names are asked for at `server`, port 53. It needs root.
    pub(crate) fn with_name_server(self, server: std::net::IpAddr) -> Self {
        let resolver = self.home.path().join("resolv.conf");
        fs::write(&resolver, format!("nameserver {server}\noptions timeout:2 attempts:1\n")).unwrap();
        Self { resolver: Some(resolver), ..self }
    }

    pub(crate) fn brain(&self) -> PathBuf {
        self.home.path().join("brain.sqlite")
    }

    /// The folder of the agent's files.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.home.path().join("workspace")
    }

    /// Begins the engine.
    pub(crate) fn launch(&self) -> Program {
        if let Some(resolver) = &self.resolver {
            let resolver = resolver.to_str().unwrap();
            let starter =
                ["unshare", "--mount", "sh", "-c", ELSEWHERE_NAMED, "sh", resolver, BINARY, "engine"];
            return self.home.run_program(&starter, &self.variables);
        }
        if self.landlock {
            return self.home.run(&["engine"], &self.variables);
        }
        let starter = ["python3", "-c", WITHOUT_LANDLOCK, BINARY, "engine"];
        self.home.run_program(&starter, &self.variables)
    }

    /// Starts the engine and waits until it answers.
    pub(crate) async fn start(&self) -> (Program, Engine) {
        let mut program = self.launch();
        let url = format!("http://127.0.0.1:{}", self.variables["ENGINE_PORT"]);
        let http = client();
        eventually("the engine answers", async || {
            assert!(program.runs(), "the engine ended: {}", program.output());
            http.get(format!("{url}/health")).send().await.is_ok().then_some(())
        })
        .await;
        let engine = Engine::new(&json!({"engine_id": "", "url": url, "api_key": self.key.expose()}));
        // The answer is the engine's own, not that of another process on the port.
        assert_eq!(ask(engine.request(reqwest::Method::GET, "/openapi.json")).await.status, 200);
        (program, engine)
    }
}
