//! Lines of the orchestrator's contract that no other story covers. `docs/contract.md` lists them all.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::{client, send};
use crate::support::schema::{PROVISIONED, REGISTERED};
use crate::support::{
    Deployment, Engine, Fleet, HttpResponse, Product, RunningUp, assert_fields, eventually, processes,
    with_deadline,
};

const STATUS: &str = "total:int by_status:object health:text unhealthy_count:int";
const METRICS: &str = "provisions_1h:int crashes_1h:int restarts_1h:int avg_boot_ms:int total_provisions:int total_destroys:int";
/// The fields of a product in the list.
const LISTED_PRODUCT: &str = "product_id:product slug:text display_name:text policy:object created_at:time \
                              updated_at:time|null state:text";

async fn status(product: &Product) -> Value {
    product.call(Method::GET, "/status", None).await.assert_ok(STATUS)
}

async fn metrics(product: &Product) -> Value {
    product.call(Method::GET, "/metrics", None).await.assert_ok(METRICS)
}

#[tokio::test]
async fn status_and_metrics_tell_what_became_of_the_engines() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (orchestrator, product) = deployment.start_with_product().await;
    let none = json!({"total": 0, "by_status": {}, "health": "ok", "unhealthy_count": 0});
    assert_eq!(status(&product).await, none);
    let mut engines: Vec<Engine> = Vec::new();
    for user in ["ada", "bob", "eve"] {
        engines.push(product.engine(user).await);
    }
    product.stop("eve").await.assert_ok("status:text");
    let found = status(&product).await;
    let expected = json!({
        "total": 3, "by_status": {"running": 2, "stopped": 1}, "health": "ok", "unhealthy_count": 0,
    });
    assert_eq!(found, expected);
    // One failed engine of three is `degraded`, two of three are `critical`.
    for (engine, user, health) in [(&engines[0], "ada", "degraded"), (&engines[1], "bob", "critical")] {
        deployment.kill_engine(engine);
        product.wait_for_status(user, "failed").await;
        assert_eq!(status(&product).await["health"], health);
    }
    let found = status(&product).await;
    assert_eq!(
        (&found["by_status"], &found["unhealthy_count"]),
        (&json!({"stopped": 1, "failed": 2}), &json!(2))
    );

    product.delete("eve").await.assert_ok("status:text engine_id:engine");
    assert_eq!(status(&product).await["total"], 2);
    let mut found = metrics(&product).await;
    assert!(found["avg_boot_ms"].take().as_u64() > Some(0), "{found}");
    let expected = json!({
        "provisions_1h": 3, "crashes_1h": 2, "restarts_1h": 0, "avg_boot_ms": null, "total_provisions": 3,
        "total_destroys": 1,
    });
    assert_eq!(found, expected);
    // Each product sees only its own engines.
    let other = orchestrator.register("other", json!({})).await;
    assert_eq!(status(&other).await, none);
    assert!(metrics(&other).await.as_object().unwrap().values().all(|figure| *figure == 0));
}

/// The products as the operator sees them.
async fn products(up: &RunningUp, query: &str) -> Value {
    let request = client().get(format!("{}/products{query}", up.base)).header("x-admin-key", up.admin_key());
    let list = send(request).await.assert_ok("products:array total:int");
    list["products"].as_array().unwrap().iter().for_each(|product| assert_fields(product, LISTED_PRODUCT));
    list
}

async fn put_policy(up: &RunningUp, product_id: &str, body: &Value) -> HttpResponse {
    let request = client().put(format!("{}/products/{product_id}/policy", up.base)).json(body);
    send(request.header("x-admin-key", up.admin_key())).await
}

