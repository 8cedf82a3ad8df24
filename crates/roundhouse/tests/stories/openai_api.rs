//! OpenAI's API on an engine: what its requests mean for a turn, what is refused, and how a stream is taken up again.

use mock_llm::{Fault, Gate, MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::with_fields;
use crate::support::engine_fixture::{PNG_BASE64, ReplyExt as _, wait_gate_reached, write_file_reply};
use crate::support::http::{HttpResponse, client, send};
use crate::support::{EngineFixture, Fleet, with_deadline};

fn chat_body(text: &str, fields: Value) -> Value {
    with_fields(json!({"model": "default", "messages": [{"role": "user", "content": text}]}), fields)
}

fn response_body(text: &str, fields: Value) -> Value {
    with_fields(json!({"model": "default", "input": text}), fields)
}

async fn chat(fixture: &EngineFixture, body: &Value) -> HttpResponse {
    fixture.engine.post("/v1/chat/completions", body).await
}

/// The data of the events of a stream, which may be cut off; and whether it ends with `[DONE]`.
async fn stream(fixture: &EngineFixture, method: Method, path: &str, body: &Value) -> (Vec<Value>, bool) {
    let request = fixture.engine.request(method, path).json(body);
    let response = with_deadline("the stream begins", request.send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let text = with_deadline("the stream ends", response.text()).await.unwrap();
    let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let is_done = data.last() == Some(&"[DONE]");
    let events =
        data.iter().filter(|data| **data != "[DONE]").map(|data| serde_json::from_str(data).unwrap());
    (events.collect(), is_done)
}

async fn stream_chat(fixture: &EngineFixture, body: Value) -> (Vec<Value>, bool) {
    let body = with_fields(body, json!({"stream": true}));
    stream(fixture, Method::POST, "/v1/chat/completions", &body).await
}

async fn stream_response(fixture: &EngineFixture, body: Value) -> Vec<Value> {
    let body = with_fields(body, json!({"stream": true}));
    stream(fixture, Method::POST, "/v1/responses", &body).await.0
}

async fn reread(fixture: &EngineFixture, id: &Value, after: &str) -> Vec<Value> {
    let path = format!("/v1/responses/{}?stream=true{after}", id.as_str().unwrap());
    stream(fixture, Method::GET, &path, &json!({})).await.0
}

fn content(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

fn deltas(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

/// The text of a response's object, as clients put it together.
fn output_text(response: &Value) -> String {
    let messages = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    messages.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_vendor_error(response: &HttpResponse, status: u16, code: &str) {
    assert_eq!(
        (response.status, &response.body["error"]["code"]),
        (status, &json!(code)),
        "{}",
        response.body
    );
    let error = response.body["error"].as_object().unwrap();
    assert_eq!(error.keys().collect::<Vec<_>>().len(), 4, "{}", response.body);
    assert!(error["message"].is_string() && error["type"].is_string() && error.contains_key("param"));
}

#[tokio::test]
async fn the_key_is_a_bearer_and_every_refusal_has_the_vendors_form() {
    let fixture = EngineFixture::new([Reply::from_text("Hello.")]).await;
    let url = |path: &str| format!("{}{path}", fixture.engine.url);
    for (key, status) in [(None, 401), (Some("sk-svc-wrong"), 401), (Some(&*fixture.engine.key), 200)] {
        let mut request = client().get(url("/v1/models"));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let response = send(request).await;
        assert_eq!(response.status, status, "{}", response.body);
        if status == 401 {
            assert_vendor_error(&response, 401, "invalid_api_key");
        }
    }
    // Nothing else takes the key in this way.
    let other = send(client().get(url("/tasks")).bearer_auth(&fixture.engine.key)).await;
    other.assert_error(401, "INVALID_ENGINE_KEY");
    let post = async |path: &str, body: &'static str| {
        send(fixture.engine.request(Method::POST, path).body(body)).await
    };
    assert_vendor_error(&post("/v1/embeddings", "{}").await, 404, "unknown_url");
    assert_vendor_error(&post("/v1/chat/completions", "{").await, 400, "invalid_request");
    assert_vendor_error(&post("/v1/responses", "[]").await, 400, "invalid_request");
    let large = "x".repeat(33 * 1024 * 1024);
    assert_vendor_error(&chat(&fixture, &chat_body(&large, json!({}))).await, 413, "payload_too_large");
    assert_vendor_error(&fixture.engine.get("/v1/models/gpt-9").await, 404, "model_not_found");
    assert_vendor_error(
        &chat(&fixture, &chat_body("Hi", json!({"model": "gpt-9"}))).await,
        404,
        "model_not_found",
    );
    let unknown = fixture.engine.get(&format!("/v1/responses/resp_{}", "0".repeat(32))).await;
    assert_vendor_error(&unknown, 404, "response_not_found");
    assert_eq!(fixture.model_calls(), 0);
}

#[tokio::test]
async fn what_means_nothing_for_an_agent_is_refused_by_name() {
    let fixture = EngineFixture::new((0..2).map(|_| Reply::from_text("Hello."))).await;
    let tool = json!([{"type": "function", "name": "f", "function": {"name": "f", "parameters": {}}}]);
    for (fields, param) in [
        (json!({"tools": tool}), "tools"),
        (json!({"n": 2}), "n"),
        (json!({"temperature": 0.2}), "temperature"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"seed": 1}), "seed"),
        (json!({"stop": ["x"]}), "stop"),
        (json!({"store": false}), "store"),
        (json!({"massage": 1}), "massage"),
        (json!({"stream_options": {"odd": 1}}), "stream_options.odd"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"max_tokens": 1}), "max_tokens"),
        (json!({"max_tokens": 300, "max_completion_tokens": 400}), "max_tokens"),
        (
            json!({"messages": [
                {"role": "assistant", "content": "Hi", "audio": {"id": "audio_1"}}, {"role": "user", "content": "Hi"},
            ]}),
            "messages[0].audio",
        ),
        (json!({"metadata": {"a": 1}}), "metadata"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"roundhouse": {"odd": 1}}), "roundhouse"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "assistant", "content": "Hi"}]}), "messages"),
        (json!({"messages": [{"role": "tool", "content": "Hi"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            "messages[0].content[0].type",
        ),
    ] {
        let response = chat(&fixture, &chat_body("Hi", fields.clone())).await;
        assert_eq!(
            (response.status, &response.body["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            response.body
        );
    }
    for (fields, param) in [
        (json!({"tools": tool}), "tools"),
        (json!({"truncation": "sometimes"}), "truncation"),
        (json!({"include": ["reasoning.encrypted_content"]}), "include"),
        (json!({"conversation": "a", "previous_response_id": "resp_b"}), "previous_response_id"),
        (json!({"input": 7}), "input"),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}),
            "input[0].type",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "array"}}}}),
            "text.format",
        ),
    ] {
        let response = fixture.engine.post("/v1/responses", &response_body("Hi", fields.clone())).await;
        assert_eq!(
            (response.status, &response.body["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            response.body
        );
    }
    assert_eq!(fixture.model_calls(), 0);
    // What changes nothing is taken; what has no effect is named.
    let neutral = json!({"temperature": 1.0, "n": 1, "tools": [], "stop": null, "user": "ann", "odd": null});
    let response = chat(&fixture, &chat_body("Hi", neutral)).await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("roundhouse-warning"), Some("fields without effect: user"));
}

