//! Tests of the user's files on the real file system: what is replaced whole, what is bounded, and that
//! nothing outside the workspace is reached.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use tempfile::TempDir;
use testkit::with_deadline;

use super::*;

const LIMITS: FileLimits = FileLimits { quota_bytes: Some(1 << 20), max_file_bytes: 600 << 10 };

/// A workspace with a brain beside it, and a file outside that must not change.
struct Fixture {
    files: UserFiles,
    folder: TempDir,
}

fn at(hours: u64) -> Timestamp {
    Timestamp::from_unix_ms(i64::try_from(Duration::from_hours(hours).as_millis()).unwrap())
}

fn path(encoded: &str) -> FilePath {
    FilePath::parse(encoded).unwrap()
}

fn new_file(encoded: &str) -> NewUpload {
    NewUpload { path: path(encoded), length: None, condition: Condition::default() }
}

fn only_new() -> Condition {
    Condition { if_none_match: Some("*".into()), ..Condition::default() }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        std::fs::write(folder.path().join("secret"), "outside").unwrap();
        Self { files: open(&folder, at(0)), folder }
    }

    fn in_workspace(&self, path: &str) -> PathBuf {
        self.folder.path().join("workspace").join(path)
    }

    async fn put(&self, encoded: &str, content: impl Into<Bytes>) -> Result<WrittenFile, FileError> {
        self.put_with(new_file(encoded), content).await
    }

    async fn put_with(&self, new: NewUpload, content: impl Into<Bytes>) -> Result<WrittenFile, FileError> {
        let mut upload = self.files.begin(new, at(0)).await?;
        upload.write(content.into()).await?;
        upload.commit().await
    }

    async fn open(&self, encoded: &str) -> Result<OpenFile, FileError> {
        match self.files.find(path(encoded)).await? {
            Found::File(file) => Ok(file),
            Found::Folder(_) => panic!("{encoded} is a folder"),
        }
    }

    async fn folder(&self, encoded: &str) -> OpenFolder {
        match self.files.find(path(encoded)).await.unwrap() {
            Found::Folder(folder) => folder,
            Found::File(_) => panic!("{encoded} is a file"),
        }
    }

    async fn read(&self, encoded: &str) -> Result<Vec<u8>, FileError> {
        let file = self.open(encoded).await?;
        let size = file.info().size;
        Ok(file.read(0..size).try_collect::<Vec<_>>().await?.concat())
    }

    /// Waits until nothing is left of unfinished uploads, apart from those that can be resumed.
    async fn assert_nothing_staged(&self) {
        let staged = || {
            let names = std::fs::read_dir(self.folder.path().join("brain.sqlite.uploads"));
            names.into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        with_deadline(async {
            while !staged().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    fn assert_outside_unchanged(&self) {
        assert_eq!(std::fs::read_to_string(self.folder.path().join("secret")).unwrap(), "outside");
    }
}

fn open(folder: &TempDir, now: Timestamp) -> UserFiles {
    let workspace = folder.path().join("workspace");
    UserFiles::open(&workspace, &folder.path().join("brain.sqlite"), WorkspaceLock::default(), LIMITS, now)
}

#[tokio::test]
async fn a_file_is_replaced_whole_and_keeps_its_permissions() {
    let fixture = Fixture::new();
    let first = fixture.put("a/b/notes.txt", "old").await.unwrap();
    assert!(first.is_new);
    let file = fixture.in_workspace("a/b/notes.txt");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).unwrap();
    let second = fixture.put("a/b/notes.txt", "new").await.unwrap();
    assert!(!second.is_new && second.info.etag != first.info.etag);
    assert_eq!(fixture.read("a/b/notes.txt").await.unwrap(), b"new");
    assert_eq!(fixture.open("a/b/notes.txt").await.unwrap().info(), &second.info);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o751);
    fixture.assert_nothing_staged().await;
}

#[tokio::test]
async fn an_upload_that_is_given_up_changes_nothing() {
    let fixture = Fixture::new();
    fixture.put("a", "old").await.unwrap();
    let mut upload = fixture.files.begin(new_file("a"), at(0)).await.unwrap();
    upload.write(vec![1; 300_000].into()).await.unwrap();
    drop(upload);
    fixture.assert_nothing_staged().await;
    let short = NewUpload { length: Some(10), ..new_file("new/a") };
    assert!(matches!(fixture.put_with(short, "short").await, Err(FileError::InvalidUpload(_))));
    assert_eq!(fixture.read("a").await.unwrap(), b"old");
    assert!(!fixture.in_workspace("new").exists());
    fixture.assert_nothing_staged().await;
}

#[tokio::test]
async fn of_uploads_at_the_same_time_one_remains_whole() {
    let fixture = Fixture::new();
    let puts = (0..8_u8).map(|number| fixture.put("a", vec![number; 60_000]));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
    let content = fixture.read("a").await.unwrap();
    assert!(content.len() == 60_000 && content.iter().all(|byte| *byte == content[0]));
    let new = || NewUpload { condition: only_new(), ..new_file("once") };
    let puts = (0..8_u8).map(|number| fixture.put_with(new(), vec![number; 1_000]));
    let puts = futures::future::join_all(puts).await;
    assert_eq!(puts.iter().filter(|put| put.is_ok()).count(), 1);
    assert!(puts.iter().all(|put| matches!(put, Ok(_) | Err(FileError::PreconditionFailed))));
    fixture.assert_nothing_staged().await;
}

#[tokio::test]
async fn of_many_uploads_only_those_that_fit_together_are_accepted() {
    let fixture = Fixture::new();
    fixture.put("there", vec![0; 48 << 10]).await.unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("file-{number}")).collect();
    let puts = names.iter().map(|name| {
        let new = NewUpload { length: Some(200 << 10), ..new_file(name) };
        fixture.put_with(new, vec![0; 200 << 10])
    });
    let puts = futures::future::join_all(puts).await;
    assert_eq!(puts.iter().filter(|put| put.is_ok()).count(), 4);
    let accepted = names.iter().zip(&puts).find(|(_, put)| put.is_ok()).unwrap().0;
    let refused = puts.iter().find_map(|put| put.as_ref().err()).unwrap().to_string();
    assert!(
        refused.contains("of 1048576 bytes") && refused.contains("ENGINE_WORKSPACE_QUOTA_MB"),
        "{refused}"
    );
    // Also without a declared length, and a file may be replaced although two of it would not fit.
    assert!(matches!(fixture.put("more", vec![0; 300 << 10]).await, Err(FileError::StorageFull(_))));
    fixture.put(accepted, vec![1; 200 << 10]).await.unwrap();
    fixture.assert_nothing_staged().await;
    fixture.files.remove(path("there"), false, Condition::default()).await.unwrap();
    fixture.put("small", vec![0; 100 << 10]).await.unwrap();
    let large = fixture.put("large", vec![0; 700 << 10]).await.unwrap_err().to_string();
    assert!(large.contains("ENGINE_WORKSPACE_FILE_MB"), "{large}");
}

