//! `roundhouse webhook`, as a product's developer and as the operator.

use serde_json::json;

use crate::support::Fleet;
use crate::support::command_line::{cells, command, document};

#[tokio::test]
async fn webhooks_are_managed_at_the_command_line() {
    let fleet = Fleet::new();
    let _up = fleet.start_up().await;
    let run = async |words: &[&str]| command(&fleet, &[&["webhook"], words].concat()).await;
    assert_eq!(run(&["list"]).await.assert_success().trim(), "This product has no webhook.");
    let url = "https://product.invalid/audit";
    let shown = run(&["create", url, "--event", "crash", "--event", "destroy"]).await.assert_success();
    assert!(shown.contains("whsec_") && shown.contains("shown only now"), "{shown}");
    let id = shown.split_whitespace().find(|word| word.starts_with("whk_")).unwrap();
    let listed = cells(&run(&["list"]).await.assert_success());
    assert!(
        listed.starts_with("WEBHOOK | STATE | ROW | BEHIND | DEAD | DELIVERED | ADDRESS | EVENTS\n"),
        "{listed}"
    );
    assert!(listed.contains(&format!("{id} | active | ")) && listed.contains("| crash,destroy"), "{listed}");
    let shown = run(&["get", id]).await.assert_success();
    assert!(shown.contains(url) && shown.contains("0 (0 dropped)"), "{shown}");

    run(&["update", id]).await.assert_failure(2, &["what is to be changed"]);
    run(&["update", id, "--pause", "--resume"]).await.assert_failure(2, &["--resume"]);
    let paused = run(&["update", id, "--pause", "--all-events", "--json"]).await.assert_success();
    let paused = document(&paused);
    assert_eq!((&paused["state"], &paused["events"]), (&json!("paused"), &json!([])));
    let resumed = run(&["update", id, "--resume"]).await.assert_success();
    assert!(resumed.contains("active"), "{resumed}");
    let rotated = run(&["rotate-secret", id]).await.assert_success();
    assert!(rotated.contains("whsec_") && rotated.contains("signed with the old one until 20"), "{rotated}");
    let replayed = document(&run(&["replay", id, "--after", "0", "--json"]).await.assert_success());
    assert_eq!(replayed["webhook_id"], id);
    run(&["replay", id, "--after", "100000"]).await.assert_failure(2, &["INVALID_REQUEST"]);
    run(&["replay", id]).await.assert_failure(2, &["--after"]);

    let none = run(&["dead-letters", id]).await.assert_success();
    assert_eq!(none.trim(), "There is no such dead letter.");
    run(&["retry", id]).await.assert_failure(2, &["--all"]);
    run(&["retry", id, "1", "--all"]).await.assert_failure(2, &["--all"]);
    let retried = run(&["retry", id, "1", "2"]).await.assert_success();
    assert_eq!(retried.trim(), "0 dead letters are sent once more.");
    run(&["discard", id, "--all"]).await.assert_failure(2, &["will be forgotten", "--yes"]);
    let discarded = run(&["discard", id, "--all", "--yes"]).await.assert_success();
    assert_eq!(discarded.trim(), "0 dead letters are forgotten.");

    run(&["create", "http://127.0.0.1/"]).await.assert_failure(2, &["https", "ORCH_WEBHOOK_ALLOW"]);
    run(&["create", url, "--event", "nonsense"]).await.assert_failure(2, &["INVALID_REQUEST"]);
    run(&["get", "whk_0"]).await.assert_failure(2, &["whk_"]);
    run(&["delete", id]).await.assert_failure(2, &[url, "--yes"]);
    let deleted = run(&["delete", id, "--yes"]).await.assert_success();
    assert_eq!(deleted.trim(), format!("The webhook {id} is deleted."));
    run(&["get", id]).await.assert_failure(3, &["WEBHOOK_NOT_FOUND"]);
    // As the operator, for a product.
    let products = document(&command(&fleet, &["product", "list", "--json"]).await.assert_success());
    let product = products["products"][0]["product_id"].as_str().unwrap();
    run(&["create", url, "--product", product]).await.assert_success();
    let rows =
        command(&fleet, &["audit", "list", "--event", "create_webhook", "--json"]).await.assert_success();
    let rows = document(&rows);
    assert_eq!(rows["rows"][0]["detail"]["actor"], "admin");
    assert_eq!(rows["rows"][0]["detail"]["receiver"], "https://product.invalid");
}
