use super::*;

#[test]
fn a_counter_has_the_name_of_its_samples_in_prometheus_own_format() {
    let open_metrics = "# HELP a_seconds Help, # too.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                        a_seconds_total 1\n# HELP b B.\n# TYPE b gauge\nb{c=\"# d\"} 2\n# EOF\n";
    let prometheus = "# HELP a_seconds_total Help, # too.\n# TYPE a_seconds_total counter\na_seconds_total 1\n\
                      # HELP b B.\n# TYPE b gauge\nb{c=\"# d\"} 2\n";
    assert_eq!(TextFormat::Prometheus.convert(open_metrics.to_owned()), prometheus);
    assert_eq!(TextFormat::OpenMetrics.convert(open_metrics.to_owned()), open_metrics);
}

#[test]
fn a_scraper_that_names_no_format_gets_what_everything_reads() {
    let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    assert_eq!(TextFormat::negotiate(prometheus), TextFormat::OpenMetrics);
    assert_eq!(TextFormat::negotiate("*/*"), TextFormat::Prometheus);
    assert_eq!(TextFormat::negotiate(""), TextFormat::Prometheus);
}
