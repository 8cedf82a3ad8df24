//! An engine's folder, read as a stream and restored from it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use pretty_assertions::assert_eq;

use super::stream;
use crate::source;
use crate::staging::{Layout, Staging, finish};
use crate::stream::Decoder;

fn layout(folder: &Path) -> Layout {
    Layout::new(&folder.join("brain.sqlite"), &folder.join("workspace"))
}

fn read(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut brain = File::open(folder.join("brain.sqlite")).unwrap();
    let mut send = |chunk: bytes::Bytes| bytes.write_all(&chunk);
    source::write("1.2.3", &mut brain, &folder.join("workspace"), &mut send).unwrap();
    bytes
}

fn stage(folder: &Path, bytes: &[u8]) -> io::Result<Staging> {
    let (mut decoder, mut staging) = (Decoder::default(), Staging::begin(&layout(folder))?);
    decoder.push(bytes);
    while let Some((frame, _)) = decoder.next_frame().map_err(io::Error::other)? {
        staging.accept(&frame)?;
    }
    decoder.finish().map_err(io::Error::other)?;
    Ok(staging)
}

/// Everything in a folder: paths, kinds, permissions, times and contents.
fn everything(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(folder).unwrap().to_owned();
            let content = if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if metadata.is_dir() {
                folders.push(path.clone());
                String::new()
            } else {
                // The brain is a copy of its content, made at the time of the backup.
                let changed = if name == Path::new("brain.sqlite") { 0 } else { metadata.mtime_nsec() };
                let content = fs::read(&path).unwrap();
                format!("{changed} {} {:?}", content.len(), content.iter().take(9).collect::<Vec<_>>())
            };
            let is_plain = metadata.is_symlink() || name == Path::new("brain.sqlite");
            let mode = if is_plain { 0 } else { metadata.mode() & 0o777 };
            found.push(format!("{} {mode:o} {content}", name.display()));
        }
    }
    found.sort();
    found
}

fn populate(folder: &Path) {
    fs::write(folder.join("brain.sqlite"), super::noise(5, 200_000)).unwrap();
    let workspace = folder.join("workspace");
    fs::create_dir_all(workspace.join("deep/er")).unwrap();
    fs::create_dir(workspace.join("empty")).unwrap();
    fs::write(workspace.join("deep/er/file"), "text").unwrap();
    fs::write(workspace.join("script"), "#!/bin/sh").unwrap();
    fs::set_permissions(workspace.join("script"), Permissions::from_mode(0o755)).unwrap();
    fs::write(workspace.join("large"), super::noise(6, 300_000)).unwrap();
    symlink("/etc/passwd", workspace.join("link")).unwrap();
    let name = std::ffi::OsStr::new("caf\u{e9}");
    fs::write(workspace.join(name), "").unwrap();
    fs::write(
        workspace.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"no\xfftext")),
        "x",
    )
    .unwrap();
}

#[test]
fn a_folder_is_restored_as_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    populate(from.path());
    let bytes = read(from.path());
    // What the engine has now is replaced, with the log of its brain.
    fs::create_dir(to.path().join("workspace")).unwrap();
    fs::write(to.path().join("workspace/other"), "later").unwrap();
    fs::write(to.path().join("brain.sqlite"), "other").unwrap();
    fs::write(to.path().join("brain.sqlite-wal"), "log of the other").unwrap();
    stage(to.path(), &bytes).unwrap().complete().unwrap();
    assert!(finish(&layout(to.path())).unwrap());
    assert!(!finish(&layout(to.path())).unwrap());
    assert_eq!(everything(to.path()), everything(from.path()));
    // Byte for byte.
    assert!(read(to.path()) == bytes);
}