#[tokio::test]
async fn an_upload_is_resumed_after_a_restart_and_expires() {
    let fixture = Fixture::new();
    let new = NewUpload { length: Some(10), ..new_file("%E6%97%A5/a") };
    let mut upload = fixture.files.begin_resumable(new, at(0)).await.unwrap();
    let id = upload.id();
    upload.write(Bytes::from_static(b"01234")).await.unwrap();
    assert_eq!(upload.suspend().await.unwrap(), 5);
    // What a kill leaves behind.
    let staging = fixture.folder.path().join("brain.sqlite.uploads");
    std::fs::write(staging.join(format!("{}.tmp", Uuid::now_v7().simple())), "left").unwrap();
    std::fs::write(staging.join(format!("{}.part", Uuid::now_v7().simple())), "left").unwrap();
    std::fs::create_dir_all(staging.join("1.trash/deep/deeper")).unwrap();
    // The data became a file, and only the record is left.
    let record = staging.join(format!("{}.json", id.simple()));
    std::fs::copy(&record, staging.join(format!("{}.json", Uuid::now_v7().simple()))).unwrap();
    let files = open(&fixture.folder, at(1));
    let status = files.upload_status(id, at(23)).await.unwrap();
    assert_eq!(status, UploadStatus { offset: 5, length: Some(10) });
    assert!(matches!(files.resume(id, 4, at(2)).await, Err(FileError::OffsetMismatch { offset: 5 })));
    let mut upload = files.resume(id, 5, at(2)).await.unwrap();
    assert!(matches!(upload.write(Bytes::from_static(b"too long")).await, Err(FileError::InvalidUpload(_))));
    upload.write(Bytes::from_static(b"56789")).await.unwrap();
    let written = upload.commit().await.unwrap();
    assert_eq!((written.path.encoded().as_str(), written.is_new), ("%E6%97%A5/a", true));
    assert_eq!(fixture.read("%E6%97%A5/a").await.unwrap(), b"0123456789");
    assert!(matches!(files.upload_status(id, at(2)).await, Err(FileError::UploadNotFound)));

    let id = files.begin_resumable(new_file("b"), at(2)).await.unwrap().id();
    files.remove_expired_uploads(at(25)).await.unwrap();
    files.upload_status(id, at(25)).await.unwrap();
    assert!(matches!(files.upload_status(id, at(26)).await, Err(FileError::UploadNotFound)));
    files.remove_expired_uploads(at(26)).await.unwrap();
    fixture.assert_nothing_staged().await;
}