#[tokio::test]
async fn what_has_no_effect_is_named_and_never_dropped_in_silence() {
    let fixture = EngineFixture::for_wire("openai", (0..4).map(|_| Reply::from_text("{}"))).await;
    let picture = |detail: &str| {
        let url = format!("data:image/png;base64,{PNG_BASE64}");
        json!({"type": "image_url", "image_url": {"url": url, "detail": detail}})
    };
    let named = |response: &HttpResponse| {
        assert_eq!(response.status, 200, "{}", response.body);
        response.header("roundhouse-warning").map(str::to_owned)
    };
    let form = json!({"name": "any", "schema": {"type": "object"}, "description": "Anything."});
    let parts = json!([
        {"type": "text", "text": "Look.", "prompt_cache_breakpoint": {"mode": "explicit"}},
        picture("high"), picture("low"),
    ]);
    let fields = json!({
        "stream_options": {"include_obfuscation": true}, "user": "ann",
        "max_tokens": 300, "max_completion_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": form},
        "messages": [
            {"role": "user", "content": "Hi", "name": "Ann"},
            {"role": "assistant", "content": "", "refusal": "No.", "reasoning_content": "Hm."},
            {"role": "user", "content": parts, "name": "Ben"},
        ],
    });
    assert_eq!(
        named(&chat(&fixture, &chat_body("", fields)).await).as_deref(),
        Some(
            "fields without effect: user, stream_options.include_obfuscation, \
             response_format.json_schema.description, messages[].name, messages[].refusal, \
             messages[].reasoning_content, messages[].content[].prompt_cache_breakpoint, \
             messages[].content[].image_url.detail"
        )
    );
    let fields = json!({
        "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "concise"},
        "truncation": "auto", "stream_options": {"include_obfuscation": true},
        "text": {"format": {"type": "json_schema", "name": "any", "schema": {"type": "object"}, "description": "Any."}},
        "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "Look."},
            {"type": "input_image", "image_url": format!("data:image/png;base64,{PNG_BASE64}"), "detail": "low"},
        ]}],
    });
    let response = fixture.engine.post("/v1/responses", &response_body("", fields)).await;
    assert_eq!(
        named(&response).as_deref(),
        Some(
            "fields without effect: stream_options.include_obfuscation, reasoning.summary, \
             reasoning.generate_summary, text.format.description, truncation, input[].content[].detail"
        )
    );
    // What changes nothing is not named.
    let fields = json!({
        "stream_options": {"include_obfuscation": false},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}, picture("auto")]},
            {"role": "assistant", "content": "A point.", "refusal": null, "audio": null, "annotations": []},
            {"role": "user", "content": "And now?"},
        ],
    });
    assert_eq!(named(&chat(&fixture, &chat_body("", fields)).await), None);
    let fields = json!({"truncation": "disabled", "reasoning": {"effort": "low"}});
    assert_eq!(named(&fixture.engine.post("/v1/responses", &response_body("Hi", fields)).await), None);
}

