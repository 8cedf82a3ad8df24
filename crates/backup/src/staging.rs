//! The engine's side of a restore: receives a stream into a folder beside the brain, and puts it in the place of what is
//! there when all of it has arrived.
//!
//! Until [`Staging::complete`] has renamed the folder, the engine is as it was. From then on [`finish`] replaces brain
//! and workspace, in steps that are repeated if the process is killed between them: whoever opens the brain calls it
//! first.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use resources::removal::{ignore_not_found, remove_if_exists};

use crate::stream::{Entry, EntryKind, EntryPath, Frame};

/// The folder of a restore whose content is still arriving.
const NEW_FOLDER: &str = "restore.new";
/// The folder of a restore that is to be put in place.
const READY_FOLDER: &str = "restore.ready";
/// The folder of what a restore has replaced.
const OLD_FOLDER: &str = "restore.old";
/// The workspace in these folders.
const WORKSPACE: &str = "workspace";
/// The permissions that a folder has at least while it is being filled.
const FILLING_MODE: u32 = 0o700;

/// Where an engine keeps its data.
#[derive(Clone, Debug)]
pub struct Layout {
    folder: PathBuf,
    brain: PathBuf,
    workspace: PathBuf,
}

impl Layout {
    /// The layout of an engine with this brain and workspace.
    pub fn new(brain: &Path, workspace: &Path) -> Self {
        let folder = brain.parent().filter(|folder| !folder.as_os_str().is_empty());
        Self {
            folder: folder.unwrap_or(Path::new(".")).to_owned(),
            brain: brain.to_owned(),
            workspace: workspace.to_owned(),
        }
    }

    fn in_folder(&self, folder: &str) -> PathBuf {
        self.folder.join(folder)
    }

    fn brain_in(&self, folder: &Path) -> PathBuf {
        folder.join(self.brain.file_name().unwrap_or_default())
    }
}

/// A restore whose content is arriving.
pub struct Staging {
    layout: Layout,
    folder: PathBuf,
    /// The file that is being written, and when it was changed last.
    file: Option<(File, i64)>,
    has_brain: bool,
    /// The folders of the workspace, whose permissions are set when they are filled.
    folders: Vec<(PathBuf, u32)>,
    known_folders: HashSet<EntryPath>,
}

impl Staging {
    /// Begins a restore. What an earlier one left is removed.
    pub fn begin(layout: &Layout) -> io::Result<Self> {
        let folder = layout.in_folder(NEW_FOLDER);
        remove_if_exists(&folder)?;
        create_folder(&folder)?;
        create_folder(&folder.join(WORKSPACE))?;
        Ok(Self {
            layout: layout.clone(),
            folder,
            file: None,
            has_brain: false,
            folders: Vec::new(),
            known_folders: HashSet::from([EntryPath::new(Vec::new())]),
        })
    }

    /// Adds a frame. Blocks.
    pub fn accept(&mut self, frame: &Frame) -> io::Result<()> {
        match frame {
            Frame::Start(_) => Ok(()),
            Frame::Entry(entry) => {
                self.close_file()?;
                self.create(entry)
            }
            Frame::Data(block) => match &mut self.file {
                Some((file, _)) => file.write_all(block),
                None => Err(invalid("content without a file")),
            },
            Frame::End(_) => self.close_file(),
        }
    }

    /// The brain that has arrived, to be checked.
    pub fn brain(&self) -> Option<PathBuf> {
        self.has_brain.then(|| self.layout.brain_in(&self.folder))
    }

    /// Makes the restore one that will be put in place, whatever happens from now on.
    pub fn complete(mut self) -> io::Result<()> {
        self.close_file()?;
        if !self.has_brain {
            return Err(invalid("there is no brain in it"));
        }
        // The deepest first: a folder that may not be entered any more has nothing left to do.
        for (folder, mode) in self.folders.iter().rev() {
            fs::set_permissions(folder, Permissions::from_mode(*mode))?;
        }
        rustix::fs::syncfs(File::open(&self.folder)?)?;
        let ready = self.layout.in_folder(READY_FOLDER);
        remove_if_exists(&ready)?;
        fs::rename(&self.folder, ready)?;
        fsync(&self.layout.folder)
    }

