use std::collections::BTreeMap;

use super::*;

const SERVICE: Service<'_> =
    Service { name: "roundhouse-engine", version: "1.2.3", instance_id: Some("engine-1") };

fn read_from(pairs: &[(&str, &str)]) -> Result<Option<Settings>, String> {
    let env: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut reader = EnvReader::new(&env);
    let settings = read(&mut reader, SERVICE);
    reader.finish(Some(settings)).map_err(|errors| errors.to_string())
}

#[test]
fn an_endpoint_switches_the_export_on() {
    assert_eq!(read_from(&[]), Ok(None));
    assert_eq!(read_from(&[("OTEL_SERVICE_NAME", "mine")]), Ok(None));
    let settings = read_from(&[(ENDPOINT, "http://collector:4318/")]).unwrap().unwrap();
    assert_eq!(
        settings,
        Settings {
            endpoint: "http://collector:4318/v1/traces".to_owned(),
            timeout: DEFAULT_TIMEOUT,
            sampling: Sampling::All,
            follows_caller: true,
            service_name: "roundhouse-engine".to_owned(),
            instance_id: Some("engine-1".to_owned()),
            version: "1.2.3",
            captures_content: false,
        }
    );
    for off in
        [("OTEL_SDK_DISABLED", "true"), ("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")]
    {
        assert_eq!(read_from(&[(ENDPOINT, "http://collector:4318"), off]), Ok(None), "{off:?}");
    }
}

#[test]
fn the_variables_of_traces_come_before_the_general_ones() {
    let settings = read_from(&[
        (ENDPOINT, "http://collector:4318"),
        (TRACES_ENDPOINT, "https://traces.example/otlp"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "200"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_SERVICE_NAME", "mine"),
        (CAPTURE_CONTENT, "true"),
    ])
    .unwrap()
    .unwrap();
    assert_eq!(settings.endpoint, "https://traces.example/otlp");
    assert_eq!(settings.timeout, Duration::from_millis(200));
    assert_eq!((settings.sampling, settings.follows_caller), (Sampling::Ratio(0.25), true));
    assert_eq!((settings.service_name.as_str(), settings.captures_content), ("mine", true));
}

#[test]
fn samplers_have_their_standard_names() {
    for (name, expected) in [
        ("always_on", (Sampling::All, false)),
        ("always_off", (Sampling::Nothing, false)),
        ("traceidratio", (Sampling::Ratio(1.0), false)),
        ("parentbased_always_off", (Sampling::Nothing, true)),
    ] {
        let settings = read_from(&[(ENDPOINT, "http://c"), ("OTEL_TRACES_SAMPLER", name)]).unwrap().unwrap();
        assert_eq!((settings.sampling, settings.follows_caller), expected, "{name}");
    }
}

#[test]
fn faults_are_reported_and_no_header_is_shown() {
    for (name, value) in [
        (ENDPOINT, "collector:4318"),
        (ENDPOINT, "ftp://collector"),
        (TRACES_ENDPOINT, "http://user:hunter2@collector"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "60001"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_SDK_DISABLED", "yes"),
        (HEADERS, "a secret without a name"),
        (TRACES_HEADERS, "two words=1"),
    ] {
        let errors = read_from(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), (name, value)]).unwrap_err();
        assert!(errors.contains(name), "{errors}");
        let may_be_secret = name.ends_with("HEADERS") || name.ends_with("ENDPOINT");
        assert!(!may_be_secret || !errors.contains(value), "{errors}");
    }
}
