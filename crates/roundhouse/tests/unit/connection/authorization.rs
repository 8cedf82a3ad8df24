use api::Timestamp;

use super::*;

fn connection_with(status: ConnectionStatus, error: Option<&str>) -> Connection {
    Connection {
        connection: "conn_00000000000000000000000000000001".parse().unwrap(),
        server: "notes".into(),
        status,
        tools: Vec::new(),
        created_at: Timestamp::from_unix_ms(0),
        error: error.map(str::to_owned),
    }
}

/// Returns the result of polling that sees these states in turn, the last one repeatedly; and how long it took.
async fn poll_result(
    states: Vec<Result<Option<Connection>, &str>>,
) -> (Option<Result<(), String>>, Duration) {
    let started = tokio::time::Instant::now();
    let mut states = states.into_iter().peekable();
    let next_state = async || {
        let next = if states.len() > 1 { states.next() } else { states.peek().cloned() };
        next.unwrap().map_err(|error| ClientError::Failed(anyhow!("{error}")))
    };
    let ended = tokio::time::timeout(AUTHORIZATION_TIMEOUT, poll_until_connected(next_state)).await.ok();
    (ended.map(|ended| ended.map_err(|failure| failure.to_string())), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_made_ends_the_wait() {
    let pending = || Ok(Some(connection_with(ConnectionStatus::Pending, None)));
    let connected = || Ok(Some(connection_with(ConnectionStatus::Connected, None)));
    assert_eq!(poll_result(vec![pending(), pending(), connected()]).await, (Some(Ok(())), POLL_INTERVAL * 2));
    let expired = || Ok(Some(connection_with(ConnectionStatus::Expired, Some("over"))));
    assert_eq!(poll_result(vec![expired(), expired(), connected()]).await.0, Some(Ok(())));
    assert_eq!(poll_result(vec![Ok(None), connected()]).await.0, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_fails_ends_the_wait_with_its_reason() {
    let pending = || Ok(Some(connection_with(ConnectionStatus::Pending, None)));
    let (gone, _) = poll_result(vec![pending(), Ok(None)]).await;
    assert_eq!(gone, Some(Err("access was not granted, or the connection was removed".into())));
    let (failed, _) =
        poll_result(vec![pending(), Ok(Some(connection_with(ConnectionStatus::Error, Some("it is\ndown"))))])
            .await;
    assert_eq!(failed, Some(Err("the server was not connected: it is\\ndown".into())));
    let expired = Ok(Some(connection_with(ConnectionStatus::Expired, Some("over"))));
    let (failed, _) =
        poll_result(vec![expired, Ok(Some(connection_with(ConnectionStatus::Expired, Some("again"))))]).await;
    assert_eq!(failed, Some(Err("the server was not connected: again".into())));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_waited_for_for_ever() {
    for waits in [Ok(None), Ok(Some(connection_with(ConnectionStatus::Error, Some("as before"))))] {
        assert_eq!(poll_result(vec![waits]).await, (None, AUTHORIZATION_TIMEOUT));
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_away_for_a_moment_is_asked_again() {
    let away = Err("away");
    let connected = Ok(Some(connection_with(ConnectionStatus::Connected, None)));
    let mut seen = vec![away.clone(); 5];
    seen.push(connected.clone());
    assert_eq!(poll_result(seen).await.0, Some(Ok(())));
    let mut seen = vec![away; 6];
    seen.push(connected);
    assert_eq!(poll_result(seen).await.0, Some(Err("away".into())));
}
