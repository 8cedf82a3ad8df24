//! Resets signals that the engine's parent process ignores. Ignored signals are inherited, even across exec(2):
//! a program would neither end when its terminal goes away nor be stopped when it writes a file that is too large.

use std::fs;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Installs handlers for the signals that this process ignores: execve(2) resets handled signals, but not ignored
/// ones, to their defaults.
pub(crate) fn reset_ignored() {
    // Without `/proc`, the signals stay as they are.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = parse_ignored(&status);
    if ignored.is_empty() {
        return;
    }
    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let _guard = runtime.enter();
    for number in ignored {
        // This fails for the signals of faults in the program itself, which are hardly ever ignored.
        let _ = signal(SignalKind::from_raw(number));
    }
}

/// The numbers of the ignored signals, from a text in the format of `proc_pid_status(5)`. SIGPIPE is left out: the
/// standard library ignores it in every process, and resets it when it executes a program.
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
        assert_eq!(ignored("0000000000001000"), [0; 0], "SIGPIPE is handled by the standard library");
        assert_eq!(ignored("0000000001001001"), [libc::SIGHUP, libc::SIGXFSZ]);
        assert_eq!(ignored("8000000000000000"), [64]);
        assert_eq!(ignored("none"), [0; 0]);
    }
}
