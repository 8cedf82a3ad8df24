//! What is in the objects of an engine, and what is not.

use super::super::spec;
use super::super::*;
use super::support::{options, spec_of};

#[test]
fn regression_k07_nothing_secret_is_in_a_pods_specification() {
    let options = options("ns");
    let launch = spec_of(EngineId::new());
    let name = spec::secret_name(&launch);
    let pod = spec::engine_pod(&options, &launch, &name);
    let text = serde_json::to_string(&pod).unwrap();
    assert!(!text.contains("provider secret") && !text.contains(&launch.key_hash.to_hex()), "{text}");
    assert_eq!(spec::secret_of(&pod), Some(name.as_str()));
    let view = pod_state::PodView::of(&options.deployment_id, &{
        let mut pod = pod;
        pod.metadata.uid = Some("u".to_owned());
        pod
    });
    let secret = spec::secret(&options, &launch, name, &view.unwrap());
    let data = secret.data.unwrap();
    assert_eq!(data["LLM_API_KEY"].0, b"provider secret");
    assert_eq!(data["ENGINE_KEY_HASH"].0, launch.key_hash.to_hex().as_bytes());
    assert_eq!(data["SQLITE_DB_PATH"].0, b"/data/brain.sqlite");
    assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, "u");
    // No two launches share a Secret.
    assert_ne!(spec::secret_name(&launch), spec::secret_name(&launch));
}

#[test]
fn regression_k08_a_pod_has_no_rights_and_is_started_once() {
    let options = options("ns");
    let launch = spec_of(EngineId::new());
    let pods = [
        spec::engine_pod(&options, &launch, "secret"),
        spec::copy_pod(&options, launch.target(), vec!["copy".to_owned()]),
    ];
    for pod in pods {
        let spec = pod.spec.unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(
            (spec.automount_service_account_token, spec.enable_service_links),
            (Some(false), Some(false))
        );
        let context = spec.security_context.unwrap();
        assert_eq!((context.run_as_non_root, context.run_as_user), (Some(true), Some(10_001)));
        let container = spec.containers[0].security_context.clone().unwrap();
        assert_eq!(container.allow_privilege_escalation, Some(false));
        assert_eq!(container.read_only_root_filesystem, Some(true));
        assert_eq!(container.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    }
}

#[test]
fn the_catalog_comes_from_where_the_operator_says() {
    let launch = spec_of(EngineId::new());
    for (source, expected) in [
        (CatalogSource::EngineImage, None),
        (
            CatalogSource::Claim("c".into()),
            Some(r#""persistentVolumeClaim":{"claimName":"c","readOnly":true}"#),
        ),
        (CatalogSource::ConfigMap("m".into()), Some(r#""configMap":{"name":"m"}"#)),
        (CatalogSource::Image("i:1".into()), Some(r#""image":{"reference":"i:1"}"#)),
    ] {
        let mut options = options("ns");
        options.settings.catalog = source;
        let pod = serde_json::to_string(&spec::engine_pod(&options, &launch, "secret")).unwrap();
        assert_eq!(pod.contains("/catalog"), expected.is_some(), "{pod}");
        assert!(expected.is_none_or(|expected| pod.contains(expected)), "{pod}");
    }
}
