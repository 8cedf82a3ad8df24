//! What the variables mean, and which faults are reported.

use std::collections::BTreeMap;

use secrecy::ExposeSecret as _;

use super::*;

fn env(changes: &[(&str, &str)]) -> BTreeMap<String, String> {
    let image = format!("svc-engine:{VERSION}");
    let key = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned();
    let required = [
        ("ORCH_DATABASE_URL", "sqlite:/tmp/registry.db"),
        ("ORCH_MASTER_KEY", &key),
        ("ORCH_ADMIN_KEY", "open sesame, please"),
        ("ORCH_BACKEND", "process"),
        ("ORCH_ENGINE_IMAGE", &image),
    ];
    required.iter().chain(changes).map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn faults(changes: &[(&str, &str)]) -> Vec<String> {
    let errors = Config::from_env(&env(changes)).unwrap_err();
    errors.iter().map(|error| error.name.clone()).collect()
}

#[test]
fn the_contracts_example_values_are_the_defaults() {
    let config = Config::from_env(&env(&[])).unwrap();
    assert_eq!(config.address, "0.0.0.0:8000".parse().unwrap());
    assert_eq!(config.ports, PortRange::new(9_001, 9_999).unwrap());
    assert_eq!(config.boot_timeout, Duration::from_mins(1));
    assert_eq!(config.data_root, Path::new("/var/lib/roundhouse/engines"));
    assert_eq!(config.catalog, Path::new("/var/lib/roundhouse/catalog"));
    assert!(config.engine_env.is_empty());
    assert_eq!(config.rules, SupervisionRules::default());
    assert_eq!((config.url_host.as_str(), config.engine_network.as_str()), ("127.0.0.1", "engine_net"));
    // The output contains every variable and no secret.
    let text = config.to_string();
    assert!(text.contains("ORCH_HEALTH_CHECK_INTERVAL_S=30\n"), "{text}");
    assert!(
        !text.contains("open sesame") && !text.contains("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo"),
        "{text}"
    );
}

#[test]
fn every_fault_is_named_at_once_and_no_secret_is_shown() {
    let bad = env(&[
        ("ORCH_DATABASE_URL", "mysql://root:hunter2@db"),
        ("ORCH_MASTER_KEY", "too short"),
        ("ORCH_ADMIN_KEY", ""),
        ("ORCH_BACKEND", "podman"),
        ("ORCH_ENGINE_IMAGE", "svc-engine:latest"),
        ("ORCH_HOST", "here"),
        ("ORCH_PORT", "70000"),
        ("ORCH_BOOT_TIMEOUT_S", "0"),
        ("ORCH_PORT_MIN", "9100"),
        ("ORCH_PORT_MAX", "9000"),
        ("ORCH_DATA_ROOT_PATH", "relative"),
        ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_API_KEY,ORCH_MASTER_KEY,ENGINE_KEY_HASH,1X"),
        ("ORCH_ENGINE_NETWORK", "-net"),
        ("ORCH_ENGINE_URL_HOST", "http://here"),
        ("ORCH_HEALTH_CHECK_INTERVAL_S", "0"),
        ("ORCH_HEALTH_CHECK_TIMEOUT_S", "-1"),
        ("ORCH_HEALTH_MAX_FAILURES", "0"),
        ("ORCH_RESTART_BACKOFF_BASE_S", "10"),
        ("ORCH_RESTART_BACKOFF_MAX_S", "9"),
        ("ORCH_RESTART_MAX_ATTEMPTS", "-1"),
        ("ORCH_IDLE_SLEEP_THRESHOLD_S", "soon"),
        ("ORCH_WEBHOOK_ALLOW", "10.0.0.1/8"),
        ("ORCH_WEBHOOK_TIMEOUT_S", "0"),
        ("ORCH_WEBHOOK_BACKOFF_BASE_S", "-1"),
        ("ORCH_WEBHOOK_BACKOFF_MAX_S", "never"),
        ("ORCH_WEBHOOK_GIVE_UP_S", "0"),
        ("ORCH_WARM_ENGINES", "65"),
        ("ORCH_WARM_ENGINES_MAX", "-1"),
    ]);
    let errors = Config::from_env(&bad).unwrap_err();
    assert_eq!(errors.iter().count(), 28, "{errors}");
    let text = errors.to_string();
    for secret in ["hunter2", "too short", "open sesame, please"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn an_admin_key_that_no_header_can_carry_is_a_fault() {
    for key in [" open sesame", "open sesame ", "open sesame\n", "open\nsesame", "   ", "öffne dich"] {
        assert_eq!(faults(&[("ORCH_ADMIN_KEY", key)]), ["ORCH_ADMIN_KEY"], "{key:?}");
    }
    for key in ["open sesame", "~!\"#", "x"] {
        assert!(Config::from_env(&env(&[("ORCH_ADMIN_KEY", key)])).is_ok(), "{key:?}");
    }
}

#[test]
fn a_key_that_can_be_guessed_is_warned_of() {
    let warned = |changes: &[(&str, &str)]| {
        let warnings = Config::from_env(&env(changes)).unwrap().warnings;
        let name = |warning: &str| warning.split(' ').next().unwrap().to_owned();
        warnings.into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(warned(&[]), [""; 0]);
    for key in ["fifteen letters", &"x".repeat(40)] {
        assert_eq!(warned(&[("ORCH_ADMIN_KEY", key)]), ["ORCH_ADMIN_KEY"], "{key:?}");
    }
    assert_eq!(warned(&[("ORCH_MASTER_KEY", &"A".repeat(43))]), ["ORCH_MASTER_KEY"]);
}

#[test]
fn only_variables_that_are_set_are_passed_through() {
    let env = env(&[
        ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_API_KEY, ,OPENAI_API_KEY"),
        ("LLM_API_KEY", "secret"),
        ("OTHER", "kept"),
    ]);
    let config = Config::from_env(&env).unwrap();
    let variables: Vec<_> =
        config.engine_env.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
    assert_eq!(variables, [("LLM_API_KEY", "secret")]);
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn a_process_is_of_the_binarys_image_and_a_container_of_any_exact_one() {
    assert_eq!(faults(&[("ORCH_ENGINE_IMAGE", "svc-engine:99.0.0")]), ["ORCH_ENGINE_IMAGE"]);
    let docker = |image| [("ORCH_BACKEND", ""), ("ORCH_ENGINE_IMAGE", image)];
    let config = Config::from_env(&env(&docker("registry.local/agents/engine:99.0.0"))).unwrap();
    assert_eq!(config.backend, BackendKind::Docker { socket: "/var/run/docker.sock".into() });
    for image in ["svc-engine:latest", "svc-engine", ""] {
        assert_eq!(faults(&docker(image)), ["ORCH_ENGINE_IMAGE"], "{image:?}");
    }
}

#[test]
fn the_docker_daemon_is_where_the_operator_says() {
    let docker = |socket| [("ORCH_BACKEND", "docker"), ("ORCH_DOCKER_SOCKET", socket)];
    let config = Config::from_env(&env(&docker("/run/user/1000/docker.sock"))).unwrap();
    assert_eq!(config.backend, BackendKind::Docker { socket: "/run/user/1000/docker.sock".into() });
    assert!(config.to_string().contains("ORCH_DOCKER_SOCKET=/run/user/1000/docker.sock"));
    assert_eq!(faults(&docker("tcp://here:2375")), ["ORCH_DOCKER_SOCKET"]);
    // The process backend has no socket.
    assert!(Config::from_env(&env(&[("ORCH_DOCKER_SOCKET", "here")])).is_ok());
}

#[test]
fn a_cluster_is_named_by_a_file_or_is_the_one_around() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let image = ("ORCH_ENGINE_IMAGE", "registry.local/svc-engine:1.2.3");
    let namespace = ("ORCH_KUBERNETES_NAMESPACE", "engines");
    let kubernetes = |changes: &[(&str, &str)]| {
        let base = [("ORCH_BACKEND", "kubernetes"), image, namespace];
        Config::from_env(&env(&[&base[..], changes].concat()))
    };
    let outside = kubernetes(&[("KUBECONFIG", file)]).unwrap();
    let BackendKind::Kubernetes(settings) = &outside.backend else { panic!("{outside:?}") };
    assert_eq!(settings.kubeconfig.as_deref(), Some(Path::new(file)));
    assert_eq!((settings.namespace.as_str(), settings.storage.size.as_str()), ("engines", "2Gi"));
    let text = outside.to_string();
    assert!(
        text.contains(&format!("KUBECONFIG={file}")) && text.contains("ORCH_KUBERNETES_SERVICE="),
        "{text}"
    );
    let inside = kubernetes(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).unwrap();
    let BackendKind::Kubernetes(settings) = &inside.backend else { panic!("{inside:?}") };
    assert_eq!((settings.kubeconfig.as_deref(), settings.force_after), (None, None));
    // Its engines are not booted ahead.
    let warm = |count| kubernetes(&[("KUBECONFIG", file), ("ORCH_WARM_ENGINES", count)]);
    assert_eq!(warm("0").unwrap().warm_pool.per_product, 0);
    assert!(warm("1").unwrap_err().to_string().contains("ORCH_WARM_ENGINES"));
    // Neither: what to do is said.
    let errors = kubernetes(&[("ORCH_KUBERNETES_NAMESPACE", "")]).unwrap_err().to_string();
    assert!(
        errors.contains("KUBECONFIG is not set") && errors.contains("ORCH_KUBERNETES_NAMESPACE"),
        "{errors}"
    );
}

#[test]
fn every_setting_of_the_cluster_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let kubernetes = |changes: &[(&str, &str)]| {
        let base = [("ORCH_BACKEND", "kubernetes"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
        env(&[&base[..], &[("ORCH_KUBERNETES_NAMESPACE", "engines")], changes].concat())
    };
    let good = kubernetes(&[
        ("ORCH_KUBERNETES_SERVICE", "agents"),
        ("ORCH_KUBERNETES_STORAGE_CLASS", "fast.ssd"),
        ("ORCH_KUBERNETES_STORAGE_SIZE", "1500Mi"),
        ("ORCH_KUBERNETES_ACCESS_MODE", "ReadWriteOncePod"),
        ("ORCH_KUBERNETES_REQUEST_MEMORY_MB", "64"),
        ("ORCH_KUBERNETES_REQUEST_CPU_MILLIS", "5"),
        ("ORCH_KUBERNETES_CATALOG", "image:registry.local/catalog:7"),
        ("ORCH_KUBERNETES_PULL_SECRET", "registry"),
        ("ORCH_KUBERNETES_RUNTIME_CLASS", "gvisor"),
        ("ORCH_KUBERNETES_NODE_SELECTOR", "disk=fast,pool=engines"),
        ("ORCH_KUBERNETES_START_TIMEOUT_S", "2.5"),
        ("ORCH_KUBERNETES_FORCE_AFTER_S", "600"),
    ]);
    let text = Config::from_env(&good).unwrap().to_string();
    for (name, value) in good.iter().filter(|(name, _)| name.starts_with("ORCH_KUBERNETES_")) {
        assert!(text.lines().any(|line| line == format!("{name}={value}")), "{name}: {text}");
    }
    let bad = [
        ("KUBECONFIG", folder.path().to_str().unwrap()),
        ("ORCH_KUBERNETES_SERVICE", "a.b"),
        ("ORCH_KUBERNETES_STORAGE_CLASS", "Fast"),
        ("ORCH_KUBERNETES_STORAGE_SIZE", "much"),
        ("ORCH_KUBERNETES_ACCESS_MODE", "ReadWriteMany"),
        ("ORCH_KUBERNETES_REQUEST_MEMORY_MB", "0"),
        ("ORCH_KUBERNETES_REQUEST_CPU_MILLIS", "-1"),
        ("ORCH_KUBERNETES_CATALOG", "folder:/x"),
        ("ORCH_KUBERNETES_PULL_SECRET", "-x"),
        ("ORCH_KUBERNETES_RUNTIME_CLASS", "x-"),
        ("ORCH_KUBERNETES_NODE_SELECTOR", "pool"),
        ("ORCH_KUBERNETES_START_TIMEOUT_S", "0"),
        ("ORCH_KUBERNETES_FORCE_AFTER_S", "never"),
    ];
    let errors = Config::from_env(&kubernetes(&bad)).unwrap_err();
    let found: Vec<_> = errors.iter().map(|error| error.name.as_str()).collect();
    for (name, _) in bad {
        assert!(found.contains(&name), "{name}: {errors}");
    }
    assert_eq!(found.len(), bad.len(), "{errors}");
}
