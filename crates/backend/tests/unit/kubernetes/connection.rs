//! What happens when the connection to the API server breaks.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::config::Kubeconfig;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::super::*;
use super::support::{Fixture, Node, new_backend, next_exit, poll_until, write_kubeconfig};

/// A connection to the API server that can be cut.
struct Line {
    address: SocketAddr,
    open: watch::Sender<bool>,
}

impl Line {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut is_open = is_open.clone();
                let server = server.clone();
                tokio::spawn(async move {
                    if !*is_open.borrow() {
                        return;
                    }
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { address, open }
    }
}

/// Returns a backend like that of `test` whose connection to the API server can be cut.
async fn over_a_line(test: &Fixture) -> (Arc<KubernetesBackend>, Line) {
    let original = test.options.settings.kubeconfig.as_ref().unwrap();
    let server = Kubeconfig::read_from(original).unwrap().clusters.remove(0).cluster.unwrap().server.unwrap();
    let host = server.strip_prefix("https://").unwrap().trim_end_matches('/').to_owned();
    let name = host.rsplit_once(':').unwrap().0.to_owned();
    let line = Line::to(host).await;
    let path = test.folder().join("kubeconfig-of-the-line");
    write_kubeconfig(&path, original, |file| {
        let cluster = file.clusters[0].cluster.as_mut().unwrap();
        cluster.server = Some(format!("https://{}", line.address));
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        cluster.tls_server_name = (!is_address).then_some(name);
    });
    let mut options = test.options.clone();
    options.settings.kubeconfig = Some(path);
    (new_backend(&options), line)
}

#[tokio::test]
async fn regression_k03_an_exit_while_the_watch_is_cut_is_reported_afterwards() {
    let Some(test) = Fixture::new().await else { return };
    let (backend, line) = over_a_line(&test).await;
    let mut exits = backend.exits();
    let instance = backend.launch(test.launch()).await.unwrap();
    line.open.send(false).unwrap();
    // Silence of the API server says nothing about the engine.
    let error = backend.is_running(&instance).await.unwrap_err();
    assert!(matches!(error, BackendError::Unreachable(_)), "{error}");
    assert!(matches!(backend.ping().await, Err(BackendError::Unreachable(_))));
    assert!(matches!(backend.list().await, Err(BackendError::Unreachable(_))));
    test.set_node(Node::Lost);
    test.end_container(json!({"exitCode": 7, "reason": "Error"})).await;
    line.open.send(true).unwrap();
    let exit = next_exit(&mut exits).await;
    assert_eq!((exit.instance, exit.reason.as_deref()), (instance, Some("exit code 7")));
    // Also one of a Pod of which nothing is left.
    test.set_node(Node::Runs);
    let again = backend.launch(test.relaunch(4)).await.unwrap();
    line.open.send(false).unwrap();
    test.api::<Pod>()
        .delete(&engine_name(test.engine_id), &kube::api::DeleteParams::default())
        .await
        .unwrap();
    poll_until("the Pod is gone", async || test.pods().await.is_empty().then_some(())).await;
    line.open.send(true).unwrap();
    assert_eq!(next_exit(&mut exits).await.instance, again);
}

#[tokio::test]
async fn a_launch_whose_caller_gave_up_is_found_by_the_next_call() {
    let Some(test) = Fixture::new().await else { return };
    let (backend, _line) = over_a_line(&test).await;
    for delay in [0, 5, 20, 60, 200] {
        let launch = if delay == 0 { test.launch() } else { test.relaunch(delay + 3) };
        let launched = tokio::time::timeout(
            Duration::from_millis(u64::try_from(delay).unwrap()),
            backend.launch(launch),
        );
        let _ = launched.await;
        if delay == 0 {
            // The first one may not have begun; it must have, for the others.
            backend.launch(test.launch()).await.unwrap();
        }
        backend.stop(test.target(delay + 3), Duration::ZERO).await.unwrap();
        assert!(test.pods().await.is_empty());
    }
}
