//! Connections with leave, from the request for it to their end, as the endpoints drive them.

use std::sync::Arc;

use contract::assets::{Callback, Connect, ConnectOutcome, ConnectionStatus};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use reqwest::Url;
use reqwest::header::HeaderMap;

use super::oauth::rig::{Rig, SERVER};
use super::{Assets, AssetsError};
use crate::catalog::{ServerSpec, Transport};
use crate::testing::within;

const BACK: &str = "https://product.example/done";

async fn connect(assets: &Assets) -> Result<ConnectOutcome, AssetsError> {
    let connect = Connect { server: SERVER.into(), credentials: None, redirect_to: Some(BACK.into()) };
    within(assets.connect(connect)).await
}

/// Asks for leave, which the user gives: what the browser comes back with.
async fn leave(rig: &Rig) -> Callback {
    match connect(&rig.assets).await.unwrap() {
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            rig.strict.give_leave(&authorization_url)
        }
        ConnectOutcome::Connected { .. } => panic!("connected without leave"),
    }
}

fn is_asked_for_leave(outcome: &Result<ConnectOutcome, AssetsError>) -> bool {
    matches!(outcome, Ok(ConnectOutcome::AuthorizationRequired { .. }))
}

/// The status that is shown, and what is wrong.
fn shown(rig: &Rig) -> Option<(ConnectionStatus, Option<String>)> {
    let connection = rig.assets.connections().unwrap().pop()?;
    Some((connection.status, connection.error))
}

#[tokio::test]
async fn a_user_who_comes_back_with_leave_is_connected_and_has_the_servers_tools() {
    let mut rig = Rig::new().await;
    let callback = leave(&rig).await;
    assert_eq!(shown(&rig), Some((ConnectionStatus::Pending, None)));
    assert_eq!(rig.assets.tools().len(), 0);
    let (connection, back) = within(rig.assets.callback(callback.clone())).await.unwrap();
    assert_eq!(back.unwrap().as_str(), BACK);
    let listed = rig.assets.connections().unwrap();
    assert_eq!((listed[0].connection, listed[0].status), (connection, ConnectionStatus::Connected));
    assert_eq!(listed[0].tools, ["look"]);
    assert!(rig.assets.servers()[0].connected);
    let tools = rig.assets.tools();
    assert_eq!(tools.len(), 1);
    assert!(matches!(within(rig.assets.callback(callback)).await, Err(AssetsError::InvalidState)));

    rig.restart().await;
    assert_eq!(rig.assets.connections().unwrap(), listed);
    assert_eq!(connect(&rig.assets).await.unwrap(), ConnectOutcome::Connected { connection });
    within(rig.assets.disconnect(&connection.to_string())).await.unwrap();
    assert_eq!(shown(&rig), None);
    assert_eq!(rig.strict.books().revoked, ["refresh_token", "access_token"]);
    rig.check();
}

#[tokio::test]
async fn who_connects_a_server_that_is_down_is_told_so_and_not_sent_away_for_leave() {
    let rig = Rig::new().await;
    within(rig.assets.callback(leave(&rig).await)).await.unwrap();
    rig.strict.rules().is_down = true;
    rig.assets.0.clients.forget(SERVER);
    let failed = connect(&rig.assets).await;
    assert!(matches!(&failed, Err(AssetsError::Failed(told)) if told.contains("502")), "{failed:?}");
    assert_eq!(shown(&rig).unwrap().0, ConnectionStatus::Error);

    rig.strict.rules().is_down = false;
    assert!(matches!(connect(&rig.assets).await, Ok(ConnectOutcome::Connected { .. })));
    // The authorization server is down, and the token has ended.
    rig.strict.rules().token_answer = Some((503, String::new()));
    rig.pass(3_600.0);
    rig.assets.0.clients.forget(SERVER);
    let failed = connect(&rig.assets).await;
    assert!(matches!(&failed, Err(AssetsError::Failed(told)) if told.contains("503")), "{failed:?}");

    rig.strict.rules().token_answer = None;
    rig.pass(1.0);
    assert!(matches!(connect(&rig.assets).await, Ok(ConnectOutcome::Connected { .. })));
    assert_eq!(shown(&rig), Some((ConnectionStatus::Connected, None)));
    rig.check();
}

