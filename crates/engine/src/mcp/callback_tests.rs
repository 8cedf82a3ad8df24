//! OAuth connections from the request for consent to their end, as the endpoints drive them.

use std::sync::Arc;

use api::assets::{Callback, Connect, ConnectOutcome, ConnectionStatus};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use reqwest::Url;
use reqwest::header::HeaderMap;

use super::oauth::fixture::{OAuthFixture, SERVER_NAME};
use super::{Mcp, McpError};
use crate::catalog::{McpServerSpec, Transport};
use crate::testing::with_deadline;

const REDIRECT_TARGET: &str = "https://product.example/done";

async fn connect(assets: &Mcp) -> Result<ConnectOutcome, McpError> {
    let connect =
        Connect { server: SERVER_NAME.into(), credentials: None, redirect_to: Some(REDIRECT_TARGET.into()) };
    with_deadline(assets.connect(connect)).await
}

/// Requests consent, which the user gives; returns the callback.
async fn obtain_consent(rig: &OAuthFixture) -> Callback {
    match connect(&rig.mcp).await.unwrap() {
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            rig.auth_server.approve(&authorization_url)
        }
        ConnectOutcome::Connected { .. } => panic!("connected without leave"),
    }
}

fn requires_authorization(outcome: &Result<ConnectOutcome, McpError>) -> bool {
    matches!(outcome, Ok(ConnectOutcome::AuthorizationRequired { .. }))
}

/// Returns the status and error of the connection as shown.
fn shown_status(rig: &OAuthFixture) -> Option<(ConnectionStatus, Option<String>)> {
    let connection = rig.mcp.connections().unwrap().pop()?;
    Some((connection.status, connection.error))
}

#[tokio::test]
async fn a_user_who_comes_back_with_leave_is_connected_and_has_the_servers_tools() {
    let mut rig = OAuthFixture::new().await;
    let callback = obtain_consent(&rig).await;
    assert_eq!(shown_status(&rig), Some((ConnectionStatus::Pending, None)));
    assert_eq!(rig.mcp.tools().len(), 0);
    let (connection, back) = with_deadline(rig.mcp.callback(callback.clone())).await.unwrap();
    assert_eq!(back.unwrap().as_str(), REDIRECT_TARGET);
    let listed = rig.mcp.connections().unwrap();
    assert_eq!((listed[0].connection, listed[0].status), (connection, ConnectionStatus::Connected));
    assert_eq!(listed[0].tools, ["look"]);
    assert!(rig.mcp.servers()[0].connected);
    let tools = rig.mcp.tools();
    assert_eq!(tools.len(), 1);
    assert!(matches!(with_deadline(rig.mcp.callback(callback)).await, Err(McpError::InvalidState)));

    rig.restart().await;
    assert_eq!(rig.mcp.connections().unwrap(), listed);
    assert_eq!(connect(&rig.mcp).await.unwrap(), ConnectOutcome::Connected { connection });
    with_deadline(rig.mcp.disconnect(&connection.to_string())).await.unwrap();
    assert_eq!(shown_status(&rig), None);
    assert_eq!(rig.auth_server.state().revoked_token_hints, ["refresh_token", "access_token"]);
    rig.assert_no_violations();
}

#[tokio::test]
async fn who_connects_a_server_that_is_down_is_told_so_and_not_sent_away_for_leave() {
    let rig = OAuthFixture::new().await;
    with_deadline(rig.mcp.callback(obtain_consent(&rig).await)).await.unwrap();
    rig.auth_server.behavior().is_down = true;
    rig.mcp.0.clients.drop_client(SERVER_NAME);
    let failed = connect(&rig.mcp).await;
    assert!(matches!(&failed, Err(McpError::Failed(told)) if told.contains("502")), "{failed:?}");
    assert_eq!(shown_status(&rig).unwrap().0, ConnectionStatus::Error);

    rig.auth_server.behavior().is_down = false;
    assert!(matches!(connect(&rig.mcp).await, Ok(ConnectOutcome::Connected { .. })));
    // The authorization server is down, and the token has expired.
    rig.auth_server.behavior().token_response = Some((503, String::new()));
    rig.advance_clock(3_600.0);
    rig.mcp.0.clients.drop_client(SERVER_NAME);
    let failed = connect(&rig.mcp).await;
    assert!(matches!(&failed, Err(McpError::Failed(told)) if told.contains("503")), "{failed:?}");

    rig.auth_server.behavior().token_response = None;
    rig.advance_clock(1.0);
    assert!(matches!(connect(&rig.mcp).await, Ok(ConnectOutcome::Connected { .. })));
    assert_eq!(shown_status(&rig), Some((ConnectionStatus::Connected, None)));
    rig.assert_no_violations();
}

#[tokio::test]
async fn who_connects_a_server_that_takes_the_token_no_more_is_asked_for_leave() {
    let rig = OAuthFixture::new().await;
    with_deadline(rig.mcp.callback(obtain_consent(&rig).await)).await.unwrap();
    rig.auth_server.revoke_consent();
    rig.mcp.0.clients.drop_client(SERVER_NAME);
    assert!(requires_authorization(&connect(&rig.mcp).await));
    assert_eq!(shown_status(&rig).unwrap().0, ConnectionStatus::Expired);
    with_deadline(rig.mcp.callback(obtain_consent(&rig).await)).await.unwrap();

    // The server rejects every token.
    rig.auth_server.behavior().rejects_tokens = true;
    rig.mcp.0.clients.drop_client(SERVER_NAME);
    assert!(requires_authorization(&connect(&rig.mcp).await));
    assert_eq!(shown_status(&rig).unwrap().0, ConnectionStatus::Expired);
    rig.assert_no_violations();
}

