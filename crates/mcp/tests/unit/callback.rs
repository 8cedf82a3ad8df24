//! OAuth connections from the request for consent to their end, as the endpoints drive them.

use std::sync::Arc;

use api::assets::{Callback, Connect, ConnectOutcome, ConnectionStatus};
use catalog::{McpServerSpec, Transport};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use reqwest::Url;
use reqwest::header::HeaderMap;
use testkit::with_deadline;

use super::oauth::fixture::{OAuthFixture, SERVER_NAME};
use super::{Mcp, McpError};

const REDIRECT_TARGET: &str = "https://product.example/done";

async fn connect(mcp: &Mcp) -> Result<ConnectOutcome, McpError> {
    let connect =
        Connect { server: SERVER_NAME.into(), credentials: None, redirect_to: Some(REDIRECT_TARGET.into()) };
    with_deadline(mcp.connect(connect)).await
}

/// Requests consent, which the user gives; returns the callback.
async fn obtain_consent(fixture: &OAuthFixture) -> Callback {
    match connect(&fixture.mcp).await.unwrap() {
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            fixture.auth_server.approve(&authorization_url)
        }
        ConnectOutcome::Connected { .. } => panic!("connected without authorization"),
    }
}

fn requires_authorization(outcome: &Result<ConnectOutcome, McpError>) -> bool {
    matches!(outcome, Ok(ConnectOutcome::AuthorizationRequired { .. }))
}

/// Returns the status and error of the connection as shown.
fn shown_status(fixture: &OAuthFixture) -> Option<(ConnectionStatus, Option<String>)> {
    let connection = fixture.mcp.connections().unwrap().pop()?;
    Some((connection.status, connection.error))
}

