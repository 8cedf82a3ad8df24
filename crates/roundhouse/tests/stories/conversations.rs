//! Conversations as a product shows them: titles, metadata, pins, pages of messages, search and working memory.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{answer_id, direct_message, message_id, with_fields};
use crate::support::engine_fixture::{PNG_BASE64, ReplyExt as _, wait_gate_reached};
use crate::support::http::send;
use crate::support::{Engine, EngineFixture, HttpResponse, StandaloneEngine, assert_fields, eventually};

/// A conversation, in a list and by itself.
pub(crate) const CONVERSATION: &str = "task_id:text title:text|null title_source:text|null metadata:object pinned:bool archived:bool status:text \
     message_count:int created_at:time updated_at:time forked_from:object|null";
const MESSAGE: &str =
    "message_id:message turn_id:turn role:text content:array created_at:time superseded:bool";
const HIT: &str =
    "task_id:text title:text|null archived:bool message_id:message role:text created_at:time snippet:object";

async fn patch(engine: &Engine, task: &str, change: Value) -> HttpResponse {
    send(engine.request(Method::PATCH, &format!("/tasks/{task}/conversation")).json(&change)).await
}

async fn put(engine: &Engine, path: &str, body: Value) -> HttpResponse {
    send(engine.request(Method::PUT, path).json(&body)).await
}

async fn conversation(engine: &Engine, task: &str) -> Value {
    engine.get(&format!("/tasks/{task}/conversation")).await.assert_ok(CONVERSATION)
}