#[tokio::test]
async fn a_task_has_its_history_and_a_new_one_gets_it_from_the_request() {
    let fixture = EngineFixture::new((0..3).map(|_| Reply::from_text("Gut."))).await;
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ich heiße Zoë."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hallo Zoë."}]},
        {"role": "user", "content": "Wie heiße ich?"},
    ]);
    let body = json!({"model": "default", "messages": messages});
    // First the task that is named: later turns recall what the other one was told.
    let named = with_fields(body.clone(), json!({"roundhouse": {"task_id": "eigene"}}));
    let response = chat(&fixture, &named).await;
    assert_eq!(response.header("roundhouse-task"), Some("eigene"), "{}", response.body);
    assert!(response.header("roundhouse-warning").unwrap().contains("messages before the last answer"));
    fixture.last_messages().assert_contains(&["Wie heiße ich?"]).assert_lacks(&["Ich heiße Zoë."]);
    assert_eq!(
        chat(&fixture, &chat_body("Mehr.", json!({"roundhouse": {"task_id": "eigene"}}))).await.status,
        200
    );
    assert_eq!(fixture.engine.messages("eigene").await.len(), 4);
    let response = chat(&fixture, &body).await;
    assert_eq!(response.body["choices"][0]["message"]["content"], "Gut.", "{}", response.body);
    fixture.last_messages().assert_contains(&["Be brief.", "Wie heiße ich?", "Ich heiße Zoë.", "Hallo Zoë."]);
    let task = response.header("roundhouse-task").unwrap().to_owned();
    assert_eq!(fixture.engine.messages(&task).await.len(), 2);
}

