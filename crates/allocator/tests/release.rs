//! What is freed last goes back to the system, which is what [`allocator::release_free_memory`] is for.

/// Anonymous memory of this process that is resident, in KiB.
#[cfg(target_os = "linux")]
fn anonymous_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_freed_last_goes_back_to_the_system() {
    // Blocks of one size class, as the entries of a cache are.
    let cache: Vec<Box<[u8; 4096]>> = (0..8192).map(|_| Box::new([7; 4096])).collect();
    let in_use = anonymous_memory();
    drop(cache);
    let kept = anonymous_memory();
    allocator::release_free_memory();
    let released = anonymous_memory();
    assert!(
        kept + 8 * 1024 > in_use,
        "the allocator kept {kept} of {in_use} KiB, so this test shows nothing"
    );
    assert!(released + 24 * 1024 < kept, "{kept} KiB before and {released} KiB after");
}
