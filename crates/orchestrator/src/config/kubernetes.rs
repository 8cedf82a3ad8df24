//! Where in which Kubernetes cluster the engines run, and how: `KUBECONFIG` and `ORCH_KUBERNETES_*`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use backend::kubernetes::{AccessMode, CatalogSource, Requests, Settings, Storage, parse_quantity};
use http_service::env::{EnvReader, parse_seconds};

/// The file with the namespace of a Pod, in each Pod with a service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The longest name of an object that must be a DNS label.
const MAX_LABEL: usize = 63;
/// The longest name of any other object.
const MAX_NAME: usize = 253;

const NAME: &str = "the name of a Kubernetes object: lower-case letters, digits, `-` and `.`";

/// Reads the settings. Those with an error get a value that is not used.
pub(super) fn read(reader: &mut EnvReader<'_>) -> Settings {
    let kubeconfig = read_kubeconfig(reader);
    let name = |reader: &mut EnvReader<'_>, variable: &str| {
        reader.parse_or(variable, NAME, None, |text| parse_name(text, MAX_NAME).map(Some))
    };
    Settings {
        namespace: read_namespace(reader, kubeconfig.is_none()),
        kubeconfig,
        service: reader.parse_or(
            "ORCH_KUBERNETES_SERVICE",
            "the name of a Service: at most 63 lower-case letters, digits and `-`",
            "roundhouse-engines".to_owned(),
            |text| parse_name(text, MAX_LABEL).filter(|name| !name.contains('.')),
        ),
        storage: Storage {
            class: name(reader, "ORCH_KUBERNETES_STORAGE_CLASS"),
            size: reader.parse_or(
                "ORCH_KUBERNETES_STORAGE_SIZE",
                "a quantity of bytes such as 2Gi",
                "2Gi".to_owned(),
                |text| parse_quantity(text).filter(|bytes| *bytes >= 1.0).map(|_| text.to_owned()),
            ),
            access: reader.parse_or(
                "ORCH_KUBERNETES_ACCESS_MODE",
                "`ReadWriteOncePod` or `ReadWriteOnce`",
                AccessMode::ReadWriteOnce,
                |text| {
                    let modes = [AccessMode::ReadWriteOncePod, AccessMode::ReadWriteOnce];
                    modes.into_iter().find(|mode| mode.name() == text)
                },
            ),
        },
        requests: Requests {
            memory_mb: reader.parse_or("ORCH_KUBERNETES_REQUEST_MEMORY_MB", "MiB, at least 1", 128, |text| {
                text.parse().ok().filter(|mb| *mb > 0)
            }),
            cpu_millis: reader.parse_or(
                "ORCH_KUBERNETES_REQUEST_CPU_MILLIS",
                "thousandths of a processor, at least 1",
                50,
                |text| text.parse().ok().filter(|millis| *millis > 0),
            ),
        },
        catalog: reader.parse_or(
            "ORCH_KUBERNETES_CATALOG",
            "`claim:NAME`, `configmap:NAME` or `image:REFERENCE`",
            CatalogSource::EngineImage,
            parse_catalog,
        ),
        pull_secret: name(reader, "ORCH_KUBERNETES_PULL_SECRET"),
        runtime_class: name(reader, "ORCH_KUBERNETES_RUNTIME_CLASS"),
        node_selector: reader.parse_or(
            "ORCH_KUBERNETES_NODE_SELECTOR",
            "labels of nodes, such as `pool=engines,disk=fast`",
            BTreeMap::new(),
            parse_labels,
        ),
        start_timeout: reader.parse_or(
            "ORCH_KUBERNETES_START_TIMEOUT_S",
            "seconds above 0, decimals allowed",
            Duration::from_secs(10),
            |text| parse_seconds(text).filter(|timeout| !timeout.is_zero()),
        ),
        force_after: reader.parse_or(
            "ORCH_KUBERNETES_FORCE_AFTER_S",
            "seconds, decimals allowed",
            None,
            |text| parse_seconds(text).map(Some),
        ),
    }
}

