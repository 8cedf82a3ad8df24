//! The catalog that ships, embedded in the binary.

use std::path::Path;

use include_dir::{Dir, include_dir};

static DEFAULT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../catalog");

/// Puts the catalog that ships into the folder `to`, unless it is there: what a person edited or removed in it
/// stays as they left it.
pub(crate) fn unpack(to: &Path) -> Result<(), String> {
    if to.exists() {
        return Ok(());
    }
    // Unpacked beside it and moved into place whole: a start that was cut off leaves no half of one, and of two that
    // begin at once the first one's is taken.
    let draft = to.with_extension(format!("new-{}", std::process::id()));
    let unpack = || {
        if draft.exists() {
            std::fs::remove_dir_all(&draft)?;
        }
        std::fs::create_dir_all(&draft)?;
        DEFAULT.extract(&draft)?;
        match std::fs::rename(&draft, to) {
            Err(_) if to.exists() => std::fs::remove_dir_all(&draft),
            renamed => renamed,
        }
    };
    unpack().map_err(|error| format!("the catalog cannot be unpacked to {}: {error}", to.display()))
}
