//! The names of spill files, and what is said of one that is gone.

use api::CallId;

/// The folder of the spill files.
pub(super) const SPILL_FOLDER: &str = "tool-output";
/// The maximum total size of the older files, in bytes; it determines how many of them are kept.
pub(super) const MAX_TOTAL_BYTES: u64 = 256 * 1024 * 1024;

/// Returns the reason why a spill file no longer exists; `None` if `path` is not a spill file's.
pub(super) fn eviction_notice(path: &str) -> Option<String> {
    let name = path.trim_start_matches("./").strip_prefix(SPILL_FOLDER)?.strip_prefix('/')?;
    is_spill_file(name).then(|| {
        format!(
            "this output of an earlier call is no longer kept, because newer ones took its place (together they may \
             have {} MiB): make the call again if you still need it",
            MAX_TOTAL_BYTES >> 20
        )
    })
}

/// Whether this is the name of a spill file.
pub(super) fn is_spill_file(name: &str) -> bool {
    name.strip_suffix(".txt").is_some_and(|id| id.parse::<CallId>().is_ok())
}
