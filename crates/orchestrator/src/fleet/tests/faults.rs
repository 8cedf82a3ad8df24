//! Whatever the backend does: every call ends in bounded time, and the engine in a defined state.

use std::time::Duration;

use serde_json::json;

use crate::backend::BackendError;
use crate::testing::{Call, Caller, Fault, Health, TestApp, short};

const SECOND: Duration = Duration::from_secs(1);

const STATES: [&str; 6] = ["provisioning", "running", "sleeping", "stopped", "failed", "destroying"];
const CALLS: [&str; 4] = ["delete", "start", "stop", "admit"];
const BACKEND_CALLS: [Call; 7] =
    [Call::Ping, Call::CheckImage, Call::Launch, Call::Stop, Call::Kill, Call::Remove, Call::List];

/// Brings ann's engine into `state`. The transitional ones are left hanging in the backend.
async fn bring_into(state: &str, app: &TestApp, product: &Caller<'_>) {
    let hanging = |call: Call| {
        app.backend.script(call, Fault::Hang);
        let before = app.backend.count(call);
        move || app.backend.count(call) > before
    };
    match state {
        "provisioning" => {
            let began = hanging(Call::Launch);
            tokio::select! {
                biased;
                answer = product.provision("ann") => panic!("{answer:?}"),
                () = app.until(began) => {}
            }
            return;
        }
        _ => assert_eq!(short(product.provision("ann").await), "200 running"),
    }
    match state {
        "stopped" => assert_eq!(short(product.stop("ann").await), "200 stopped"),
        "sleeping" => assert_eq!(app.orchestrator.fleet().sleep_all("idle").await.unwrap(), 1),
        "failed" => {
            product.stop("ann").await;
            app.backend.set_health(Health::Silent);
            app.while_time_passes(SECOND, product.start("ann")).await;
            app.backend.set_health(Health::Well);
        }
        "destroying" => {
            let began = hanging(Call::Remove);
            tokio::select! {
                biased;
                answer = product.delete("ann") => panic!("{answer:?}"),
                () = app.until(began) => {}
            }
        }
        _ => {}
    }
    assert_eq!(short(product.get("ann").await), format!("200 {state}"));
}

async fn ask(call: &str, product: &Caller<'_>) -> String {
    short(match call {
        "delete" => product.delete("ann").await,
        "start" => product.start("ann").await,
        "stop" => product.stop("ann").await,
        _ => product.admit("ann", json!({"auto_provision": true, "auto_wake": true})).await,
    })
}

#[tokio::test]
async fn lesson_o02_every_cell_of_states_calls_and_faults_ends() {
    let faults = [
        Fault::Hang,
        Fault::Error(BackendError::Unreachable("connection refused".into())),
        Fault::Error(BackendError::Failed("broken".into())),
        Fault::Late(SECOND * 7),
    ];
    for state in STATES {
        for call in CALLS {
            for fault in &faults {
                let cell = format!("{call} on {state} with {fault:?}");
                let app = TestApp::new().await;
                let product = app.product("demo", json!({})).await;
                bring_into(state, &app, &product).await;
                for backend_call in BACKEND_CALLS {
                    // As often as anything may ask while the call lasts.
                    for _ in 0..20 {
                        app.backend.script(backend_call, fault.clone());
                    }
                }
                let begun = app.elapsed();
                let answer = app.while_time_passes(SECOND, ask(call, &product)).await;
                let took = app.elapsed().saturating_sub(begun);
                assert!(took <= SECOND * 101, "{cell}: {answer} after {took:?}");
                // Once the backend is well again, all is in order within a period, and the engine usable.
                app.backend.mend();
                app.while_time_passes(SECOND, app.unclaimed()).await;
                let deleted = app.while_time_passes(SECOND, ask("delete", &product)).await;
                assert!(
                    ["200 destroyed", "404 ENGINE_NOT_FOUND"].contains(&deleted.as_str()),
                    "{cell}: {deleted}"
                );
                app.assert_in_order().await;
            }
        }
    }
}

#[tokio::test]
async fn a_hung_engine_holds_up_no_other() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("well").await;
    app.backend.script(Call::Launch, Fault::Hang);
    tokio::select! {
        biased;
        answer = product.provision("hung") => panic!("{answer:?}"),
        // The clock stands still: nothing here waits for the hung one's deadline.
        () = async {
            app.until(|| app.backend.count(Call::Launch) == 2).await;
            assert_eq!(short(product.admit("well", json!({})).await), "200 running");
            assert_eq!(short(product.provision("other").await), "200 running");
            assert_eq!(short(product.stop("well").await), "200 stopped");
        } => {}
    }
}