    fn create(&mut self, entry: &Entry) -> io::Result<()> {
        match &entry.kind {
            EntryKind::Brain if !self.has_brain => {
                self.has_brain = true;
                let file = create_file(&self.layout.brain_in(&self.folder), 0o600)?;
                self.file = Some((file, 0));
                Ok(())
            }
            EntryKind::Brain => Err(invalid("there are two brains in it")),
            EntryKind::Registry => Err(invalid("it is a registry's")),
            EntryKind::Folder { path } => {
                let folder = self.place(path)?;
                if !path.as_bytes().is_empty() {
                    create_folder(&folder)?;
                }
                self.folders.push((folder, entry.mode));
                self.known_folders.insert(path.clone());
                Ok(())
            }
            EntryKind::File { path } => {
                let file = create_file(&self.place(path)?, entry.mode)?;
                self.file = Some((file, entry.modified_ns));
                Ok(())
            }
            EntryKind::Link { path, target } => {
                symlink(std::ffi::OsStr::from_bytes(target.as_bytes()), self.place(path)?)
            }
        }
    }

    /// The place of an entry, whose folder must be one that this restore has made: never a link.
    fn place(&self, path: &EntryPath) -> io::Result<PathBuf> {
        let bytes = path.as_bytes();
        let parent = bytes.iter().rposition(|byte| *byte == b'/').and_then(|end| bytes.get(..end));
        if !self.known_folders.contains(&EntryPath::new(parent.unwrap_or_default().to_vec())) {
            return Err(invalid("an entry is in no folder"));
        }
        Ok(self.folder.join(WORKSPACE).join(std::ffi::OsStr::from_bytes(bytes)))
    }

    fn close_file(&mut self) -> io::Result<()> {
        let Some((file, modified_ns)) = self.file.take() else { return Ok(()) };
        let modified = Duration::from_nanos(modified_ns.unsigned_abs());
        match SystemTime::UNIX_EPOCH.checked_add(modified) {
            Some(modified) if modified_ns > 0 => file.set_times(FileTimes::new().set_modified(modified)),
            _ => Ok(()),
        }
    }
}

/// Puts a restore that is complete in place, and removes what an interrupted one left. Returns whether there was one.
pub fn finish(layout: &Layout) -> io::Result<bool> {
    let (ready, old) = (layout.in_folder(READY_FOLDER), layout.in_folder(OLD_FOLDER));
    remove_if_exists(&layout.in_folder(NEW_FOLDER))?;
    let is_ready = is_folder(&ready)?;
    if is_ready {
        if !is_folder(&old)? {
            create_folder(&old)?;
        }
        let brain = layout.brain_in(&ready);
        if fs::exists(&brain)? {
            // Without the brain that they belong to, they would be applied to the restored one.
            for suffix in ["-wal", "-shm"] {
                let mut file = layout.brain.clone().into_os_string();
                file.push(suffix);
                ignore_not_found(fs::remove_file(file))?;
            }
            fsync(&layout.folder)?;
            fs::rename(brain, &layout.brain)?;
        }
        let workspace = ready.join(WORKSPACE);
        if fs::exists(&workspace)? {
            remove_if_exists(&old.join(WORKSPACE))?;
            ignore_not_found(rename_folder(&layout.workspace, &old.join(WORKSPACE)))?;
            rename_folder(&workspace, &layout.workspace)?;
        }
        fsync(&layout.folder)?;
        remove_if_exists(&ready)?;
        fsync(&layout.folder)?;
    }
    remove_if_exists(&old)?;
    Ok(is_ready)
}

/// Renames a folder, which needs permission to write to it: its `..` changes.
fn rename_folder(from: &Path, to: &Path) -> io::Result<()> {
    let permissions = fs::symlink_metadata(from)?.permissions();
    let mode = permissions.mode();
    if mode & 0o200 != 0 {
        return fs::rename(from, to);
    }
    fs::set_permissions(from, Permissions::from_mode(mode | FILLING_MODE))?;
    fs::rename(from, to)?;
    fs::set_permissions(to, permissions)
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FILLING_MODE).create(path)
}

fn create_file(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if mode != 0o600 {
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
    }
    Ok(file)
}

fn is_folder(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn fsync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
