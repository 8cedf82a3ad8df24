//! Tests of what may be changed in a workspace, and that nothing else is.

use std::fs::Permissions;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags};

use super::*;
use crate::fixture::WorkspaceFixture;

fn write(workspace: &Workspace, path: &str, content: &str) -> Result<(), ToolError> {
    workspace.locate_creating_folders(path)?.replace(content)
}

#[test]
fn a_file_is_made_with_its_folders() {
    let fixture = WorkspaceFixture::new();
    fixture.create_symlink("inner", "a/b");
    for (path, real) in [
        ("top", "top"),
        ("a/b/c/new", "a/b/c/new"),
        ("./a/./d//new", "a/d/new"),
        ("a/../e/new", "e/new"),
        ("inner/f/new", "a/b/f/new"),
        ("g/./new", "g/new"),
    ] {
        write(&fixture.workspace, path, path).unwrap();
        assert_eq!(fixture.read_file(real), path);
    }
    assert_eq!(fixture.list_names("."), ["a", "e", "g", "inner", "top"]);
}

#[test]
fn the_workspace_itself_is_made() {
    let fixture = WorkspaceFixture::new();
    std::fs::remove_dir(fixture.path("")).unwrap();
    write(&fixture.workspace, "a", "1").unwrap();
    assert_eq!(fixture.read_file("a"), "1");
}

#[test]
fn nothing_outside_is_changed() {
    let fixture = WorkspaceFixture::new();
    for path in fixture.escape_paths() {
        for path in [path.clone(), path.replace("secret", "new"), path.replace("secret", "new/new")] {
            let refused = write(&fixture.workspace, &path, "x").unwrap_err();
            assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
            let refused = fixture.workspace.locate(&path).map(|location| location.read(99)).unwrap_err();
            assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
        }
    }
    // No path leads through a missing folder, so nothing is created on it.
    for path in ["new/../../secret", "new/../new", "new/../../new/new"] {
        assert!(
            write(&fixture.workspace, path, "x").unwrap_err().0.contains("no such file or folder"),
            "{path}"
        );
    }
    fixture.assert_outside_unchanged();
    assert_eq!(fixture.list_names("."), ["absolute", "root", "sub"]);
}

#[test]
fn renames_elsewhere_on_the_machine_fail_no_access() {
    let fixture = WorkspaceFixture::new();
    for path in ["a/file", "b/file"] {
        write(&fixture.workspace, path, "1").unwrap();
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let paths = [elsewhere.path().join("x"), elsewhere.path().join("y")];
    std::fs::write(&paths[0], "").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let renames = scope.spawn(|| {
            let mut renames = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                std::fs::rename(&paths[0], &paths[1])
                    .and_then(|()| std::fs::rename(&paths[1], &paths[0]))
                    .unwrap();
                renames += 2;
            }
            renames
        });
        let mut all = (0..20_000).map(|_| fixture.workspace.open("b/../a/../b/file", OFlags::RDONLY));
        let failed = all.find_map(Result::err);
        is_over.store(true, Ordering::Relaxed);
        assert!(renames.join().unwrap() > 100);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn links_of_the_kernel_lead_nowhere() {
    let fixture = WorkspaceFixture::new();
    let opened = File::open(fixture.path(".")).unwrap();
    let descriptor = opened.as_raw_fd();
    let process = Workspace::new(Path::new("/proc/self"));
    for path in [format!("fd/{descriptor}/new"), format!("fd/{descriptor}/../secret"), "cwd/new".into()] {
        let refused = write(&process, &path, "x").unwrap_err();
        assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
    }
    assert!(fixture.list_names(".").is_empty());
    fixture.assert_outside_unchanged();
}

/// Writes `path` repeatedly while `one` and `other` are constantly swapped; returns the refusals.
fn refusals_while_swapping(fixture: &WorkspaceFixture, one: &str, other: &str, path: &str) -> Vec<ToolError> {
    let (one, other, done) = (fixture.path(one), fixture.path(other), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let refused = (0..500).filter_map(|_| write(&fixture.workspace, path, "new").err()).collect();
        done.store(true, Ordering::Relaxed);
        refused
    })
}

#[test]
fn a_parent_swapped_for_a_link_leads_nowhere() {
    let fixture = WorkspaceFixture::new();
    std::fs::create_dir(fixture.path("sub")).unwrap();
    fixture.create_symlink("link", "..");
    for refused in refusals_while_swapping(&fixture, "sub", "link", "sub/secret") {
        assert!(refused.0.contains("leads out of the workspace"), "{refused}");
    }
    fixture.assert_outside_unchanged();
}

