//! Transfers of files: they keep the engine awake, and what one client does holds up no other.

use std::path::Path;

use bytes::Bytes;
use futures::StreamExt as _;
use reqwest::{Body, Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::mpsc;

use crate::files::{UPLOADED_FIELDS, content, put, stalling_body};
use crate::support::http::send;
use crate::support::{Engine, Fleet, Product, QUICK_SCRIPT, StandaloneEngine, eventually, with_deadline};

async fn is_quiesced(engine: &Engine) -> bool {
    let outcome = engine.control("quiesce", json!({})).await.assert_ok("result:object");
    outcome["result"]["quiesced"].as_bool().unwrap()
}

/// Makes a file that is larger than what the kernel holds for a client that does not read.
fn make_large_file(setup: &StandaloneEngine) {
    std::fs::create_dir_all(setup.workspace()).unwrap();
    let file = std::fs::File::create(setup.workspace().join("large")).unwrap();
    file.set_len(256 << 20).unwrap();
}

/// A body that sends what is sent to the returned sender, and ends with it.
fn controlled_body() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let pieces = futures::stream::unfold(receiver, async |mut receiver| {
        Some((Ok::<_, std::io::Error>(receiver.recv().await?), receiver))
    });
    (sender, Body::wrap_stream(pieces))
}

#[tokio::test]
async fn an_engine_is_not_put_to_sleep_under_a_transfer() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let (sender, body) = controlled_body();
    let upload = tokio::spawn(send(engine.request(Method::PUT, "/workspace/a").body(body)));
    sender.send(Bytes::from_static(b"x")).await.unwrap();
    let staging = setup.test_env.path().join("brain.sqlite.uploads");
    eventually("the upload has begun", async || {
        std::fs::read_dir(&staging).is_ok_and(|mut entries| entries.next().is_some()).then_some(())
    })
    .await;
    assert!(!is_quiesced(&engine).await);
    drop(sender);
    assert_eq!(upload.await.unwrap().status, 201);

    // The client has not read to the end.
    make_large_file(&setup);
    let download = engine.request(Method::GET, "/workspace/large").send().await.unwrap();
    assert!(!is_quiesced(&engine).await);
    drop(download);

    eventually("nothing is transferred", async || is_quiesced(&engine).await.then_some(())).await;
    put(&engine, "/workspace/b", "x").await.assert_error(503, "QUIESCED");
    engine.delete("/workspace/a").await.assert_error(503, "QUIESCED");
    engine.get("/workspace/a").await.assert_error(503, "QUIESCED");
    engine.get("/workspace").await.assert_ok("entries:array next:null");
}

