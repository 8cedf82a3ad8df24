use fetch::fixture::{ServerAction, TestServer, http_answer, redirect_answer};
use pretty_assertions::assert_eq;
use serde_json::json;
use testkit::with_deadline;

use super::super::fixture::run_tool;
use super::*;

fn call(method: &str, url: &str, headers: &[(&str, &str)]) -> Result<HttpCall, String> {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    HttpCall::parse(method, url, &headers)
}

fn tool(call: HttpCall) -> HttpTool {
    let spec = ToolSpec { name: "lookup".into(), description: "Looks up.".into(), input_schema: json!({}) };
    HttpTool::new(spec, Permission::Ask, false, call, MemoryBudget::default())
}

/// Calls a server with this behavior; returns the tool's result and the server's requests.
async fn call_server(
    method: &str,
    path: &str,
    acts: Vec<ServerAction>,
    input: Value,
) -> (Result<String, String>, Vec<String>) {
    let server = TestServer::start(acts).await;
    let url = format!("{}{path}", server.url());
    let tool = HttpTool {
        timeout: Duration::from_secs(1),
        ..tool(call(method, &url, &[("X-Key", "k3y")]).unwrap())
    };
    let result = with_deadline(run_tool(&tool, input)).await.map_err(|error| error.to_string());
    (result, server.requests())
}

async fn post_result(answer: Vec<u8>) -> Result<String, String> {
    call_server("POST", "", vec![ServerAction::Send(answer)], json!({})).await.0
}

#[tokio::test]
async fn the_input_is_the_body_and_the_answers_body_the_result() {
    let acts = vec![ServerAction::Send(http_answer("200 OK", "application/json", "{\"n\":1}"))];
    for method in ["post", "PUT", "PATCH", "DELETE"] {
        let (result, requests) = call_server(method, "x?y=1", acts.clone(), json!({"q": "ü"})).await;
        assert_eq!(result.unwrap(), "{\"n\":1}");
        let request = requests[0].clone();
        assert!(request.starts_with(&format!("{} /x?y=1 HTTP/1.1\r\n", method.to_uppercase())), "{request}");
        assert!(
            request.contains("content-type: application/json\r\n") && request.contains("x-key: k3y\r\n"),
            "{request}"
        );
        assert!(request.ends_with("\r\n\r\n{\"q\":\"ü\"}"), "{request}");
    }
}

#[tokio::test]
async fn where_there_is_no_body_the_input_is_the_query() {
    let acts = vec![ServerAction::Send(http_answer("200 OK", "text/plain", "yes"))];
    let input = json!({"q": "a&b=c", "n": 1.5, "list": ["x", 2], "none": null, "of": {"a": true}});
    let (result, requests) = call_server("GET", "x?y=1", acts, input).await;
    assert_eq!(result.unwrap(), "yes");
    assert!(!requests[0].to_ascii_lowercase().contains("content-"), "{}", requests[0]);
    let line = requests[0].lines().next().unwrap();
    let mut parameters: Vec<&str> = line.split(['?', '&', ' ']).skip(2).collect();
    parameters.sort_unstable();
    let expected = ["HTTP/1.1", "list=2", "list=x", "n=1.5", "of=%7B%22a%22%3Atrue%7D", "q=a%26b%3Dc", "y=1"];
    assert_eq!(parameters, expected);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n".to_vec();
    let (result, requests) = call_server("HEAD", "", vec![ServerAction::Send(head)], json!({})).await;
    assert_eq!(result.unwrap(), "The server answered 200 OK without a text.");
    assert!(requests[0].starts_with("HEAD / HTTP/1.1"));
}

#[tokio::test]
async fn a_refusal_is_an_error_with_a_bounded_text() {
    let refused =
        post_result(http_answer("422 Unprocessable Entity", "text/plain", "no such id")).await.unwrap_err();
    assert_eq!(refused, "the server answered 422 Unprocessable Entity:\nno such id");
    let long = post_result(http_answer("500 Internal Server Error", "text/plain", "x".repeat(100_000)))
        .await
        .unwrap_err();
    assert!(long.len() < 5_000 && long.ends_with("\n[cut]"));
}

