//! Tests of what connections hold in memory.

use http_service::clock::SystemClock;

use super::*;

#[tokio::test]
async fn locks_of_servers_are_kept_while_somebody_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let clock = Arc::new(SystemClock::new());
    let connections = Connections::open(brain, None, clock, WebAllowlist::default()).unwrap();
    let held = connections.lock_server("held").await;
    for n in 0..100 {
        drop(connections.lock_server(&format!("s{n}")).await);
    }
    assert!(connections.server_lock("held").try_lock().is_err());
    assert!(connections.server_locks.lock().len() <= 2);
    drop(held);
    assert!(connections.server_lock("held").try_lock().is_ok());
}