/// Each holds its connection open and takes nothing.
#[tokio::test]
async fn downloads_that_nobody_reads_are_bounded_and_in_no_ones_way() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    make_large_file(&setup);
    let mut unread = Vec::new();
    let refused = loop {
        let response = engine.request(Method::GET, "/workspace/large").send().await.unwrap();
        if response.status() != 200 {
            break response;
        }
        unread.push(response);
        assert!(unread.len() <= 32);
    };
    assert_eq!((refused.status().as_u16(), unread.len()), (503, 32));
    assert_eq!(refused.headers()["retry-after"], "1");
    assert!(refused.text().await.unwrap().contains("OVERLOADED"));
    // Everything else goes on.
    put(&engine, "/workspace/b", "x")
        .await
        .assert_fields_of(201, "path:text size:int modified:time etag:text");
    engine.get("/workspace").await.assert_ok("entries:array next:null");
    assert_eq!(send(engine.request(Method::HEAD, "/workspace/large")).await.status, 200);
    engine.delete("/workspace/b").await.assert_ok("status:text");
    drop(unread);
    eventually("a place is free", async || {
        (engine.request(Method::GET, "/workspace/large").send().await.unwrap().status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_change_is_made_only_as_its_headers_say() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let request = |path: &str| engine.request(Method::PUT, path);
    // A part must not take the place of the whole.
    let part = request("/workspace/a").header("content-range", "bytes 0-1/4").body("01");
    send(part).await.assert_error(400, "INVALID_REQUEST");
    // Less than announced.
    let short =
        request("/workspace/a").header("upload-complete", "?1").header("upload-length", "4").body("01");
    send(short).await.assert_error(400, "INVALID_REQUEST");
    engine.get("/workspace/a").await.assert_error(404, "FILE_NOT_FOUND");
    put(&engine, "/workspace/a", "old").await;
    let earlier = "Mon, 01 Jan 2024 00:00:00 GMT";
    let stale = request("/workspace/a").header("if-unmodified-since", earlier).body("new");
    send(stale).await.assert_error(412, "PRECONDITION_FAILED");
    let stale = engine.request(Method::DELETE, "/workspace/a").header("if-unmodified-since", earlier);
    send(stale).await.assert_error(412, "PRECONDITION_FAILED");
    let modified = send(engine.request(Method::HEAD, "/workspace/a")).await;
    let modified = modified.header("last-modified").unwrap().to_owned();
    let current = request("/workspace/a").header("if-unmodified-since", modified).body("new");
    let etag = send(current).await;
    let etag = etag.header("etag").unwrap().to_owned();
    // The lines of a list count as one.
    let either =
        request("/workspace/a").header("if-match", r#""other""#).header("if-match", &etag).body("newer");
    assert_eq!(send(either).await.status, 200);
    let none =
        request("/workspace/a").header("if-match", r#""other""#).header("if-match", &etag).body("newest");
    send(none).await.assert_error(412, "PRECONDITION_FAILED");
}

/// Deleting the contents takes as long as it takes.
#[tokio::test]
async fn a_large_folder_vanishes_at_once() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    for folder in 0..20 {
        let folder = setup.workspace().join(format!("tree/{folder}"));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..100 {
            std::fs::write(folder.join(file.to_string()), "x").unwrap();
        }
    }
    engine.delete("/workspace/tree").await.assert_error(409, "FILE_CONFLICT");
    engine.delete("/workspace/tree?recursive=true").await.assert_ok("status:text");
    assert!(!setup.workspace().join("tree").exists());
    let staging = setup.test_env.path().join("brain.sqlite.uploads");
    eventually("its contents are deleted", async || {
        std::fs::read_dir(&staging).unwrap().next().is_none().then_some(())
    })
    .await;
}

/// The sizes of the data in the folder of uploads whose files have this suffix: `part`, if they can be resumed, or `tmp`.
fn received(staging: &Path, suffix: &str) -> Vec<usize> {
    let entries = std::fs::read_dir(staging).into_iter().flatten().map(|entry| entry.unwrap().path());
    let data = entries.filter(|path| path.extension().is_some_and(|found| found == suffix));
    // A file may be gone meanwhile.
    let sizes = data.filter_map(|path| std::fs::metadata(path).ok());
    sizes.map(|data| usize::try_from(data.len()).unwrap()).collect()
}

fn append(product: &Product, upload: &str, offset: usize) -> RequestBuilder {
    product
        .request(Method::PATCH, &Product::proxy_path("ada", upload))
        .header("content-type", "application/partial-upload")
        .header("upload-offset", offset)
        .header("upload-complete", "?1")
}

/// The engine outlives the orchestrator, and with it what it has received of a resumable upload.
#[tokio::test]
async fn transfers_through_an_orchestrator_that_is_killed_are_cut_off_and_an_upload_goes_on() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let mut up = fleet.start_up().await;
    let mut product = up.product();
    let engine = product.engine("ada").await;
    let staging = fleet.engine_folder(&engine.id).join("brain.sqlite.uploads");
    let proxied = |product: &Product, method: Method, path: &str| {
        product.request(method, &Product::proxy_path("ada", path))
    };
    let whole: Vec<u8> = (0..1_u32 << 20).flat_map(u32::to_le_bytes).collect();
    // More than the connections hold.
    let large = vec![b'x'; 64 << 20];
    put(&engine, "/workspace/large", large.clone()).await.assert_fields_of(201, UPLOADED_FIELDS);
    put(&engine, "/workspace/replaced", "old").await.assert_fields_of(201, UPLOADED_FIELDS);
    let created = proxied(&product, Method::PUT, "/workspace/deep/resumed").header("upload-complete", "?0");
    let created = send(created.body("")).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let upload = format!("/workspace-uploads/{}", created.body["upload_id"].as_str().unwrap());

    let mut offset = 0;
    for _ in 0..2 {
        let part = whole[offset..offset + (1 << 20)].to_vec();
        let resumed = tokio::spawn(append(&product, &upload, offset).body(stalling_body(part)).send());
        let plain = ["/workspace/replaced", "/workspace/new"].map(|path| {
            let body = stalling_body(vec![b'n'; 1 << 20]);
            tokio::spawn(proxied(&product, Method::PUT, path).body(body).send())
        });
        let download = proxied(&product, Method::GET, "/workspace/large").send().await.unwrap();
        assert_eq!(download.content_length(), Some(large.len() as u64));
        eventually("data arrive", async || {
            let (resumed, plain) = (received(&staging, "part"), received(&staging, "tmp"));
            let have_begun = plain.len() == 2 && plain.iter().all(|size| *size > 0);
            (have_begun && resumed[0] > offset).then_some(())
        })
        .await;
        assert_eq!(up.signal_and_wait(Signal::KILL).await.code, None);
        let [replaced, new] = plain;
        for sending in [resumed, replaced, new] {
            let answer = with_deadline("the upload is cut off", sending).await.unwrap();
            assert!(answer.is_err(), "{answer:?}");
        }
        let pieces: Vec<_> =
            with_deadline("the download is cut off", download.bytes_stream().collect()).await;
        assert!(pieces.iter().any(Result::is_err), "a part of a file looks like a whole one");
        // Nothing is left but what can be resumed, and none of it shows.
        eventually("the other uploads are given up", async || {
            received(&staging, "tmp").is_empty().then_some(())
        })
        .await;
        assert_eq!(content(&engine, "/workspace/replaced").await, "old");
        engine.get("/workspace/new").await.assert_error(404, "FILE_NOT_FOUND");
        engine.get("/workspace/deep").await.assert_error(404, "FILE_NOT_FOUND");

        up = fleet.start_up().await;
        product = up.product();
        assert_eq!(product.engine("ada").await.id, engine.id);
        let status = send(proxied(&product, Method::HEAD, &upload)).await;
        let reached = status.header("upload-offset").unwrap().parse().unwrap();
        assert!(reached > offset, "{reached}");
        offset = reached;
    }
    send(append(&product, &upload, offset).body(whole[offset..].to_vec()))
        .await
        .assert_fields_of(201, UPLOADED_FIELDS);
    for (path, expected) in [("/workspace/deep/resumed", &whole), ("/workspace/large", &large)] {
        let download = proxied(&product, Method::GET, path).send().await.unwrap();
        assert!(with_deadline("the download", download.bytes()).await.unwrap() == *expected, "{path}");
    }
    for path in ["/workspace/replaced", "/workspace/new"] {
        let again = send(proxied(&product, Method::PUT, path).body("new")).await;
        assert!(again.status < 300, "{path}: {}", again.body);
        assert_eq!(content(&engine, path).await, "new");
    }
    assert_eq!(std::fs::read_dir(&staging).unwrap().count(), 0);
}
