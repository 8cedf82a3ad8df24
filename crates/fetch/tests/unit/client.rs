use std::process::Command;

use futures::FutureExt as _;
use resources::memory_budget::{MAX_UNCOUNTED_BYTES, MemoryBudget, MemoryUse};
use testkit::with_deadline;

use super::super::fixture::{FakeResolver, ServerAction, TestServer, http_answer, redirect_answer};
use super::*;

fn limits() -> FetchLimits {
    FetchLimits { total_timeout: Duration::from_secs(10), ..FetchLimits::default() }
}

/// Fetches with this resolver; `allowed` may be reached.
async fn fetch_with(
    names: Arc<FakeResolver>,
    allowed: &str,
    limits: FetchLimits,
    url: &str,
) -> Result<Page, String> {
    let web = WebClient::with_resolver(names, WebAllowlist::parse(allowed).unwrap(), limits);
    let target = Target::parse(url).map_err(|error| error.to_string())?;
    with_deadline(web.fetch(target)).await.map_err(|error| error.to_string())
}

/// Fetches with all of 127.0.0.1 allowed.
async fn fetch(limits: FetchLimits, url: &str) -> Result<Page, String> {
    fetch_with(Arc::default(), "127.0.0.1", limits, url).await
}

fn html(body: &str) -> Vec<u8> {
    http_answer("200 OK", "text/html", body)
}

fn check(result: &Result<Page, String>, reason: &str) {
    match result {
        Ok(page) => panic!("{page:?}, but: {reason}"),
        Err(error) => assert!(error.contains(reason), "{error}, but: {reason}"),
    }
}

#[tokio::test]
async fn a_page_is_fetched() {
    let server = TestServer::responding(html("hello")).await;
    let page = fetch(limits(), &server.url()).await.unwrap();
    assert_eq!(
        (page.status.as_u16(), page.body.bytes.as_slice(), page.body.is_complete),
        (200, &b"hello"[..], true)
    );
    let request = server.requests().remove(0).to_ascii_lowercase();
    assert!(
        request.contains("user-agent: roundhouse/") && request.contains("accept-encoding: identity"),
        "{request}"
    );
    for header in ["cookie:", "referer:", "authorization:"] {
        assert!(!request.contains(header), "{request}");
    }
}

#[tokio::test]
async fn an_error_of_the_server_is_a_page_too() {
    let server = TestServer::responding(http_answer("404 Not Found", "text/html", "gone")).await;
    assert_eq!(fetch(limits(), &server.url()).await.unwrap().status.as_u16(), 404);
}

