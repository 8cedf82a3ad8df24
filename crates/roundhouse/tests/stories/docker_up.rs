//! `roundhouse up` in a container of the shipped image, used as docs/configuration.md describes it: from inside, and
//! from outside through the published port.

use std::collections::BTreeMap;

use crate::support::docker::DockerNetwork;
use crate::support::http::client;
use crate::support::image::ProgramImage;
use crate::support::{Docker, TestEnv, eventually};

/// The file with the product's key, in the container.
const KEY_FILE: &str = "/root/.local/share/roundhouse/platform.key";

/// A container of `up`, which goes with its network.
struct UpContainer {
    docker: Docker,
    network: DockerNetwork,
    _image: ProgramImage,
}

impl UpContainer {
    /// Starts it as the documentation does, but in the background, and at any free port.
    async fn start(docker: Docker) -> Option<Self> {
        let image = ProgramImage::of_orchestrator(&docker)?;
        let network = DockerNetwork::new(&docker);
        let name = network.name.as_str();
        docker.run(&["network", "create", name]).await;
        let container = ["run", "--detach", "--name", name, "--network", name];
        let up = ["--publish", "127.0.0.1::8000", image.reference.as_str(), "up", "--host", "0.0.0.0"];
        docker.run(&[container.as_slice(), &up].concat()).await;
        let this = Self { docker, network, _image: image };
        this.wait_for_guides(1).await;
        Some(this)
    }

    /// Waits until `up` has said this many times how to go on.
    async fn wait_for_guides(&self, count: usize) {
        eventually("the container is up", async || {
            let output = self.docker.run(&["logs", &self.network.name]).await;
            (output.matches("Ctrl-C puts the engines to sleep").count() == count).then_some(())
        })
        .await;
    }

    /// The orchestrator's address outside the container.
    async fn url(&self) -> String {
        let published = self.docker.run(&["port", &self.network.name, "8000/tcp"]).await;
        format!("http://{}", published.lines().next().unwrap())
    }

    /// Runs `roundhouse` in the container.
    async fn exec(&self, arguments: &[&str]) -> String {
        self.docker.run(&[&["exec", self.network.name.as_str()], arguments].concat()).await
    }
}

#[tokio::test]
async fn up_in_a_container_is_used_from_inside_and_from_outside() {
    let Some(docker) = Docker::local() else { return };
    let Some(up) = UpContainer::start(docker.clone()).await else { return };
    let guide = docker.run(&["logs", &up.network.name]).await;
    assert!(guide.contains("WARNING: others can reach port 8000"), "{guide}");

    let page = client().get(up.url().await).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("This orchestrator is up and ready."), "{page}");

    let inside =
        up.exec(&["roundhouse", "chat", "--user", "ada", "-p", "remember that my colour is green"]).await;
    assert!(inside.contains("green"), "{inside}");

    // Outside there is nothing but the published port and the key.
    let outside = TestEnv::new();
    let key = up.exec(&["cat", KEY_FILE]).await;
    let variables = BTreeMap::from([("ROUNDHOUSE_PLATFORM_KEY".to_owned(), key)]);
    let chat = async |arguments: &[&str]| {
        let url = up.url().await;
        let line = [&["chat", "--user", "ada", "--url", &url], arguments].concat();
        outside.run(&line, &variables).wait().await
    };
    let answer = chat(&["--proxy", "-p", "What is my colour?"]).await.assert_success();
    assert!(!answer.trim().is_empty());
    // The engine's own address leads nowhere, and the message says what to do.
    chat(&["-p", "Hello!"]).await.assert_failure(1, &["--proxy"]);

    docker.run(&["stop", "--time", "30", &up.network.name]).await;
    let state = docker.inspect(&up.network.name).await["State"].clone();
    assert_eq!(state["ExitCode"], 0, "{state}");
    docker.run(&["start", &up.network.name]).await;
    up.wait_for_guides(2).await;
    let again = chat(&["--proxy", "-p", "Are you still there?"]).await.assert_success();
    assert!(!again.trim().is_empty());
    let memory = up.exec(&["roundhouse", "engine", "journal", "chat", "--user", "ada"]).await;
    assert!(memory.matches("  opened ").count() >= 3, "every turn is in the same journal: {memory}");
}
