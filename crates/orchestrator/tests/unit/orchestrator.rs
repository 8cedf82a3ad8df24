//! Opening, serving and closing an orchestrator, with real files and a real socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::orchestrator::Policy;
use api::{DisplayName, PlatformKey, Slug};
use http_service::clock::SystemClock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::config::VERSION;
use crate::fleet::FleetError;
use crate::testing::TestDatabase;

fn config(folder: &tempfile::TempDir, master_key: &str) -> Config {
    let path = folder.path().display();
    let env: BTreeMap<String, String> = [
        ("ORCH_DATABASE_URL", format!("sqlite:{path}/registry.db")),
        ("ORCH_MASTER_KEY", master_key.to_owned()),
        ("ORCH_ADMIN_KEY", "open sesame, please".to_owned()),
        ("ORCH_BACKEND", "process".to_owned()),
        ("ORCH_ENGINE_IMAGE", format!("svc-engine:{VERSION}")),
        ("ORCH_DATA_ROOT_PATH", format!("{path}/engines")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    Config::from_env(&env).unwrap()
}

async fn open(folder: &tempfile::TempDir, master_key: &str) -> Result<Orchestrator, OpenError> {
    Orchestrator::open(config(folder, master_key), Arc::new(SystemClock::new())).await
}

async fn refusal(folder: &tempfile::TempDir, master_key: &str) -> String {
    match open(folder, master_key).await {
        Ok(_) => panic!("the registry was opened"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn another_master_key_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (right_key, wrong_key) = (
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned(),
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnops".to_owned(),
    );
    open(&folder, &right_key).await.unwrap().close().await;
    let refusal = refusal(&folder, &wrong_key).await;
    assert!(refusal.contains("roundhouse rekey") && refusal.contains("registry.db"), "{refusal}");
    assert!(open(&folder, &right_key).await.is_ok());
}

#[tokio::test]
async fn a_registry_in_use_is_refused_with_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let key = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned();
    let first = open(&folder, &key).await.unwrap();
    let refusal = refusal(&folder, &key).await;
    assert!(refusal.contains(&format!("process {}", std::process::id())), "{refusal}");
    first.close().await;
    assert!(open(&folder, &key).await.is_ok());
}

#[tokio::test]
async fn a_file_that_is_no_registry_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("registry.db"), "notes ".repeat(1_000)).unwrap();
    let refusal = refusal(&folder, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo").await;
    assert!(refusal.contains("not a SQLite database"), "{refusal}");
}

#[tokio::test]
async fn a_product_is_registered_under_a_given_key_as_often_as_one_likes() {
    let folder = tempfile::tempdir().unwrap();
    let orchestrator = open(&folder, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo").await.unwrap();
    let key = PlatformKey::generate().unwrap();
    let register = async |key: &PlatformKey| {
        let (slug, name) = (Slug::new("demo").unwrap(), DisplayName::new("Demo").unwrap());
        orchestrator.fleet().register_with_key(slug, name, Policy::default(), key).await
    };
    let first = register(&key).await.unwrap();
    assert_eq!(register(&key).await.unwrap(), first);
    let other = register(&PlatformKey::generate().unwrap()).await.unwrap_err();
    assert!(matches!(other, FleetError::SlugExists));
    assert!(orchestrator.fleet().admission.authenticate(key.expose()).await.unwrap().is_some());
}

#[tokio::test]
async fn it_serves_until_it_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let orchestrator = open(&folder, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let client = async {
        loop {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            if answer.ends_with(r#"{"status":"ok"}"#) {
                break;
            }
            assert!(answer.contains("STARTING_UP"), "{answer}");
        }
        shutdown.cancel();
    };
    tokio::join!(orchestrator.serve(listener, shutdown.clone()), client);
    orchestrator.close().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn one_that_another_has_taken_over_from_ends_and_says_so() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo");
    config.database = database.url().clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Orchestrator::run(config, Arc::new(SystemClock::new()), listener, CancellationToken::new());
    let takeover = async {
        let pool = database.pool().await;
        // Raises the epoch once the orchestrator has started.
        let raise = "UPDATE meta SET value = '99' WHERE name = 'epoch' AND EXISTS \
                     (SELECT 1 FROM meta WHERE name = 'deployment_id')";
        while !sqlx::query(raise).execute(&pool).await.is_ok_and(|raised| raised.rows_affected() > 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        sqlx::query(end).fetch_all(&pool).await.unwrap();
    };
    let both = Box::pin(async { tokio::join!(running, takeover).0 });
    let ended = tokio::time::timeout(Duration::from_mins(1), both)
        .await
        .expect("the orchestrator keeps running")
        .unwrap_err();
    assert!(matches!(ended, OpenError::LostLeadership { .. }), "{ended}");
    assert!(ended.to_string().contains("another orchestrator has taken over"), "{ended}");
}
