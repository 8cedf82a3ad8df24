//! The specifications of an engine's objects: its Pod, its Secret, its volume's claim, and the Service of all.
//!
//! A Pod passes the Pod Security Standard `restricted`: it runs as a user without privileges, drops all
//! capabilities and has a read-only root file system; the engine can write only to its volume and to `/tmp`.
//! It gets no credentials of the cluster. Nothing secret is in a Pod's specification: its environment comes from
//! the Secret that is created with it.

use std::collections::BTreeMap;

use api::ProductId;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource,
    ImageVolumeSource, LocalObjectReference, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, SeccompProfile, Secret,
    SecretEnvSource, SecurityContext, Service, ServicePort, ServiceSpec, Volume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use secrecy::ExposeSecret as _;
use uuid::Uuid;

use super::label::{Role, copy_name, engine_name, labels, pod_labels, service_selector};
use super::options::{CatalogSource, Options};
use super::pod_state::PodView;
use super::quantity;
use crate::{LaunchSpec, ResourceLimits, Target};

/// The name of the container in each Pod.
pub(super) const CONTAINER: &str = "engine";

/// The port on which the engine listens.
pub(super) const PORT: u16 = 8_000;

/// The annotation of a claim with the latest generation for which its engine was launched.
pub(super) const GENERATION_ANNOTATION: &str = "roundhouse/generation";
/// The annotation of a claim whose brain is being replaced by its copy.
pub(super) const RESTORING_ANNOTATION: &str = "roundhouse/restoring";

/// The user and group that engines run as. Nothing else uses these ids; the image names them too.
const USER: i64 = 10_001;

/// The grace in seconds when something other than the orchestrator ends the Pod, such as the drain of a node.
const STOP_TIMEOUT_S: i64 = 30;

/// The size of `/tmp`, which counts towards the memory limit.
const TMP_SIZE: &str = "128Mi";

/// What a Pod that copies a brain may use.
const COPY_LIMITS: ResourceLimits = ResourceLimits { memory_mb: Some(256), cpus: Some(1.0), pids: None };

/// Builds the Pod of `launch`, whose environment is in the Secret `secret`.
pub(super) fn engine_pod(options: &Options, launch: &LaunchSpec, secret: &str) -> Pod {
    let mut volumes = vec![data_volume(launch.target()), tmp_volume()];
    let mut mounts = vec![mount("data", "/data", false), mount("tmp", "/tmp", false)];
    if let Some(catalog) = catalog_volume(&options.settings.catalog) {
        volumes.push(catalog);
        mounts.push(mount("catalog", "/catalog", true));
    }
    let from_secret = SecretEnvSource { name: secret.to_owned(), optional: Some(false) };
    let container = Container {
        args: Some(vec!["engine".to_owned()]),
        env_from: Some(vec![EnvFromSource { secret_ref: Some(from_secret), ..EnvFromSource::default() }]),
        ports: Some(vec![ContainerPort {
            name: Some("http".to_owned()),
            container_port: i32::from(PORT),
            ..ContainerPort::default()
        }]),
        ..container(options, launch.image.as_str(), &launch.limits, mounts)
    };
    let name = engine_name(launch.engine_id);
    let spec = PodSpec {
        hostname: Some(name.clone()),
        subdomain: Some(options.settings.service.clone()),
        // The Pod's first process then reaps what the engine's programs leave behind, as Docker's `init` does.
        share_process_namespace: Some(true),
        termination_grace_period_seconds: Some(STOP_TIMEOUT_S),
        ..pod_spec(options, container, volumes)
    };
    pod(options, name, launch.target(), Some(launch.product_id), Role::Engine, spec)
}

/// Builds the Pod that runs `args` on the engine's volume.
pub(super) fn copy_pod(options: &Options, target: Target, args: Vec<String>) -> Pod {
    let mounts = vec![mount("data", "/data", false), mount("tmp", "/tmp", false)];
    let container = Container {
        args: Some(args),
        ..container(options, options.copy_image.as_str(), &COPY_LIMITS, mounts)
    };
    let spec = PodSpec {
        // It is not asked to end: what it does is finished or repeated.
        termination_grace_period_seconds: Some(1),
        ..pod_spec(options, container, vec![data_volume(target), tmp_volume()])
    };
    pod(options, copy_name(target.engine_id), target, None, Role::Copy, spec)
}

fn pod(
    options: &Options,
    name: String,
    target: Target,
    product_id: Option<ProductId>,
    role: Role,
    spec: PodSpec,
) -> Pod {
    let metadata = ObjectMeta {
        labels: Some(pod_labels(&options.deployment_id, target, product_id, role)),
        ..named(options, name)
    };
    Pod { metadata, spec: Some(spec), status: None }
}

fn pod_spec(options: &Options, container: Container, volumes: Vec<Volume>) -> PodSpec {
    let pull_secret = |name: &String| vec![LocalObjectReference { name: name.clone() }];
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        image_pull_secrets: options.settings.pull_secret.as_ref().map(pull_secret),
        node_selector: Some(options.settings.node_selector.clone()).filter(|labels| !labels.is_empty()),
        runtime_class_name: options.settings.runtime_class.clone(),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            // A brain may have many gigabytes of files beside it.
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container],
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

