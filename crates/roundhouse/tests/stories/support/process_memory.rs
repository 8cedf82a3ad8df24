//! The memory use of an engine.

use std::fs;

use super::{Program, StandaloneEngine};

/// Whether to test with extreme sizes (`ROUNDHOUSE_TEST_LARGE=1`).
pub(crate) fn is_large_run() -> bool {
    std::env::var("ROUNDHOUSE_TEST_LARGE").as_deref() == Ok("1")
}

/// The current and the peak resident memory of a program, in MiB.
pub(crate) fn memory_and_peak_mib(program: &Program) -> (usize, usize) {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid().as_raw_nonzero())).unwrap();
    let kib = |name| {
        let line = status.lines().find_map(|line: &str| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    (kib("VmRSS:") >> 10, kib("VmHWM:") >> 10)
}

/// Resets a program's peak to its current memory, which is returned in MiB.
pub(crate) fn reset_peak(program: &Program) -> usize {
    let file = format!("/proc/{}/clear_refs", program.pid().as_raw_nonzero());
    fs::write(file, "5").unwrap();
    memory_and_peak_mib(program).0
}

/// An engine that returns unused memory to the system at once: its peak is what it uses.
pub(crate) fn with_immediate_purge(setup: StandaloneEngine) -> StandaloneEngine {
    setup.with_env("MIMALLOC_PURGE_DELAY", "0")
}
