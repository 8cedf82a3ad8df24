//! A small disk for one story, which can be filled.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use super::skip;

/// A tmpfs. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts a disk of this size on a new folder; skips the story and returns `None` if mounting is not
    /// permitted.
    pub(crate) fn new(folder: PathBuf, mebibytes: u32) -> Option<Self> {
        fs::create_dir_all(&folder).unwrap();
        let options = format!("size={mebibytes}m,mode=0755");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "none"])
            .arg(&folder)
            .output()
            .unwrap();
        if mounted.status.success() {
            return Some(Self(folder));
        }
        skip(&format!("a disk of its own: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
        None
    }

    /// Fills all free space.
    pub(crate) fn fill(&self) {
        let mut file = fs::File::options().create(true).append(true).open(self.0.join("filler")).unwrap();
        // Smaller writes fill the last pages, too.
        for size in [1 << 20, 1 << 16, 1 << 12] {
            while file.write(&vec![1; size]).is_ok_and(|written| written == size) {}
        }
    }

    /// Frees the filled space.
    pub(crate) fn free_space(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
