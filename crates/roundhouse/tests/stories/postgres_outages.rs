//! Story 38: PostgreSQL stops, hangs and comes back. No engine is affected, nothing is lost or done twice, and two
//! orchestrators never write to the same registry.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::client;
use crate::support::schema::PROVISIONED;
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::{Deployment, Engine, Orchestrator, PostgresCluster, Product, eventually, processes};

/// A deployment with its own PostgreSQL server and frequent health checks of its engines.
async fn started_deployment(cluster: &PostgresCluster) -> (Deployment, Orchestrator, Product) {
    let deployment = Deployment::with_cluster(cluster)
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5");
    let (orchestrator, product) = deployment.start_with_product().await;
    (deployment, orchestrator, product)
}

/// Asserts that calls are refused in time, with `STARTING_UP` and `Retry-After`.
async fn assert_unavailable(product: &Product) {
    let start = Instant::now();
    let answers = futures::join!(
        product.provision("eve"),
        product.stop("ada"),
        product.get("ada"),
        product.admit("eve")
    );
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        answer.assert_error(503, "STARTING_UP");
    }
    assert!(start.elapsed() < Duration::from_secs(45), "the refusals took {:?}", start.elapsed());
}

/// Waits until the orchestrator serves reads and writes again, and asserts that nothing was lost.
async fn wait_until_back(
    deployment: &Deployment,
    orchestrator: &mut Orchestrator,
    product: &Product,
    engine: &Engine,
) {
    eventually("the orchestrator serves again", async || {
        assert!(
            orchestrator.program.is_running(),
            "the orchestrator ended: {}",
            orchestrator.program.output()
        );
        (product.get("ada").await.status == 200).then_some(())
    })
    .await;
    eventually("the orchestrator writes again", async || {
        let made = product.admit("eve").await;
        (made.status == 200).then_some(())
    })
    .await;
    assert_eq!(product.status("ada").await, "running");
    assert_eq!(product.engine("ada").await.key, engine.key);
    product.delete("eve").await.assert_ok("status:text engine_id:engine");
    assert_consistent(deployment, product).await;
}

/// Asserts that rows, processes and folders match, that the audit log is intact, and that no engine crashed or was
/// restarted.
async fn assert_consistent(deployment: &Deployment, product: &Product) {
    eventually("rows, processes and folders match", async || {
        let (engines, _) = product.list("").await;
        let folders = std::fs::read_dir(deployment.fleet.folder().join("engines")).unwrap().count();
        let running = engines.iter().filter(|engine| engine["status"] == "running").count();
        let settled =
            engines.iter().all(|engine| ["running", "stopped"].contains(&engine["status"].as_str().unwrap()));
        let processes = processes::engines_in(deployment.fleet.folder()).len();
        (settled && folders == engines.len() && processes == running).then_some(())
    })
    .await;
    let variables = BTreeMap::from([("ORCH_DATABASE_URL".to_owned(), deployment.database().url())]);
    deployment.fleet.test_env.run(&["audit", "verify"], &variables).wait().await.assert_success();
    for event in ["crash", "restart"] {
        assert!(product.audit_rows(event).await.is_empty(), "{event}: nothing happened to an engine");
    }
}

