//! A revoked token stays revoked, whatever sleeps, stops or is killed meanwhile.

use rustix::process::Signal;

use crate::support::browser::Page;
use crate::support::{Deployment, Engine, Product, eventually, processes};

/// Asserts that a page is refused on both ways.
async fn assert_revoked(page: &Page, engine: &Engine) {
    for page in [page.clone(), page.directly_to(engine)] {
        page.get("/tasks").await.assert_error(401, "TOKEN_REVOKED");
    }
}

/// A deployment whose failed engines are restarted at once.
fn deployment() -> Deployment {
    Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2")
}

#[tokio::test]
async fn it_is_refused_at_once_and_after_a_restart_of_either() {
    let deployment = deployment();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let page = product.page("ada", &["read"], None).await;
    let other = product.page("ada", &["read"], None).await;
    assert_eq!(page.directly_to(&engine).get("/tasks").await.status, 200);
    assert!(product.revoke("ada", &page).await);
    assert_revoked(&page, &engine).await;

    // The engine is killed, and comes back by itself.
    let process = deployment.kill_engine(&engine);
    eventually("the engine is back", async || deployment.process_of(&engine).filter(|pid| *pid != process))
        .await;
    let engine = product.engine("ada").await;
    assert_revoked(&page, &engine).await;

    // The orchestrator is killed; the engine knows without it, and the next one tells it the same.
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    let product = Product::new(&orchestrator.base, &product.key);
    assert_revoked(&page, &engine).await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    let engine = product.engine("ada").await;
    assert_revoked(&page, &engine).await;
    assert_eq!(other.directly_to(&engine).get("/tasks").await.status, 200, "the other one is still valid");
}

#[tokio::test]
async fn it_is_refused_by_an_engine_that_slept() {
    let deployment = deployment().with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "1");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let page = product.page("ada", &["read"], None).await;
    assert_eq!(page.get("/tasks").await.status, 200);
    product.wait_for_status("ada", "sleeping").await;
    assert!(product.revoke("ada", &page).await, "nothing accepts it while the engine sleeps");
    page.get("/tasks").await.assert_error(401, "TOKEN_REVOKED");
    let engine_awake = product.engine("ada").await;
    assert_eq!(engine_awake.id, engine.id);
    assert_revoked(&page, &engine_awake).await;
}

#[tokio::test]
async fn it_is_refused_although_the_orchestrator_died_before_it_told_the_engine() {
    let deployment = deployment();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let page = product.page("ada", &["read"], None).await;
    // The engine cannot be told: its process stands still.
    let process = deployment.process_of(&engine).unwrap();
    processes::signal(process, Signal::STOP);
    let still = page.token_id.clone();
    let revoking = product.clone();
    let revoking = tokio::spawn(async move {
        let path = format!("/engines/ada/tokens/{still}");
        let _ = revoking.request(reqwest::Method::DELETE, &path).send().await;
    });
    eventually("the revocation is stored", async || {
        (product.audit_rows("revoke_token").await.len() == 1).then_some(())
    })
    .await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    revoking.await.unwrap();
    processes::signal(process, Signal::CONT);
    // The command of the dead one may still be in the engine's queue of connections; the next one sends it in any case.
    let direct = page.directly_to(&engine);
    let orchestrator = deployment.start().await;
    eventually("the engine is told", async || (direct.get("/tasks").await.status == 401).then_some(())).await;
    let product = Product::new(&orchestrator.base, &product.key);
    assert_revoked(&page, &product.engine("ada").await).await;
}

#[tokio::test]
async fn it_is_refused_once_an_engine_that_did_not_answer_answers() {
    let deployment = deployment();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let page = product.page("ada", &["read"], None).await;
    let process = deployment.process_of(&engine).unwrap();
    processes::signal(process, Signal::STOP);
    let in_force = product.revoke("ada", &page).await;
    processes::signal(process, Signal::CONT);
    assert!(!in_force, "the engine could not know");
    page.get("/tasks").await.assert_error(401, "TOKEN_REVOKED");
    let direct = page.directly_to(&engine);
    eventually("the engine is told", async || (direct.get("/tasks").await.status == 401).then_some(())).await;
    assert!(product.revoke("ada", &page).await);
}
