use pretty_assertions::assert_eq;
use testkit::with_deadline;

use super::*;
use crate::fixture::TestServer;

fn request(url: &str) -> ApiRequest {
    let headers = HeaderMap::from_iter([("x-key".parse().unwrap(), HeaderValue::from_static("k-secret"))]);
    ApiRequest { method: Method::GET, url: Url::parse(url).unwrap(), headers, body: None }
}

async fn call(url: &str, is_trusted: bool, max: usize) -> Result<ApiResponse, FetchError> {
    let parsed = Url::parse(url).unwrap();
    let server = ApiServer::new(&parsed, is_trusted, max, MemoryBudget::default()).unwrap();
    with_deadline(server.call(request(url))).await
}

fn url(server: &TestServer) -> String {
    format!("http://{}/find?q=k-secret", server.address)
}

#[tokio::test]
async fn a_private_server_is_called_only_if_the_operator_named_it() {
    let server = TestServer::responding("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
    let error = call(&url(&server), false, 100).await.unwrap_err();
    assert!(matches!(error, FetchError::NotPublic { .. }), "{error}");
    assert_eq!(server.requests(), [""; 0]);
    let response = call(&url(&server), true, 100).await.unwrap();
    assert_eq!((response.status, response.body.as_deref()), (StatusCode::OK, Some(&b"{}"[..])));
    let requests = server.requests();
    assert!(requests[0].starts_with("GET /find?q=k-secret HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests[0].contains("x-key: k-secret"), "{requests:?}");
}

#[tokio::test]
async fn a_redirect_takes_the_key_nowhere() {
    let other = TestServer::responding("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
    let redirect =
        format!("HTTP/1.1 307 Moved\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", other.address);
    let server = TestServer::responding(redirect).await;
    let response = call(&url(&server), true, 100).await.unwrap();
    assert_eq!(response.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(other.requests(), [""; 0]);
}

#[tokio::test]
async fn what_is_too_long_compressed_or_cut_off_is_no_answer() {
    let server = TestServer::responding("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[1,2]").await;
    assert_eq!(call(&url(&server), true, 4).await.unwrap().body, None);
    assert_eq!(call(&url(&server), true, 5).await.unwrap().body.as_deref(), Some(&b"[1,2]"[..]));
    let server =
        TestServer::responding("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}")
            .await;
    assert!(matches!(call(&url(&server), true, 9).await, Err(FetchError::Compressed(_))));
    let server = TestServer::responding("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1").await;
    let error = call(&url(&server), true, 9).await.unwrap_err().to_string();
    assert!(!error.contains("k-secret"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_busy_says_for_how_long() {
    let busy = "HTTP/1.1 429 Too Many\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n";
    let server = TestServer::responding(busy).await;
    let response = call(&url(&server), true, 9).await.unwrap();
    assert_eq!(response.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.retry_after, Some(Duration::from_secs(3)));
}

#[tokio::test]
async fn no_other_server_is_called_and_failures_hide_the_address() {
    let server = TestServer::responding("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
    let named = Url::parse("http://127.0.0.1:8/").unwrap();
    let api = ApiServer::new(&named, true, 9, MemoryBudget::default()).unwrap();
    assert!(api.call(request(&url(&server))).await.is_err());
    assert_eq!(server.requests(), [""; 0]);
    // Nothing listens on a port that was just free.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = call(&format!("http://{free}/?key=k-secret"), true, 9).await.unwrap_err().to_string();
    assert!(!error.contains("k-secret"), "{error}");
}
