//! The URLs under which the orchestrator offers its engines, and how their host names are resolved.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::pods::pod_name;
use super::registry::EngineRow;
use super::tenant_users::text_field;
use crate::unix_http::UnixHttpClient;

/// How the URLs of engines are formed.
#[derive(Clone, Debug)]
pub(crate) enum EngineUrls {
    /// On ports of this machine, which the rows have.
    HostPorts,
    /// With names in the namespace of a cluster, which engines have in any state.
    Names { namespace: String, port: u16 },
}

impl EngineUrls {
    /// Returns the URL of the engine of `row`; `None` if it has none now.
    pub(crate) fn url(&self, row: &EngineRow) -> Option<String> {
        match self {
            Self::HostPorts => row.port.map(|port| format!("http://127.0.0.1:{port}")),
            Self::Names { namespace, port } => {
                let host = pod_name(&row.engine_id);
                Some(format!("http://{host}.roundhouse-engines.{namespace}.svc:{port}"))
            }
        }
    }
}

/// Resolves the names of engines, as the API server of their cluster knows them.
pub(crate) struct EngineNames {
    pub(crate) api: UnixHttpClient,
}

impl Resolve for EngineNames {
    fn resolve(&self, name: Name) -> Resolving {
        let api = self.api.clone();
        Box::pin(async move {
            let address = tokio::task::spawn_blocking(move || pod_address(&api, name.as_str())).await??;
            Ok(Box::new(address.into_iter()) as Addrs)
        })
    }
}

/// Returns the address of the Pod with this host name, if it has one.
fn pod_address(api: &UnixHttpClient, name: &str) -> anyhow::Result<Option<SocketAddr>> {
    let Some((pod, namespace)) = parse_name(name) else { return Ok(None) };
    let pod = api.get(&format!("/api/v1/namespaces/{namespace}/pods/{pod}"))?;
    let address = text_field(&pod, "/status/podIP").and_then(|address| address.parse().ok());
    Ok(address.map(|address| SocketAddr::new(address, 0)))
}

/// Reads Pod and namespace from a host name in the cluster.
fn parse_name(name: &str) -> Option<(&str, &str)> {
    match name.split('.').collect::<Vec<_>>()[..] {
        [pod, _service, namespace, "svc"] => Some((pod, namespace)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_that_of_a_pod_in_a_namespace() {
        assert_eq!(parse_name("pod.engines.run.svc"), Some(("pod", "run")));
        for other in ["localhost", "engines.run.svc", "pod.engines.run.svc.cluster.local"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
