//! A product's page talks to its user's engine with a token, and does not get beyond it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mock_llm::{MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::browser::{Page, TOKEN};
use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::write_file_reply;
use crate::support::http::{client, send, send_raw};
use crate::support::turn::assert_completed;
use crate::support::{
    Deployment, Engine, EventStream, Fleet, Orchestrator, Product, QUICK_SCRIPT, RunningUp, assert_fields,
};

#[tokio::test]
async fn a_page_chats_and_answers_a_question_on_either_way() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    for (way, is_direct) in [("proxy", false), ("direct", true)] {
        provider.enqueue(write_file_reply(&format!("{way}.txt")));
        provider.enqueue(Reply::from_text("Done."));
        let page = product.page("ada", &["chat", "answer"], Some(way)).await;
        let page = if is_direct { page.directly_to(&engine) } else { page };
        let execute = page.request(Method::POST, "/execute").json(&direct_message(way, "Write."));
        let mut stream = EventStream::open(execute).await;
        let request = stream.next_hitl_request().await;
        let waiting = page.get(&format!("/tasks/{way}/approvals")).await.assert_ok("approvals:array");
        assert_eq!(waiting["approvals"][0]["request_id"], request.data["request_id"]);
        let pending = page.get(&format!("/hitl/pending?task_id={way}")).await.assert_ok("pending:array");
        assert_eq!(pending["pending"][0]["request_id"], request.data["request_id"]);
        if is_direct {
            let path = format!("/tasks/{way}/approvals/{}", request.data["request_id"].as_str().unwrap());
            let answer = page.post(&path, &json!({"decision": "allow_once"})).await;
            answer.assert_ok("request_id:hitl decision:text");
        } else {
            let answer = page.post("/hitl/respond", &json!({"task_id": way, "answer": "yes"})).await;
            answer.assert_ok("status:text request_id:hitl");
        }
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        let replay = page.request(Method::GET, &format!("/execute/replay?task_id={way}"));
        assert_eq!(EventStream::open(replay).await.collect().await, events);
        // Reading the conversation is another scope.
        page.get(&format!("/tasks/{way}/messages")).await.assert_error(403, "TOKEN_SCOPE");
        let reader = product.page("ada", &["read"], Some(way)).await;
        let messages = reader.get(&format!("/tasks/{way}")).await;
        assert_eq!(messages.status, 200);
        reader.post("/execute", &direct_message(way, "More.")).await.assert_error(403, "TOKEN_SCOPE");
        page.post("/execute/cancel", &json!({"task_id": way})).await.assert_error(404, "TASK_NOT_RUNNING");
    }
}

/// The claims of a token.
fn claims_of(token: &str) -> Value {
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

/// The token with changed claims and the same signature.
fn with_claims(token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut claims = claims_of(token);
    change(&mut claims);
    let parts: Vec<_> = token.split('.').collect();
    format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()), parts[2])
}

/// A user's engine with two tasks, a page with a token for one of them, and a page with a token for all.
struct Setup {
    fleet: Fleet,
    up: RunningUp,
    product: Product,
    engine: Engine,
    page: Page,
    whole: Page,
}

impl Setup {
    async fn new() -> Self {
        let fleet = Fleet::new().with_script(QUICK_SCRIPT);
        let up = fleet.start_up().await;
        let product = up.product();
        let engine = product.engine("ada").await;
        engine.run_turn("mine", "Hello!").await;
        engine.run_turn("other", "The code is 7316.").await;
        let page = product.page("ada", &["chat", "read", "answer"], Some("mine")).await;
        let whole = product.page("ada", &["chat", "read", "answer"], None).await;
        Self { fleet, up, product, engine, page, whole }
    }

    /// The page with a token for one task, through the orchestrator and directly.
    fn on_both_ways(&self) -> [Page; 2] {
        [self.page.clone(), self.page.directly_to(&self.engine)]
    }

    /// Asserts that nothing was changed.
    async fn assert_unchanged(self) {
        assert_eq!(self.page.get("/tasks/mine").await.status, 200);
        assert_eq!(self.engine.tasks("").await.1, 2);
        drop((self.up, self.fleet));
    }
}

