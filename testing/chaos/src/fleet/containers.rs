//! The engines of a deployment as containers, found by the deployment's label.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::engine_host::{EngineFault, EngineInstance};
use super::secrets::Secrets;
use super::tenant_users::text_field;
use crate::docker::DockerResources;
use crate::unix_http::UnixHttpClient;

const DEPLOYMENT_LABEL: &str = "roundhouse.deployment";
const ENGINE_LABEL: &str = "roundhouse.engine";
/// The port of an engine inside its container.
const CONTAINER_PORT: u64 = 8_000;

/// Access to the containers of a deployment.
#[derive(Debug)]
pub(crate) struct Containers {
    pub(crate) resources: DockerResources,
}

impl Containers {
    /// Builds the image of `binary`.
    pub(crate) fn new(binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        Ok(Self { resources: DockerResources::new("roundhouse-chaos", binary, folder)? })
    }

    const fn daemon(&self) -> &UnixHttpClient {
        &self.resources.daemon
    }

    /// Returns all containers with the deployment's label, running or not.
    pub(crate) fn find_by_label(&self, deployment_id: &str) -> anyhow::Result<Vec<EngineInstance>> {
        // A JSON filter in the query, percent-encoded.
        let filter = format!("%7B%22label%22%3A%5B%22{DEPLOYMENT_LABEL}%3D{deployment_id}%22%5D%7D");
        let listed = self.daemon().get(&format!("/containers/json?all=true&filters={filter}"))?;
        let listed = listed.as_array().context("the containers are not a list")?;
        Ok(listed.iter().filter_map(parse_container).collect())
    }

    /// Injects a fault into a container behind the orchestrator's back. A container that is gone is ignored.
    pub(crate) fn inject_fault(&self, container: &EngineInstance, fault: EngineFault) -> anyhow::Result<()> {
        let id = &container.instance;
        let (method, path) = match fault {
            EngineFault::Kill => ("POST", format!("/containers/{id}/kill?signal=SIGKILL")),
            EngineFault::Hang => ("POST", format!("/containers/{id}/pause")),
            EngineFault::Remove => ("DELETE", format!("/containers/{id}?force=true&v=true")),
        };
        match self.daemon().request(method, &path, None)? {
            (status, body) if status >= 500 => {
                bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body))
            }
            _ => Ok(()),
        }
    }

    /// Returns the containers whose description or log contains a secret.
    pub(crate) fn leaks(&self, deployment_id: &str, secrets: &Secrets) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for container in self.find_by_label(deployment_id)? {
            let id = &container.instance;
            for part in ["json", "logs?stdout=true&stderr=true"] {
                let (_, body) = self.daemon().request("GET", &format!("/containers/{id}/{part}"), None)?;
                let leak = secrets.find(&body);
                found.extend(leak.map(|what| format!("{part} of {} contains {what}", container.engine_id)));
            }
        }
        Ok(found)
    }
}

/// Parses an entry of the daemon's container list.
fn parse_container(listed: &Value) -> Option<EngineInstance> {
    let ports = listed.get("Ports").and_then(Value::as_array);
    let published =
        ports.into_iter().flatten().find(|port| port.get("PrivatePort") == Some(&CONTAINER_PORT.into()));
    Some(EngineInstance {
        engine_id: listed.get("Labels")?.get(ENGINE_LABEL)?.as_str()?.to_owned(),
        instance: text_field(listed, "/Id")?,
        address: published.and_then(published_address),
        is_alive: matches!(text_field(listed, "/State")?.as_str(), "running" | "paused" | "restarting"),
        pidfd: None,
    })
}

/// Where the machine reaches a published port.
fn published_address(port: &Value) -> Option<SocketAddr> {
    let port = u16::try_from(port.get("PublicPort")?.as_u64()?).ok()?;
    Some((Ipv4Addr::LOCALHOST, port).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_read_from_the_list() {
        let listed = json!({
            "Id": "abc", "State": "running", "Labels": {"roundhouse.engine": "eng_1", "other": "x"},
            "Ports": [{"IP": "127.0.0.1", "PrivatePort": 8000, "PublicPort": 10001, "Type": "tcp"}],
        });
        let container = parse_container(&listed).unwrap();
        assert_eq!((container.engine_id.as_str(), container.instance.as_str()), ("eng_1", "abc"));
        assert_eq!((container.address, container.is_alive), ("127.0.0.1:10001".parse().ok(), true));
        let created =
            json!({"Id": "abc", "State": "created", "Labels": {"roundhouse.engine": "eng_1"}, "Ports": []});
        assert!(!parse_container(&created).unwrap().is_alive);
        assert!(parse_container(&json!({"Id": "abc", "State": "running", "Labels": {}})).is_none());
    }
}