/// Returns the variables with the settings that are not secret, and their values.
pub(super) fn display(settings: &Settings) -> Vec<(&'static str, String)> {
    let seconds = |time: Duration| time.as_secs_f64().to_string();
    let required = [
        ("ORCH_KUBERNETES_NAMESPACE", settings.namespace.clone()),
        ("ORCH_KUBERNETES_SERVICE", settings.service.clone()),
        ("ORCH_KUBERNETES_STORAGE_SIZE", settings.storage.size.clone()),
        ("ORCH_KUBERNETES_ACCESS_MODE", settings.storage.access.name().to_owned()),
        ("ORCH_KUBERNETES_REQUEST_MEMORY_MB", settings.requests.memory_mb.to_string()),
        ("ORCH_KUBERNETES_REQUEST_CPU_MILLIS", settings.requests.cpu_millis.to_string()),
        ("ORCH_KUBERNETES_START_TIMEOUT_S", seconds(settings.start_timeout)),
    ];
    let optional = [
        ("KUBECONFIG", settings.kubeconfig.as_ref().map(|path| path.display().to_string())),
        ("ORCH_KUBERNETES_STORAGE_CLASS", settings.storage.class.clone()),
        ("ORCH_KUBERNETES_CATALOG", catalog_text(&settings.catalog)),
        ("ORCH_KUBERNETES_PULL_SECRET", settings.pull_secret.clone()),
        ("ORCH_KUBERNETES_RUNTIME_CLASS", settings.runtime_class.clone()),
        ("ORCH_KUBERNETES_NODE_SELECTOR", labels_text(&settings.node_selector)),
        ("ORCH_KUBERNETES_FORCE_AFTER_S", settings.force_after.map(seconds)),
    ];
    let optional = optional.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    required.into_iter().chain(optional).collect()
}

/// Returns the file that names the cluster; `None` in a Pod of the cluster, unless a file is named all the same.
fn read_kubeconfig(reader: &mut EnvReader<'_>) -> Option<PathBuf> {
    const VARIABLE: &str = "KUBECONFIG";
    const FILE: &str = "the path of the kubeconfig file that names the cluster";
    if reader.text(VARIABLE).is_none() && reader.text("KUBERNETES_SERVICE_HOST").is_some() {
        return None;
    }
    // An error gives a path, so that no error about the service account follows from it.
    let path =
        reader.required(VARIABLE, FILE, |text| Some(PathBuf::from(text)).filter(|path| path.is_file()));
    Some(path.unwrap_or_default())
}

fn read_namespace(reader: &mut EnvReader<'_>, is_in_cluster: bool) -> String {
    const VARIABLE: &str = "ORCH_KUBERNETES_NAMESPACE";
    const NAMESPACE: &str = "the name of the namespace for the engines, which exists";
    let of_pod = || std::fs::read_to_string(NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    let parse = |text: &str| parse_name(text, MAX_LABEL).filter(|name| !name.contains('.'));
    let default = if is_in_cluster && reader.text(VARIABLE).is_none() { of_pod() } else { None };
    default.or_else(|| reader.required(VARIABLE, NAMESPACE, parse)).unwrap_or_default()
}

/// Parses the name of an object.
fn parse_name(text: &str, max: usize) -> Option<String> {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    (text.len() <= max && text.split('.').all(is_label)).then(|| text.to_owned())
}

/// Parses labels of the form `NAME=VALUE`, with commas between them.
fn parse_labels(text: &str) -> Option<BTreeMap<String, String>> {
    let label = |text: &str| {
        let (name, value) = text.trim().split_once('=')?;
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let valid = !name.is_empty() && name.bytes().all(is_valid) && value.bytes().all(is_valid);
        valid.then(|| (name.to_owned(), value.to_owned()))
    };
    text.split(',').map(label).collect()
}

fn labels_text(labels: &BTreeMap<String, String>) -> Option<String> {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some(labels.join(",")).filter(|text| !text.is_empty())
}

fn parse_catalog(text: &str) -> Option<CatalogSource> {
    let (kind, name) = text.split_once(':')?;
    match kind {
        "claim" => parse_name(name, MAX_NAME).map(CatalogSource::Claim),
        "configmap" => parse_name(name, MAX_NAME).map(CatalogSource::ConfigMap),
        "image" => {
            Some(name).filter(|name| !name.is_empty()).map(|name| CatalogSource::Image(name.to_owned()))
        }
        _ => None,
    }
}

fn catalog_text(source: &CatalogSource) -> Option<String> {
    match source {
        CatalogSource::EngineImage => None,
        CatalogSource::Claim(name) => Some(format!("claim:{name}")),
        CatalogSource::ConfigMap(name) => Some(format!("configmap:{name}")),
        CatalogSource::Image(reference) => Some(format!("image:{reference}")),
    }
}
