//! Story 2, harder: whatever is asked at once, the answers are those of the contract, and in the end rows,
//! processes and folders say the same.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::support::form::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::completed;
use crate::support::{Engine, Fleet, Product, eventually};

/// Does one thing to a user's engine and asserts that the answer is one that the contract knows.
async fn act(product: &Product, user: &str, choice: u32) {
    match choice {
        0 => match product.provision(user).await {
            answer if answer.status == 200 => drop(answer.ok(PROVISIONED)),
            // Another provision or admit won, or a delete cancelled this one.
            answer if answer.status == 404 => drop(answer.refused(404, "ENGINE_NOT_FOUND").to_owned()),
            answer => drop(answer.refused(409, "ENGINE_ALREADY_EXISTS").to_owned()),
        },
        1 => match product.start(user).await {
            answer if answer.status == 200 => drop(answer.ok("status:text url:url")),
            answer if answer.status == 404 => drop(answer.refused(404, "ENGINE_NOT_FOUND").to_owned()),
            answer => drop(answer.refused(409, "ENGINE_ALREADY_RUNNING").to_owned()),
        },
        2 => match product.stop(user).await {
            answer if answer.status == 200 => drop(answer.ok("status:text")),
            answer if answer.status == 404 => drop(answer.refused(404, "ENGINE_NOT_FOUND").to_owned()),
            answer => drop(answer.refused(409, "ENGINE_NOT_RUNNING").to_owned()),
        },
        3 => match product.delete(user).await {
            answer if answer.status == 200 => drop(answer.ok("status:text engine_id:engine")),
            answer => drop(answer.refused(404, "ENGINE_NOT_FOUND").to_owned()),
        },
        4 => match product.get(user).await {
            answer if answer.status == 200 => drop(answer.ok(ENGINE_RECORD)),
            answer => drop(answer.refused(404, "ENGINE_NOT_FOUND").to_owned()),
        },
        _ => {
            let admission = product.admit(user).await;
            assert_eq!(admission.status, 200, "{admission:?}");
            if admission.body["admitted"] == false {
                let denied = admission.ok("admitted:bool engine:null reason:text");
                assert_eq!(denied["reason"], "engine_stopped", "{denied}");
            } else {
                admission.ok("admitted:bool engine:object");
            }
        }
    }
}

#[tokio::test]
async fn whatever_is_asked_at_once_rows_processes_and_folders_agree_in_the_end() {
    let fleet = Fleet::new();
    let up = fleet.up().await;
    let product = up.product();
    let users = ["ada", "bob", "cyd"];
    // The same sequence in every run; how it interleaves is the machine's choice.
    let mut number: u32 = 1;
    for _ in 0..6 {
        let round: Vec<_> = (0..24)
            .map(|_| {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (users[(number >> 16) as usize % users.len()], (number >> 24) % 7)
            })
            .collect();
        join_all(round.into_iter().map(|(user, choice)| act(&product, user, choice))).await;
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

    // The ledger tells of as many engines as there are.
    let made = fleet.audit("provision").len();
    let gone = fleet.audit("destroy").into_iter().filter(|(_, detail)| !detail["from"].is_null()).count();
    assert_eq!(made - gone, engines.len(), "provisions and destroys in the ledger");
    for user in users {
        let record = product.get(user).await;
        if record.status == 200 && record.body["status"] == "running" {
            let engine = Engine::new(&record.body);
            completed(&engine.execute("task", "Hello!").await.rest().await);
        }
    }
}
