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
    library: PathBuf,
    offset: File,
}

impl WallClock {
    /// Builds it in `folder`.
    pub fn new(folder: &Path) -> Self {
        let (source, library) = (folder.join("wall_clock.c"), folder.join("wall_clock.so"));
        let offset_file = folder.join("wall_clock.offset");
        std::fs::write(&source, include_str!("../fixtures/wall_clock.c")).unwrap();
        std::fs::write(&offset_file, 0_i64.to_ne_bytes()).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(format!("-DOFFSET_FILE=\"{}\"", offset_file.display()))
            .arg(&source)
            .output()
            .expect("there is a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { library, offset: File::options().write(true).read(true).open(offset_file).unwrap() }
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

fn real_ms() -> i64 {
    i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}
