use proptest::prelude::*;

use super::*;

/// Limits, and a usage that just stays within them.
fn sample_limits() -> (Limits, ResourceUsage) {
    let limits = Limits {
        time: Some(Duration::from_secs(10)),
        memory: 1000,
        file_size: 1000,
        processes: 10,
        disk_left: 1000,
    };
    let usage =
        ResourceUsage { time: Duration::from_secs(9), memory: 1000, processes: 10, disk_left: Some(1000) };
    (limits, usage)
}

#[test]
fn what_is_just_allowed_is_allowed() {
    let (limits, usage) = sample_limits();
    assert_eq!(exceeded_limit(&limits, &usage), None);
    assert_eq!(exceeded_limit(&limits, &ResourceUsage { disk_left: None, ..usage }), None);
    let untimed = Limits { time: None, ..limits };
    assert_eq!(exceeded_limit(&untimed, &ResourceUsage { time: Duration::MAX, ..usage }), None);
}

#[test]
fn each_excess_has_its_name() {
    let (limits, usage) = sample_limits();
    for (more, expected) in [
        (ResourceUsage { time: Duration::from_secs(10), ..usage }, ExceededLimit::Time),
        (ResourceUsage { memory: 1001, ..usage }, ExceededLimit::Memory),
        (ResourceUsage { processes: 11, ..usage }, ExceededLimit::Processes),
        (ResourceUsage { disk_left: Some(999), ..usage }, ExceededLimit::Disk),
    ] {
        assert_eq!(exceeded_limit(&limits, &more), Some(expected));
    }
}

#[test]
fn this_process_takes_something_and_is_looked_at_again_in_time() {
    let limits = Limits { time: Some(Duration::from_millis(50)), disk_left: 0, ..Limits::default() };
    let mut monitor = UsageMonitor::new(&limits, Path::new("/"));
    assert!(monitor.check().unwrap() <= Duration::from_millis(50));
    assert!(disk_left(Path::new("/proc/self")).is_some());
    assert_eq!(disk_left(Path::new("/no/such/folder")), None);
}

proptest! {
    #[test]
    fn taking_more_is_never_judged_better(
        time in 0_u64..20, memory in 0_u64..2000, processes in 0_u64..20, left in 0_u64..2000,
        more in 0_u64..1000,
    ) {
        let (limits, _) = sample_limits();
        let usage = ResourceUsage { time: Duration::from_secs(time), memory, processes, disk_left: Some(left) };
        let worse = ResourceUsage {
            time: Duration::from_secs(time + more),
            memory: memory + more,
            processes: processes + more,
            disk_left: Some(left.saturating_sub(more)),
        };
        prop_assert!(exceeded_limit(&limits, &usage).is_none() || exceeded_limit(&limits, &worse).is_some());
    }
}
