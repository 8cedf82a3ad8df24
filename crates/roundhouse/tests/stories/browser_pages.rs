//! Pages of a product's origins may call its engines across origins, and others may not.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::browser::Page;
use crate::support::engine_calls::direct_message;
use crate::support::http::{client, send};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, EventStream, HttpResponse, Product, eventually};

const APP: &str = "https://app.example.com";

/// A browser's question whether a page may make a call.
async fn preflight(page: &Page, origin: &str) -> HttpResponse {
    let request = client().request(Method::OPTIONS, format!("{}/execute", page.base));
    let request = request.header("origin", origin).header("access-control-request-method", "POST");
    send(request.header("access-control-request-headers", "authorization,content-type")).await
}

async fn get_from(page: &Page, origin: &str) -> HttpResponse {
    send(page.request(Method::GET, "/tasks").header("origin", origin)).await
}

fn allowed_origin(answer: &HttpResponse) -> Option<&str> {
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    let origins: Vec<_> = answer.headers.get_all("access-control-allow-origin").iter().collect();
    assert!(origins.len() < 2, "{origins:?}");
    answer.header("access-control-allow-origin")
}

#[track_caller]
fn assert_preflight(answer: &HttpResponse, origin: Option<&str>) {
    assert_eq!((answer.status, allowed_origin(answer)), (204, origin));
    assert!(answer.header("vary").unwrap().contains("Origin"));
    assert!(answer.header("x-request-id").is_some());
    if origin.is_some() {
        assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
        assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    }
}

#[tokio::test]
async fn a_page_of_the_product_calls_across_origins_on_either_way() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let rival = orchestrator.register("rival", json!({})).await;
    let engine = product.engine("ada").await;
    let page = product.page("ada", &["chat", "read"], None).await;
    let direct = page.directly_to(&engine);
    // Without origins, nobody knows of pages.
    assert_eq!(preflight(&direct, APP).await.status, 405);
    assert_eq!(preflight(&page, APP).await.status, 401);

    let set = product.set_origins(json!([APP, "http://localhost:3000", APP])).await;
    assert_eq!(set.assert_ok("origins:array")["origins"], json!([APP, "http://localhost:3000"]));
    rival.set_origins(json!(["https://rival.example"])).await.assert_ok("origins:array");
    for page in [&page, &direct] {
        for origin in [APP, "http://localhost:3000"] {
            assert_preflight(&preflight(page, origin).await, Some(origin));
            let answer = get_from(page, origin).await;
            assert_eq!((answer.status, allowed_origin(&answer)), (200, Some(origin)));
            assert!(answer.header("access-control-expose-headers").unwrap().contains("retry-after"));
        }
        for origin in ["https://evil.example", "https://app.example.com.evil.example", "null", "*"] {
            assert_preflight(&preflight(page, origin).await, None);
            assert_eq!(allowed_origin(&get_from(page, origin).await), None, "{origin}");
        }
        // A stream, and a refusal that the page can read.
        let execute = page.request(Method::POST, "/execute").header("origin", APP);
        let stream = EventStream::open(execute.json(&direct_message("task", "Hello!"))).await;
        assert_completed(&stream.collect().await);
        let refused = send(page.request(Method::GET, "/usage").header("origin", APP)).await;
        refused.assert_error(403, "TOKEN_SCOPE");
        assert_eq!(allowed_origin(&refused), Some(APP));
        let invalid = get_from(&page.with_token("rbt1.a.b"), APP).await;
        invalid.assert_error(401, "INVALID_TOKEN");
        assert_eq!(allowed_origin(&invalid), Some(APP));
    }
    // At the orchestrator a preflight does not say whose page it is; the call does.
    assert_preflight(&preflight(&page, "https://rival.example").await, Some("https://rival.example"));
    assert_eq!(allowed_origin(&get_from(&page, "https://rival.example").await), None);
    assert_preflight(&preflight(&direct, "https://rival.example").await, None);
    // A product's backend is no page.
    let backend = product.request(Method::GET, &Product::proxy_path("ada", "/tasks"));
    assert_eq!(send(backend).await.status, 200);

    // Fewer origins are in force at once.
    product.set_origins(json!(["http://localhost:3000"])).await.assert_ok("origins:array");
    for page in [&page, &direct] {
        assert_preflight(&preflight(page, APP).await, None);
        assert_eq!(allowed_origin(&get_from(page, APP).await), None);
    }
}

#[tokio::test]
async fn origins_outlive_the_orchestrator_and_the_engine() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    product.set_origins(json!([APP])).await.assert_ok("origins:array");
    let page = product.page("ada", &["read"], None).await;
    let process = deployment.kill_engine(&engine);
    eventually("the engine is back", async || deployment.process_of(&engine).filter(|pid| *pid != process))
        .await;
    let engine = product.engine("ada").await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    let product = Product::new(&orchestrator.base, &product.key);
    for page in [&page, &page.directly_to(&engine)] {
        assert_preflight(&preflight(page, APP).await, Some(APP));
    }
    let read = product.call(Method::GET, "/origins", None).await.assert_ok("origins:array");
    assert_eq!(read["origins"], json!([APP]));
    let rows = product.audit_rows("set_origins").await;
    assert_eq!(rows, [(String::new(), json!({"origins": [APP]}))]);
}

#[tokio::test]
async fn what_is_no_origin_is_refused() {
    let deployment = Deployment::new();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let many: Vec<_> = (0..33).map(|number| format!("https://a{number}.example")).collect();
    for wrong in [
        json!(["*"]),
        json!(["null"]),
        json!([""]),
        json!(["https://app.example.com/"]),
        json!(["https://app.example.com/path"]),
        json!(["https://*.example.com"]),
        json!(["app.example.com"]),
        json!(["file:///etc/passwd"]),
        json!(["https://a.example\r\nx-evil: 1"]),
        json!([7]),
        json!(APP),
        Value::Null,
        json!(many),
    ] {
        let refused = product.set_origins(wrong.clone()).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("origins"), "{wrong}");
    }
    let read = product.call(Method::GET, "/origins", None).await.assert_ok("origins:array");
    assert_eq!(read["origins"], json!([]));
    assert!(product.audit_rows("set_origins").await.is_empty());
}