#[tokio::test]
async fn a_token_for_one_task_opens_no_other_in_any_spelling() {
    let setup = Setup::new().await;
    // Another task, by any call and any spelling.
    for page in &setup.on_both_ways() {
        for path in [
            "/tasks",
            "/tasks/other",
            "/tasks/%6fther",
            "/tasks/other/messages",
            "/tasks/other/turns",
            "/tasks/other/queue",
            "/tasks/other/media",
            "/tasks/other/approvals",
            "/tasks/other/conversation",
            "/tasks/mine%2f..%2fother",
            "/tasks/mine%00",
            "/conversations",
            "/conversations/search?query=7316",
            "/hitl/pending",
            "/hitl/pending?task_id=other",
            "/execute/replay",
            "/execute/replay?task_id=other",
            "/execute/replay?task_id=mine&task_id=other",
            "/execute/replay?task_id=other&task_id=mine",
        ] {
            page.get(path).await.assert_error(403, "TOKEN_SCOPE");
        }
        for path in ["/execute", "/execute/steer", "/execute/cancel", "/hitl/respond"] {
            let body = json!({"task_id": "other", "message": "Hi!", "answer": "yes"});
            page.post(path, &body).await.assert_error(403, "TOKEN_SCOPE");
        }
        let allow = json!({"decision": "allow_once"});
        page.post("/tasks/other/approvals/hitl-1", &allow).await.assert_error(403, "TOKEN_SCOPE");
        // A lasting approval concerns all tasks.
        let always = json!({"decision": "allow_always"});
        page.post("/tasks/mine/approvals/hitl-1", &always).await.assert_error(403, "TOKEN_SCOPE");
        // A body that names both tasks.
        let both = r#"{"task_id": "mine", "task_id": "other", "message": "Hi!"}"#;
        send(page.request(Method::POST, "/execute").body(both)).await.assert_error(400, "INVALID_REQUEST");
        // Paths that other servers would resolve.
        for head in ["GET /tasks/mine/../other", "GET /tasks/mine/%2e%2e/other", "GET //tasks/other"] {
            let (host, prefix) =
                page.base.split_at(page.base[7..].find('/').map_or(page.base.len(), |at| at + 7));
            let head = head.replacen("GET ", &format!("GET {prefix}"), 1);
            let bearer = format!("Bearer {}", page.token);
            let answer = send_raw(host, &head, &[("authorization", &bearer)], b"").await;
            assert!([403, 404].contains(&answer.status), "{head}: {}", answer.status);
            assert!(!answer.body.to_string().contains("7316"), "{head}");
        }
    }
    setup.assert_unchanged().await;
}

#[tokio::test]
async fn what_is_closed_is_closed_to_every_token() {
    let setup = Setup::new().await;
    let Setup { page, whole, engine, .. } = &setup;
    // What is closed to every token, of one task or of all.
    for page in [page.clone(), whole.clone(), whole.directly_to(engine)] {
        for (method, path) in [
            (Method::GET, "/memory/export"),
            (Method::POST, "/memory/import"),
            (Method::GET, "/workspace"),
            (Method::GET, "/assets/servers"),
            (Method::GET, "/hitl/grants"),
            (Method::GET, "/usage"),
            (Method::GET, "/schedules"),
            (Method::GET, "/skills"),
            (Method::GET, "/openapi.json"),
            (Method::POST, "/admin/catalog/reload"),
            (Method::DELETE, "/tasks/mine"),
            (Method::POST, "/tasks/mine/fork"),
            (Method::PATCH, "/tasks/mine/conversation"),
        ] {
            let answer = send(page.request(method.clone(), path)).await;
            assert!([403, 404].contains(&answer.status), "{method} {path}: {}", answer.status);
            assert_ne!(answer.body["error"]["code"], "TASK_NOT_FOUND", "{method} {path}");
        }
        let call = page.post("/rpc", &json!({"subsystem": "control", "op": "set_key_hash"})).await;
        assert_eq!((call.status, &call.body["error"]), (403, &json!("TOKEN_SCOPE")));
        for path in ["/agui", "/a2a", "/mcp"] {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
            assert_eq!(page.post(path, &call).await.status, 403, "{path}");
        }
        for path in ["/v1/chat/completions", "/v1/responses"] {
            let call = page.post(path, &json!({"model": "default", "input": "Hi!", "messages": []})).await;
            assert_eq!((call.status, &call.body["error"]["code"]), (403, &json!("token_scope")));
        }
    }
    setup.assert_unchanged().await;
}