#[tokio::test]
async fn leave_for_a_connection_that_was_just_ended_is_not_taken() {
    let rig = OAuthFixture::new().await;
    let callback = obtain_consent(&rig).await;
    // Another caller is ending the connection, and comes first.
    let turn = rig.connections.lock_server(SERVER_NAME).await;
    let assets = rig.mcp.clone();
    let finishing = tokio::spawn(async move { assets.callback(callback).await });
    with_deadline(async {
        while rig.brain().authorization_started_at(SERVER_NAME).unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.connections.remove(SERVER_NAME).await.unwrap();
    drop(turn);
    assert!(matches!(with_deadline(finishing).await.unwrap(), Err(McpError::InvalidState)));
    assert_eq!((shown_status(&rig), rig.auth_server.request_count("POST /as/token")), (None, 0));
}

/// An event that can occur while others are in progress.
#[derive(Clone, Copy, Debug)]
enum Event {
    Callback,
    Denied,
    Connect,
    Disconnect,
    /// The catalog no longer names the server.
    ServerRemoved,
    /// The catalog uses the name for another server.
    ServerChanged,
    /// The catalog names the server again.
    ServerRestored,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Callback),
        1 => Just(Event::Denied),
        1 => Just(Event::Connect),
        2 => Just(Event::Disconnect),
        1 => Just(Event::ServerRemoved),
        1 => Just(Event::ServerChanged),
        2 => Just(Event::ServerRestored),
    ]
}

/// Lets the event occur, after others have made this many steps.
fn perform(
    rig: &OAuthFixture,
    callback: &Callback,
    (turns, event): (usize, Event),
) -> BoxFuture<'static, ()> {
    let (assets, spec, callback) = (rig.mcp.clone(), Arc::clone(&rig.spec), callback.clone());
    let transport = Transport::Http {
        url: Url::parse("http://127.0.0.1:9/other").unwrap(),
        headers: HeaderMap::default(),
    };
    let happening = async move {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        match event {
            Event::Callback => drop(assets.callback(callback).await),
            Event::Denied => {
                let error = Some("access_denied".into());
                drop(assets.callback(Callback { code: None, error, ..callback }).await);
            }
            Event::Connect => drop(connect(&assets).await),
            Event::Disconnect => {
                if let Some(connection) = assets.connections().unwrap().pop() {
                    drop(assets.disconnect(&connection.connection.to_string()).await);
                }
            }
            Event::ServerRemoved => assets.set_server_specs(&[]),
            Event::ServerChanged => {
                assets.set_server_specs(&[Arc::new(McpServerSpec {
                    transport,
                    ..McpServerSpec::clone(&spec)
                })]);
            }
            Event::ServerRestored => assets.set_server_specs(&[spec]),
        }
    };
    happening.boxed()
}

/// Checks that the stored state is consistent, agrees with what is shown, and can be continued from.
async fn check_consistency(rig: &mut OAuthFixture) {
    let brain = rig.brain();
    let rows = brain.connections().unwrap();
    let has_credentials = brain.credentials(SERVER_NAME).unwrap().is_some();
    let is_begun = brain.authorization_started_at(SERVER_NAME).unwrap().is_some();
    match rows.first().map(|row| row.status) {
        None => assert!(!has_credentials && !is_begun),
        Some(ConnectionStatus::Pending) => assert!(!has_credentials && is_begun),
        Some(ConnectionStatus::Connected) => assert!(has_credentials),
        Some(ConnectionStatus::Expired | ConnectionStatus::Error) => {}
    }
    let listed = rig.mcp.connections().unwrap();
    rig.restart().await;
    assert_eq!(rig.mcp.connections().unwrap(), listed);
    match connect(&rig.mcp).await.unwrap() {
        ConnectOutcome::Connected { .. } => assert!(has_credentials),
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            let callback = rig.auth_server.approve(&authorization_url);
            with_deadline(rig.mcp.callback(callback)).await.unwrap();
        }
    }
    let connection = rig.mcp.connections().unwrap().pop().unwrap();
    assert_eq!((connection.status, connection.tools.len()), (ConnectionStatus::Connected, 1));
    with_deadline(rig.mcp.disconnect(&connection.connection.to_string())).await.unwrap();
    let brain = rig.brain();
    assert_eq!(brain.connections().unwrap(), []);
    assert_eq!(brain.authorization_started_at(SERVER_NAME).unwrap(), None);
    // All tokens that were ever issued are invalid.
    assert_eq!(rig.auth_server.active_grant_count(), 0);
    rig.assert_no_violations();
}

async fn run(was_connected: bool, events: Vec<(usize, Event)>) {
    let mut rig = OAuthFixture::new().await;
    if was_connected {
        with_deadline(rig.mcp.callback(obtain_consent(&rig).await)).await.unwrap();
        rig.auth_server.revoke_consent();
        rig.mcp.0.clients.drop_client(SERVER_NAME);
    }
    let callback = obtain_consent(&rig).await;
    with_deadline(join_all(events.into_iter().map(|event| tokio::spawn(perform(&rig, &callback, event)))))
        .await;
    rig.mcp.set_server_specs(&[Arc::clone(&rig.spec)]);
    check_consistency(&mut rig).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 50, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_half_stored_whatever_happens_at_once(
        was_connected in any::<bool>(),
        events in prop::collection::vec((0_usize..400, event()), 1..7),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(was_connected, events));
    }
}
