//! Signals that whoever started the engine ignores. A program inherits what is ignored, over exec(2) too, and would
//! neither end when its terminal goes nor be stopped for a file that is too large.

use std::fs;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Has this process hear the signals that it ignores. What is heard when a program begins is back at its default
/// there, by execve(2).
pub(crate) fn reset_ignored() {
    // Where a process is told nothing of itself, it is as it was.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = parse_ignored(&status);
    if ignored.is_empty() {
        return;
    }
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let _inside = runtime.enter();
    for number in ignored {
        // Some cannot be heard, nor is it usual to ignore them: those of faults in the program itself.
        let _ = signal(SignalKind::from_raw(number));
    }
}

/// The numbers of the signals that are ignored, by `proc_pid_status(5)`. The standard library gives SIGPIPE back to its
/// default when it starts a program, and ignores it itself until then.
fn parse_ignored(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    (1..=64).filter(|number| *number != libc::SIGPIPE && mask >> (number - 1) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read() {
        let ignored = |mask: &str| parse_ignored(&format!("SigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n"));
        assert_eq!(ignored("0000000000001000"), [0; 0], "SIGPIPE is looked after");
        assert_eq!(ignored("0000000001001001"), [libc::SIGHUP, libc::SIGXFSZ]);
        assert_eq!(ignored("8000000000000000"), [64]);
        assert_eq!(ignored("none"), [0; 0]);
    }
}