#[tokio::test]
async fn a_token_is_nothing_at_another_engine_user_or_product() {
    let setup = Setup::new().await;
    let Setup { product, engine, whole, .. } = &setup;
    let rival = setup.up.register("rival", json!({})).await;
    let (bob, rivals_ada) = (product.engine("bob").await, rival.engine("ada").await);
    // Another engine, another user, another product.
    whole.directly_to(&bob).get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    whole.directly_to(&rivals_ada).get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    for (product, user) in [(product, "bob"), (product, "nobody"), (product, "ADA"), (&rival, "bob")] {
        let base = format!("{}{}", product.base, Product::proxy_path(user, ""));
        Page { base, ..whole.clone() }.get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    }
    let rivals = rival.page("ada", &["read"], None).await;
    assert_eq!(rivals.get("/tasks").await.body["total"], 0, "the token leads to its own product's engine");
    rivals.directly_to(engine).get("/tasks").await.assert_error(401, "INVALID_TOKEN");

    // The orchestrator's own endpoints take no token.
    for path in ["/engines", "/engines/ada", "/engines/ada/tokens", "/audit", "/origins", "/metrics"] {
        let request = client().get(format!("{}{path}", product.base)).bearer_auth(&whole.token);
        send(request).await.assert_error(401, "INVALID_PLATFORM_KEY");
    }
    setup.assert_unchanged().await;
}

#[tokio::test]
async fn no_forged_token_is_accepted() {
    let setup = Setup::new().await;
    let Setup { product, engine, page, whole, .. } = &setup;
    let bob = product.engine("bob").await;
    // Changed claims, other algorithms, other formats, damaged ones.
    let token = &page.token;
    let parts: Vec<_> = token.split('.').collect();
    let jwt = |header: &str, signature: &str| {
        format!("{}.{}.{signature}", URL_SAFE_NO_PAD.encode(header), parts[1])
    };
    for forged in [
        with_claims(token, |claims| drop(claims.as_object_mut().unwrap().remove("tsk"))),
        with_claims(token, |claims| claims["tsk"] = json!("other")),
        with_claims(token, |claims| claims["exp"] = json!(i64::MAX)),
        with_claims(token, |claims| claims["scp"] = json!(["chat", "read", "answer", "admin"])),
        with_claims(token, |claims| claims["aud"] = json!(bob.id)),
        with_claims(token, |claims| claims["jti"] = json!(format!("tok_{}", "0".repeat(32)))),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], "A".repeat(43)),
        format!("{}.{}.{}", parts[0], parts[1], whole.token.split('.').nth(2).unwrap()),
        format!("rbt0.{}.{}", parts[1], parts[2]),
        format!("rbt1none.{}.", parts[1]),
        format!("{token}.{token}"),
        format!("{token}A"),
        "rbt1..".to_owned(),
    ] {
        for page in &setup.on_both_ways() {
            page.with_token(&forged).get("/tasks/mine").await.assert_error(401, "INVALID_TOKEN");
        }
    }
    for forged in [jwt(r#"{"alg":"none"}"#, ""), jwt(r#"{"alg":"HS256"}"#, parts[2])] {
        // It is no browser token at all, and therefore taken for a wrong key.
        page.with_token(&forged).get("/tasks/mine").await.assert_error(401, "INVALID_PLATFORM_KEY");
        page.directly_to(engine)
            .with_token(&forged)
            .get("/tasks")
            .await
            .assert_error(401, "INVALID_ENGINE_KEY");
    }
    setup.assert_unchanged().await;
}