#[test]
fn a_folder_without_write_permission_is_restored_and_replaced() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    populate(from.path());
    let locked = from.path().join("workspace/deep");
    fs::set_permissions(&locked, Permissions::from_mode(0o555)).unwrap();
    let bytes = read(from.path());
    for _ in 0..2 {
        stage(to.path(), &bytes).unwrap().complete().unwrap();
        finish(&layout(to.path())).unwrap();
        assert_eq!(everything(to.path()), everything(from.path()));
    }
    for folder in [from.path(), to.path()] {
        fs::set_permissions(folder.join("workspace/deep"), Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn until_a_restore_is_complete_the_engine_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path());
    let before = everything(folder.path());
    let other = stream(b"another brain", &[("a", vec![1])]);
    for length in [0, 10, other.len() / 2, other.len() - 1] {
        assert!(stage(folder.path(), &other[..length]).is_err());
        assert!(!finish(&layout(folder.path())).unwrap());
        assert_eq!(everything(folder.path()), before);
    }
    // All of it is there, and the process is killed before it is complete.
    drop(stage(folder.path(), &other).unwrap());
    assert!(!finish(&layout(folder.path())).unwrap());
    assert_eq!(everything(folder.path()), before);
}

/// The steps of putting a restore in place, each of which may be the last one before a kill.
#[test]
fn a_restore_that_was_killed_while_it_is_put_in_place_is_finished() {
    type Step = fn(&Path);
    let steps: [Step; 5] = [
        |_| {},
        |folder| fs::create_dir(folder.join("restore.old")).unwrap(),
        |folder| fs::remove_file(folder.join("brain.sqlite-wal")).unwrap(),
        |folder| fs::rename(folder.join("restore.ready/brain.sqlite"), folder.join("brain.sqlite")).unwrap(),
        |folder| fs::rename(folder.join("workspace"), folder.join("restore.old/workspace")).unwrap(),
    ];
    let last: Step =
        |folder| fs::rename(folder.join("restore.ready/workspace"), folder.join("workspace")).unwrap();
    let from = tempfile::tempdir().unwrap();
    populate(from.path());
    let bytes = read(from.path());
    for done in 0..=steps.len() {
        let to = tempfile::tempdir().unwrap();
        fs::create_dir(to.path().join("workspace")).unwrap();
        fs::write(to.path().join("workspace/old"), "").unwrap();
        fs::write(to.path().join("brain.sqlite"), "old").unwrap();
        fs::write(to.path().join("brain.sqlite-wal"), "old").unwrap();
        stage(to.path(), &bytes).unwrap().complete().unwrap();
        steps.iter().take(done).for_each(|step| step(to.path()));
        if done == steps.len() {
            last(to.path());
        }
        assert!(finish(&layout(to.path())).unwrap(), "after {done} steps");
        assert_eq!(everything(to.path()), everything(from.path()), "after {done} steps");
    }
}

#[test]
fn a_link_is_never_followed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "FOXGLOVE").unwrap();
    populate(from.path());
    symlink(outside.path(), from.path().join("workspace/out")).unwrap();
    let bytes = read(from.path());
    assert!(!bytes.windows(8).any(|part| part == b"FOXGLOVE"));
    stage(to.path(), &bytes).unwrap().complete().unwrap();
    // A stream that would write through a link, or over another entry.
    for files in
        [&[("a", vec![1]), ("a/b", vec![1])][..], &[("a", vec![1]), ("a", vec![2])], &[("x/y", vec![1])]]
    {
        assert!(stage(to.path(), &stream(b"brain", files)).is_err());
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_backup_without_a_brain_or_with_two_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut encoder, start) = crate::stream::Encoder::start("1");
    let brain =
        crate::stream::Entry { kind: crate::stream::EntryKind::Brain, size: 0, mode: 0, modified_ns: 0 };
    let twice = [start, encoder.entry(&brain), encoder.entry(&brain), encoder.end().1].concat();
    assert!(stage(folder.path(), &twice).is_err());
    let (encoder, start) = crate::stream::Encoder::start("1");
    let none = [start, encoder.end().1].concat();
    assert!(stage(folder.path(), &none).unwrap().complete().is_err());
    assert!(!finish(&layout(folder.path())).unwrap());
}