fn container(options: &Options, image: &str, limits: &ResourceLimits, mounts: Vec<VolumeMount>) -> Container {
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        resources: Some(quantity::resources(limits, options.settings.requests)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            ..SecurityContext::default()
        }),
        // The end of the log then comes with the status, also if the Pod is gone before anyone reads its log.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn data_volume(target: Target) -> Volume {
    let claim_name = engine_name(target.engine_id);
    Volume {
        name: "data".to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
        ..Volume::default()
    }
}

fn tmp_volume() -> Volume {
    Volume {
        name: "tmp".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(TMP_SIZE.to_owned())),
        }),
        ..Volume::default()
    }
}

fn catalog_volume(source: &CatalogSource) -> Option<Volume> {
    let name = "catalog".to_owned();
    match source {
        CatalogSource::EngineImage => None,
        CatalogSource::Claim(claim) => Some(Volume {
            name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: Some(true),
            }),
            ..Volume::default()
        }),
        CatalogSource::ConfigMap(map) => Some(Volume {
            name,
            config_map: Some(ConfigMapVolumeSource { name: map.clone(), ..ConfigMapVolumeSource::default() }),
            ..Volume::default()
        }),
        CatalogSource::Image(image) => Some(Volume {
            name,
            image: Some(ImageVolumeSource { reference: Some(image.clone()), pull_policy: None }),
            ..Volume::default()
        }),
    }
}

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}

fn named(options: &Options, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(options.settings.namespace.clone()),
        ..ObjectMeta::default()
    }
}

/// Returns the name for the Secret of one launch. No two launches share one, so that a delayed call of an
/// orchestrator that was replaced cannot change what a later launch uses.
pub(super) fn secret_name(launch: &LaunchSpec) -> String {
    let random = Uuid::now_v7().simple().to_string();
    format!("{}-{}", engine_name(launch.engine_id), random.get(24..).unwrap_or_default())
}

/// Builds the Secret with the environment of `launch`. The cluster removes it with its owner, `pod`.
pub(super) fn secret(options: &Options, launch: &LaunchSpec, name: String, pod: &PodView) -> Secret {
    let metadata = ObjectMeta {
        labels: Some(labels(&options.deployment_id, launch.engine_id)),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..OwnerReference::default()
        }]),
        ..named(options, name)
    };
    let data = Some(environment(launch));
    Secret { metadata, immutable: Some(true), data, ..Secret::default() }
}

/// Returns the name of the Secret with a Pod's environment.
pub(super) fn secret_of(pod: &Pod) -> Option<&str> {
    let container = pod.spec.as_ref()?.containers.first()?;
    Some(container.env_from.as_ref()?.first()?.secret_ref.as_ref()?.name.as_str())
}

/// Returns the three variables of the container contract and those of the launch. All others come from the image.
fn environment(launch: &LaunchSpec) -> BTreeMap<String, ByteString> {
    let own = [
        ("ENGINE_KEY_HASH", launch.key_hash.to_hex()),
        ("SQLITE_DB_PATH", "/data/brain.sqlite".to_owned()),
        ("CATALOG_DIR", "/catalog".to_owned()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    let from_launch = launch.env.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned()));
    own.chain(from_launch).map(|(name, value)| (name, ByteString(value.into_bytes()))).collect()
}

/// Builds the claim of the engine's volume.
pub(super) fn claim(options: &Options, target: Target) -> PersistentVolumeClaim {
    let metadata = ObjectMeta {
        labels: Some(labels(&options.deployment_id, target.engine_id)),
        annotations: Some(BTreeMap::from([(
            GENERATION_ANNOTATION.to_owned(),
            target.generation.to_string(),
        )])),
        ..named(options, engine_name(target.engine_id))
    };
    let storage = &options.settings.storage;
    let size = BTreeMap::from([("storage".to_owned(), Quantity(storage.size.clone()))]);
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec![storage.access.name().to_owned()]),
        storage_class_name: storage.class.clone(),
        resources: Some(VolumeResourceRequirements { requests: Some(size), limits: None }),
        ..PersistentVolumeClaimSpec::default()
    };
    PersistentVolumeClaim { metadata, spec: Some(spec), status: None }
}

/// Builds the headless Service through which engines get their host names.
pub(super) fn service(options: &Options) -> Service {
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        selector: Some(service_selector()),
        // Whoever got the address of a booting engine may wait for it.
        publish_not_ready_addresses: Some(true),
        ports: Some(vec![ServicePort {
            name: Some("http".to_owned()),
            port: i32::from(PORT),
            target_port: Some(IntOrString::Int(i32::from(PORT))),
            ..ServicePort::default()
        }]),
        ..ServiceSpec::default()
    };
    Service { metadata: named(options, options.settings.service.clone()), spec: Some(spec), status: None }
}