#[tokio::test]
async fn a_policy_takes_the_place_of_the_whole_one_before_at_once() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let body = json!({"slug": "shop", "display_name": "The Shop", "policy": {"rate_limit_rpm": 1000}});
    let request = client().post(format!("{}/products/register", up.base)).json(&body);
    let registered = send(request.header("x-admin-key", up.admin_key())).await.assert_ok(REGISTERED);
    let product = Product::new(&up.base, registered["platform_api_key"].as_str().unwrap());
    let product_id = registered["product_id"].as_str().unwrap();
    for user in ["ada", "bob"] {
        product.engine(user).await;
    }

    let policy = json!({"max_engines": 1, "suspended": false});
    let answer = put_policy(&up, product_id, &json!({"policy": policy})).await;
    let answer =
        answer.assert_ok("product_id:product slug:text display_name:text policy:object updated_at:time");
    assert_eq!((&answer["product_id"], &answer["policy"]), (&registered["product_id"], &policy));
    // Lowering the cap destroys no engines, but refuses new ones.
    product.provision("eve").await.assert_error(429, "QUOTA_EXCEEDED");
    for user in ["ada", "bob"] {
        product.engine(user).await.health().await;
    }
    let listed = products(&up, "").await;
    assert_eq!(listed["total"], 2);
    let found = listed["products"].as_array().unwrap().iter().find(|product| product["slug"] == "shop");
    let found = found.unwrap_or_else(|| panic!("not listed: {listed}"));
    assert_eq!(listed["products"][0]["slug"], "demo", "the product that `up` makes");
    assert_eq!((&found["policy"], &found["updated_at"]), (&policy, &answer["updated_at"]));
    assert!(!listed.to_string().contains("pk-svc-"), "{listed}");
    assert_eq!(products(&up, "?limit=1&offset=1").await["products"].as_array().unwrap().len(), 1);

    // Without a policy there are no limits.
    let bare = json!({"slug": "bare", "display_name": "Bare"});
    let request = client().post(format!("{}/products/register", up.base)).json(&bare);
    let bare = send(request.header("x-admin-key", up.admin_key())).await.assert_ok(REGISTERED);
    assert_eq!(bare["policy"], json!({}));

    // A suspended product may still read.
    put_policy(&up, product_id, &json!({"policy": {"suspended": true}})).await;
    product.stop("ada").await.assert_error(403, "POLICY_DENIED");
    product.admit("ada").await.assert_error(403, "POLICY_DENIED");
    assert_eq!((product.status("ada").await.as_str(), product.list("").await.1), ("running", 2));
    put_policy(&up, product_id, &json!({"policy": {}})).await;
    product.engine("eve").await;

    for (body, named) in [
        (json!({}), "policy"),
        (json!({"policy": null}), "policy"),
        (json!({"policy": {"max_engine": 1}}), "max_engine"),
        (json!({"policy": {"rate_limit_rpm": -1}}), "rate_limit_rpm"),
    ] {
        let refused = put_policy(&up, product_id, &body).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(named), "{body}");
    }
    for unknown in ["prod_00000000000000000000000000000000", "shop"] {
        put_policy(&up, unknown, &json!({"policy": {}})).await.assert_error(404, "PRODUCT_NOT_FOUND");
    }
    let request_without_key =
        client().put(format!("{}/products/{product_id}/policy", up.base)).json(&json!({"policy": {}}));
    send(request_without_key).await.assert_error(401, "INVALID_ADMIN_KEY");
    send(client().get(format!("{}/products", up.base))).await.assert_error(401, "INVALID_ADMIN_KEY");
}

#[tokio::test]
async fn a_boot_that_takes_too_long_is_rolled_back_and_says_what_is_unwell() {
    // Healthy except for its provider, for which it has no key.
    let deployment = Deployment::process_and_sqlite()
        .with_env("LLM_PROVIDER", "anthropic")
        .with_env("ORCH_BOOT_TIMEOUT_S", "5");
    let (_orchestrator, product) = deployment.start_with_product().await;
    for answer in [product.provision("ada").await, product.admit("ada").await] {
        let message = answer.assert_error(504, "BOOT_TIMEOUT");
        assert!(message.contains("llm_provider") && message.contains("ANTHROPIC_API_KEY"), "{message}");
        product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    }
    assert_eq!(deployment.fleet.engine_processes(), []);
    assert_eq!(std::fs::read_dir(deployment.fleet.folder().join("engines")).unwrap().count(), 0);
    let failed = product.audit_rows("provision_failed").await;
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(product.audit_rows("provision").await.is_empty());
}

