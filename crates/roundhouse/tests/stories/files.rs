//! The user's files: uploads that survive kills whole or not at all, downloads, names in every script, and
//! that nothing leads out of the workspace.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use reqwest::{Body, Method};
use serde_json::{Value, json};

use crate::support::http::{send, send_raw};
use crate::support::process_memory::{is_large_run, memory_and_peak_mib, reset_peak, with_immediate_purge};
use crate::support::{
    Disk, Engine, Fleet, HttpResponse, Product, QUICK_SCRIPT, StandaloneEngine, eventually, is_installed,
    skip, with_deadline,
};

pub(crate) const UPLOADED_FIELDS: &str = "path:text size:int modified:time etag:text";

pub(crate) async fn put(engine: &Engine, path: &str, content: impl Into<Body>) -> HttpResponse {
    send(engine.request(Method::PUT, path).body(content)).await
}

pub(crate) async fn content(engine: &Engine, path: &str) -> Bytes {
    let response = with_deadline("a download", engine.request(Method::GET, path).send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    with_deadline("a download", response.bytes()).await.unwrap()
}

/// A body that sends `first` and then nothing until it is dropped.
pub(crate) fn stalling_body(first: impl Into<Bytes>) -> Body {
    let first = futures::stream::iter([Ok::<_, std::io::Error>(first.into())]);
    Body::wrap_stream(first.chain(futures::stream::pending()))
}

/// A body of `mebibytes` without a declared length.
fn streamed_body(mebibytes: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    Body::wrap_stream(futures::stream::iter(
        (0..mebibytes).map(move |_| Ok::<_, std::io::Error>(piece.clone())),
    ))
}

pub(crate) fn staged(setup: &StandaloneEngine) -> Vec<PathBuf> {
    let entries = fs::read_dir(setup.test_env.path().join("brain.sqlite.uploads"));
    entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

pub(crate) async fn assert_nothing_staged(setup: &StandaloneEngine) {
    eventually("nothing is left of uploads", async || staged(setup).is_empty().then_some(())).await;
}

#[tokio::test]
async fn names_in_every_script_are_kept_as_they_are() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let names = ["日本語.txt", "שלום עולם", "🦦👩‍👩‍👧", "é", "e\u{301}", "a\\b?c#d&e=%41", "..a", "مرحبا.md"];
    for name in names {
        let mut url = reqwest::Url::parse(&engine.url).unwrap();
        url.path_segments_mut().unwrap().extend(["workspace", "Ordner ä", name]);
        let answer = put(&engine, url.path(), name.to_owned()).await;
        assert_eq!(answer.status, 201, "{name}: {}", answer.body);
        assert_eq!(fs::read_to_string(setup.workspace().join("Ordner ä").join(name)).unwrap(), name);
    }
    let listed = engine.get("/workspace/Ordner%20%C3%A4").await.assert_ok("entries:array next:null");
    let entries = listed["entries"].as_array().unwrap();
    assert_eq!(entries.len(), names.len());
    for entry in entries {
        let name = entry["name"].as_str().unwrap();
        assert!(names.contains(&name), "{name}");
        let path = format!("/workspace/{}", entry["path"].as_str().unwrap());
        assert_eq!(content(&engine, &path).await, name);
    }
    // Both are one to a reader, and two to the file system.
    assert_eq!(content(&engine, "/workspace/Ordner%20%C3%A4/e%CC%81").await, "e\u{301}");
    // What an agent wrote is there too.
    engine.delete("/workspace/Ordner%20%C3%A4?recursive=true").await.assert_ok("status:text");
    assert_eq!(fs::read_dir(setup.workspace()).unwrap().count(), 0);
    assert_nothing_staged(&setup).await;
}

#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    put(&engine, "/workspace/inside", "x").await.assert_fields_of(201, UPLOADED_FIELDS);
    let brain = fs::read(setup.brain()).unwrap();
    symlink("../brain.sqlite", setup.workspace().join("link")).unwrap();
    symlink("..", setup.workspace().join("up")).unwrap();
    symlink("/etc", setup.workspace().join("etc")).unwrap();
    let key = [("x-engine-key", engine.key.as_str())];
    for path in [
        "../brain.sqlite",
        "%2e%2e/brain.sqlite",
        "%2E%2E%2Fbrain.sqlite",
        "..%2fbrain.sqlite",
        "a/../../brain.sqlite",
        "./inside",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "inside%00.txt",
        "link",
        "up/brain.sqlite",
        "etc/passwd",
        ".writing-0.tmp",
        "%zz",
    ] {
        for head in ["GET", "PUT"] {
            let answer = send_raw(&engine.url, &format!("{head} /workspace/{path}"), &key, b"evil").await;
            let code = answer.body["error"]["code"].as_str().unwrap_or_default().to_owned();
            assert!((400..500).contains(&answer.status), "{head} {path}: {answer:?}");
            let codes = ["INVALID_REQUEST", "FILE_NOT_ACCESSIBLE", "FILE_CONFLICT", "NOT_FOUND"];
            assert!(codes.contains(&code.as_str()), "{head} {path}: {code}");
        }
    }
    for path in ["up/brain.sqlite", "etc/passwd", "%2e%2e/brain.sqlite"] {
        let answer = engine.delete(&format!("/workspace/{path}?recursive=true")).await;
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
    }
    // Programs change nothing of the brain in between, so its main file is as it was.
    assert_eq!(fs::read(setup.brain()).unwrap().len(), brain.len());
    assert!(Path::new("/etc/passwd").is_file());
    engine.delete("/workspace/link").await.assert_ok("status:text");
    assert!(setup.brain().is_file());
    assert_nothing_staged(&setup).await;
}