/// A page of the list: the task ids, and the cursor of the next page.
async fn page(engine: &Engine, query: &str) -> (Vec<String>, Option<String>) {
    let path = format!("/conversations{query}");
    let page = engine.get(&path).await.assert_ok("conversations:array next:text|null");
    let listed = page["conversations"].as_array().unwrap();
    for one in listed {
        assert_fields(one, CONVERSATION);
    }
    let ids = listed.iter().map(|one| one["task_id"].as_str().unwrap().to_owned()).collect();
    (ids, page["next"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn titles_metadata_pins_and_the_archive_are_kept_listed_and_moved() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    for task in ["one", "two", "three", "four"] {
        engine.run_turn(task, &format!("  This is the question\nof {task}.")).await;
    }
    let one = conversation(engine, "one").await;
    assert_eq!(
        (&one["title"], &one["title_source"]),
        (&json!("This is the question of one."), &json!("message"))
    );
    assert_eq!((&one["message_count"], &one["status"]), (&json!(2), &json!("idle")));
    assert_eq!(one["forked_from"], Value::Null);

    let change = json!({"title": " Häfen ", "metadata": {"project": "a", "colour": "红"}, "pinned": true});
    let changed = patch(engine, "one", change).await.assert_ok(CONVERSATION);
    assert_eq!((&changed["title"], &changed["title_source"]), (&json!("Häfen"), &json!("user")));
    assert_eq!((&changed["pinned"], &changed["updated_at"]), (&json!(true), &one["updated_at"]));
    let change = json!({"metadata": {"project": null, "size": ""}, "archived": true});
    let changed = patch(engine, "one", change).await.assert_ok(CONVERSATION);
    assert_eq!(changed["metadata"], json!({"colour": "红", "size": ""}));
    patch(engine, "three", json!({"archived": true})).await.assert_ok(CONVERSATION);
    patch(engine, "two", json!({})).await.assert_ok(CONVERSATION);

    let fixture = fixture.kill_and_start().await;
    let engine = &fixture.engine;
    assert_eq!(conversation(engine, "one").await, changed);
    assert_eq!(page(engine, "").await, (["four", "three", "two", "one"].map(str::to_owned).to_vec(), None));
    assert_eq!(page(engine, "?archived=true").await.0, ["three", "one"]);
    assert_eq!(page(engine, "?archived=false").await.0, ["four", "two"]);
    assert_eq!(page(engine, "?archived=true&pinned=true").await.0, ["one"]);
    assert_eq!(page(engine, "?pinned=false&limit=100").await.0, ["four", "three", "two"]);
    let (first, cursor) = page(engine, "?limit=3").await;
    assert_eq!(first, ["four", "three", "two"]);
    // What changes meanwhile is on no later page.
    engine.run_turn("two", "And then?").await;
    let (last, end) = page(engine, &format!("?limit=3&after={}", cursor.unwrap())).await;
    assert_eq!((last, end), (vec!["one".to_owned()], None));

    let document = send(engine.request(Method::GET, "/memory/export")).await.body;
    assert_eq!(document["conversations"][0]["metadata"], changed["metadata"]);
    let other = EngineFixture::new([]).await;
    for _ in 0..2 {
        let import = other.engine.request(Method::POST, "/memory/import?mode=replace").json(&document);
        send(import).await.assert_ok("status:text mode:text counts:object");
        assert_eq!(conversation(&other.engine, "one").await, changed);
        assert_eq!(send(other.engine.request(Method::GET, "/memory/export")).await.body, document);
    }
    let back = patch(engine, "one", json!({"title": null})).await.assert_ok(CONVERSATION);
    assert_eq!(back["title_source"], "message");
}

#[tokio::test]
async fn what_is_no_title_no_metadata_and_no_page_is_refused() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    engine.run_turn("task", "Hello!").await;
    let entries = |count: usize| -> Value {
        json!({"metadata": (0..count).map(|n| (n.to_string(), json!("v"))).collect::<serde_json::Map<_, _>>()})
    };
    patch(engine, "task", entries(16)).await.assert_ok(CONVERSATION);
    for (change, named) in [
        (json!({"title": ""}), "title"),
        (json!({"title": " "}), "title"),
        (json!({"title": "two\nlines"}), "title"),
        (json!({"title": "x".repeat(201)}), "title"),
        (json!({"title": 7}), "title"),
        (json!({"metadata": {"one more": ""}}), "metadata"),
        (entries(17), "metadata"),
        (json!({"metadata": {"": "x"}}), "metadata"),
        (json!({"metadata": {"x".repeat(65): "x"}}), "metadata"),
        (json!({"metadata": {"0": "x".repeat(513)}}), "metadata"),
        (json!({"metadata": {"0": 7}}), "metadata"),
        (json!({"metadata": []}), "metadata"),
        (json!({"pinned": "yes"}), "pinned"),
    ] {
        let refused = patch(engine, "task", change.clone()).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(named), "{change}");
    }
    assert_eq!(conversation(engine, "task").await["metadata"].as_object().unwrap().len(), 16);
    patch(engine, "unknown", json!({"title": "x"})).await.assert_error(404, "TASK_NOT_FOUND");
    engine.get("/tasks/unknown/conversation").await.assert_error(404, "TASK_NOT_FOUND");
    engine.get("/tasks/unknown/messages").await.assert_error(404, "TASK_NOT_FOUND");
    engine.get("/tasks/task/messages?before=msg_7").await.assert_error(404, "MESSAGE_NOT_FOUND");
    for (path, named) in [
        ("/conversations?limit=101", "limit"),
        ("/conversations?after=x", "after"),
        ("/conversations?archived=maybe", "archived"),
        ("/conversations/search", "q"),
        ("/conversations/search?q=%20", "q"),
        ("/conversations/search?q=x&limit=51", "limit"),
        ("/tasks/task/messages?limit=201", "limit"),
        ("/tasks/task/messages?before=a&after=b", "after"),
    ] {
        let refused = engine.get(path).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(named), "{path}");
    }
}

