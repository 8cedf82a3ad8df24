//! Story 43: what the agent of an engine in a container fetches of the web is of the public web, however the way
//! elsewhere is disguised.

use std::fs;
use std::net::SocketAddr;

use mock_llm::{MockProvider, Reply};
use serde_json::json;

use crate::support::dns::NameServer;
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::tool_programs::{done_reply, tool_results, write_catalog_file};
use crate::support::turn::assert_completed;
use crate::support::web_server::WebServer;
use crate::support::{Deployment, Docker, Event, skip};

/// What no fetch may bring.
const LOCAL_SECRET: &str = "a secret of this machine";

/// Why an address is not fetched.
const NOT_PUBLIC_MESSAGE: &str = "is not on the public internet";

/// The cloud's metadata server.
const METADATA_ADDRESS: &str = "169.254.169.254";

/// A web server of this machine that containers reach.
struct ForwardedServer {
    server: WebServer,
    forwarder: TcpForwarder,
}

impl ForwardedServer {
    fn new(docker: &Docker, server: WebServer) -> Self {
        let way = TcpForwarder::bind_any(&docker.host_address(), server.address);
        Self { server, forwarder: way }
    }

    async fn with_text(docker: &Docker, text: &str) -> Self {
        Self::new(docker, WebServer::with_text(text).await)
    }

    async fn redirecting(docker: &Docker, to: &str) -> Self {
        let answer = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        Self::new(docker, WebServer::new(answer).await)
    }

    fn url(&self) -> String {
        format!("http://{}/", self.forwarder.address)
    }
}

/// Has a container ask this name server, and nobody else. Says that a story is skipped where that cannot be.
async fn use_name_server(
    place: &Deployment,
    container: &str,
    names: &[(&str, &[&[&str]])],
) -> Option<NameServer> {
    let told = place.docker_daemon().inspect(container).await;
    let gateway = &told["NetworkSettings"]["Networks"][place.network()]["Gateway"];
    let address = SocketAddr::new(gateway.as_str().unwrap().parse().unwrap(), 53);
    let server = match NameServer::bind(address, names).await {
        Ok(server) => server,
        Err(error) => {
            skip(&format!("a name server at {address}: {error}"));
            return None;
        }
    };
    let file = told["ResolvConfPath"].as_str().unwrap();
    if let Err(error) = fs::write(file, format!("nameserver {}\n", address.ip())) {
        skip(&format!("the say over what name server a container asks: {file}: {error}"));
        return None;
    }
    Some(server)
}

/// A turn in which the model fetches all of these.
fn fetch_reply<'a>(urls: impl IntoIterator<Item = &'a str>) -> Reply {
    urls.into_iter().fold(Reply::new(), |reply, url| reply.tool_use("web_fetch", json!({"url": url})))
}

/// The calls for all of these were refused, for they lead to what is not public.
#[track_caller]
fn assert_refused(events: &[Event], urls: &[String]) {
    assert_completed(events);
    let results = tool_results(events);
    assert_eq!(results.len(), urls.len(), "{results:?}");
    for result in results {
        assert!(result.is_err_and(|error| error.contains(NOT_PUBLIC_MESSAGE)), "{result:?}");
    }
}