#[tokio::test]
async fn a_server_that_is_stopped_and_started_again_costs_nothing_but_patience() {
    let Some(mut cluster) = PostgresCluster::start().await else { return };
    let (deployment, mut orchestrator, product) = started_deployment(&cluster).await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    for crash in [false, true] {
        if crash {
            cluster.crash();
        } else {
            cluster.stop();
        }
        assert_unavailable(&product).await;
        engine.run_turn("task", "Hello!").await;
        assert_eq!(deployment.process_of(&engine), process);
        cluster.launch().await;
        wait_until_back(&deployment, &mut orchestrator, &product, &engine).await;
        assert_eq!(deployment.process_of(&engine), process, "the engine was not affected");
    }
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_restart_of_the_server_is_not_noticed_where_nobody_asks_meanwhile() {
    let Some(mut cluster) = PostgresCluster::start().await else { return };
    let (deployment, mut orchestrator, product) = started_deployment(&cluster).await;
    let engine = product.engine("ada").await;
    for round in 0..3 {
        cluster.stop();
        cluster.launch().await;
        // The pooled connections are dead; the next caller gets no error because of that.
        assert_eq!(product.engine("ada").await.key, engine.key, "round {round}");
        product.provision(&format!("user-{round}")).await.assert_ok(PROVISIONED);
        assert!(orchestrator.program.is_running());
    }
    assert_consistent(&deployment, &product).await;
}

#[tokio::test]
async fn connections_that_are_cut_are_made_anew() {
    let Some(cluster) = PostgresCluster::start().await else { return };
    let (deployment, mut orchestrator, product) = started_deployment(&cluster).await;
    let engine = product.engine("ada").await;
    for round in 0..5 {
        let cut = deployment.database().query_server(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}'",
            deployment.database().name
        ));
        assert_ne!(cut, "0", "there were connections to cut");
        assert_eq!(product.engine("ada").await.key, engine.key, "round {round}");
        product.stop("ada").await.assert_ok("status:text");
        product.start("ada").await.assert_ok("status:text url:url");
    }
    assert!(orchestrator.program.is_running(), "{}", orchestrator.program.output());
    assert_consistent(&deployment, &product).await;
    assert_eq!(product.audit_rows("stop").await.len(), 5, "each stop was done once");
}

#[tokio::test]
async fn a_server_that_hangs_holds_nobody_up_for_long() {
    let Some(cluster) = PostgresCluster::start().await else { return };
    let (deployment, mut orchestrator, product) = started_deployment(&cluster).await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    cluster.pause();
    assert_unavailable(&product).await;
    engine.run_turn("task", "Hello!").await;
    cluster.resume();
    wait_until_back(&deployment, &mut orchestrator, &product, &engine).await;
    assert_eq!(deployment.process_of(&engine), process, "the engine was not affected");
}

#[tokio::test]
async fn a_server_that_dies_amid_changes_loses_and_doubles_nothing() {
    let Some(mut cluster) = PostgresCluster::start().await else { return };
    let (deployment, mut orchestrator, product) = started_deployment(&cluster).await;
    let witness = product.engine("ada").await;
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    for round in 0..3 {
        let users: Vec<String> = (0..6).map(|number| format!("user-{round}-{number}")).collect();
        let calls: Vec<_> = users
            .iter()
            .map(|user| {
                let (product, user) = (product.clone(), user.clone());
                tokio::spawn(async move { product.provision(&user).await })
            })
            .collect();
        let before = processes::engines_in(deployment.fleet.folder()).len();
        eventually("an engine is being started", async || {
            (processes::engines_in(deployment.fleet.folder()).len() > before).then_some(())
        })
        .await;
        cluster.crash();
        cluster.launch().await;
        for (user, answer) in users.iter().zip(join_all(calls).await) {
            let answer = answer.unwrap();
            // Either refused or provisioned; an acknowledged engine must exist.
            match answer.status {
                200 => drop(known.insert(user.clone(), answer.body["api_key"].clone())),
                502..=504 => {}
                _ => panic!("{user}: {answer:?}"),
            }
        }
        eventually("the orchestrator serves again", async || {
            assert!(
                orchestrator.program.is_running(),
                "the orchestrator ended: {}",
                orchestrator.program.output()
            );
            (product.get("ada").await.status == 200).then_some(())
        })
        .await;
        assert_consistent(&deployment, &product).await;
        for (user, key) in &known {
            assert_eq!(&json!(product.engine(user).await.key), key, "{user}");
        }
    }
    assert_eq!(product.engine("ada").await.key, witness.key);
}

/// The addresses of a forwarder that can be cut and of the server, and the database URL through the forwarder.
fn cuttable_forwarder(
    deployment: &Deployment,
    cluster: &PostgresCluster,
) -> (SocketAddr, SocketAddr, String) {
    let url = deployment.database().url();
    let server: SocketAddr =
        cluster.url().rsplit('@').next().unwrap().split('/').next().unwrap().parse().unwrap();
    let forwarder: SocketAddr =
        format!("127.0.0.1:{}", deployment.fleet.test_env.ports.first() + 1).parse().unwrap();
    (forwarder, server, url.replace(&server.to_string(), &forwarder.to_string()))
}