#[tokio::test]
async fn pictures_and_options_reach_the_turn() {
    let fixture =
        EngineFixture::with_models(&["anthropic", "openai"], [Reply::from_text("Ein Punkt.")], |setup| setup)
            .await;
    let parts = json!([
        {"type": "text", "text": "Was ist das?"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG_BASE64}"), "detail": "low"}},
    ]);
    let body = json!({
        "model": "openai", "messages": [{"role": "user", "content": parts}], "max_completion_tokens": 4_000,
        "metadata": {"ticket": "4711"}, "roundhouse": {"task_id": "bild"},
    });
    let response = chat(&fixture, &body).await;
    assert_eq!((response.status, &response.body["model"]), (200, &json!("openai")), "{}", response.body);
    let sent = fixture.provider.requests().pop().unwrap().body;
    assert!(sent.to_string().contains(PNG_BASE64) && sent["model"] == "gpt-4o", "{sent}");
    let models = fixture.engine.get("/v1/models").await.body;
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("default"), &json!("anthropic"), &json!("openai")]);
}

#[tokio::test]
async fn a_repeated_request_joins_its_turn() {
    let fixture = EngineFixture::new([Reply::from_text("Once.")]).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request =
            fixture.engine.request(Method::POST, "/v1/chat/completions").header("Idempotency-Key", "k-1");
        answers.push(send(request.json(&chat_body("Hi", json!({})))).await.body);
    }
    assert_eq!((&answers[0], fixture.model_calls()), (&answers[1], 1));
}

#[tokio::test]
async fn an_answer_with_a_form_is_sent_only_once_it_is_right() {
    let replies =
        (0..4).flat_map(|_| [Reply::from_text("{\"city\": 7}"), Reply::from_text("{\"city\":\"Köln\"}")]);
    let fixture = EngineFixture::for_wire("openai", replies).await;
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let form = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema}});
    let (chunks, is_done) = stream_chat(&fixture, chat_body("Wo?", json!({"response_format": form}))).await;
    assert_eq!((&*content(&chunks), is_done), ("{\"city\":\"Köln\"}", true));
    let form = json!({"format": {"type": "json_schema", "name": "place", "schema": schema}});
    let events = stream_response(&fixture, response_body("Wo?", json!({"text": form}))).await;
    assert_eq!(deltas(&events), "{\"city\":\"Köln\"}");
    let response = &events.last().unwrap()["response"];
    assert_eq!(output_text(response), "{\"city\":\"Köln\"}");
    // The log knows the form: what is read again is the same.
    assert_eq!(reread(&fixture, &response["id"], "").await, events);
}

#[tokio::test]
async fn an_answer_that_begins_anew_is_not_mixed_with_what_was_sent() {
    let broken = || Reply::from_text("One two three four.").deltas(4).fault(Fault::CutAfter { deltas: 2 });
    let other = || Reply::from_text("Eins zwei.");
    let fixture = EngineFixture::new([broken(), other(), broken(), other()]).await;
    let (chunks, is_done) = stream_chat(&fixture, chat_body("Count.", json!({}))).await;
    assert_eq!(
        (chunks.last().unwrap()["error"]["code"].as_str(), is_done),
        (Some("answer_restarted"), false)
    );
    let task = json!({"conversation": "zählen"});
    let events = stream_response(&fixture, response_body("Count.", task)).await;
    let response = &events.last().unwrap()["response"];
    assert_eq!((response["status"].as_str(), &*output_text(response)), (Some("completed"), "Eins zwei."));
    assert!(deltas(&events).len() > "Eins zwei.".len(), "nothing was sent before the break");
}

