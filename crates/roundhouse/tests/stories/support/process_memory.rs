//! What memory an engine takes.

use std::fs;

use super::{Program, StandaloneEngine};

/// Whether the sizes of a bad day are to be tested.
pub(crate) fn is_large_run() -> bool {
    std::env::var("ROUNDHOUSE_TEST_LARGE").as_deref() == Ok("1")
}

/// The memory of a program in MiB: what it has, and the most that it had.
pub(crate) fn memory_and_peak_mib(program: &Program) -> (usize, usize) {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid().as_raw_nonzero())).unwrap();
    let kib = |name| {
        let line = status.lines().find_map(|line: &str| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    (kib("VmRSS:") >> 10, kib("VmHWM:") >> 10)
}

/// From here on the most that a program had is what it has now.
pub(crate) fn reset_peak(program: &Program) -> usize {
    let file = format!("/proc/{}/clear_refs", program.pid().as_raw_nonzero());
    fs::write(file, "5").unwrap();
    memory_and_peak_mib(program).0
}

/// An engine that gives back what it does not use, as an orchestrator starts it.
pub(crate) fn with_immediate_purge(place: StandaloneEngine) -> StandaloneEngine {
    place.with_env("MIMALLOC_PURGE_DELAY", "0")
}
