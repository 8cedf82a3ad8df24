//! A fleet under `roundhouse orchestrator`: configured variable by variable, as a deployment is.

use std::fs;
use std::ops::Range;

use contract::EngineKey;
use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::form::{AUDIT_ROW, EXPLANATION, LAST_TRANSITION, NEXT_ACTION, RESTART_ATTEMPT};
use super::http::{ask, client, segment};
use super::{Answer, Ended, Engine, Fleet, Product, Program, assert_fields, eventually, processes};

/// What an orchestrator hands on to its engines here.
const PASSED_THROUGH: &str = "LLM_PROVIDER,LLM_BASE_URL,LLM_API_KEY,LLM_SCRIPT_PATH,ENGINE_LOG_LEVEL";

/// A model that answers anything, at once.
pub(crate) const QUICK: &str = "rules: [{answers: [{text: So it is.}]}]";

/// A place for an orchestrator. Its folder is laid out as that of an `up`, whose variables are not used.
#[derive(Debug)]
pub(crate) struct Deployment {
    pub(crate) fleet: Fleet,
    pub(crate) admin_key: String,
    pub(crate) master_key: String,
}

/// A `roundhouse orchestrator` that was started.
#[derive(Debug)]
pub(crate) struct Orchestrator {
    pub(crate) program: Program,
    pub(crate) base: String,
    admin_key: String,
}

impl Deployment {
    /// A deployment that has never been started, with nothing but what is required and safe beside others.
    pub(crate) fn new() -> Self {
        let fleet = Fleet::new();
        fs::create_dir(fleet.folder()).unwrap();
        // The last 43 characters of any key are 32 random bytes.
        let random = || EngineKey::generate().unwrap().expose()["sk-svc-".len()..].to_owned();
        let (admin_key, master_key) = (random(), random());
        let path = |name: &str| fleet.folder().join(name).to_str().unwrap().to_owned();
        let variables = [
            ("ORCH_DATABASE_URL", format!("sqlite:{}", path("registry.sqlite"))),
            ("ORCH_MASTER_KEY", master_key.clone()),
            ("ORCH_ADMIN_KEY", admin_key.clone()),
            ("ORCH_ENGINE_IMAGE", format!("svc-engine:{}", env!("CARGO_PKG_VERSION"))),
            ("ORCH_BACKEND", "process".to_owned()),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", PASSED_THROUGH.to_owned()),
            ("ORCH_HOST", "127.0.0.1".to_owned()),
            ("ORCH_PORT", fleet.home.ports.first().to_string()),
            ("ORCH_PORT_MIN", (fleet.home.ports.first() + 2).to_string()),
            ("ORCH_DATA_ROOT_PATH", path("engines")),
        ];
        let this = Self { fleet, admin_key, master_key };
        let this = variables.into_iter().fold(this, |this, (name, value)| this.with(name, value));
        Self { fleet: this.fleet.with_script(QUICK), ..this }
    }

    /// Sets a variable.
    pub(crate) fn with(self, name: &str, value: impl Into<String>) -> Self {
        Self { fleet: self.fleet.with(name, value), ..self }
    }

    /// Lets the engines talk to the strict provider in Anthropic's words.
    pub(crate) fn with_provider(self, provider: &strict_provider::StrictProvider) -> Self {
        Self { fleet: self.fleet.with_provider(provider), ..self }
    }

    /// Begins the orchestrator.
    pub(crate) fn launch(&self) -> Orchestrator {
        self.launch_with("ORCH_PORT", &self.fleet.variables["ORCH_PORT"])
    }

    /// Begins a second orchestrator, on a port of its own.
    pub(crate) fn launch_second(&self) -> Orchestrator {
        self.launch_with("ORCH_PORT", &(self.fleet.home.ports.first() + 1).to_string())
    }

    /// Begins an orchestrator with another value of one variable.
    pub(crate) fn launch_with(&self, name: &str, value: &str) -> Orchestrator {
        let mut variables = self.fleet.variables.clone();
        variables.insert(name.to_owned(), value.to_owned());
        let program = self.fleet.home.run(&["orchestrator"], &variables);
        let base = format!("http://127.0.0.1:{}", variables["ORCH_PORT"]);
        Orchestrator { program, base, admin_key: self.admin_key.clone() }
    }

    /// Starts the orchestrator and waits until it is ready.
    pub(crate) async fn start(&self) -> Orchestrator {
        let mut orchestrator = self.launch();
        orchestrator.is_ready().await;
        orchestrator
    }

    /// Starts the orchestrator and registers a product.
    pub(crate) async fn start_with_product(&self) -> (Orchestrator, Product) {
        let orchestrator = self.start().await;
        let product = orchestrator.register("shop", json!({})).await;
        (orchestrator, product)
    }