#[tokio::test]
async fn who_lost_the_registry_to_another_writes_nothing_more_and_ends() {
    let Some(cluster) = PostgresCluster::start().await else { return };
    let deployment = Deployment::with_cluster(&cluster);
    let last_port = deployment.fleet.test_env.ports.last() - 1;
    let deployment = deployment.with_env("ORCH_PORT_MAX", last_port.to_string());
    let (forwarder_address, server, url) = cuttable_forwarder(&deployment, &cluster);
    let forwarder = TcpForwarder::bind(forwarder_address, server);
    let mut first = deployment.launch_with("ORCH_DATABASE_URL", &url);
    first.wait_ready().await;
    let product = first.register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);

    // The first orchestrator is cut off, and the server notices that its connections are dead.
    drop(forwarder);
    let connections =
        format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'", deployment.database().name);
    eventually("the server has closed the connections", async || {
        (deployment.database().query_server(&connections) == "0").then_some(())
    })
    .await;
    let mut variables = deployment.fleet.variables.clone();
    let port = deployment.fleet.test_env.ports.last();
    variables.insert("ORCH_PORT".to_owned(), port.to_string());
    let mut second = deployment.fleet.test_env.run(&["orchestrator"], &variables);
    let base = format!("http://127.0.0.1:{port}");
    eventually("the second orchestrator serves", async || {
        assert!(second.is_running(), "the second orchestrator ended: {}", second.output());
        let answer = client().get(format!("{base}/health")).send().await;
        answer.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;
    let taken_over = Product::new(&base, &product.key);
    assert_eq!(taken_over.engine("ada").await.key, engine.key);
    assert_eq!(deployment.process_of(&engine), process, "the engine was not affected");

    // The first orchestrator is connected again, and nothing that it tries has an effect.
    let rows = deployment.database().query("SELECT count(*) FROM audit_log");
    let _forwarder = TcpForwarder::bind(forwarder_address, server);
    let late = join_all((0..8).map(|number| {
        let (base, key) = (first.base.clone(), product.key.clone());
        async move {
            let request = client().post(format!("{base}/engines/provision")).header("x-platform-key", key);
            request.json(&json!({"user_id": format!("late-{number}")})).send().await
        }
    }))
    .await;
    for answer in late.into_iter().flatten() {
        assert_ne!(answer.status(), 200, "the first orchestrator acknowledged a change");
    }
    let exit = first.program.wait().await;
    assert_eq!(exit.code, Some(1), "{}", exit.output);
    assert!(!exit.output.contains("cluster-password"), "{}", exit.output);
    assert_eq!(
        deployment.database().query("SELECT count(*) FROM audit_log"),
        rows,
        "the first orchestrator wrote nothing"
    );
    assert_eq!(deployment.process_of(&engine), process, "the first orchestrator did nothing to an engine");
    taken_over.provision("bob").await.assert_ok(PROVISIONED);
    assert_consistent(&deployment, &taken_over).await;
}

#[tokio::test]
async fn who_was_cut_off_and_not_succeeded_goes_on() {
    let Some(cluster) = PostgresCluster::start().await else { return };
    let deployment = Deployment::with_cluster(&cluster);
    let (forwarder_address, server, url) = cuttable_forwarder(&deployment, &cluster);
    let forwarder = TcpForwarder::bind(forwarder_address, server);
    let mut orchestrator = deployment.launch_with("ORCH_DATABASE_URL", &url);
    orchestrator.wait_ready().await;
    let product = orchestrator.register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    drop(forwarder);
    assert_unavailable(&product).await;
    let _forwarder = TcpForwarder::bind(forwarder_address, server);
    wait_until_back(&deployment, &mut orchestrator, &product, &engine).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_at_the_start_is_named() {
    let Some(mut cluster) = PostgresCluster::start().await else { return };
    let deployment = Deployment::with_cluster(&cluster);
    cluster.stop();
    let server = cluster.url();
    let server = server.rsplit('@').next().unwrap().split('/').next().unwrap();
    let output = deployment.launch().program.wait().await.assert_failure(1, &[server]);
    assert!(!output.contains("cluster-password"), "{output}");
    cluster.launch().await;
    let (_orchestrator, product) = deployment.start_with_product().await;
    product
        .call(Method::GET, "/status", None)
        .await
        .assert_ok("total:int by_status:object health:text unhealthy_count:int");
}