#[tokio::test]
async fn who_is_told_to_end_finishes_what_is_in_flight_and_engines_run_on() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let before = product.engine("before").await;
    let process = deployment.process_of(&before);
    // An engine is stopped with SIGSTOP in the middle of its boot.
    let mut number = 0;
    let (booting, provisioning) = eventually("an engine is caught as it boots", async || {
        number += 1;
        let user = format!("user-{number}");
        let request = product.request(Method::POST, "/engines/provision").json(&json!({"user_id": user}));
        let provisioning = tokio::spawn(send(request));
        let known = deployment.fleet.engine_processes().len();
        let booting = eventually("its process", async || {
            let processes = deployment.fleet.engine_processes();
            (processes.len() > known || provisioning.is_finished()).then(|| processes.last().copied())
        })
        .await?;
        processes::signal(booting, Signal::STOP);
        if product.status(&user).await == "provisioning" {
            return Some((booting, provisioning));
        }
        processes::signal(booting, Signal::CONT);
        None
    })
    .await;
    let orchestrator_process = orchestrator.program.pid();
    processes::signal(orchestrator_process, Signal::TERM);
    // The orchestrator accepts no more requests, but does not exit yet.
    eventually("it no longer listens", async || {
        client().get(format!("{}/health", product.base)).send().await.is_err().then_some(())
    })
    .await;
    assert!(!provisioning.is_finished() && processes::is_alive(orchestrator_process));
    processes::signal(booting, Signal::CONT);
    let provisioned =
        with_deadline("the provision is answered", provisioning).await.unwrap().assert_ok(PROVISIONED);
    assert_eq!(provisioned["status"], "running");
    orchestrator.program.wait().await.assert_success();

    let engine = Engine::new(&provisioned);
    assert_eq!(engine.health().await["status"], "ok");
    assert_eq!(deployment.process_of(&before), process, "engines keep running");
    let _orchestrator = deployment.start().await;
    let user = provisioned["user_id"].as_str().unwrap();
    assert_eq!((product.status(user).await, product.engine(user).await.id), ("running".into(), engine.id));
}