#[tokio::test]
async fn whoever_continues_an_upload_takes_it_over() {
    let fixture = Fixture::new();
    let mut first = fixture.files.begin_resumable(new_file("a"), at(0)).await.unwrap();
    let (id, superseded) = (first.id(), first.superseded());
    first.write(Bytes::from_static(b"01")).await.unwrap();
    let second = fixture.files.resume(id, 2, at(0));
    let give_way = async {
        superseded.cancelled().await;
        first.suspend().await.unwrap()
    };
    let (second, offset) = with_deadline(futures::future::join(second, give_way)).await;
    let mut second = second.unwrap();
    assert_eq!((offset, second.received()), (2, 2));
    second.write(Bytes::from_static(b"23")).await.unwrap();
    second.commit().await.unwrap();
    assert_eq!(fixture.read("a").await.unwrap(), b"0123");
    assert!(matches!(fixture.files.cancel_upload(id, at(0)).await, Err(FileError::UploadNotFound)));
}

#[tokio::test]
async fn unfinished_uploads_are_bounded() {
    let fixture = Fixture::new();
    let mut ids = Vec::new();
    for _ in 0..staging::MAX_UPLOADS {
        let upload = fixture.files.begin_resumable(new_file("a"), at(0)).await.unwrap();
        ids.push(upload.id());
        upload.suspend().await.unwrap();
    }
    // Whoever asks for the state comes after what is recorded of the upload.
    for id in &ids {
        fixture.files.upload_status(*id, at(0)).await.unwrap();
    }
    let refused = fixture.files.begin_resumable(new_file("a"), at(0)).await.err().unwrap();
    assert!(refused.to_string().contains("32 unfinished uploads"), "{refused}");
    for id in ids {
        fixture.files.cancel_upload(id, at(0)).await.unwrap();
    }
    fixture.assert_nothing_staged().await;
    let too_large = NewUpload { length: Some(601 << 10), ..new_file("a") };
    assert!(matches!(fixture.files.begin_resumable(too_large, at(0)).await, Err(FileError::TooLarge(_))));
    fixture.assert_nothing_staged().await;
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_cut_off() {
    let fixture = Fixture::new();
    let file = fixture.in_workspace("a");
    std::fs::write(&file, vec![1; 2 << 20]).unwrap();
    for change in [
        |file: &Path| std::fs::write(file, vec![2; 2 << 20]).unwrap(),
        |file: &Path| File::options().write(true).open(file).unwrap().set_len(1 << 20).unwrap(),
        |file: &Path| File::options().write(true).open(file).unwrap().set_len(3 << 20).unwrap(),
    ] {
        let opened = fixture.open("a").await.unwrap();
        let size = opened.info().size;
        let mut content = std::pin::pin!(opened.read(0..size));
        assert!(content.next().await.unwrap().is_ok());
        // Beyond the resolution of the file system's times.
        tokio::time::sleep(Duration::from_millis(20)).await;
        change(&file);
        let rest: Vec<_> = content.collect().await;
        assert!(rest.iter().any(Result::is_err));
    }
    // A replaced or deleted file is read to its end.
    std::fs::write(&file, vec![1; 550 << 10]).unwrap();
    let opened = fixture.open("a").await.unwrap();
    let mut content = std::pin::pin!(opened.read(0..550 << 10));
    let first = content.next().await.unwrap().unwrap();
    fixture.put("a", "new").await.unwrap();
    fixture.files.remove(path("a"), false, Condition::default()).await.unwrap();
    let rest = content.try_collect::<Vec<_>>().await.unwrap().concat();
    assert!(first.len() + rest.len() == 550 << 10 && rest.iter().all(|byte| *byte == 1));
}

#[tokio::test]
async fn a_folder_is_listed_in_pages() {
    let fixture = Fixture::new();
    let not_utf8 = OsString::from_vec(vec![b'z', 0xff]);
    let mut names: Vec<OsString> =
        ["a b", "é", "e\u{301}", "日本語.txt", "עברית", "🦦", ".hidden"].map(OsString::from).to_vec();
    names.push(not_utf8.clone());
    for name in &names {
        std::fs::write(fixture.in_workspace("").join(name), "x").unwrap();
    }
    std::fs::write(fixture.in_workspace(".writing-1.tmp"), "hidden").unwrap();
    names.sort();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = fixture.folder("").await.list(after, 3).await.unwrap();
        assert!(page.entries.len() <= 3);
        listed.extend(page.entries.iter().map(|entry| entry.name.clone()));
        after = listed.last().cloned();
        if !page.has_more {
            break;
        }
    }
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(fixture.read(&encode(name)).await.unwrap(), b"x", "{name:?}");
    }
    assert_eq!(fixture.folder("").await.list(Some(not_utf8), 9).await.unwrap().entries.len(), 4);
}

