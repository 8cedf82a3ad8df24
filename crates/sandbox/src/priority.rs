//! Who gets the processor first on a busy host: the orchestrator, which answers for all engines, then the engines,
//! then the programs that they run.

/// The nice value of engines that an orchestrator launches.
pub const ENGINE_NICE: i32 = 5;
/// The nice value of sandboxed programs. The helper, which may have to end one, keeps its engine's.
pub(crate) const PROGRAM_NICE: i32 = 10;

/// Lowers the priority of this process and of all that it starts.
pub fn lower_process_priority(nice: i32) {
    // A lower priority that is in force already stays; with privileges, the kernel would raise it.
    if rustix::process::getpriority_process(None).is_ok_and(|current| current < nice) {
        let _ = rustix::process::setpriority_process(None, nice);
    }
}

/// Lowers the priority of this process's session, which must be its own. Where the kernel groups processes by their session
/// (`sched_autogroup_enabled`), nice values count only within the session, and the session has one of its own; see
/// sched(7). Elsewhere there is no such file. Without privileges the kernel accepts ten changes per second on the
/// whole host; those beyond have no effect.
pub fn lower_session_priority(nice: i32) {
    let _ = std::fs::write("/proc/self/autogroup", nice.to_string());
}