#[tokio::test]
async fn what_an_engine_says_can_be_read() {
    // At this level each request is logged.
    let fleet = Fleet::new().with_env("ENGINE_LOG_LEVEL", "debug");
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    for _ in 0..201 {
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
    }
    let lines = async |query: &str| -> Vec<String> {
        let path = format!("/engines/ada/logs{query}");
        let logs = product.call(Method::GET, &path, None).await.assert_ok("lines:array");
        logs["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    };
    product.stop("ada").await.assert_ok("status:text");
    let all = lines("?tail=10000").await;
    assert!(all.len() > 200 && all.iter().all(|line| !line.contains('\n')), "{all:?}");
    assert_eq!(lines("").await, all[all.len() - 200..], "200 lines by default");
    assert_eq!(lines("?tail=1").await, all[all.len() - 1..]);
    for tail in ["0", "10001", "x"] {
        let answer = product.call(Method::GET, &format!("/engines/ada/logs?tail={tail}"), None).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("tail"));
    }
    let nobody = product.call(Method::GET, "/engines/nobody/logs", None).await;
    nobody.assert_error(404, "ENGINE_NOT_FOUND");
}

/// A variable in an engine's environment.
fn variable(deployment: &Deployment, engine: &Engine, name: &str) -> Option<String> {
    let process = deployment.process_of(engine).expect("it runs").as_raw_nonzero();
    let environment = std::fs::read_to_string(format!("/proc/{process}/environ")).unwrap();
    let mut variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
    variables.find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
}

/// The engine sets its allocator's options itself, because its environment holds only the documented variables.
#[tokio::test]
async fn an_engines_environment_holds_what_is_documented_and_nothing_else() {
    let deployment = Deployment::process_and_sqlite()
        .with_env("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_PROVIDER")
        .with_env("LLM_PROVIDER", "scripted")
        .with_env("TZ", "UTC")
        .with_env("LANG", "C.UTF-8")
        .with_env("MIMALLOC_SHOW_ERRORS", "0")
        .with_env("SOMETHING_ELSE", "not passed on");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let process = deployment.process_of(&product.engine("ada").await).expect("it runs").as_raw_nonzero();
    let environment = std::fs::read_to_string(format!("/proc/{process}/environ")).unwrap();
    let variables = environment.split_terminator('\0');
    let mut names: Vec<_> = variables.map(|variable| variable.split_once('=').unwrap().0).collect();
    names.sort_unstable();
    let documented = [
        "AD_ENCRYPTION_KEY",
        "CATALOG_DIR",
        "ENGINE_BROWSER_ACCESS",
        "ENGINE_HOST",
        "ENGINE_ID",
        "ENGINE_KEY_HASH",
        "ENGINE_PORT",
        "ENGINE_TOKEN_SECRET",
        "HOME",
        "LANG",
        "LLM_PROVIDER",
        "PATH",
        "SQLITE_DB_PATH",
        "TZ",
    ];
    assert_eq!(names, documented);
}

#[tokio::test]
async fn an_engine_has_a_session_of_its_own() {
    let deployment = Deployment::process_and_sqlite();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let process = deployment.process_of(&product.engine("ada").await).expect("it runs");
    assert_eq!(rustix::process::getsid(Some(process)).unwrap(), process);

    // The orchestrator, which answers for all engines, gets the processor before each of them.
    let nice = |process| rustix::process::getpriority_process(process).unwrap();
    assert_eq!(nice(Some(process)), nice(None).max(sandbox::ENGINE_NICE));
    let group = std::fs::read_to_string(format!("/proc/{}/autogroup", process.as_raw_nonzero()));
    // Where sessions are no groups, there is no such file. Without privileges, the kernel may refuse a change.
    if let Ok(group) = group
        && rustix::process::geteuid().is_root()
    {
        assert!(group.trim_end().ends_with(&format!("nice {}", sandbox::ENGINE_NICE)), "{group}");
    }
}

#[tokio::test]
async fn a_policys_redirect_base_goes_before_the_one_that_is_passed_through() {
    let name = "OAUTH_REDIRECT_BASE_URL";
    let (general, own, newer) = ("https://all.example", "https://own.example/app", "https://newer.example");
    let passed = format!("{name},LLM_PROVIDER,LLM_SCRIPT_PATH");
    let deployment = Deployment::process_and_sqlite()
        .with_env("ORCH_ENGINE_ENV_PASSTHROUGH", passed)
        .with_env(name, general);
    let orchestrator = deployment.start().await;
    let plain = orchestrator.register("plain", json!({})).await;
    let body = json!({"slug": "own", "display_name": "Own", "policy": {"oauth_redirect_base_url": own}});
    let request = client().post(format!("{}/products/register", orchestrator.base)).json(&body);
    let registered = send(request.header("x-admin-key", &deployment.admin_key)).await.assert_ok(REGISTERED);
    let product = Product::new(&orchestrator.base, registered["platform_api_key"].as_str().unwrap());
    assert_eq!(variable(&deployment, &plain.engine("ada").await, name).as_deref(), Some(general));
    let engine = product.engine("ada").await;
    assert_eq!(variable(&deployment, &engine, name).as_deref(), Some(own));

    // A new value applies from the next launch on.
    let path =
        format!("{}/products/{}/policy", orchestrator.base, registered["product_id"].as_str().unwrap());
    let body = json!({"policy": {"oauth_redirect_base_url": newer}});
    let replaced = send(client().put(path).header("x-admin-key", &deployment.admin_key).json(&body)).await;
    assert_eq!(replaced.status, 200, "{replaced:?}");
    assert_eq!(variable(&deployment, &engine, name).as_deref(), Some(own));
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(variable(&deployment, &engine, name).as_deref(), Some(newer));
}

#[tokio::test]
async fn engines_are_told_of_by_the_host_that_the_operator_names() {
    let deployment = Deployment::process_and_sqlite().with_env("ORCH_ENGINE_URL_HOST", "localhost");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let provisioned = product.provision("ada").await;
    assert_eq!(provisioned.status, 200, "{provisioned:?}");
    let url = provisioned.body["url"].as_str().unwrap().to_owned();
    let port = url.strip_prefix("http://localhost:").unwrap_or_else(|| panic!("another host: {url}"));
    assert!(port.parse::<u16>().is_ok(), "{url}");
    assert_eq!(product.get("ada").await.body["url"], url.as_str());
    assert_eq!(Engine::new(&provisioned.body).health().await["status"], "ok");
}

#[tokio::test]
async fn a_restart_begins_an_empty_window_of_the_rate() {
    let deployment = Deployment::process_and_sqlite();
    let orchestrator = deployment.start().await;
    let product = orchestrator.register("one", json!({"rate_limit_rpm": 1})).await;
    assert_eq!(product.denial_reason("nobody").await, "engine_not_found");
    product.admit_existing("nobody").await.assert_error(429, "RATE_LIMITED");
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    assert_eq!(product.denial_reason("nobody").await, "engine_not_found");
    product.admit_existing("nobody").await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test]
async fn a_folder_that_belongs_to_no_engine_is_left_alone() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let engines = deployment.fleet.folder().join("engines");
    // Folders of an engine that this registry does not know, and of another program.
    let folders = [api::EngineId::new().to_string(), "backup".to_owned()].map(|name| engines.join(name));
    for folder in &folders {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("brain.sqlite"), "all that somebody said").unwrap();
    }
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    product.stop("ada").await.assert_ok("status:text");
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(!deployment.fleet.engine_folder(&engine.id).exists());
    for folder in &folders {
        assert_eq!(std::fs::read_to_string(folder.join("brain.sqlite")).unwrap(), "all that somebody said");
    }
}