#[tokio::test]
async fn an_engine_in_a_container_fetches_nothing_of_its_machine_and_of_the_cloud() {
    let Some(place) = Deployment::docker() else { return };
    let docker = place.docker_daemon().clone();
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.set_default_reply(done_reply());
    let page = ForwardedServer::with_text(&docker, "A page.").await;
    let inner = ForwardedServer::with_text(&docker, LOCAL_SECRET).await;
    let port = page.forwarder.address.port();
    // Redirects are followed, and lead nowhere else either.
    let leads = [
        "http://127.0.0.1:8000/health".to_owned(),
        "http://[::1]:8000/health".to_owned(),
        format!("http://{METADATA_ADDRESS}/latest/meta-data/"),
        "http://metadata.test/latest/meta-data/".to_owned(),
        "http://inside.test:8000/health".to_owned(),
        inner.url(),
    ];
    let mut redirects = Vec::new();
    for to in &leads {
        redirects.push(ForwardedServer::redirecting(&docker, to).await);
    }
    let good_redirect = ForwardedServer::redirecting(&docker, &page.url()).await;
    let sites = redirects.iter().chain([&page, &good_redirect]);
    let allowed: Vec<String> = sites.map(|site| site.forwarder.address.to_string()).collect();
    let place = place.with_provider(&provider).with_env("ENGINE_WEB_ALLOW", allowed.join(","));
    write_catalog_file(&place.catalog(), "permissions.json", r#"{"default": "allow"}"#);
    let (_orchestrator, product) = place.start_with_product().await;
    let (engine, other) = (product.engine("ada").await, product.engine("bob").await);
    let container = place.container_of(&engine).await.unwrap();
    let reached = page.forwarder.address.ip().to_string();
    let names: &[(&str, &[&[&str]])] = &[
        ("page.test", &[&[&reached]]),
        // Dressed as one of the internet, this is a name as any other.
        ("localhost", &[&["127.0.0.1"]]),
        ("inside.test", &[&["127.0.0.1"]]),
        ("inside-six.test", &[&["::1"]]),
        ("metadata.test", &[&[METADATA_ADDRESS]]),
        ("metadata-mapped.test", &[&["::ffff:169.254.169.254"]]),
        ("metadata-six.test", &[&["fd00:ec2::254"]]),
        ("both.test", &[&[&reached, "127.0.0.1"]]),
        ("both-six.test", &[&[&reached, "::1"]]),
        // It is good when it is looked at, and another when it is used: each time it is asked.
        ("rebinds.test", &[&[&reached], &["127.0.0.1"], &[&reached], &["127.0.0.1"]]),
        ("rebinds-to-metadata.test", &[&[&reached], &[METADATA_ADDRESS]]),
    ];
    let Some(server) = use_name_server(&place, &container, names).await else { return };
    let fetch = async |task: &str, urls: &[String]| {
        provider.enqueue_all([fetch_reply(urls.iter().map(String::as_str)), done_reply()]);
        engine.run_turn(task, "Read them.").await
    };

    // What may be fetched is, by address, name and redirect: the ways are open.
    let urls = [page.url(), format!("http://page.test:{port}/"), good_redirect.url()];
    let events = fetch("control", &urls).await;
    let pages = tool_results(&events);
    assert!(pages.len() == 3 && pages.iter().all(|page| page.unwrap().contains("A page.")), "{pages:?}");

    let told = docker.inspect(&place.container_of(&other).await.unwrap()).await;
    let others = told["NetworkSettings"]["Networks"][place.network()]["IPAddress"].as_str().unwrap();
    let own_port = |host: &str| format!("http://{host}:8000/health");
    let hosts = [
        "localhost",
        "LOCALHOST.",
        "inside.test",
        "inside-six.test",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        others,
    ];
    let urls: Vec<String> =
        hosts.into_iter().map(own_port).chain([inner.url(), provider_url(&place)]).collect();
    assert_refused(&fetch("loopback", &urls).await, &urls);

    let hosts = [
        METADATA_ADDRESS,
        "2852039166",
        "0xa9fea9fe",
        "169.254.170.2",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[fe80::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "metadata.test",
        "metadata-mapped.test",
        "metadata-six.test",
    ];
    let urls = hosts.map(|host| format!("http://{host}/latest/meta-data/"));
    assert_refused(&fetch("metadata", &urls).await, &urls);

    let urls: Vec<String> = redirects.iter().map(ForwardedServer::url).collect();
    assert_refused(&fetch("redirects", &urls).await, &urls);
    for site in &redirects {
        assert_eq!(site.server.requests().len(), 1, "its redirect was read");
    }

    // One of its addresses is enough to refuse a name.
    let urls = ["both.test", "both-six.test"].map(|name| format!("http://{name}:{port}/"));
    assert_refused(&fetch("several", &urls).await, &urls);

    assert_rebinding_resisted(&server, port, &fetch).await;
    assert_eq!(inner.server.requests(), [""; 0]);
    assert!(provider.requests().iter().all(|request| !request.body.to_string().contains(LOCAL_SECRET)));
}

/// A name that is good when it is looked at leads elsewhere the next time: what was looked at is what is asked.
async fn assert_rebinding_resisted(
    server: &NameServer,
    port: u16,
    fetch: &impl AsyncFn(&str, &[String]) -> Vec<Event>,
) {
    for (name, turns) in [("rebinds.test", 2), ("rebinds-to-metadata.test", 1)] {
        for turn in 0..turns {
            let url = [format!("http://{name}:{port}/")];
            let before = server.query_count(name);
            let events = fetch(&format!("{name}-{turn}"), &url).await;
            assert!(tool_results(&events)[0].is_ok_and(|page| page.contains("A page.")), "{events:#?}");
            assert_eq!(server.query_count(name) - before, 1, "a second look would have led elsewhere");
            assert_refused(&fetch(&format!("{name}-{turn}-again"), &url).await, &url);
        }
    }
}

/// The model's own address, which the engine reaches and its agent does not.
fn provider_url(place: &Deployment) -> String {
    place.fleet.variables["LLM_BASE_URL"].clone()
}
