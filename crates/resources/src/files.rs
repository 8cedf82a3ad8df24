//! Opening files that somebody else may replace at any time.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a file for reading and refuses anything that is not a regular file. The file may have been replaced since
/// it was last seen.
pub fn open_regular_file(file: &Path) -> io::Result<File> {
    // Opening a pipe without a writer would block forever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(opened)
}