#[tokio::test]
async fn a_user_who_comes_back_with_leave_is_connected_and_has_the_servers_tools() {
    let mut fixture = OAuthFixture::new().await;
    let callback = obtain_consent(&fixture).await;
    assert_eq!(shown_status(&fixture), Some((ConnectionStatus::Pending, None)));
    assert_eq!(fixture.mcp.tools().len(), 0);
    let (connection, back) = with_deadline(fixture.mcp.callback(callback.clone())).await.unwrap();
    assert_eq!(back.unwrap().as_str(), REDIRECT_TARGET);
    let connections = fixture.mcp.connections().unwrap();
    assert_eq!((connections[0].connection, connections[0].status), (connection, ConnectionStatus::Connected));
    assert_eq!(connections[0].tools, ["look"]);
    assert!(fixture.mcp.servers()[0].connected);
    let tools = fixture.mcp.tools();
    assert_eq!(tools.len(), 1);
    assert!(matches!(with_deadline(fixture.mcp.callback(callback)).await, Err(McpError::InvalidState)));

    fixture.restart().await;
    assert_eq!(fixture.mcp.connections().unwrap(), connections);
    assert_eq!(connect(&fixture.mcp).await.unwrap(), ConnectOutcome::Connected { connection });
    with_deadline(fixture.mcp.disconnect(&connection.to_string())).await.unwrap();
    assert_eq!(shown_status(&fixture), None);
    assert_eq!(fixture.auth_server.state().revoked_token_hints, ["refresh_token", "access_token"]);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn who_connects_a_server_that_is_down_is_told_so_and_not_sent_away_for_leave() {
    let fixture = OAuthFixture::new().await;
    with_deadline(fixture.mcp.callback(obtain_consent(&fixture).await)).await.unwrap();
    fixture.auth_server.behavior().is_down = true;
    fixture.mcp.0.clients.drop_client(SERVER_NAME);
    let failed = connect(&fixture.mcp).await;
    assert!(matches!(&failed, Err(McpError::Failed(reason)) if reason.contains("502")), "{failed:?}");
    assert_eq!(shown_status(&fixture).unwrap().0, ConnectionStatus::Error);

    fixture.auth_server.behavior().is_down = false;
    assert!(matches!(connect(&fixture.mcp).await, Ok(ConnectOutcome::Connected { .. })));
    // The authorization server is down, and the token has expired.
    fixture.auth_server.behavior().token_response = Some((503, String::new()));
    fixture.advance_clock(3_600.0);
    fixture.mcp.0.clients.drop_client(SERVER_NAME);
    let failed = connect(&fixture.mcp).await;
    assert!(matches!(&failed, Err(McpError::Failed(reason)) if reason.contains("503")), "{failed:?}");

    fixture.auth_server.behavior().token_response = None;
    fixture.advance_clock(1.0);
    assert!(matches!(connect(&fixture.mcp).await, Ok(ConnectOutcome::Connected { .. })));
    assert_eq!(shown_status(&fixture), Some((ConnectionStatus::Connected, None)));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn who_connects_a_server_that_takes_the_token_no_more_is_asked_for_leave() {
    let fixture = OAuthFixture::new().await;
    with_deadline(fixture.mcp.callback(obtain_consent(&fixture).await)).await.unwrap();
    fixture.auth_server.revoke_consent();
    fixture.mcp.0.clients.drop_client(SERVER_NAME);
    assert!(requires_authorization(&connect(&fixture.mcp).await));
    assert_eq!(shown_status(&fixture).unwrap().0, ConnectionStatus::Expired);
    with_deadline(fixture.mcp.callback(obtain_consent(&fixture).await)).await.unwrap();

    // The server rejects every token.
    fixture.auth_server.behavior().rejects_tokens = true;
    fixture.mcp.0.clients.drop_client(SERVER_NAME);
    assert!(requires_authorization(&connect(&fixture.mcp).await));
    assert_eq!(shown_status(&fixture).unwrap().0, ConnectionStatus::Expired);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn leave_for_a_connection_that_was_just_ended_is_not_taken() {
    let fixture = OAuthFixture::new().await;
    let callback = obtain_consent(&fixture).await;
    // Another caller is ending the connection, and comes first.
    let lock = fixture.connections.lock_server(SERVER_NAME).await;
    let mcp = fixture.mcp.clone();
    let finishing = tokio::spawn(async move { mcp.callback(callback).await });
    with_deadline(async {
        while fixture.brain().authorization_started_at(SERVER_NAME).unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    fixture.connections.remove(SERVER_NAME).await.unwrap();
    drop(lock);
    assert!(matches!(with_deadline(finishing).await.unwrap(), Err(McpError::InvalidState)));
    assert_eq!((shown_status(&fixture), fixture.auth_server.request_count("POST /as/token")), (None, 0));
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
    fixture: &OAuthFixture,
    callback: &Callback,
    (yields, event): (usize, Event),
) -> BoxFuture<'static, ()> {
    let (mcp, spec, callback) = (fixture.mcp.clone(), Arc::clone(&fixture.spec), callback.clone());
    let transport = Transport::Http {
        url: Url::parse("http://127.0.0.1:9/other").unwrap(),
        headers: HeaderMap::default(),
    };
    let action = async move {
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        match event {
            Event::Callback => drop(mcp.callback(callback).await),
            Event::Denied => {
                let error = Some("access_denied".into());
                drop(mcp.callback(Callback { code: None, error, ..callback }).await);
            }
            Event::Connect => drop(connect(&mcp).await),
            Event::Disconnect => {
                if let Some(connection) = mcp.connections().unwrap().pop() {
                    drop(mcp.disconnect(&connection.connection.to_string()).await);
                }
            }
            Event::ServerRemoved => mcp.set_server_specs(&[]),
            Event::ServerChanged => {
                mcp.set_server_specs(&[Arc::new(McpServerSpec { transport, ..McpServerSpec::clone(&spec) })]);
            }
            Event::ServerRestored => mcp.set_server_specs(&[spec]),
        }
    };
    action.boxed()
}

/// Checks that the stored state is consistent, agrees with what is shown, and can be continued from.
async fn check_consistency(fixture: &mut OAuthFixture) {
    let brain = fixture.brain();
    let rows = brain.connections().unwrap();
    let has_credentials = brain.credentials(SERVER_NAME).unwrap().is_some();
    let is_pending = brain.authorization_started_at(SERVER_NAME).unwrap().is_some();
    match rows.first().map(|row| row.status) {
        None => assert!(!has_credentials && !is_pending),
        Some(ConnectionStatus::Pending) => assert!(!has_credentials && is_pending),
        Some(ConnectionStatus::Connected) => assert!(has_credentials),
        Some(ConnectionStatus::Expired | ConnectionStatus::Error) => {}
    }
    let connections = fixture.mcp.connections().unwrap();
    fixture.restart().await;
    assert_eq!(fixture.mcp.connections().unwrap(), connections);
    match connect(&fixture.mcp).await.unwrap() {
        ConnectOutcome::Connected { .. } => assert!(has_credentials),
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            let callback = fixture.auth_server.approve(&authorization_url);
            with_deadline(fixture.mcp.callback(callback)).await.unwrap();
        }
    }
    let connection = fixture.mcp.connections().unwrap().pop().unwrap();
    assert_eq!((connection.status, connection.tools.len()), (ConnectionStatus::Connected, 1));
    with_deadline(fixture.mcp.disconnect(&connection.connection.to_string())).await.unwrap();
    let brain = fixture.brain();
    assert_eq!(brain.connections().unwrap(), []);
    assert_eq!(brain.authorization_started_at(SERVER_NAME).unwrap(), None);
    // All tokens that were ever issued are invalid.
    assert_eq!(fixture.auth_server.active_grant_count(), 0);
    fixture.assert_no_violations();
}

async fn run(was_connected: bool, events: Vec<(usize, Event)>) {
    let mut fixture = OAuthFixture::new().await;
    if was_connected {
        with_deadline(fixture.mcp.callback(obtain_consent(&fixture).await)).await.unwrap();
        fixture.auth_server.revoke_consent();
        fixture.mcp.0.clients.drop_client(SERVER_NAME);
    }
    let callback = obtain_consent(&fixture).await;
    with_deadline(join_all(
        events.into_iter().map(|event| tokio::spawn(perform(&fixture, &callback, event))),
    ))
    .await;
    fixture.mcp.set_server_specs(&[Arc::clone(&fixture.spec)]);
    check_consistency(&mut fixture).await;
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