#[tokio::test]
async fn messages_are_paged_with_all_that_a_client_draws() {
    let call = Reply::new().memory_set("colour", "green");
    let fixture = EngineFixture::new([call, Reply::from_text("It is green.")]).await;
    let engine = &fixture.engine;
    let media = json!([{"type": "image", "media_type": "image/png", "name": "a.png", "data": PNG_BASE64}]);
    let body = with_fields(direct_message("task", "Look."), json!({"media": media}));
    let first = engine.run_turn_with(&body).await;
    for number in 0..3 {
        engine.run_turn("task", &format!("Question {number}")).await;
    }
    let page = async |query: &str| {
        let path = format!("/tasks/task/messages{query}");
        let page = engine.get(&path).await.assert_ok("messages:array has_older:bool has_newer:bool");
        page["messages"].as_array().unwrap().iter().for_each(|message| assert_fields(message, MESSAGE));
        let flags = (page["has_older"].as_bool().unwrap(), page["has_newer"].as_bool().unwrap());
        (page["messages"].as_array().unwrap().clone(), flags)
    };
    let (all, flags) = page("").await;
    assert_eq!((all.len(), flags), (9, (false, false)));
    let image = &all[0]["content"][1];
    assert_fields(image, "type:text hash:text media_type:text name:text");
    assert_eq!(
        (&all[0]["message_id"], image["hash"].as_str().unwrap().len()),
        (&json!(message_id(&first)), 64)
    );
    let [used, result] = all[1]["content"].as_array().unwrap().as_slice() else { panic!("{}", all[1]) };
    assert_fields(used, "type:text tool_call_id:call tool:text input:object");
    assert_fields(result, "type:text tool_call_id:call output:text error:text|null");
    assert_eq!(
        (&used["tool"], &used["tool_call_id"]),
        (&json!("working_memory_set"), &result["tool_call_id"])
    );
    assert_eq!(all[2]["message_id"], answer_id(&first));
    assert_eq!(all[2]["content"], json!([{"type": "text", "text": "It is green."}]));

    assert_eq!(page("?limit=2").await, (all[7..].to_vec(), (true, false)));
    let at = |index: usize| all[index]["message_id"].as_str().unwrap().to_owned();
    assert_eq!(page(&format!("?limit=3&before={}", at(7))).await, (all[4..7].to_vec(), (true, true)));
    assert_eq!(page(&format!("?limit=3&before={}", at(2))).await, (all[..2].to_vec(), (false, true)));
    assert_eq!(page(&format!("?limit=3&after={}", at(2))).await, (all[3..6].to_vec(), (true, true)));
    assert_eq!(page(&format!("?after={}", at(8))).await, (vec![], (true, false)));
}

#[tokio::test]
async fn a_search_finds_messages_in_any_language_and_marks_the_words() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    for (task, text) in [
        ("en", "Where are the green harbours of the north?"),
        ("de", "Welche Häuser stehen am Fluss?"),
        ("zh", "我想知道北京的天气怎么样"),
    ] {
        engine.run_turn(task, text).await;
    }
    patch(engine, "de", json!({"title": "Am Fluss", "archived": true})).await.assert_ok(CONVERSATION);
    for (question, task, marked) in [
        ("harbour", "en", vec!["harbours"]),
        ("haus", "de", vec!["Häuser"]),
        ("%E5%8C%97%E4%BA%AC%E5%A4%A9%E6%B0%94", "zh", vec!["北京", "天气"]),
    ] {
        let found = engine
            .get(&format!("/conversations/search?q={question}&limit=1"))
            .await
            .assert_ok("results:array");
        let hit = &found["results"][0];
        assert_fields(hit, HIT);
        assert_eq!((&hit["task_id"], &hit["role"]), (&json!(task), &json!("user")), "{question}: {found}");
        let snippet = &hit["snippet"];
        assert_fields(snippet, "text:text matches:array cut_before:bool cut_after:bool");
        let text: Vec<char> = snippet["text"].as_str().unwrap().chars().collect();
        let place = |mark: &Value, end: &str| usize::try_from(mark[end].as_u64().unwrap()).unwrap();
        let marks = snippet["matches"].as_array().unwrap();
        let words: Vec<String> = marks
            .iter()
            .map(|mark| text[place(mark, "start")..place(mark, "end")].iter().collect())
            .collect();
        assert_eq!(words, marked, "{snippet}");
        let listed = engine.messages(task).await;
        assert_eq!(hit["message_id"], listed[0]["message_id"]);
    }
    let found = engine.get("/conversations/search?q=haus").await.body;
    assert_eq!(
        (&found["results"][0]["title"], &found["results"][0]["archived"]),
        (&json!("Am Fluss"), &json!(true))
    );
    assert_eq!(engine.get("/conversations/search?q=zebra").await.body, json!({"results": []}));
    engine.delete("/tasks/de").await.assert_ok("status:text");
    assert_eq!(engine.get("/conversations/search?q=haus").await.body, json!({"results": []}));
}

