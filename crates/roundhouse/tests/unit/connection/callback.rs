use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::anyhow;

use super::*;

const CALLBACK_TIMEOUT: Duration = Duration::from_mins(10);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn parse_address(url: &str) -> Option<(String, String)> {
    let callback = CallbackAddress::parse_url(&Url::parse(url).unwrap())?;
    Some((callback.address.to_string(), callback.path))
}

#[test]
fn only_a_port_of_this_machine_is_listened_on() {
    let path = "/assets/oauth/callback";
    for (base, address) in [
        ("http://127.0.0.1:8765", "127.0.0.1:8765"),
        ("http://127.8.8.8:8080", "127.8.8.8:8080"),
        ("http://localhost:9", "127.0.0.1:9"),
        ("http://[::1]:8765", "[::1]:8765"),
    ] {
        assert_eq!(parse_address(&format!("{base}{path}")), Some((address.to_owned(), path.to_owned())));
    }
    assert_eq!(
        parse_address("http://127.0.0.1:1/my/base{x}/cb"),
        Some(("127.0.0.1:1".into(), "/my/base%7Bx%7D/cb".into()))
    );
    for other in [
        "http://127.0.0.1/cb",
        "http://127.0.0.1:80/cb",
        "https://127.0.0.1:8765/cb",
        "http://10.0.0.1:8765/cb",
        "http://0.0.0.0:8765/cb",
        "http://[2001:db8::1]:8765/cb",
        "http://app.example.com:8765/cb",
        "http://localhost.example.com:8765/cb",
        "app://callback",
    ] {
        assert_eq!(parse_address(other), None, "{other}");
    }
}

/// Spawns a receiver that waits for the state `s` on a free port; returns it with the callback's address.
async fn run_receiver(
    finish: impl AsyncFnOnce(Callback) -> Result<&'static str, Failure>,
    browser: impl AsyncFnOnce(String),
) -> Result<Option<&'static str>, Failure> {
    let callback = CallbackAddress { address: "127.0.0.1:0".parse().unwrap(), path: "/cb".into() };
    let listener = callback.listen().await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = callback.receive(listener, "s".into(), CALLBACK_TIMEOUT, finish);
    tokio::join!(tokio::time::timeout(TEST_TIMEOUT, received), browser(address)).0.expect("it ends")
}

async fn get(url: String) -> (u16, String) {
    let response = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn one_callback_with_the_state_is_forwarded_and_nothing_else() {
    let forwarded = AtomicUsize::new(0);
    let release = tokio::sync::Notify::new();
    let finish = async |callback: Callback| {
        forwarded.fetch_add(1, Ordering::Relaxed);
        release.notified().await;
        assert_eq!((callback.code.as_deref(), callback.iss.as_deref()), (Some("a b"), Some("https://as")));
        Ok("done")
    };
    let browser = async |address: String| {
        for (path, status) in [
            ("/", 404),
            ("/cb/", 404),
            ("/favicon.ico", 404),
            ("/cb", 400),
            ("/cb?code=c", 400),
            ("/cb?code=c&state=t", 400),
            ("/cb?code=c&state=s&state=t", 400),
        ] {
            assert_eq!(get(format!("{address}{path}")).await.0, status, "{path}");
        }
        let url = format!("{address}/cb?code=a%20b&state=s&iss=https%3A%2F%2Fas&more=x");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        for request in [client.head(&url), client.post(&url)] {
            assert_eq!(request.send().await.unwrap().status(), 404);
        }
        assert_eq!(forwarded.load(Ordering::Relaxed), 0);
        let again = async {
            while forwarded.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            let again = get(url.clone()).await;
            release.notify_one();
            again
        };
        let (first, again) = tokio::join!(get(url.clone()), again);
        assert_eq!(first, (200, "Connected. You can close this page.\n".to_owned()));
        assert_eq!(again.0, 410, "{}", again.1);
    };
    assert_eq!(run_receiver(finish, browser).await.unwrap(), Some("done"));
    assert_eq!(forwarded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_went_wrong_is_shown_in_the_browser_too() {
    let browser = async |address: String| {
        let (status, page) = get(format!("{address}/cb?error=access_denied&state=s")).await;
        assert_eq!(status, 502);
        assert!(page.starts_with("Not connected: <b>access</b> denied\n"), "{page}");
    };
    let ended = run_receiver(async |_| Err(anyhow!("<b>access</b> denied").into()), browser).await;
    assert_eq!(ended.unwrap_err().to_string(), "<b>access</b> denied");
}

#[tokio::test(start_paused = true)]
async fn who_never_comes_is_not_waited_for_for_ever() {
    let callback = CallbackAddress { address: "127.0.0.1:0".parse().unwrap(), path: "/cb".into() };
    let listener = callback.listen().await.unwrap();
    let started = tokio::time::Instant::now();
    let received = callback.receive(listener, "s".into(), CALLBACK_TIMEOUT, async |_| Ok(())).await.unwrap();
    assert_eq!((received, started.elapsed()), (None, CALLBACK_TIMEOUT));
}