#[tokio::test]
async fn what_stands_beside_a_token_opens_nothing() {
    let setup = Setup::new().await;
    let Setup { page, whole, .. } = &setup;
    let token = &page.token;
    // Credentials beside the token, and headers that other proxies obey.
    let get = |path: &str| page.request(Method::GET, path);
    send(get("/tasks/other").header("x-engine-key", "sk-svc-wrong")).await.assert_error(403, "TOKEN_SCOPE");
    send(get("/tasks/other").header("connection", "authorization")).await.assert_error(403, "TOKEN_SCOPE");
    send(get("/tasks/mine").bearer_auth(&whole.token)).await.assert_error(401, "INVALID_TOKEN");
    send(get("/tasks/mine").header("x-platform-key", "pk-svc-wrong"))
        .await
        .assert_error(401, "INVALID_PLATFORM_KEY");
    for (name, value) in [
        ("x-original-url", "/tasks/other"),
        ("x-rewrite-url", "/tasks/other"),
        ("x-http-method-override", "DELETE"),
        ("x-forwarded-user", "bob"),
        ("roundhouse-task", "other"),
    ] {
        let answer = send(get("/tasks/mine").header(name, value)).await;
        assert_eq!(answer.status, 200, "{name}");
        assert!(!answer.body.to_string().contains("7316"), "{name}");
    }
    // In a place where tokens end up in logs, it is none.
    let in_query = client().get(format!("{}/tasks/mine?token={token}&access_token={token}", page.base));
    send(in_query).await.assert_error(401, "INVALID_PLATFORM_KEY");
    setup.assert_unchanged().await;
}

#[tokio::test]
async fn a_token_dies_with_the_engines_key_with_its_time_and_with_its_engine() {
    let deployment = Deployment::new();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let page = product.page("ada", &["read"], None).await;
    assert_eq!(page.get("/tasks").await.status, 200);
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    for page in [page.clone(), page.directly_to(&engine)] {
        page.get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    }
    assert!(product.tokens("ada", "").await.is_empty());
    product.revoke_token("ada", &page.token_id).await.assert_error(404, "TOKEN_NOT_FOUND");
    // Stopped and started, it still has the new key.
    let page = product.page("ada", &["read"], None).await;
    product.stop("ada").await.assert_ok("status:text");
    page.get("/tasks").await.assert_error(409, "ENGINE_NOT_RUNNING");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(page.get("/tasks").await.status, 200);
    // Deleted and provisioned again, the user has another engine.
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    page.get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    product.mint("ada", json!({"scopes": ["read"]})).await.assert_error(404, "ENGINE_NOT_FOUND");
    let engine = product.engine("ada").await;
    for page in [page.clone(), page.directly_to(&engine)] {
        page.get("/tasks").await.assert_error(401, "INVALID_TOKEN");
    }
    assert!(product.tokens("ada", "").await.is_empty());
}

async fn suspend(deployment: &Deployment, orchestrator: &Orchestrator, slug: &str) {
    let call = |method, path: &str| {
        let request = client().request(method, format!("{}{path}", orchestrator.base));
        request.header("x-admin-key", &deployment.admin_key)
    };
    let products = send(call(Method::GET, "/products")).await.body;
    let product = products["products"].as_array().unwrap().iter().find(|product| product["slug"] == slug);
    let path = format!("/products/{}/policy", product.unwrap()["product_id"].as_str().unwrap());
    let policy = json!({"policy": {"suspended": true}});
    assert_eq!(send(call(Method::PUT, &path).json(&policy)).await.status, 200);
}