#[tokio::test]
async fn an_archive_has_the_files_and_no_links() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.in_workspace("d/sub/empty")).unwrap();
    let large: Vec<u8> = (0..900_000_u32).flat_map(u32::to_le_bytes).collect();
    for (name, content) in [
        ("d/a.txt", b"alpha".as_slice()),
        ("d/sub/日本 🦦", b""),
        ("d/large", &large),
        ("d/..\\up", b"no way"),
    ] {
        std::fs::write(fixture.in_workspace(name), content).unwrap();
    }
    std::fs::set_permissions(fixture.in_workspace("d/a.txt"), std::fs::Permissions::from_mode(0o750))
        .unwrap();
    symlink("../../secret", fixture.in_workspace("d/link")).unwrap();
    symlink("../..", fixture.in_workspace("d/folder-link")).unwrap();
    rustix::fs::mknodat(CWD, fixture.in_workspace("d/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    let archive = fixture.folder("d").await.archive().await.unwrap();
    let bytes = archive.try_collect::<Vec<_>>().await.unwrap().concat();
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let mut found = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let name = entry.name().unwrap().into_owned();
        if name == "a.txt" {
            assert_eq!(entry.unix_mode().unwrap() & 0o777, 0o750);
        }
        found.insert(name, content);
    }
    let expected = [
        ("a.txt", b"alpha".as_slice()),
        ("sub/", b""),
        ("sub/empty/", b""),
        ("sub/日本 🦦", b""),
        ("large", &large),
        ("..%5Cup", b"no way"),
    ];
    assert_eq!(found, expected.map(|(name, content)| (name.to_owned(), content.to_owned())).into());
}

#[tokio::test]
async fn an_archive_is_bounded_and_cut_off_where_a_file_changes() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.in_workspace("d")).unwrap();
    // What cannot be compressed.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    });
    let noise: Vec<u8> = noise.take(3 << 20).collect();
    std::fs::write(fixture.in_workspace("d/noise"), &noise).unwrap();
    let archive = fixture.folder("d").await.archive().await.unwrap();
    let mut archive = std::pin::pin!(archive);
    assert!(archive.next().await.unwrap().is_ok());
    tokio::time::sleep(Duration::from_millis(20)).await;
    std::fs::write(fixture.in_workspace("d/noise"), &noise).unwrap();
    assert!(matches!(archive.collect::<Vec<_>>().await.last(), Some(Err(FileError::Changed))));
    for number in 0..10_000 {
        std::fs::write(fixture.in_workspace(&format!("d/{number}")), "").unwrap();
    }
    assert!(matches!(fixture.folder("d").await.archive().await.err(), Some(FileError::TooLarge(_))));
}