#[tokio::test]
async fn nothing_is_sent_to_another_server() {
    let other = TestServer::responding(http_answer("200 OK", "text/plain", "stolen")).await;
    for status in ["302 x", "307 x", "308 x"] {
        let error = post_result(redirect_answer(status, &other.url())).await.unwrap_err();
        assert!(error.contains("which is not followed"), "{error}");
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn redirects_within_the_server_are_followed_and_have_an_end() {
    let server = TestServer::start_at("127.0.0.1:0", |request| {
        let there = request.contains(" /there ");
        vec![ServerAction::Send(if there {
            http_answer("200 OK", "text/plain", "there")
        } else {
            redirect_answer("307 x", "/there")
        })]
    })
    .await;
    let here = tool(call("POST", &server.url(), &[]).unwrap());
    assert_eq!(with_deadline(run_tool(&here, json!({"a": 1}))).await.unwrap(), "there");
    assert!(server.requests().iter().all(|request| request.ends_with("{\"a\":1}")));
    let error = post_result(redirect_answer("302 x", "/")).await.unwrap_err();
    assert!(error.contains("which is not followed"), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_floods_crashes_or_lies_is_told() {
    let head = "HTTP/1.1 200 OK\r\n";
    let pause = Duration::from_millis(10);
    let cases: [(Vec<ServerAction>, &str); 6] = [
        (vec![ServerAction::Hang], "did not answer within 1 s"),
        (
            vec![
                ServerAction::Send(format!("{head}\r\n").into()),
                ServerAction::Repeat(b"x".to_vec(), pause),
            ],
            "did not answer within 1 s",
        ),
        (vec![ServerAction::Reset], "the call failed: "),
        (vec![ServerAction::Send(format!("{head}Content-Length: 9\r\n\r\nabc").into())], "the call failed: "),
        (
            vec![ServerAction::Send(http_answer("200 OK", "image/png", b"\x89PNG\0"))],
            "5 bytes of `image/png`, which is not text",
        ),
        (vec![ServerAction::Send(b"nonsense".to_vec())], "the call failed: "),
    ];
    for (acts, reason) in cases {
        let error = call_server("POST", "key-in-path", acts, json!({})).await.0.unwrap_err();
        assert!(error.contains(reason) && !error.contains("key-in-path"), "{error}");
    }
    let flood = vec![
        ServerAction::Send(format!("{head}\r\n").into()),
        ServerAction::Repeat(vec![b'x'; 65_536], Duration::ZERO),
    ];
    let flooded = call_server("POST", "", flood, json!({})).await.0.unwrap();
    assert!(flooded.len() < MAX_BODY_BYTES + 100 && flooded.ends_with("bytes]"));
}

#[test]
fn errors_about_faulty_entries_hold_no_secrets() {
    for (method, url, headers, reason) in [
        ("CONNECT", "http://x.example", &[][..], "`method` is `CONNECT`"),
        ("GET", "ftp://x.example", &[], "`url` must be"),
        ("GET", "/path", &[], "`url` must be"),
        ("GET", "http://x.example", &[("a b", "secret")], "`a b` is not a valid header name"),
        ("GET", "http://x.example", &[("a", "secret\n")], "the value of `a` cannot be sent"),
    ] {
        let error = call(method, url, headers).unwrap_err();
        assert!(error.contains(reason) && !error.contains("secret"), "{error}");
    }
    let call = call("GET", "http://x.example/secret?k=secret", &[("authorization", "secret")]).unwrap();
    assert_eq!(format!("{call:?}"), "GET http://x.example");
}

#[test]
fn leave_is_asked_for_what_is_sent_and_where_to() {
    let tool = tool(call("POST", "https://hooks.example:8443/k3y?key=k3y", &[]).unwrap());
    let prompt = tool.approval_prompt(&json!({"text": "hi"}));
    assert_eq!(
        prompt,
        "Allow `lookup` to send this to https://hooks.example:8443 (POST)?\n{\"text\":\"hi\"}"
    );
}