    /// Kills an orchestrator and starts another one.
    pub(crate) async fn kill_and_start(&self, orchestrator: Orchestrator) -> Orchestrator {
        assert_eq!(orchestrator.end(Signal::KILL).await.code, None);
        self.start().await
    }

    /// The process of an engine, if it runs.
    pub(crate) fn process_of(&self, engine: &Engine) -> Option<Pid> {
        let found = processes::engines_in_folder(&self.fleet.engine_folder(&engine.id));
        assert!(found.len() < 2, "one engine, {found:?}");
        found.first().copied()
    }

    /// Kills an engine behind the orchestrator's back.
    #[track_caller]
    pub(crate) fn kill_engine(&self, engine: &Engine) -> Pid {
        let process = self.process_of(engine).expect("the engine runs");
        processes::kill(process);
        process
    }
}

impl Orchestrator {
    /// Waits until it says that it is well.
    pub(crate) async fn is_ready(&mut self) {
        eventually("the orchestrator is ready", async || {
            assert!(self.program.runs(), "the orchestrator ended: {}", self.program.output());
            let answer = client().get(format!("{}/health", self.base)).send().await;
            answer.is_ok_and(|answer| answer.status() == 200).then_some(())
        })
        .await;
    }

    /// Registers a product.
    pub(crate) async fn register(&self, slug: &str, policy: Value) -> Product {
        Product::register(&self.base, &self.admin_key, slug, policy).await
    }

    /// Ends it with a signal.
    pub(crate) async fn end(self, signal: Signal) -> Ended {
        self.program.end(signal).await
    }
}

impl Product {
    /// Registers a product.
    pub(crate) async fn register(base: &str, admin_key: &str, slug: &str, policy: Value) -> Self {
        let body = json!({"slug": slug, "display_name": slug, "policy": policy});
        let request = client().post(format!("{base}/products/register"));
        let answer = ask(request.header("x-admin-key", admin_key).json(&body)).await;
        let registered = answer.ok(super::form::REGISTERED);
        Self::new(base, registered["platform_api_key"].as_str().unwrap())
    }

    /// An admit that neither makes nor wakes an engine.
    pub(crate) async fn admit_as_it_is(&self, user: &str) -> Answer {
        self.call(Method::POST, &format!("/engines/{}/admit", segment(user)), None).await
    }

    /// An admit that neither makes nor wakes an engine and is denied; why.
    pub(crate) async fn denied(&self, user: &str) -> String {
        let denied = self.admit_as_it_is(user).await.ok("admitted:bool engine:null reason:text");
        assert_eq!(denied["admitted"], false, "{denied}");
        denied["reason"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn rotate(&self, user: &str) -> Answer {
        self.call(Method::POST, &format!("/engines/{}/rotate-key", segment(user)), None).await
    }

    /// The ledger's rows of an event, oldest first: their users and details.
    pub(crate) async fn audit(&self, event: &str) -> Vec<(String, Value)> {
        let path = format!("/audit?limit=1000&event={event}");
        let rows = self.call(Method::GET, &path, None).await.ok("rows:array");
        let rows = rows["rows"].as_array().unwrap().iter().rev().map(|row| {
            assert_fields(row, AUDIT_ROW);
            assert_eq!(row["event"], event, "{row}");
            (row["user_id"].as_str().unwrap_or_default().to_owned(), row["detail"].clone())
        });
        rows.collect()
    }

    /// Waits until a user's engine is in a state.
    pub(crate) async fn becomes(&self, user: &str, status: &str) {
        eventually(&format!("the engine is {status}"), async || {
            (self.status(user).await == status).then_some(())
        })
        .await;
    }

    /// Why an engine is as it is, and what comes next.
    pub(crate) async fn explain(&self, user: &str) -> Value {
        let answer = self.call(Method::GET, &format!("/engines/{}/explain", segment(user)), None).await;
        let explanation = answer.ok(EXPLANATION);
        assert_fields(&explanation["last_transition"], LAST_TRANSITION);
        if !explanation["next_action"].is_null() {
            assert_fields(&explanation["next_action"], NEXT_ACTION);
        }
        if !explanation["restart_attempt"].is_null() {
            assert_fields(&explanation["restart_attempt"], RESTART_ATTEMPT);
        }
        explanation
    }

    /// The path of a call that is passed on to a user's engine.
    pub(crate) fn proxied(user: &str, path: &str) -> String {
        format!("/engines/{}/proxy{path}", segment(user))
    }
}

/// Whether `value` lies in `range`, said with a message that shows it.
#[track_caller]
pub(crate) fn assert_within(what: &str, value: std::time::Duration, range: Range<f64>) {
    assert!(range.contains(&value.as_secs_f64()), "{what}: {value:?} is not within {range:?} s");
}
