//! Tests of files as a client sees them: headers, conditions, ranges, errors, resumable uploads, attached files.

use pretty_assertions::assert_eq;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{TestApp, events, expect_error};

async fn send(request: RequestBuilder) -> Response {
    with_deadline(request.send()).await.unwrap()
}

async fn put(app: &TestApp, path: &str, content: impl Into<reqwest::Body>) -> Response {
    send(app.request("PUT", path).body(content)).await
}

async fn get(app: &TestApp, path: &str) -> Response {
    send(app.request("GET", path)).await
}

async fn json_of(response: Response) -> Value {
    with_deadline(response.json()).await.unwrap()
}

async fn text_of(response: Response) -> String {
    with_deadline(response.text()).await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
}

#[tokio::test]
async fn an_uploaded_file_is_downloaded_with_its_headers() {
    let app = TestApp::start().await;
    let created = put(&app, "/workspace/papers/%E6%97%A5%E6%9C%AC.txt", "green pears").await;
    assert_eq!(created.status(), 201);
    let etag = header(&created, "etag").to_owned();
    let body = json_of(created).await;
    assert_eq!(body["path"], "papers/%E6%97%A5%E6%9C%AC.txt");
    assert_eq!((&body["size"], &body["etag"]), (&json!(11), &json!(etag)));
    for method in ["GET", "HEAD"] {
        let response = send(app.request(method, "/workspace/papers/%E6%97%A5%E6%9C%AC.txt")).await;
        assert_eq!(response.status(), 200);
        for (name, expected) in [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", "11"),
            ("accept-ranges", "bytes"),
            ("etag", &etag),
            ("x-content-type-options", "nosniff"),
            ("content-security-policy", "sandbox"),
            ("cache-control", "private, no-cache"),
            ("content-disposition", "inline; filename=\"__.txt\"; filename*=UTF-8''%E6%97%A5%E6%9C%AC.txt"),
        ] {
            assert_eq!(header(&response, name), expected, "{method} {name}");
        }
        let since = header(&response, "last-modified").to_owned();
        assert_eq!(text_of(response).await, if method == "GET" { "green pears" } else { "" });
        let request = app.request(method, "/workspace/papers/%E6%97%A5%E6%9C%AC.txt");
        let unchanged = send(request.header("if-modified-since", since)).await;
        assert_eq!((unchanged.status().as_u16(), header(&unchanged, "etag")), (304, etag.as_str()));
    }
    let saved = get(&app, "/workspace/papers/%E6%97%A5%E6%9C%AC.txt?download=true").await;
    assert!(header(&saved, "content-disposition").starts_with("attachment; "));
    let part = app.request("GET", "/workspace/papers/%E6%97%A5%E6%9C%AC.txt").header("range", "bytes=6-");
    let part = send(part.header("if-range", &etag)).await;
    assert_eq!((part.status().as_u16(), header(&part, "content-range")), (206, "bytes 6-10/11"));
    assert_eq!(text_of(part).await, "pears");
    let beyond = app.request("GET", "/workspace/papers/%E6%97%A5%E6%9C%AC.txt").header("range", "bytes=11-");
    let beyond = send(beyond).await;
    assert_eq!(header(&beyond, "content-range"), "bytes */11");
    expect_error(beyond, 416, "RANGE_NOT_SATISFIABLE").await;
    app.stop().await;
}

#[tokio::test]
async fn changes_are_made_only_where_their_conditions_hold() {
    let app = TestApp::start().await;
    let first = put(&app, "/workspace/a", "one").await;
    let etag = header(&first, "etag").to_owned();
    let change = |method: &str, name: &str, value: &str| {
        app.request(method, "/workspace/a").header(name, value).body("two")
    };
    for (method, name, value) in [
        ("PUT", "if-none-match", "*"),
        ("PUT", "if-match", "\"other\""),
        ("DELETE", "if-match", "\"other\""),
        ("GET", "if-match", "\"other\""),
    ] {
        expect_error(send(change(method, name, value)).await, 412, "PRECONDITION_FAILED").await;
    }
    assert_eq!(text_of(get(&app, "/workspace/a").await).await, "one");
    assert_eq!(send(change("PUT", "if-match", &etag)).await.status(), 200);
    expect_error(send(change("PUT", "if-match", &etag)).await, 412, "PRECONDITION_FAILED").await;
    assert_eq!(text_of(get(&app, "/workspace/a").await).await, "two");
    assert_eq!(send(app.request("DELETE", "/workspace/a")).await.status(), 200);
    expect_error(send(app.request("DELETE", "/workspace/a")).await, 404, "FILE_NOT_FOUND").await;
    let missing = app.request("PUT", "/workspace/a").header("if-match", "*").body("x");
    expect_error(send(missing).await, 412, "PRECONDITION_FAILED").await;
    app.stop().await;
}

