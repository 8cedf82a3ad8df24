//! Story 43: the agent of an engine in a container can fetch only from the public web, however a path to another
//! network is disguised.

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

/// The text that no fetch may return.
const LOCAL_SECRET: &str = "a secret of this machine";

/// The error for an address that is not fetched.
const NOT_PUBLIC_MESSAGE: &str = "is not on the public internet";

/// The cloud's metadata server.
const METADATA_ADDRESS: &str = "169.254.169.254";

/// A web server of the host that containers can reach.
struct ForwardedServer {
    server: WebServer,
    forwarder: TcpForwarder,
}

impl ForwardedServer {
    fn new(docker: &Docker, server: WebServer) -> Self {
        let forwarder = TcpForwarder::bind_any(&docker.host_address(), server.address);
        Self { server, forwarder }
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

/// Makes a container use only this name server. Skips the story if that is impossible.
async fn use_name_server(
    deployment: &Deployment,
    container: &str,
    names: &[(&str, &[&[&str]])],
) -> Option<NameServer> {
    let inspected = deployment.docker_daemon().inspect(container).await;
    let gateway = &inspected["NetworkSettings"]["Networks"][deployment.network()]["Gateway"];
    let address = SocketAddr::new(gateway.as_str().unwrap().parse().unwrap(), 53);
    let server = match NameServer::bind(address, names).await {
        Ok(server) => server,
        Err(error) => {
            skip(&format!("a name server at {address}: {error}"));
            return None;
        }
    };
    let file = inspected["ResolvConfPath"].as_str().unwrap();
    if let Err(error) = fs::write(file, format!("nameserver {}\n", address.ip())) {
        skip(&format!("write access to a container's resolv.conf: {file}: {error}"));
        return None;
    }
    Some(server)
}

/// The model fetches all of these.
fn fetch_reply<'a>(urls: impl IntoIterator<Item = &'a str>) -> Reply {
    urls.into_iter().fold(Reply::new(), |reply, url| reply.tool_use("web_fetch", json!({"url": url})))
}

/// Asserts that all of these fetches were refused because they lead to a non-public address.
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
#[expect(clippy::too_many_lines, reason = "most of it are tables of addresses")]
async fn an_engine_in_a_container_fetches_nothing_of_its_machine_and_of_the_cloud() {
    let Some(deployment) = Deployment::docker() else { return };
    let docker = deployment.docker_daemon().clone();
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.set_default_reply(done_reply());
    let page = ForwardedServer::with_text(&docker, "A page.").await;
    let inner = ForwardedServer::with_text(&docker, LOCAL_SECRET).await;
    let port = page.forwarder.address.port();
    // Redirects are followed, but not to non-public addresses.
    let redirect_targets = [
        "http://127.0.0.1:8000/health".to_owned(),
        "http://[::1]:8000/health".to_owned(),
        format!("http://{METADATA_ADDRESS}/latest/meta-data/"),
        "http://metadata.test/latest/meta-data/".to_owned(),
        "http://inside.test:8000/health".to_owned(),
        inner.url(),
    ];
    let mut redirects = Vec::new();
    for to in &redirect_targets {
        redirects.push(ForwardedServer::redirecting(&docker, to).await);
    }
    let good_redirect = ForwardedServer::redirecting(&docker, &page.url()).await;
    let sites = redirects.iter().chain([&page, &good_redirect]);
    let allowed = sites.map(|site| site.forwarder.address.to_string()).collect::<Vec<_>>().join(",");
    let deployment = deployment.with_provider(&provider).with_env("ENGINE_WEB_ALLOW", allowed);
    write_catalog_file(&deployment.catalog(), "permissions.json", r#"{"default": "allow"}"#);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (engine, other) = (product.engine("ada").await, product.engine("bob").await);
    let container = deployment.container_of(&engine).await.unwrap();
    let reached = page.forwarder.address.ip().to_string();
    let names: &[(&str, &[&[&str]])] = &[
        ("page.test", &[&[&reached]]),
        // Here `localhost` is resolved like any other name.
        ("localhost", &[&["127.0.0.1"]]),
        ("inside.test", &[&["127.0.0.1"]]),
        ("inside-six.test", &[&["::1"]]),
        ("metadata.test", &[&[METADATA_ADDRESS]]),
        ("metadata-mapped.test", &[&["::ffff:169.254.169.254"]]),
        ("metadata-six.test", &[&["fd00:ec2::254"]]),
        ("both.test", &[&[&reached, "127.0.0.1"]]),
        ("both-six.test", &[&[&reached, "::1"]]),
        // The first answer is public, the next one is not.
        ("rebinds.test", &[&[&reached], &["127.0.0.1"], &[&reached], &["127.0.0.1"]]),
        ("rebinds-to-metadata.test", &[&[&reached], &[METADATA_ADDRESS]]),
    ];
    let Some(server) = use_name_server(&deployment, &container, names).await else { return };
    let fetch = async |task: &str, urls: &[String]| {
        provider.enqueue_all([fetch_reply(urls.iter().map(String::as_str)), done_reply()]);
        engine.run_turn(task, "Read them.").await
    };

    // Allowed pages are fetched, by address, name and redirect.
    let urls = [page.url(), format!("http://page.test:{port}/"), good_redirect.url()];
    let events = fetch("control", &urls).await;
    let pages = tool_results(&events);
    assert!(pages.len() == 3 && pages.iter().all(|page| page.unwrap().contains("A page.")), "{pages:?}");

    let inspected = docker.inspect(&deployment.container_of(&other).await.unwrap()).await;
    let networks = &inspected["NetworkSettings"]["Networks"];
    let others = networks[deployment.network()]["IPAddress"].as_str().unwrap();
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
        hosts.into_iter().map(own_port).chain([inner.url(), provider_url(&deployment)]).collect();
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

    // A single non-public address is enough to refuse a name.
    let urls = ["both.test", "both-six.test"].map(|name| format!("http://{name}:{port}/"));
    assert_refused(&fetch("several", &urls).await, &urls);

    assert_rebinding_resisted(&server, port, &fetch).await;
    assert_eq!(inner.server.requests(), [""; 0]);
    assert!(provider.requests().iter().all(|request| !request.body.to_string().contains(LOCAL_SECRET)));
}

/// Asserts that a fetch connects to the address that was checked, although the name resolves to another one the
/// next time.
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
            assert_eq!(server.query_count(name) - before, 1, "a second query would have led elsewhere");
            assert_refused(&fetch(&format!("{name}-{turn}-again"), &url).await, &url);
        }
    }
}

/// The model provider's address, which the engine can reach but its agent cannot.
fn provider_url(deployment: &Deployment) -> String {
    deployment.fleet.variables["LLM_BASE_URL"].clone()
}