#[tokio::test]
async fn a_kill_in_mid_upload_leaves_the_file_as_it_was() {
    let setup = StandaloneEngine::new();
    let (program, engine) = setup.start().await;
    put(&engine, "/workspace/a", "old").await.assert_fields_of(201, UPLOADED_FIELDS);
    let request = engine.request(Method::PUT, "/workspace/a").body(stalling_body(vec![b'n'; 1 << 20]));
    let sending = tokio::spawn(request.send());
    eventually("data arrive", async || {
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        staged(&setup).iter().any(|path| size(path) > 0).then_some(())
    })
    .await;
    program.signal_and_wait(rustix::process::Signal::KILL).await;
    sending.await.unwrap().unwrap_err();
    let (_program, engine) = setup.start().await;
    assert_eq!(content(&engine, "/workspace/a").await, "old");
    assert_nothing_staged(&setup).await;
    // A caller who hangs up changes nothing either.
    let request = engine.request(Method::PUT, "/workspace/a").body(stalling_body(vec![b'n'; 1 << 20]));
    let sending = tokio::spawn(request.send());
    eventually("data arrive", async || (!staged(&setup).is_empty()).then_some(())).await;
    sending.abort();
    assert_nothing_staged(&setup).await;
    assert_eq!(content(&engine, "/workspace/a").await, "old");
}

pub(crate) async fn create_upload(engine: &Engine, path: &str, content: &'static str) -> String {
    let request = engine.request(Method::PUT, path).header("upload-complete", "?0").body(content);
    let created = send(request).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(created.header("upload-offset"), Some(&*content.len().to_string()));
    let id = created.body["upload_id"].as_str().unwrap().to_owned();
    assert!(created.header("location").unwrap().ends_with(&format!("../workspace-uploads/{id}")));
    format!("/workspace-uploads/{id}")
}

pub(crate) fn append(engine: &Engine, upload: &str, offset: usize, is_last: bool) -> reqwest::RequestBuilder {
    engine
        .request(Method::PATCH, upload)
        .header("content-type", "application/partial-upload")
        .header("upload-offset", offset)
        .header("upload-complete", if is_last { "?1" } else { "?0" })
}

