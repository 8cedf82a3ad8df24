//! A wall clock that a test sets, for programs that it starts. Needs a C compiler, as does linking Rust programs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use api::Timestamp;

/// See the module. The folder must outlive the programs.
#[derive(Debug)]
pub struct WallClock {
    folder: PathBuf,
    library: PathBuf,
    offset: File,
}

/// The file in the folder with what the clock adds to that of the machine, in milliseconds.
const OFFSET_FILE: &str = "wall_clock.offset";

impl WallClock {
    /// Builds it in `folder`.
    pub fn new(folder: &Path) -> Self {
        let offset = folder.join(OFFSET_FILE);
        std::fs::write(&offset, 0_i64.to_ne_bytes()).unwrap();
        let library = build_library(folder, "wall_clock.so", folder);
        let offset = File::options().write(true).read(true).open(offset).unwrap();
        Self { folder: folder.to_owned(), library, offset }
    }

    /// Builds a library for programs that have the folder at another path, such as those in containers. Returns its
    /// path there.
    pub fn library_for_folder_at(&self, path: &Path) -> PathBuf {
        let name = "wall_clock_elsewhere.so";
        build_library(&self.folder, name, path);
        path.join(name)
    }

    /// The library that the programs load: the value of `LD_PRELOAD`.
    pub fn library(&self) -> &str {
        self.library.to_str().unwrap()
    }

    /// What the programs' clocks say.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(real_ms() + self.offset_ms())
    }

    /// Sets the programs' clocks.
    pub fn set(&self, now: Timestamp) {
        let offset = now.unix_ms() - real_ms();
        self.offset.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }

    /// Moves the programs' clocks forward, or back.
    pub fn advance_ms(&self, ms: i64) {
        self.offset.write_all_at(&(self.offset_ms() + ms).to_ne_bytes(), 0).unwrap();
    }

    fn offset_ms(&self) -> i64 {
        let mut bytes = [0; 8];
        self.offset.read_exact_at(&mut bytes, 0).unwrap();
        i64::from_ne_bytes(bytes)
    }
}

/// Builds the library in `folder`, for programs that have this folder at the path `seen_at`.
fn build_library(folder: &Path, name: &str, seen_at: &Path) -> PathBuf {
    let (source, library) = (folder.join("wall_clock.c"), folder.join(name));
    std::fs::write(&source, include_str!("../fixtures/wall_clock.c")).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(format!("-DOFFSET_FILE=\"{}\"", seen_at.join(OFFSET_FILE).display()))
        .arg(&source)
        .output()
        .expect("there is a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

fn real_ms() -> i64 {
    i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}