#[tokio::test]
async fn who_connects_a_server_that_takes_the_token_no_more_is_asked_for_leave() {
    let rig = Rig::new().await;
    within(rig.assets.callback(leave(&rig).await)).await.unwrap();
    rig.strict.take_back();
    rig.assets.0.clients.forget(SERVER);
    assert!(is_asked_for_leave(&connect(&rig.assets).await));
    assert_eq!(shown(&rig).unwrap().0, ConnectionStatus::Expired);
    within(rig.assets.callback(leave(&rig).await)).await.unwrap();

    // It refuses whatever token it is shown.
    rig.strict.rules().refuses = true;
    rig.assets.0.clients.forget(SERVER);
    assert!(is_asked_for_leave(&connect(&rig.assets).await));
    assert_eq!(shown(&rig).unwrap().0, ConnectionStatus::Expired);
    rig.check();
}

#[tokio::test]
async fn leave_for_a_connection_that_was_just_ended_is_not_taken() {
    let rig = Rig::new().await;
    let callback = leave(&rig).await;
    // Somebody is ending it, and comes first.
    let turn = rig.connections.turn(SERVER).await;
    let assets = rig.assets.clone();
    let finishing = tokio::spawn(async move { assets.callback(callback).await });
    within(async {
        while rig.brain().authorization_begun(SERVER).unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.connections.remove(SERVER).await.unwrap();
    drop(turn);
    assert!(matches!(within(finishing).await.unwrap(), Err(AssetsError::InvalidState)));
    assert_eq!((shown(&rig), rig.strict.asked("POST /as/token")), (None, 0));
}

/// What happens while others happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    Callback,
    Denied,
    Connect,
    Disconnect,
    /// The catalog names no server any more.
    Leaves,
    /// The catalog means another one by the name.
    Changes,
    /// The catalog names the server again.
    Returns,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Callback),
        1 => Just(Event::Denied),
        1 => Just(Event::Connect),
        2 => Just(Event::Disconnect),
        1 => Just(Event::Leaves),
        1 => Just(Event::Changes),
        2 => Just(Event::Returns),
    ]
}

/// Has it happen, once others have had so many turns.
fn happen(rig: &Rig, callback: &Callback, (turns, event): (usize, Event)) -> BoxFuture<'static, ()> {
    let (assets, spec, callback) = (rig.assets.clone(), Arc::clone(&rig.spec), callback.clone());
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
            Event::Leaves => assets.set_directory(&[]),
            Event::Changes => {
                assets.set_directory(&[Arc::new(ServerSpec { transport, ..ServerSpec::clone(&spec) })]);
            }
            Event::Returns => assets.set_directory(&[spec]),
        }
    };
    happening.boxed()
}

/// What is on record is whole, is what is shown, and can be gone on from.
async fn check(rig: &mut Rig) {
    let brain = rig.brain();
    let rows = brain.connections().unwrap();
    let has_credentials = brain.credentials(SERVER).unwrap().is_some();
    let is_begun = brain.authorization_begun(SERVER).unwrap().is_some();
    match rows.first().map(|row| row.status) {
        None => assert!(!has_credentials && !is_begun),
        Some(ConnectionStatus::Pending) => assert!(!has_credentials && is_begun),
        Some(ConnectionStatus::Connected) => assert!(has_credentials),
        Some(ConnectionStatus::Expired | ConnectionStatus::Error) => {}
    }
    let listed = rig.assets.connections().unwrap();
    rig.restart().await;
    assert_eq!(rig.assets.connections().unwrap(), listed);
    match connect(&rig.assets).await.unwrap() {
        ConnectOutcome::Connected { .. } => assert!(has_credentials),
        ConnectOutcome::AuthorizationRequired { authorization_url, .. } => {
            let callback = rig.strict.give_leave(&authorization_url);
            within(rig.assets.callback(callback)).await.unwrap();
        }
    }
    let connection = rig.assets.connections().unwrap().pop().unwrap();
    assert_eq!((connection.status, connection.tools.len()), (ConnectionStatus::Connected, 1));
    within(rig.assets.disconnect(&connection.connection.to_string())).await.unwrap();
    let brain = rig.brain();
    assert_eq!(brain.connections().unwrap(), []);
    assert_eq!(brain.authorization_begun(SERVER).unwrap(), None);
    // Nor is anything good any more that was ever given.
    assert_eq!(rig.strict.leaves(), 0);
    rig.check();
}

async fn run(was_connected: bool, events: Vec<(usize, Event)>) {
    let mut rig = Rig::new().await;
    if was_connected {
        within(rig.assets.callback(leave(&rig).await)).await.unwrap();
        rig.strict.take_back();
        rig.assets.0.clients.forget(SERVER);
    }
    let callback = leave(&rig).await;
    within(join_all(events.into_iter().map(|event| tokio::spawn(happen(&rig, &callback, event))))).await;
    rig.assets.set_directory(&[Arc::clone(&rig.spec)]);
    check(&mut rig).await;
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
