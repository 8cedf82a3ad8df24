//! The engine's side of a backup: writes its brain and its workspace as a stream.
//!
//! The agent's programs may change the workspace while it is read. A folder that becomes a link meanwhile must not lead
//! to what the agent may not read, so everything is opened relative to its folder's descriptor, and no link is followed.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};

use crate::stream::{BLOCK_BYTES, Encoder, Entry, EntryKind, EntryPath, Summary};

/// How deep folders are read; deeper ones count as skipped. Each level holds a descriptor.
const MAX_DEPTH: usize = 128;
/// The permissions that are kept.
const MODE_BITS: u32 = 0o777;

/// Receives the bytes of the stream, in order.
pub type Send<'a> = &'a mut dyn FnMut(Bytes) -> io::Result<()>;

/// A folder of which the entries from `next` on are still to be read.
struct OpenFolder {
    folder: OwnedFd,
    names: std::vec::IntoIter<CString>,
    path: Vec<u8>,
}

/// Writes a stream with `brain`, a consistent copy of the brain, and the workspace, which may be missing. Blocks.
pub fn write(program: &str, brain: &mut File, workspace: &Path, send: Send<'_>) -> io::Result<Summary> {
    let (mut encoder, start) = Encoder::start(program);
    send(start)?;
    let entry = Entry { kind: EntryKind::Brain, size: brain.metadata()?.size(), mode: 0, modified_ns: 0 };
    send(encoder.entry(&entry))?;
    copy_content(brain, &mut encoder, send)?;
    write_workspace(workspace, &mut encoder, send)?;
    let (summary, end) = encoder.end();
    send(end)?;
    Ok(summary)
}

/// Writes a stream with the rows of a registry. Blocks.
pub fn write_registry(program: &str, rows: &mut File, send: Send<'_>) -> io::Result<Summary> {
    let (mut encoder, start) = Encoder::start(program);
    send(start)?;
    let entry = Entry { kind: EntryKind::Registry, size: rows.metadata()?.size(), mode: 0, modified_ns: 0 };
    send(encoder.entry(&entry))?;
    copy_content(rows, &mut encoder, send)?;
    let (summary, end) = encoder.end();
    send(end)?;
    Ok(summary)
}

fn write_workspace(workspace: &Path, encoder: &mut Encoder, send: Send<'_>) -> io::Result<()> {
    let folder = match openat(CWD, workspace, folder_flags(), Mode::empty()) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    send(encoder.entry(&folder_entry(&rustix::fs::fstat(&folder)?, Vec::new())))?;
    let mut open = vec![OpenFolder { names: names(&folder)?.into_iter(), folder, path: Vec::new() }];
    while let Some(current) = open.last_mut() {
        let Some(name) = current.names.next() else {
            open.pop();
            continue;
        };
        let path = if current.path.is_empty() {
            name.as_bytes().to_vec()
        } else {
            [&current.path, b"/".as_slice(), name.as_bytes()].concat()
        };
        let depth = open.len();
        let Some(current) = open.last() else { break };
        match write_entry(current, &name, path, encoder, send)? {
            Some(folder) if depth < MAX_DEPTH => open.push(folder),
            Some(_) => encoder.skip(),
            None => {}
        }
    }
    Ok(())
}

/// Writes the entry `name` of a folder. If it is a folder itself, returns that. What disappears meanwhile is left out;
/// what cannot be read is counted.
fn write_entry(
    parent: &OpenFolder,
    name: &CString,
    path: Vec<u8>,
    encoder: &mut Encoder,
    send: Send<'_>,
) -> io::Result<Option<OpenFolder>> {
    let Ok(stat) = statat(&parent.folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let opened = openat(&parent.folder, name, folder_flags(), Mode::empty()).map_err(io::Error::from);
            let Ok((folder, names)) = opened.and_then(|folder| names(&folder).map(|names| (folder, names)))
            else {
                encoder.skip();
                return Ok(None);
            };
            send(encoder.entry(&folder_entry(&stat, path.clone())))?;
            return Ok(Some(OpenFolder { folder, names: names.into_iter(), path }));
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&parent.folder, name, flags, Mode::empty());
            let Some(mut file) =
                file.ok().map(File::from).filter(|file| file.metadata().is_ok_and(|of| of.is_file()))
            else {
                encoder.skip();
                return Ok(None);
            };
            let size = file.metadata()?.size();
            let kind = EntryKind::File { path: EntryPath::new(path) };
            send(encoder.entry(&Entry { kind, size, ..attributes(&stat) }))?;
            copy_content(&mut file, encoder, send)?;
        }
        FileType::Symlink => match readlinkat(&parent.folder, name, Vec::new()) {
            Ok(target) => {
                let target = EntryPath::new(target.into_bytes());
                let kind = EntryKind::Link { path: EntryPath::new(path), target };
                // Only files have a time that is restored.
                send(encoder.entry(&Entry { kind, modified_ns: 0, ..attributes(&stat) }))?;
            }
            Err(_) => encoder.skip(),
        },
        _ => encoder.skip(),
    }
    Ok(None)
}

/// Copies the content of a file in full blocks and a shorter last one. Its length when the copy began is the limit, so
/// that a file that grows all the time ends.
fn copy_content(file: &mut File, encoder: &mut Encoder, send: Send<'_>) -> io::Result<()> {
    let mut left = file.metadata()?.size();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        let mut filled = 0;
        while filled < wanted {
            let read = match block.get_mut(filled..wanted) {
                Some(rest) => file.read(rest),
                None => Ok(0),
            };
            match read {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(content) = block.get(..filled).filter(|content| !content.is_empty()) {
            send(encoder.data(content))?;
        }
        left -= u64::try_from(filled).unwrap_or(left).min(left);
        if filled < BLOCK_BYTES || left == 0 {
            return Ok(());
        }
    }
}

/// The names in a folder, sorted, so that the same folder always makes the same stream.
fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder.as_fd())? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn folder_entry(stat: &Stat, path: Vec<u8>) -> Entry {
    Entry { kind: EntryKind::Folder { path: EntryPath::new(path) }, modified_ns: 0, ..attributes(stat) }
}

/// An entry with the attributes of `stat`; what it is must be filled in.
fn attributes(stat: &Stat) -> Entry {
    let seconds = stat.st_mtime.saturating_mul(1_000_000_000);
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
    Entry {
        kind: EntryKind::Brain,
        size: 0,
        mode: stat.st_mode & MODE_BITS,
        modified_ns: seconds.saturating_add(nanoseconds),
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