#[tokio::test]
async fn nothing_outside_is_reached() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.in_workspace("sub")).unwrap();
    symlink("../..", fixture.in_workspace("sub/up")).unwrap();
    symlink(fixture.folder.path(), fixture.in_workspace("absolute")).unwrap();
    symlink("../secret", fixture.in_workspace("file")).unwrap();
    for encoded in ["sub/up/secret", "absolute/secret", "file", "absolute/new", "sub/up/new/new"] {
        let refused = fixture.files.find(path(encoded)).await.err().unwrap();
        assert!(matches!(refused, FileError::NotAccessible(_)), "{encoded}: {refused}");
        let refused = fixture.put(encoded, "x").await.unwrap_err();
        assert!(
            matches!(refused, FileError::NotAccessible(_) | FileError::Conflict(_)),
            "{encoded}: {refused}"
        );
        if encoded != "file" {
            fixture.files.remove(path(encoded), true, Condition::default()).await.unwrap_err();
        }
    }
    // A link itself can be deleted; its target stays.
    for link in ["file", "absolute", "sub"] {
        fixture.files.remove(path(link), true, Condition::default()).await.unwrap();
    }
    fixture.assert_outside_unchanged();
    fixture.assert_nothing_staged().await;
    let mut names: Vec<_> =
        std::fs::read_dir(&fixture.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["brain.sqlite.uploads", "secret", "workspace"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_swapped_for_a_link_leads_nowhere() {
    let fixture = Fixture::new();
    let (folder, link) = (fixture.in_workspace("sub"), fixture.in_workspace("link"));
    std::fs::create_dir(&folder).unwrap();
    symlink("..", &link).unwrap();
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let done = std::sync::Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::fs::renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE);
            }
        }
    });
    for _ in 0..100 {
        let _ = fixture.put("sub/secret", "inside").await;
        let _ = fixture.files.remove(path("sub/secret"), true, Condition::default()).await;
        if let Ok(content) = fixture.read("sub/secret").await {
            assert_eq!(content, b"inside");
        }
    }
    done.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    fixture.assert_outside_unchanged();
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.in_workspace("folder/inner")).unwrap();
    rustix::fs::mknodat(CWD, fixture.in_workspace("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    let _socket = UnixListener::bind(fixture.in_workspace("socket")).unwrap();
    std::fs::write(fixture.in_workspace("file"), "x").unwrap();
    for name in ["pipe", "socket"] {
        let refused = fixture.files.find(path(name)).await.err().unwrap();
        assert!(matches!(refused, FileError::NotAccessible(_)), "{name}: {refused}");
        assert!(matches!(fixture.put(name, "x").await, Err(FileError::Conflict(_))), "{name}");
    }
    assert!(matches!(fixture.put("folder", "x").await, Err(FileError::Conflict(_))));
    assert!(matches!(fixture.put("file/new", "x").await, Err(FileError::Conflict(_))));
    assert!(matches!(fixture.put("", "x").await, Err(FileError::Conflict(_))));
    assert!(matches!(fixture.files.find(path("file/new")).await, Err(FileError::NotFound)));
    assert!(matches!(fixture.put(&"n".repeat(256), "x").await, Err(FileError::InvalidPath(_))));
    let remove =
        async |encoded, recursive| fixture.files.remove(path(encoded), recursive, Condition::default()).await;
    assert!(matches!(remove("folder", false).await, Err(FileError::Conflict(_))));
    assert!(matches!(remove("", true).await, Err(FileError::Conflict(_))));
    assert!(matches!(remove("missing", true).await, Err(FileError::NotFound)));
    remove("folder/inner", false).await.unwrap();
    for name in ["folder", "pipe", "socket", "file"] {
        remove(name, true).await.unwrap();
    }
    fixture.assert_nothing_staged().await;
    assert_eq!(fixture.folder("").await.list(None, 10).await.unwrap(), FolderPage::default());
}

#[tokio::test]
async fn transfers_are_bounded() {
    let fixture = Fixture::new();
    let mut held = Vec::new();
    for number in 0..MAX_TRANSFERS {
        held.push(fixture.files.begin(new_file(&number.to_string()), at(0)).await.unwrap());
    }
    assert!(matches!(fixture.put("more", "x").await, Err(FileError::Busy)));
    let downloads: Vec<_> = (0..MAX_TRANSFERS).map(|_| fixture.files.permit_download().unwrap()).collect();
    assert!(matches!(fixture.files.permit_download(), Err(FileError::Busy)));
    // Neither is in the way of the other, nor of listings and deletions.
    fixture.folder("").await.list(None, 10).await.unwrap();
    std::fs::create_dir(fixture.in_workspace("folder")).unwrap();
    fixture.files.remove(path("folder"), true, Condition::default()).await.unwrap();
    drop((held, downloads));
    with_deadline(async {
        while fixture.put("more", "x").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The engine was killed after the data got the permissions of the file to be replaced, and before the rename.
#[tokio::test]
async fn an_upload_that_may_not_be_written_any_more_is_resumed() {
    let fixture = Fixture::new();
    let mut upload = fixture.files.begin_resumable(new_file("a"), at(0)).await.unwrap();
    upload.write(Bytes::from_static(b"one")).await.unwrap();
    let id = upload.id();
    upload.suspend().await.unwrap();
    let data = fixture.folder.path().join(format!("brain.sqlite.uploads/{}.part", id.simple()));
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o444)).unwrap();
    let files = open(&fixture.folder, at(1));
    let mut resumed = files.resume(id, 3, at(1)).await.unwrap();
    resumed.write(Bytes::from_static(b" two")).await.unwrap();
    resumed.commit().await.unwrap();
    assert_eq!(fixture.read("a").await.unwrap(), b"one two");
}

/// Clients forget what they began.
#[tokio::test]
async fn a_forgotten_upload_gives_way() {
    let fixture = Fixture::new();
    let mut ids = Vec::new();
    for number in 0..staging::MAX_UPLOADS {
        let upload = fixture.files.begin_resumable(new_file(&number.to_string()), at(0)).await.unwrap();
        ids.push(upload.id());
        upload.suspend().await.unwrap();
    }
    for id in &ids {
        fixture.files.upload_status(*id, at(0)).await.unwrap();
    }
    let new = || fixture.files.begin_resumable(new_file("new"), at(0));
    assert!(matches!(new().await, Err(FileError::StorageFull(_))));
    let age = |id: Uuid, minutes| {
        let data = fixture.folder.path().join(format!("brain.sqlite.uploads/{}.part", id.simple()));
        let data = File::options().write(true).open(data).unwrap();
        data.set_modified(std::time::SystemTime::now() - Duration::from_mins(minutes)).unwrap();
    };
    let [first, second, third, ..] = *ids else { unreachable!() };
    age(first, 30);
    age(second, 20);
    age(third, 9);
    // The one that was forgotten first is being continued.
    let continued = fixture.files.resume(first, 0, at(0)).await.unwrap();
    drop(new().await.unwrap());
    assert!(matches!(fixture.files.upload_status(second, at(0)).await, Err(FileError::UploadNotFound)));
    drop(continued);
    fixture.files.upload_status(third, at(0)).await.unwrap();
}

#[tokio::test]
async fn an_archive_needs_every_file_and_says_so_at_once() {
    let fixture = Fixture::new();
    fixture.put("folder/a", "a").await.unwrap();
    let unreadable = fixture.in_workspace("folder/a");
    std::fs::set_permissions(&unreadable, std::fs::Permissions::from_mode(0o000)).unwrap();
    let archive = fixture.folder("folder").await.archive().await;
    // The superuser may read everything.
    if std::fs::read(&unreadable).is_ok() {
        assert!(archive.is_ok());
    } else {
        assert!(matches!(archive.err(), Some(FileError::NotAccessible(_))));
    }
}

/// A program does not wait for its turn.
#[tokio::test]
async fn a_file_that_a_program_made_meanwhile_is_not_replaced() {
    let fixture = Fixture::new();
    let new = NewUpload { condition: only_new(), ..new_file("folder/a") };
    let made = Arc::new(AtomicBool::new(false));
    let program = {
        let (made, path) = (Arc::clone(&made), fixture.in_workspace("folder/a"));
        std::thread::spawn(move || {
            while !made.load(Ordering::Acquire) {
                if std::fs::File::create_new(&path)
                    .is_ok_and(|mut file| std::io::Write::write_all(&mut file, b"program's").is_ok())
                {
                    return true;
                }
            }
            false
        })
    };
    std::fs::create_dir(fixture.in_workspace("folder")).unwrap();
    let mut refused = 0;
    let written = fixture.put_with(new, "user's").await;
    made.store(true, Ordering::Release);
    let is_programs = program.join().unwrap();
    if let Err(error) = written {
        assert!(matches!(error, FileError::PreconditionFailed), "{error}");
        refused += 1;
    }
    assert_eq!(refused == 1, is_programs);
    let content = fixture.read("folder/a").await.unwrap();
    assert_eq!(content, if is_programs { b"program's".to_vec() } else { b"user's".to_vec() });
}
