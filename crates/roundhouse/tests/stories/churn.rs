//! Story 2, under load: whatever requests run concurrently, the responses conform to the contract, and afterwards
//! rows, processes and folders agree.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::assert_completed;
use crate::support::{Engine, Fleet, HttpResponse, Product, eventually};

/// Performs one operation on a user's engine and asserts that the contract allows the response.
async fn apply_random_op(product: &Product, user: &str, choice: u32) {
    let (answer, fields, refusals): (HttpResponse, &str, &[(u16, &str)]) = match choice {
        // A provision loses to another provision or an admit, or is cancelled by a delete.
        0 => (
            product.provision(user).await,
            PROVISIONED,
            &[(409, "ENGINE_ALREADY_EXISTS"), (404, "ENGINE_NOT_FOUND")],
        ),
        1 => (
            product.start(user).await,
            "status:text url:url",
            &[(409, "ENGINE_ALREADY_RUNNING"), (404, "ENGINE_NOT_FOUND")],
        ),
        2 => (
            product.stop(user).await,
            "status:text",
            &[(409, "ENGINE_NOT_RUNNING"), (404, "ENGINE_NOT_FOUND")],
        ),
        3 => (product.delete(user).await, "status:text engine_id:engine", &[(404, "ENGINE_NOT_FOUND")]),
        4 => (product.get(user).await, ENGINE_RECORD, &[(404, "ENGINE_NOT_FOUND")]),
        _ => (product.admit(user).await, "admitted:bool engine:object|null reason?:text", &[]),
    };
    if answer.status == 200 {
        let body = answer.assert_ok(fields);
        // Here only an explicit stop denies a user.
        assert!(body["admitted"] != false || body["reason"] == "engine_stopped", "{body}");
    } else {
        let refusal = refusals.iter().find(|(status, _)| *status == answer.status);
        let (status, code) =
            refusal.unwrap_or_else(|| panic!("the contract allows no such response: {answer:?}"));
        answer.assert_error(*status, code);
    }
}

#[tokio::test]
async fn whatever_is_asked_at_once_rows_processes_and_folders_agree_in_the_end() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let users = ["ada", "bob", "cyd"];
    // The sequence is the same in every run; the interleaving is not.
    let mut number: u32 = 1;
    for _ in 0..6 {
        let round: Vec<_> = (0..24)
            .map(|_| {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (users[(number >> 16) as usize % users.len()], (number >> 24) % 7)
            })
            .collect();
        join_all(round.into_iter().map(|(user, choice)| apply_random_op(&product, user, choice))).await;
    }

    let (engines, _) = eventually("every engine is settled", async || {
        let list = product.list("").await;
        let settled =
            list.0.iter().all(|engine| engine["status"] == "running" || engine["status"] == "stopped");
        settled.then_some(list)
    })
    .await;
    let running = engines.iter().filter(|engine| engine["status"] == "running").count();
    assert_eq!(fleet.engine_processes().len(), running, "{engines:#?}");
    let rows: BTreeSet<_> =
        engines.iter().map(|engine| engine["engine_id"].as_str().unwrap().to_owned()).collect();
    let folders = std::fs::read_dir(fleet.folder().join("engines")).unwrap();
    let folders: BTreeSet<_> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, rows);

    // The audit log accounts for all engines.
    let provisioned = fleet.audit_rows("provision").len();
    let destroyed =
        fleet.audit_rows("destroy").into_iter().filter(|(_, detail)| !detail["from"].is_null()).count();
    assert_eq!(provisioned - destroyed, engines.len(), "provisions and destroys in the audit log");
    for user in users {
        let record = product.get(user).await;
        if record.status == 200 && record.body["status"] == "running" {
            let engine = Engine::new(&record.body);
            assert_completed(&engine.execute("task", "Hello!").await.collect().await);
        }
    }
}
