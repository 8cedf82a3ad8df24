use proptest::prelude::*;

use super::*;

/// Limits, and what stays within them.
fn sample_limits() -> (Limits, ResourceUsage) {
    let limits = Limits {
        time: Some(Duration::from_secs(10)),
        memory: 1000,
        file_size: 1000,
        processes: 10,
        disk_left: 1000,
    };
    let taken =
        ResourceUsage { time: Duration::from_secs(9), memory: 1000, processes: 10, disk_left: Some(1000) };
    (limits, taken)
}

#[test]
fn what_is_just_allowed_is_allowed() {
    let (limits, taken) = sample_limits();
    assert_eq!(exceeded_limit(&limits, &taken), None);
    assert_eq!(exceeded_limit(&limits, &ResourceUsage { disk_left: None, ..taken }), None);
    let endless = Limits { time: None, ..limits };
    assert_eq!(exceeded_limit(&endless, &ResourceUsage { time: Duration::MAX, ..taken }), None);
}

#[test]
fn each_excess_has_its_name() {
    let (limits, taken) = sample_limits();
    for (more, excess) in [
        (ResourceUsage { time: Duration::from_secs(10), ..taken }, ExceededLimit::Time),
        (ResourceUsage { memory: 1001, ..taken }, ExceededLimit::Memory),
        (ResourceUsage { processes: 11, ..taken }, ExceededLimit::Processes),
        (ResourceUsage { disk_left: Some(999), ..taken }, ExceededLimit::Disk),
    ] {
        assert_eq!(exceeded_limit(&limits, &more), Some(excess));
    }
}

#[test]
fn this_process_takes_something_and_is_looked_at_again_in_time() {
    let limits = Limits { time: Some(Duration::from_millis(50)), disk_left: 0, ..Limits::default() };
    let mut watch = UsageMonitor::new(&limits, Path::new("/"));
    assert!(watch.check().unwrap() <= Duration::from_millis(50));
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
        let taken = ResourceUsage { time: Duration::from_secs(time), memory, processes, disk_left: Some(left) };
        let worse = ResourceUsage {
            time: Duration::from_secs(time + more),
            memory: memory + more,
            processes: processes + more,
            disk_left: Some(left.saturating_sub(more)),
        };
        prop_assert!(exceeded_limit(&limits, &taken).is_none() || exceeded_limit(&limits, &worse).is_some());
    }
}