#[tokio::test]
async fn a_response_is_taken_up_after_any_of_its_events_also_after_a_kill() {
    let gate = Gate::new();
    let text = "Ein Text, der länger ist und in Stücken kommt.";
    let call = Reply::new().thinking("Hm.").text("Moment.").memory_set("ort", "Köln");
    let fixture = EngineFixture::new([call, Reply::from_text(text).deltas(8).hold(4, &gate)]).await;
    let begun = response_body("Erzähl.", json!({"background": true}));
    let begun = fixture.engine.post("/v1/responses", &begun).await.body;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text(text).deltas(8));
    let fixture = fixture.kill_and_start().await;
    let all = reread(&fixture, &begun["id"], "").await;
    let response = &all.last().unwrap()["response"];
    assert_eq!((response["status"].as_str(), &*output_text(response)), (Some("completed"), text));
    let numbers: Vec<i64> = all.iter().map(|event| event["sequence_number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
    for (at, number) in numbers.iter().enumerate() {
        let rest = reread(&fixture, &begun["id"], &format!("&starting_after={number}")).await;
        assert_eq!(rest, all[at + 1..], "after {number}");
    }
    let fixture = fixture.kill_and_start().await;
    assert_eq!(reread(&fixture, &begun["id"], "").await, all);
    let object = fixture.engine.get(&format!("/v1/responses/{}", begun["id"].as_str().unwrap())).await.body;
    assert_eq!(&object, response);
}

#[tokio::test]
async fn a_person_is_asked_in_the_middle() {
    let replies = (0..2).flat_map(|_| [write_file_reply("notes.txt"), Reply::from_text("Done.")]);
    let fixture = EngineFixture::new(replies).await;
    let body = response_body("Write.", json!({"conversation": "task"}));
    let waiting = fixture.engine.post("/v1/responses", &body).await.body;
    assert_eq!(waiting["status"], "in_progress", "{waiting}");
    let items = waiting["output"].as_array().unwrap();
    let asked = items.iter().find(|item| item["type"] == "mcp_approval_request").expect("an item says so");
    let pending = fixture.engine.pending().await;
    assert_eq!(asked["id"], pending[0]["request_id"]);
    // Another request is refused meanwhile, and the response waits over a restart.
    assert_vendor_error(&fixture.engine.post("/v1/responses", &body).await, 409, "task_busy");
    let fixture = fixture.kill_and_start().await;
    let (events, answered) =
        tokio::join!(reread(&fixture, &waiting["id"], ""), fixture.engine.respond("task", "yes"));
    assert_eq!(answered.status, 200);
    assert_eq!(output_text(&events.last().unwrap()["response"]), "Done.");
    assert!(events.iter().any(|event| event["type"] == "response.mcp_call.completed"));
}

#[tokio::test]
async fn the_stop_of_the_engine_is_said_and_the_turn_goes_on() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Half an answer.").deltas(3).hold(1, &gate)]).await;
    let (engine, body) = (fixture.engine.clone(), chat_body("Think.", json!({"stream": true})));
    let body = with_fields(body, json!({"roundhouse": {"task_id": "task"}}));
    let reading = tokio::spawn(async move {
        engine
            .request(Method::POST, "/v1/chat/completions")
            .json(&body)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    });
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text("Half an answer."));
    let fixture = fixture.stop_and_start().await;
    let text = reading.await.unwrap();
    assert!(text.contains("engine_stopping") && !text.contains("[DONE]"), "{text}");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(crate::support::turn::assert_completed(&events), "Half an answer.");
}

#[tokio::test]
async fn a_product_reaches_it_through_the_proxy_with_its_own_key_as_bearer() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Hello from afar."));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    product.admit("ada").await;
    let url = format!("{}/engines/ada/proxy/v1/chat/completions", product.base);
    let body = chat_body("Hi", json!({}));
    let response = send(client().post(&url).bearer_auth(&product.key).json(&body)).await;
    let answer = &response.body["choices"][0]["message"]["content"];
    assert_eq!((response.status, answer), (200, &json!("Hello from afar.")), "{}", response.body);
    for key in ["pk-svc-wrong", ""] {
        let refused = send(client().post(&url).bearer_auth(key).json(&body)).await;
        refused.assert_error(401, "INVALID_PLATFORM_KEY");
    }
    // The key is no bearer of the orchestrator's own endpoints.
    let other = send(client().get(format!("{}/engines", product.base)).bearer_auth(&product.key)).await;
    other.assert_error(401, "INVALID_PLATFORM_KEY");
}
