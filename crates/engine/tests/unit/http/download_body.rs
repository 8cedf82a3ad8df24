use std::sync::Arc;

use futures::{StreamExt as _, stream};

use super::*;

fn chunks(count: usize) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    stream::iter((0..count).map(|_| Ok(Bytes::from_static(b"chunk"))))
}

#[tokio::test]
async fn a_download_is_whole_and_releases_what_it_held() {
    let held = Arc::new(());
    let body = download_body(chunks(3), Arc::clone(&held));
    assert_eq!(axum::body::to_bytes(body, 100).await.unwrap(), "chunkchunkchunk");
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn an_error_cuts_a_download_off() {
    let content = chunks(1).chain(stream::iter([Err(io::Error::other("gone"))]));
    axum::body::to_bytes(download_body(content, ()), 100).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_nothing_for_ever() {
    let held = Arc::new(());
    let body = download_body(chunks(10), Arc::clone(&held));
    tokio::time::sleep(STALL_TIMEOUT * 2).await;
    assert_eq!(Arc::strong_count(&held), 1);
    // What was not read does not look like the end.
    axum::body::to_bytes(body, 100).await.unwrap_err();
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_download() {
    let held = Arc::new(());
    let body = download_body(stream::pending::<Result<Bytes, io::Error>>(), Arc::clone(&held));
    drop(body);
    while Arc::strong_count(&held) > 1 {
        tokio::task::yield_now().await;
    }
}