#[tokio::test]
async fn a_misspelled_restriction_mints_nothing() {
    let deployment = Deployment::new();
    let (_orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    for (wrong, named) in [
        (json!({"scopes": ["chat"], "taskId": "x"}), "taskId"),
        (json!({"scopes": ["chat"], "task": "x"}), "task"),
        (json!({"scopes": ["chat"], "task_id": "x", "lifetime": 60}), "lifetime"),
    ] {
        let refused = product.mint("ada", wrong).await;
        let message = refused.assert_error(400, "INVALID_REQUEST");
        assert_eq!(
            message,
            format!("there is no field `{named}`; it must be one of `scopes`, `task_id`, `lifetime_s`")
        );
    }
    assert_eq!(product.tokens("ada", "").await, Vec::<Value>::new());
}

#[tokio::test]
async fn tokens_are_minted_listed_and_revoked_by_their_product_alone() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let rival = orchestrator.register("rival", json!({})).await;
    product.engine("ada").await;
    rival.engine("ada").await;
    for (wrong, field) in [
        (json!({}), "scopes"),
        (json!({"scopes": []}), "scopes"),
        (json!({"scopes": ["write"]}), "scopes"),
        (json!({"scopes": "chat"}), "scopes"),
        (json!({"scopes": ["chat"], "lifetime_s": 59}), "lifetime_s"),
        (json!({"scopes": ["chat"], "lifetime_s": 86_401}), "lifetime_s"),
        (json!({"scopes": ["chat"], "task_id": ""}), "task_id"),
        (json!({"scopes": ["chat"], "task_id": "x".repeat(1_025)}), "task_id"),
    ] {
        let refused = product.mint("ada", wrong).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(field), "{field}");
    }
    product.mint("nobody", json!({"scopes": ["chat"]})).await.assert_error(404, "ENGINE_NOT_FOUND");

    let strange = "a/b \u{0}\u{1F600}";
    let bound = json!({"scopes": ["read", "chat", "read"], "task_id": strange, "lifetime_s": 60});
    let minted = product.mint("ada", bound).await.assert_ok(&format!("token:text {TOKEN}"));
    assert_eq!(minted["scopes"], json!(["chat", "read"]));
    assert_eq!(minted["task_id"], strange);
    let time = |field: &str| minted[field].as_str().unwrap().parse::<api::Timestamp>().unwrap().unix_ms();
    assert_eq!(time("expires_at") - time("issued_at"), 60_000);
    assert_eq!(claims_of(minted["token"].as_str().unwrap())["aud"], minted["engine_id"]);
    let page = product.page("ada", &["answer"], None).await;
    let listed = product.tokens("ada", "").await;
    let ids = |tokens: &[Value]| tokens.iter().map(|token| token["token_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&listed), [json!(page.token_id), minted["token_id"].clone()]);
    for token in &listed {
        assert_fields(token, TOKEN);
    }
    assert_eq!(ids(&product.tokens("ada", "?limit=1").await), [json!(page.token_id)]);
    let older = format!("?before={}", page.token_id);
    assert_eq!(ids(&product.tokens("ada", &older).await), [minted["token_id"].clone()]);
    for query in ["?limit=0", "?limit=1001", "?before=x"] {
        let path = format!("/engines/ada/tokens{query}");
        product.call(Method::GET, &path, None).await.assert_error(400, "INVALID_REQUEST");
    }

    // Another product has a user of the same name, and no part in these tokens.
    assert!(rival.tokens("ada", "").await.is_empty());
    rival.revoke_token("ada", &page.token_id).await.assert_error(404, "TOKEN_NOT_FOUND");
    for id in ["tok_x", "x", "%00", &format!("tok_{}", "0".repeat(32))] {
        product.revoke_token("ada", id).await.assert_error(404, "TOKEN_NOT_FOUND");
    }
    assert!(product.revoke("ada", &page).await);
    assert!(product.revoke("ada", &page).await, "it may be revoked again");

    // The audit log has both, once each, and no secret.
    let minted_rows = product.audit_rows("mint_token").await;
    assert_eq!(minted_rows.len(), 2);
    let revoked_rows = product.audit_rows("revoke_token").await;
    assert_eq!(revoked_rows, [("ada".to_owned(), json!({"token_id": page.token_id}))]);
    assert!(rival.audit_rows("mint_token").await.is_empty());
    let log = format!("{minted_rows:?}{}", orchestrator.program.output());
    for token in [minted["token"].as_str().unwrap(), &page.token] {
        let secret = token.rsplit('.').next().unwrap();
        assert!(!log.contains(secret), "the secret of a token is in the audit log or in the log");
    }

    // A suspended product mints nothing, and its pages only read.
    let reader = product.page("ada", &["read", "chat"], None).await;
    suspend(&deployment, &orchestrator, "shop").await;
    product.mint("ada", json!({"scopes": ["chat"]})).await.assert_error(403, "POLICY_DENIED");
    assert_eq!(reader.get("/tasks").await.status, 200);
    reader.post("/execute", &direct_message("t", "Hi!")).await.assert_error(403, "POLICY_DENIED");
}