#[test]
fn a_file_swapped_for_a_folder_is_not_replaced() {
    let fixture = WorkspaceFixture::new();
    std::fs::create_dir(fixture.path("folder")).unwrap();
    fixture.write_file("file", "old");
    for refused in refusals_while_swapping(&fixture, "file", "folder", "file") {
        assert!(refused.0.contains("is not a file") || refused.0.contains("Is a directory"), "{refused}");
    }
    // The temporary file of a failed replacement is gone.
    assert_eq!(fixture.list_names("."), ["file", "folder"]);
}

#[test]
fn a_place_stays_in_its_folder() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("sub/notes", "old");
    let location = fixture.workspace.locate("sub/notes").unwrap();
    std::fs::rename(fixture.path("sub"), fixture.path("moved")).unwrap();
    fixture.create_symlink("sub", "..");
    location.replace("new").unwrap();
    assert_eq!(fixture.read_file("moved/notes"), "new");
    fixture.assert_outside_unchanged();
}

#[test]
fn only_files_are_replaced() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("folder/kept", "");
    fixture.create_fifo("pipe");
    fixture.write_file("file", "");
    fixture.create_symlink("link", "file");
    fixture.create_symlink("dangling", "../new");
    let _socket = UnixListener::bind(fixture.path("socket")).unwrap();
    let before = fixture.list_names(".");
    for (path, why) in [
        ("folder", "is not a file"),
        ("pipe", "is not a file"),
        ("socket", "is not a file"),
        ("link", "is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("file/new", "Not a directory"),
        ("pipe/new", "Not a directory"),
        ("dangling/new", "leads out of the workspace"),
        ("", "does not name a file"),
        (".", "does not name a file"),
        ("folder/", "does not name a file"),
        ("folder/..", "does not name a file"),
        ("a\0b", "Invalid argument"),
        (&"n".repeat(256), "File name too long"),
        (&"n/".repeat(3_000), "does not name a file"),
        (&"n/n".repeat(3_000), "File name too long"),
    ] {
        let refused = write(&fixture.workspace, path, "x").unwrap_err();
        assert!(refused.0.contains(why), "{path}: {refused}");
        assert!(fixture.workspace.locate(path).and_then(|location| location.read(99)).is_err(), "{path}");
    }
    assert_eq!(fixture.list_names("."), before);
    fixture.assert_outside_unchanged();
}

#[test]
fn a_device_is_neither_read_nor_replaced() {
    let devices = Workspace::new(Path::new("/dev"));
    let location = devices.locate("null").unwrap();
    assert!(location.read(99).unwrap_err().0.contains("is not a file"));
    assert!(location.replace("x").unwrap_err().0.contains("is not a file"));
}

#[test]
fn a_long_name_and_a_long_way_are_written() {
    let fixture = WorkspaceFixture::new();
    let name = "n".repeat(255);
    write(&fixture.workspace, &name, "long").unwrap();
    assert_eq!(fixture.read_file(&name), "long");
    let deep = format!("{}n", "d/".repeat(200));
    write(&fixture.workspace, &deep, "deep").unwrap();
    assert_eq!(fixture.workspace.locate(&deep).unwrap().read(99), Ok("deep".into()));
}

#[test]
fn who_reads_the_old_file_keeps_it() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("notes", "old");
    let mut reader = File::open(fixture.path("notes")).unwrap();
    write(&fixture.workspace, "notes", "new").unwrap();
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!((read.as_str(), fixture.read_file("notes").as_str()), ("old", "new"));
    assert_eq!(fixture.list_names("."), ["notes"]);
}

#[test]
fn a_replaced_file_keeps_its_mode() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("script", "old");
    for (before, after) in [(0o754, 0o754), (0o600, 0o600), (0o4777, 0o777)] {
        std::fs::set_permissions(fixture.path("script"), Permissions::from_mode(before)).unwrap();
        write(&fixture.workspace, "script", "new").unwrap();
        let mode = std::fs::metadata(fixture.path("script")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, after);
    }
}

#[test]
fn only_short_text_is_read() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("ten", "0123456789");
    fixture.write_file("latin", b"gr\xfcn");
    let read = |path, max| fixture.workspace.locate(path).unwrap().read(max);
    assert_eq!(read("ten", 10), Ok("0123456789".into()));
    assert!(read("ten", 9).unwrap_err().0.contains("is over 9 bytes"));
    assert!(read("latin", 10).unwrap_err().0.contains("is not UTF-8 text"));
    assert!(read("nothing", 10).unwrap_err().0.contains("no such file"));
    fixture.create_symlink("link", "ten");
    assert!(read("link", 10).unwrap_err().0.contains("is a symbolic link"));
}