#[tokio::test]
async fn working_memory_is_replaced_and_emptied_between_turns() {
    let gate = Gate::new();
    let fixture =
        EngineFixture::new([Reply::new().memory_set("colour", "green"), Reply::from_text("Kept.")]).await;
    let engine = &fixture.engine;
    engine.run_turn("task", "Keep it.").await;
    let memory = json!({"size": 7, "list": [1, 2]});
    let path = "/tasks/task/memory";
    let replaced = put(engine, path, json!({"memory": memory})).await.assert_ok("memory:object");
    assert_eq!(replaced["memory"], memory);
    for (body, named) in [
        (json!({"memory": {"a": null}}), "memory"),
        (json!({"memory": {"": 1}}), "key"),
        (json!({"memory": {"a": "x".repeat(40_000)}}), "memory"),
        (
            json!({"memory": (0..101).map(|n| (n.to_string(), json!(1))).collect::<serde_json::Map<_, _>>()}),
            "memory",
        ),
        (json!({}), "memory"),
    ] {
        let refused = put(engine, path, body).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(named), "{refused:?}");
    }
    put(engine, "/tasks/unknown/memory", json!({"memory": {}})).await.assert_error(404, "TASK_NOT_FOUND");
    let fixture = fixture.kill_and_start().await;
    let engine = &fixture.engine;
    assert_eq!(engine.get(path).await.body["memory"], memory);
    fixture.provider.enqueue_all([Reply::from_text("Well.").hold(0, &gate)]);
    let mut stream = engine.execute_with(&direct_message("task", "And?")).await;
    wait_gate_reached(&gate).await;
    fixture.last_messages().assert_contains(&["Working memory was changed", "colour was removed"]);
    put(engine, path, json!({"memory": {}})).await.assert_error(409, "TASK_BUSY");
    engine.delete(path).await.assert_error(409, "TASK_BUSY");
    // What is shown of a conversation is changed at any time.
    patch(engine, "task", json!({"pinned": true})).await.assert_ok(CONVERSATION);
    gate.release();
    stream.read_until("the end", |event| event.data["phase"] == "completed").await;
    assert_eq!(engine.delete(path).await.assert_ok("memory:object")["memory"], json!({}));
}

/// An engine with a model for titles, beside that of the answers.
async fn with_titles(titles: &MockProvider) -> (MockProvider, StandaloneEngine) {
    let answers = MockProvider::start().await.unwrap();
    let model = |provider: &MockProvider| {
        json!({"provider": "openai-compatible", "model": "m", "base_url": provider.openai_base_url(),
               "api_key_env": "none", "context_window": 100_000})
    };
    let gateway = json!({
        "models": {"answers": model(&answers), "small": model(titles)}, "default": "answers", "titles": "small",
    });
    (answers, StandaloneEngine::new().with_catalog_file("gateway.json", &gateway.to_string()))
}

#[tokio::test]
async fn a_model_names_a_conversation_once_and_never_over_the_users_title() {
    let titles = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    titles.enqueue_all([
        Reply::from_text("\"Green harbours\"\n"),
        Reply::from_text("Too late").hold(0, &gate),
        Reply::from_text("After the restart"),
    ]);
    let (_answers, setup) = with_titles(&titles).await;
    let (program, engine) = setup.start().await;
    engine.run_turn("one", "Where are green harbours?").await;
    let named = eventually("the title", async || {
        let shown = conversation(&engine, "one").await;
        (shown["title_source"] == "model").then_some(shown)
    })
    .await;
    assert_eq!(named["title"], "Green harbours");
    assert!(titles.requests()[0].body.to_string().contains("Where are green harbours?"));
    engine.run_turn("one", "And red ones?").await;
    // The turn has ended before the title is made, and the user is faster.
    engine.run_turn("two", "Hello!").await;
    wait_gate_reached(&gate).await;
    assert_eq!(titles.requests().len(), 2);
    patch(&engine, "two", json!({"title": "Mine"})).await.assert_ok(CONVERSATION);
    gate.release();
    engine.run_turn("three", "Hello again!").await;
    let three = eventually("the next title", async || {
        let shown = conversation(&engine, "three").await;
        (shown["title_source"] == "model").then_some(shown)
    })
    .await;
    assert_eq!(three["title"], "After the restart");
    assert_eq!(conversation(&engine, "two").await["title"], "Mine");
    drop(program);
}

#[tokio::test]
async fn a_title_that_a_kill_interrupts_is_made_after_the_restart() {
    let titles = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    titles.enqueue_all([Reply::from_text("Lost").hold(0, &gate), Reply::from_text("Found")]);
    let (_answers, setup) = with_titles(&titles).await;
    let (program, engine) = setup.start().await;
    engine.run_turn("task", "Hello!").await;
    wait_gate_reached(&gate).await;
    program.signal_and_wait(rustix::process::Signal::KILL).await;
    let (_program, engine) = setup.start().await;
    eventually("the title", async || (conversation(&engine, "task").await["title"] == "Found").then_some(()))
        .await;
    assert_eq!(titles.requests().len(), 2);
}