#[tokio::test]
async fn a_folder_is_listed_archived_and_deleted() {
    let app = TestApp::start().await;
    let empty = json_of(get(&app, "/workspace").await).await;
    assert_eq!(empty, json!({"entries": [], "next": null}));
    for name in ["d/b", "d/a%20a", "d/%F0%9F%A6%A6", "d/sub/c"] {
        assert_eq!(put(&app, &format!("/workspace/{name}"), "x").await.status(), 201, "{name}");
    }
    std::os::unix::fs::symlink("b", app.workspace().join("d/link")).unwrap();
    let (mut entries, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let page = json_of(get(&app, &format!("/workspace/d{query}")).await).await;
        entries.extend(page["entries"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        query = format!("?limit=2&after={next}");
    }
    let summary: Vec<_> = entries
        .iter()
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap().to_owned();
            (text("name"), text("path"), text("kind"), entry["size"].as_u64(), entry["etag"].is_string())
        })
        .collect();
    let expected = [
        ("a a", "d/a%20a", "file", Some(1), true),
        ("b", "d/b", "file", Some(1), true),
        ("link", "d/link", "link", None, false),
        ("sub", "d/sub", "folder", None, false),
        ("🦦", "d/%F0%9F%A6%A6", "file", Some(1), true),
    ];
    let expected =
        expected.map(|(name, path, kind, size, tag)| (name.into(), path.into(), kind.into(), size, tag));
    assert_eq!(summary, expected);
    for bad in ["limit=0", "limit=1001", "after=xyz", "format=tar"] {
        expect_error(get(&app, &format!("/workspace/d?{bad}")).await, 400, "INVALID_REQUEST").await;
    }
    for method in ["HEAD", "GET"] {
        let archive = send(app.request(method, "/workspace/d/?format=zip")).await;
        assert_eq!(header(&archive, "content-type"), "application/zip");
        assert_eq!(header(&archive, "content-disposition"), "attachment; filename=\"d.zip\"");
        let bytes = with_deadline(archive.bytes()).await.unwrap();
        assert_eq!(bytes.starts_with(b"PK\x03\x04"), method == "GET");
    }
    expect_error(send(app.request("DELETE", "/workspace/d")).await, 409, "FILE_CONFLICT").await;
    assert_eq!(send(app.request("DELETE", "/workspace/d?recursive=true")).await.status(), 200);
    expect_error(get(&app, "/workspace/d").await, 404, "FILE_NOT_FOUND").await;
    app.stop().await;
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_with_the_reason() {
    let app = TestApp::start().await;
    let too_large = put(&app, "/workspace/a", vec![0; 513 << 10]).await;
    let message = expect_error(too_large, 413, "PAYLOAD_TOO_LARGE").await;
    assert!(message.contains("524288 bytes"), "{message}");
    assert_eq!(put(&app, "/workspace/a", vec![0; 500 << 10]).await.status(), 201);
    assert_eq!(put(&app, "/workspace/b", vec![0; 500 << 10]).await.status(), 201);
    let full = put(&app, "/workspace/c", vec![0; 100 << 10]).await;
    let message = expect_error(full, 507, "STORAGE_FULL").await;
    assert!(message.contains("take 1024000 of 1048576 bytes"), "{message}");
    for (path, status, code) in [
        ("/workspace/d/", 400, "INVALID_REQUEST"),
        ("/workspace/d//e", 400, "INVALID_REQUEST"),
        ("/workspace/..%2fe", 400, "INVALID_REQUEST"),
        ("/workspace/a/e", 409, "FILE_CONFLICT"),
    ] {
        expect_error(put(&app, path, "x").await, status, code).await;
    }
    let bad = app.request("PUT", "/workspace/d").header("upload-complete", "yes").body("x");
    expect_error(send(bad).await, 400, "INVALID_REQUEST").await;
    app.stop().await;
}

#[tokio::test]
async fn an_upload_goes_on_where_it_was_cut_off() {
    let mut app = TestApp::start().await;
    let create = app.request("PUT", "/workspace/a/b.txt").header("upload-complete", "?0");
    let created = send(create.header("upload-length", "10").body("0123")).await;
    assert_eq!((created.status().as_u16(), header(&created, "upload-offset")), (201, "4"));
    let location = created.url().join(header(&created, "location")).unwrap().path().to_owned();
    let body = json_of(created).await;
    assert_eq!(location, format!("/workspace-uploads/{}", body["upload_id"].as_str().unwrap()));
    app.restart().await;
    let status = send(app.request("HEAD", &location)).await;
    assert_eq!(status.status(), 204);
    for (name, expected) in [
        ("upload-offset", "4"),
        ("upload-complete", "?0"),
        ("upload-length", "10"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(header(&status, name), expected);
    }
    let append = |offset: &str, complete: &str, body: &'static str| {
        app.request("PATCH", &location)
            .header("content-type", "application/partial-upload")
            .header("upload-offset", offset)
            .header("upload-complete", complete)
            .body(body)
    };
    let conflict = send(append("3", "?1", "x")).await;
    assert_eq!(header(&conflict, "upload-offset"), "4");
    expect_error(conflict, 409, "UPLOAD_CONFLICT").await;
    for bad in [append("x", "?1", "x"), append("4", "1", "x"), app.request("PATCH", &location).body("x")] {
        expect_error(send(bad).await, 400, "INVALID_REQUEST").await;
    }
    let more = send(append("4", "?0", "456")).await;
    assert_eq!((more.status().as_u16(), header(&more, "upload-offset")), (204, "7"));
    // Neither too little nor too much.
    expect_error(send(append("7", "?1", "7")).await, 400, "INVALID_REQUEST").await;
    expect_error(get(&app, "/workspace/a/b.txt").await, 404, "FILE_NOT_FOUND").await;
    let status = send(app.request("HEAD", &location)).await;
    let offset = header(&status, "upload-offset").to_owned();
    assert_eq!(offset, "7");
    expect_error(send(append("7", "?1", "7890")).await, 400, "INVALID_REQUEST").await;
    let done = send(append("7", "?1", "789")).await;
    assert_eq!((done.status().as_u16(), header(&done, "upload-complete")), (201, "?1"));
    assert_eq!(json_of(done).await["path"], "a/b.txt");
    assert_eq!(text_of(get(&app, "/workspace/a/b.txt").await).await, "0123456789");
    expect_error(send(append("10", "?1", "")).await, 404, "UPLOAD_NOT_FOUND").await;

    let other = send(app.request("PUT", "/workspace/c").header("upload-complete", "?0").body("")).await;
    let location = format!("/workspace-uploads/{}", json_of(other).await["upload_id"].as_str().unwrap());
    assert_eq!(send(app.request("DELETE", &location)).await.status(), 204);
    expect_error(send(app.request("DELETE", &location)).await, 404, "UPLOAD_NOT_FOUND").await;
    expect_error(send(app.request("DELETE", "/workspace-uploads/x")).await, 404, "UPLOAD_NOT_FOUND").await;
    app.stop().await;
}

#[tokio::test]
async fn attached_files_are_fetched_until_their_task_is_deleted() {
    /// `%PDF-1.4`, and nothing else.
    const PDF_BASE64: &str = "JVBERi0xLjQK";
    let app = TestApp::start().await;
    let document =
        json!({"type": "document", "media_type": "application/pdf", "data": PDF_BASE64, "name": "pears.pdf"});
    let body = json!({"task_id": "t", "message": "Read this.", "direct": true, "media": [document]});
    let seen = events(app.post_execute(body.to_string()).await).await;
    let listed = json_of(get(&app, "/tasks/t/media").await).await;
    let file = &listed["media"][0];
    assert_eq!(listed["media"].as_array().unwrap().len(), 1);
    assert_eq!(file["message_id"], seen[0].data["message_id"]);
    assert_eq!(
        (&file["media_type"], &file["name"], &file["size"]),
        (&json!("application/pdf"), &json!("pears.pdf"), &json!(9))
    );
    let hash = file["hash"].as_str().unwrap();
    let path = format!("/tasks/t/media/{hash}");
    let response = get(&app, &path).await;
    assert_eq!(header(&response, "etag"), format!("\"{hash}\""));
    assert_eq!(header(&response, "cache-control"), "private, max-age=31536000, immutable");
    assert_eq!(header(&response, "content-type"), "application/pdf");
    assert_eq!(text_of(response).await, "%PDF-1.4\n");
    let part = send(app.request("GET", &path).header("range", "bytes=1-3")).await;
    assert_eq!((part.status().as_u16(), text_of(part).await.as_str()), (206, "PDF"));
    let cached = send(app.request("GET", &path).header("if-none-match", format!("\"{hash}\""))).await;
    assert_eq!(cached.status(), 304);
    app.run_turn("other", "Hello.").await;
    assert_eq!(json_of(get(&app, "/tasks/other/media").await).await, json!({"media": []}));
    expect_error(get(&app, &format!("/tasks/other/media/{hash}")).await, 404, "FILE_NOT_FOUND").await;
    assert_eq!(send(app.request("DELETE", "/tasks/t")).await.status(), 200);
    for path in [path.as_str(), "/tasks/t/media"] {
        expect_error(get(&app, path).await, 404, "TASK_NOT_FOUND").await;
    }
    app.stop().await;
}