pub(crate) async fn upload_offset(engine: &Engine, upload: &str) -> usize {
    let status = send(engine.request(Method::HEAD, upload)).await;
    assert_eq!(status.status, 204);
    status.header("upload-offset").unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_large_upload_goes_on_after_kills() {
    let setup = StandaloneEngine::new();
    let (mut program, mut engine) = setup.start().await;
    let upload = create_upload(&engine, "/workspace/deep/large", "").await;
    let whole: Vec<u8> = (0..3_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let mut offset = 0;
    for _ in 0..2 {
        let part = whole[offset..offset + (1 << 20)].to_vec();
        let sending = tokio::spawn(append(&engine, &upload, offset, true).body(stalling_body(part)).send());
        eventually("data arrive", async || {
            let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
            staged(&setup).iter().any(|path| size(path) > u64::try_from(offset).unwrap() + 1000).then_some(())
        })
        .await;
        program.signal_and_wait(rustix::process::Signal::KILL).await;
        sending.await.unwrap().unwrap_err();
        (program, engine) = setup.start().await;
        let reached = upload_offset(&engine, &upload).await;
        assert!(reached > offset, "{reached}");
        offset = reached;
    }
    append(&engine, &upload, 0, true)
        .body("x")
        .send()
        .await
        .map(|answer| assert_eq!(answer.status(), 409))
        .unwrap();
    engine.get("/workspace/deep").await.assert_error(404, "FILE_NOT_FOUND");
    let done = send(append(&engine, &upload, offset, true).body(whole[offset..].to_vec())).await;
    done.assert_fields_of(201, UPLOADED_FIELDS);
    assert!(content(&engine, "/workspace/deep/large").await == whole);
    send(append(&engine, &upload, whole.len(), true)).await.assert_error(404, "UPLOAD_NOT_FOUND");
    assert_nothing_staged(&setup).await;
}

#[tokio::test]
async fn of_many_uploads_only_what_fits_is_stored() {
    let setup = StandaloneEngine::new()
        .with_env("ENGINE_WORKSPACE_QUOTA_MB", "10")
        .with_env("ENGINE_WORKSPACE_FILE_MB", "4");
    let (_program, engine) = setup.start().await;
    let too_large = put(&engine, "/workspace/a", vec![0; (4 << 20) + 1]).await;
    assert!(too_large.assert_error(413, "PAYLOAD_TOO_LARGE").contains("ENGINE_WORKSPACE_FILE_MB"));
    let too_large = put(&engine, "/workspace/a", streamed_body(5)).await;
    too_large.assert_error(413, "PAYLOAD_TOO_LARGE");
    let paths: Vec<String> = (0..12).map(|number| format!("/workspace/{number}")).collect();
    let puts = futures::future::join_all(paths.iter().map(|path| put(&engine, path, streamed_body(3)))).await;
    // Each makes room for 4 MiB, until its end shows how much it needs.
    let stored = puts.iter().filter(|answer| answer.status == 201).count();
    assert!((2..=3).contains(&stored), "{stored}");
    for refused in puts.iter().filter(|answer| answer.status != 201) {
        assert!(refused.assert_error(507, "STORAGE_FULL").contains("of 10485760 bytes"));
    }
    assert_nothing_staged(&setup).await;
    // What programs write counts too, and what is deleted makes room.
    fs::write(setup.workspace().join("by-a-program"), vec![0; (10 - 3 * stored) << 20]).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    put(&engine, "/workspace/b", vec![0; 1 << 20]).await.assert_error(507, "STORAGE_FULL");
    engine.delete("/workspace/by-a-program").await.assert_ok("status:text");
    put(&engine, "/workspace/b", vec![0; 1 << 20]).await.assert_fields_of(201, UPLOADED_FIELDS);
}

#[tokio::test]
async fn a_full_disk_refuses_uploads_and_leaves_nothing_over() {
    let setup = StandaloneEngine::new();
    let folder = setup.test_env.path().join("disk");
    let Some(disk) = Disk::new(folder.clone(), 48) else { return };
    let setup = setup.with_env("SQLITE_DB_PATH", folder.join("brain.sqlite").to_str().unwrap());
    let (_program, engine) = setup.start().await;
    put(&engine, "/workspace/a", "old").await.assert_fields_of(201, UPLOADED_FIELDS);
    for body in [Body::from(vec![0; 64 << 20]), streamed_body(64)] {
        put(&engine, "/workspace/a", body).await.assert_error(507, "STORAGE_FULL");
    }
    let staging = folder.join("brain.sqlite.uploads");
    let nothing_is_left = async || {
        eventually("nothing is left", async || (fs::read_dir(&staging).unwrap().count() == 0).then_some(()))
            .await;
    };
    nothing_is_left().await;
    // The room of a deleted file is free a moment after its name.
    eventually("the room is free", async || {
        let disk = rustix::fs::statvfs(&folder).unwrap();
        (disk.f_bavail * disk.f_frsize > 40 << 20).then_some(())
    })
    .await;
    disk.fill();
    put(&engine, "/workspace/a", "new").await.assert_error(507, "STORAGE_FULL");
    disk.free_space();
    assert_eq!(content(&engine, "/workspace/a").await, "old");
    nothing_is_left().await;
    assert_eq!(put(&engine, "/workspace/a", "new").await.status, 200);
    drop(disk);
}

#[tokio::test]
async fn an_ordinary_users_engine_respects_permissions() {
    if !rustix::process::getuid().is_root() {
        skip("root's rights, to become an ordinary user");
        return;
    }
    if !is_installed("setpriv") || !is_installed("chown") {
        return;
    }
    let setup = StandaloneEngine::new();
    let home = setup.test_env.path().to_owned();
    fs::copy(crate::support::test_env::BINARY, home.join("roundhouse")).unwrap();
    let starter = home.join("starter");
    let line = format!(
        "#!/bin/sh\nchown -R 65534:65534 '{home}'\nexec setpriv --reuid=65534 --regid=65534 --clear-groups '{home}/roundhouse' \"$@\"\n",
        home = home.display()
    );
    fs::write(&starter, line).unwrap();
    fs::set_permissions(&starter, fs::Permissions::from_mode(0o755)).unwrap();
    let setup = setup.with_program(starter);
    let (_program, engine) = setup.start().await;
    for path in ["/workspace/locked/a", "/workspace/tree/go/pkg/a", "/workspace/secret"] {
        put(&engine, path, "x").await.assert_fields_of(201, UPLOADED_FIELDS);
    }
    let mode = |path: &str, mode| {
        fs::set_permissions(setup.workspace().join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("locked", 0o555);
    mode("secret", 0);
    put(&engine, "/workspace/locked/a", "y").await.assert_error(403, "FILE_NOT_ACCESSIBLE");
    put(&engine, "/workspace/locked/new/b", "y").await.assert_error(403, "FILE_NOT_ACCESSIBLE");
    engine.delete("/workspace/locked/a").await.assert_error(403, "FILE_NOT_ACCESSIBLE");
    engine.get("/workspace/secret").await.assert_error(403, "FILE_NOT_ACCESSIBLE");
    assert_eq!(content(&engine, "/workspace/locked/a").await, "x");
    mode("tree/go/pkg/a", 0o444);
    mode("tree/go/pkg", 0o555);
    mode("tree/go", 0o555);
    engine.delete("/workspace/tree?recursive=true").await.assert_ok("status:text");
    assert_nothing_staged(&setup).await;
}

#[tokio::test]
async fn large_files_take_little_memory() {
    let setup = with_immediate_purge(StandaloneEngine::new());
    let (program, engine) = setup.start().await;
    let mebibytes = if is_large_run() { 1_024 } else { 128 };
    // The first transfer starts threads.
    put(&engine, "/workspace/a", "x").await.assert_fields_of(201, UPLOADED_FIELDS);
    let before = reset_peak(&program);
    assert_eq!(put(&engine, "/workspace/a", streamed_body(mebibytes)).await.status, 200);
    let response = engine.request(Method::GET, "/workspace/a").send().await.unwrap();
    let sizes = response.bytes_stream().map(|piece| piece.unwrap().len());
    let size: usize = with_deadline("the download", sizes.fold(0, async |sum, size| sum + size)).await;
    assert_eq!(size, mebibytes << 20);
    let response = engine.request(Method::GET, "/workspace?format=zip").send().await.unwrap();
    let sizes = response.bytes_stream().map(|piece| piece.unwrap().len());
    assert!(with_deadline("the archive", sizes.fold(0, async |sum, size| sum + size)).await > 1_000);
    let (_, peak) = memory_and_peak_mib(&program);
    assert!(peak <= before + 32, "{before} MiB before, {peak} MiB at most");
}

#[tokio::test]
async fn a_file_that_a_program_changes_is_cut_off() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    put(&engine, "/workspace/a", streamed_body(32)).await.assert_fields_of(201, UPLOADED_FIELDS);
    let response = engine.request(Method::GET, "/workspace/a").send().await.unwrap();
    assert_eq!(response.content_length(), Some(32 << 20));
    let mut pieces = response.bytes_stream();
    pieces.next().await.unwrap().unwrap();
    fs::File::options().write(true).open(setup.workspace().join("a")).unwrap().set_len(1 << 20).unwrap();
    let rest: Vec<_> = with_deadline("the rest", pieces.collect()).await;
    assert!(rest.iter().any(Result::is_err));
}

#[tokio::test]
async fn files_pass_through_the_orchestrator() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let request = |method: Method, path: &str| product.request(method, &Product::proxy_path("ada", path));
    // More than any other body may have.
    let whole: Vec<u8> = (0..10_u32 << 20).flat_map(u32::to_le_bytes).collect();
    let created = send(request(Method::PUT, "/workspace/a/%E6%97%A5.bin").body(whole.clone())).await;
    let etag = created.header("etag").unwrap().to_owned();
    created.assert_fields_of(201, UPLOADED_FIELDS);
    assert!(content(&engine, "/workspace/a/%E6%97%A5.bin").await == whole);
    let download = request(Method::GET, "/workspace/a/%E6%97%A5.bin").send().await.unwrap();
    assert_eq!(download.headers()["etag"], etag.as_str());
    assert_eq!(download.content_length(), Some(40 << 20));
    assert!(with_deadline("the download", download.bytes()).await.unwrap() == whole);
    let head = send(request(Method::HEAD, "/workspace/a/%E6%97%A5.bin")).await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("41943040")));
    let part =
        request(Method::GET, "/workspace/a/%E6%97%A5.bin").header("range", "bytes=-4").send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(part.bytes().await.unwrap(), whole[whole.len() - 4..]);
    let cached =
        send(request(Method::GET, "/workspace/a/%E6%97%A5.bin").header("if-none-match", &etag)).await;
    assert_eq!(cached.status, 304);
    let refused =
        send(request(Method::PUT, "/workspace/a/%E6%97%A5.bin").header("if-none-match", "*").body("x")).await;
    refused.assert_error(412, "PRECONDITION_FAILED");
    send(request(Method::GET, "/workspace/..%2f..%2fregistry.sqlite"))
        .await
        .assert_error(400, "INVALID_REQUEST");

    let created = request(Method::PUT, "/workspace/b/c")
        .header("upload-complete", "?0")
        .body("01")
        .send()
        .await
        .unwrap();
    assert_eq!(created.status(), 201);
    // The address is relative to the request, so it leads through the orchestrator too.
    let location = created.headers()["location"].to_str().unwrap();
    let upload = created.url().join(location).unwrap().path().to_owned();
    let status = send(product.request(Method::HEAD, &upload)).await;
    assert_eq!((status.status, status.header("upload-offset")), (204, Some("2")));
    let append = product
        .request(Method::PATCH, &upload)
        .header("content-type", "application/partial-upload")
        .header("upload-offset", "2")
        .header("upload-complete", "?1");
    send(append.body("23")).await.assert_fields_of(201, UPLOADED_FIELDS);
    assert_eq!(content(&engine, "/workspace/b/c").await, "0123");
    let listed = send(request(Method::GET, "/workspace")).await.assert_ok("entries:array next:null");
    let names: Vec<&Value> =
        listed["entries"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, [&json!("a"), &json!("b")]);
    send(request(Method::DELETE, "/workspace/a?recursive=true")).await.assert_ok("status:text");
}