/// Different spellings of addresses that are not public. Nothing listens there; none is connected to.
#[tokio::test]
async fn no_form_of_a_special_address_is_connected_to() {
    let server = TestServer::responding(html("secret")).await;
    let port = server.address.port();
    let hosts = [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "127.8.9.10",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.1",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[fec0::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "192.0.0.192",
        "168.63.129.16",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
    ];
    for host in hosts {
        let result = fetch_with(Arc::default(), "", limits(), &format!("http://{host}:{port}/")).await;
        check(&result, "is not on the public internet");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_also_if_only_one_of_its_addresses_does() {
    let server = TestServer::responding(html("secret")).await;
    let answers: [&[&str]; 6] = [
        &["127.0.0.1"],
        &["93.184.216.34", "127.0.0.1"],
        &["127.0.0.1", "93.184.216.34"],
        &["2606:4700::1111", "::1"],
        &["::ffff:127.0.0.1"],
        &["93.184.216.34", "1.1.1.1", "169.254.169.254"],
    ];
    for answer in answers {
        let names = Arc::new(FakeResolver::default().with_name("evil.example", &[answer]));
        let url = format!("http://evil.example:{}/", server.address.port());
        check(&fetch_with(names, "", limits(), &url).await, "`evil.example` is not on the public internet");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_machines_own_names_are_judged() {
    let server = TestServer::responding(html("secret")).await;
    let web = WebClient::new(WebAllowlist::default(), MemoryBudget::default());
    for host in ["localhost", "LOCALHOST"] {
        let target = Target::parse(&format!("http://{host}:{}/", server.address.port())).unwrap();
        let error = with_deadline(web.fetch(target)).await.unwrap_err();
        assert!(matches!(error, FetchError::NotPublic { what: "loopback", .. }), "{error}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_redirect_is_judged_like_any_address() {
    let inside = TestServer::responding(html("secret")).await;
    let port = inside.address.port();
    let targets = [
        format!("http://127.0.0.2:{port}/"),
        format!("http://inside.example:{port}/"),
        format!("//127.0.0.2:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fd00:ec2::254]/".to_owned(),
        "http://[::ffff:a9fe:a9fe]/".to_owned(),
    ];
    for target in targets {
        for status in ["301 x", "302 x", "303 x", "307 x", "308 x"] {
            let server = TestServer::responding(redirect_answer(status, &target)).await;
            let names = Arc::new(FakeResolver::default().with_name("inside.example", &[&["127.0.0.2"]]));
            let allowed = server.address.to_string();
            let result = fetch_with(names, &allowed, limits(), &server.url()).await;
            check(&result, "is not on the public internet");
        }
    }
    let elsewhere = [
        ("file:///etc/passwd", "`file:` addresses are not fetched"),
        ("http://user:pass@example.org/", "a user name or a password"),
        ("http://example.org:25/", "port 25"),
        ("http://[::1", "not a web address"),
    ];
    for (target, reason) in elsewhere {
        let server = TestServer::responding(redirect_answer("302 x", target)).await;
        check(&fetch(limits(), &server.url()).await, reason);
    }
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn redirects_are_followed_and_have_an_end() {
    let server = TestServer::start_at("127.0.0.1:0", |request| {
        let count: usize =
            request.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
        vec![ServerAction::Send(if count == 0 {
            html("there")
        } else {
            redirect_answer("302 x", &format!("/{}", count - 1))
        })]
    })
    .await;
    let page = fetch(limits(), &format!("{}5", server.url())).await.unwrap();
    assert_eq!((page.url.path(), page.body.bytes.as_slice()), ("/0", &b"there"[..]));
    check(&fetch(limits(), &format!("{}6", server.url())).await, "more than 5 times");
}

#[test]
fn a_redirect_never_leaves_https() {
    let sent = |from: &str, to: &str| {
        let response = http_response(to);
        super::redirect_target(&Target::parse(from).unwrap(), &response)
    };
    let downgrade = sent("https://example.org/", "http://example.org/");
    assert!(matches!(downgrade, Err(FetchError::Downgrade(_))), "{downgrade:?}");
    for (from, to) in
        [("https://a.example/", "https://b.example/"), ("http://a.example/", "https://a.example/")]
    {
        assert_eq!(sent(from, to).unwrap().unwrap().url().as_str(), to);
    }
}

fn http_response(location: &str) -> Response {
    let response = axum::http::Response::builder().status(302).header("location", location);
    Response::from(response.body(String::new()).unwrap())
}

/// A name is not resolved again between the check and the connection.
#[tokio::test]
async fn what_was_checked_is_what_is_connected_to() {
    let outside = TestServer::start_at("127.0.0.1:0", |request| {
        vec![ServerAction::Send(if request.starts_with("GET /again") {
            redirect_answer("302 x", "/more")
        } else {
            html("outside")
        })]
    })
    .await;
    let port = outside.address.port();
    let inside =
        TestServer::start_at(&format!("127.0.0.2:{port}"), |_| vec![ServerAction::Send(html("secret"))])
            .await;
    let rebinding =
        || Arc::new(FakeResolver::default().with_name("evil.example", &[&["127.0.0.1"], &["127.0.0.2"]]));

    let names = rebinding();
    let url = format!("http://evil.example:{port}/");
    let page = fetch_with(Arc::clone(&names), "127.0.0.1", limits(), &url).await.unwrap();
    assert_eq!((page.body.bytes.as_slice(), names.lookups()), (&b"outside"[..], 1));
    assert!(outside.requests()[0].to_ascii_lowercase().contains(&format!("host: evil.example:{port}\r\n")));

    let url = format!("http://evil.example:{port}/again");
    let names = rebinding();
    check(
        &fetch_with(Arc::clone(&names), "127.0.0.1", limits(), &url).await,
        "is not on the public internet",
    );
    assert_eq!((names.lookups(), inside.connections()), (2, 0));
}

/// The name is sent in plain text in the first message of TLS (RFC 6066).
#[tokio::test]
async fn a_secure_server_is_asked_for_by_its_name() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://wiki.internal:{}/", listener.local_addr().unwrap().port());
    let names = Arc::new(FakeResolver::default().with_name("wiki.internal", &[&["127.0.0.1"]]));
    let hello = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = vec![0; 4_096];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut hello).await.unwrap();
        String::from_utf8_lossy(&hello[..read]).into_owned()
    };
    let (result, hello) = tokio::join!(fetch_with(names, "127.0.0.1", limits(), &url), hello);
    assert!(hello.contains("wiki.internal"), "{hello}");
    check(&result, "the connection to the server failed");
}

#[tokio::test]
async fn the_configuration_allows_names_addresses_and_ports() {
    let server = TestServer::responding(html("wiki")).await;
    let port = server.address.port();
    let names = Arc::new(FakeResolver::default().with_name("wiki.internal", &[&["127.0.0.1"]]));
    let url = format!("http://wiki.internal:{port}/");
    for allowed in
        ["wiki.internal", &format!("wiki.internal:{port}"), "127.0.0.0/8", &format!("127.0.0.1:{port}")]
    {
        fetch_with(Arc::clone(&names), allowed, limits(), &url).await.unwrap();
    }
    for allowed in ["wiki.internal:1", "internal", "127.0.0.1:1", "127.0.0.2", "::1"] {
        check(
            &fetch_with(Arc::clone(&names), allowed, limits(), &url).await,
            "is not on the public internet",
        );
    }
}

#[tokio::test]
async fn a_name_without_addresses_says_so() {
    let names = Arc::new(FakeResolver::default().with_name("empty.example", &[&[]]));
    check(&fetch_with(Arc::clone(&names), "", limits(), "http://empty.example/").await, "it has no address");
    check(&fetch_with(names, "", limits(), "http://other.example/").await, "no such name");
}

/// With proxy variables set, the test above still passes: the proxy does not exist.
#[test]
fn proxies_are_ignored() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "client::tests::a_page_is_fetched"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        child.env(name, "http://127.0.0.1:1");
    }
    let output = child.env_remove("no_proxy").env_remove("NO_PROXY").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
}

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n";
    let silent: [Vec<ServerAction>; 4] = [
        vec![ServerAction::Hang],
        vec![ServerAction::Send(head.into()), ServerAction::Hang],
        vec![ServerAction::Send(format!("{head}Content-Length: 9\r\n\r\n").into()), ServerAction::Hang],
        vec![ServerAction::Send(format!("{head}Content-Length: 9\r\n\r\nabc").into()), ServerAction::Hang],
    ];
    for acts in silent {
        let server = TestServer::start(acts).await;
        check(
            &fetch(FetchLimits { idle_timeout: SHORT, ..limits() }, &server.url()).await,
            "sent nothing for 0.3 s",
        );
    }
}

#[tokio::test]
async fn a_server_that_drips_is_given_up() {
    let pause = Duration::from_millis(20);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n";
    let slow: [Vec<ServerAction>; 3] = [
        vec![
            ServerAction::Send(b"HTTP/1.1 200 OK\r\nX-Slow: ".to_vec()),
            ServerAction::Repeat(b"x".to_vec(), pause),
        ],
        vec![ServerAction::Send(format!("{head}\r\n").into()), ServerAction::Repeat(b"x".to_vec(), pause)],
        vec![
            ServerAction::Send(format!("{head}Content-Length: 9999\r\n\r\n").into()),
            ServerAction::Repeat(b"x".to_vec(), pause),
        ],
    ];
    for acts in slow {
        let server = TestServer::start(acts).await;
        let result = fetch(FetchLimits { total_timeout: SHORT, ..limits() }, &server.url()).await;
        check(&result, "did not arrive completely within 0.3 s");
    }
}

#[tokio::test]
async fn a_server_that_accepts_nobody_is_given_up() {
    // Nothing accepts from this queue of connections, and it is full, so that a further one is not accepted.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, tokio::net::TcpStream::connect(address)).await {
        waiting.push(stream);
    }
    let result =
        fetch(FetchLimits { connect_timeout: SHORT, ..limits() }, &format!("http://{address}/")).await;
    check(&result, "did not accept a connection within 0.3 s");
}

/// Cancelling a fetch closes its connection.
#[tokio::test]
async fn a_fetch_that_is_cancelled_lets_go_of_the_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let fetching = tokio::spawn(async move { fetch(limits(), &url).await });
    let (mut stream, _) = with_deadline(listener.accept()).await.unwrap();
    let mut request = [0; 4_096];
    assert!(with_deadline(tokio::io::AsyncReadExt::read(&mut stream, &mut request)).await.unwrap() > 0);
    fetching.abort();
    assert_eq!(with_deadline(tokio::io::AsyncReadExt::read(&mut stream, &mut request)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_body_without_end_is_cut() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n".to_vec();
    let server = TestServer::start(vec![
        ServerAction::Send(head),
        ServerAction::Repeat(vec![b'x'; 65_536], Duration::ZERO),
    ])
    .await;
    let page = fetch(limits(), &server.url()).await.unwrap();
    assert_eq!(
        (page.body.bytes.len(), page.body.is_complete),
        (FetchLimits::default().max_body_bytes, false)
    );
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    let head = b"HTTP/1.1 200 OK\r\n".to_vec();
    let server = TestServer::start(vec![
        ServerAction::Send(head),
        ServerAction::Repeat(b"X-Y: z\r\n".repeat(1_000), Duration::ZERO),
    ])
    .await;
    check(&fetch(limits(), &server.url()).await, "the connection to the server failed");
}

#[tokio::test]
async fn a_server_that_lies_or_crashes_is_told() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n";
    let broken: [Vec<ServerAction>; 6] = [
        vec![ServerAction::Send(format!("{head}Content-Length: 99\r\n\r\nshort").into())],
        vec![
            ServerAction::Send(format!("{head}Content-Length: 99\r\n\r\nshort").into()),
            ServerAction::Reset,
        ],
        vec![ServerAction::Send(format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n").into())],
        vec![ServerAction::Send(format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").into())],
        vec![ServerAction::Reset],
        vec![ServerAction::Send(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())],
    ];
    for acts in broken {
        let server = TestServer::start(acts.clone()).await;
        let result = fetch(limits(), &server.url()).await;
        assert!(
            result.as_ref().is_err_and(|error| error.contains("the connection to the server failed")),
            "{acts:?}: {result:?}"
        );
    }
    // More than the declared length is not read.
    let server = TestServer::responding(format!("{head}Content-Length: 3\r\n\r\nabcdef")).await;
    assert_eq!(fetch(limits(), &server.url()).await.unwrap().body.bytes, b"abc");
}

#[tokio::test]
async fn a_compressed_answer_is_not_unpacked() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc";
    let server = TestServer::responding(head).await;
    check(&fetch(limits(), &server.url()).await, "compressed (`gzip`)");
}

#[tokio::test]
async fn what_is_no_text_is_refused_with_its_type_and_size() {
    for kind in ["image/png", "application/pdf", "application/octet-stream", "image/svg+xml", "nonsense"] {
        let server = TestServer::responding(http_answer("200 OK", kind, "12345")).await;
        check(&fetch(limits(), &server.url()).await, &format!("this is {kind} of 5 bytes"));
    }
    for kind in ["text/csv", "application/json; charset=utf-8", "application/ld+json", "APPLICATION/XML", ""]
    {
        let server = TestServer::responding(http_answer("200 OK", kind, "12345")).await;
        assert_eq!(fetch(limits(), &server.url()).await.unwrap().content_type, kind);
    }
}

#[tokio::test]
async fn a_page_that_comes_slowly_holds_the_memory_of_what_has_come() {
    let memory = MemoryBudget::default();
    let mut begin = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".to_vec();
    begin.extend(vec![b'x'; 2 * MAX_UNCOUNTED_BYTES]);
    let server = TestServer::start(vec![ServerAction::Send(begin), ServerAction::Hang]).await;
    let web = WebClient::new(WebAllowlist::parse("127.0.0.1").unwrap(), memory.clone());
    let target = Target::parse(&server.url()).unwrap();
    let fetching = tokio::spawn(async move { web.fetch(target).await.map(drop) });
    with_deadline(async {
        while memory.reserve(MemoryUse::Tools, usize::MAX).now_or_never().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // Its length is unknown, and most of the share is free.
    assert!(memory.reserve(MemoryUse::Tools, 40 << 20).now_or_never().is_some());
    fetching.abort();
}
