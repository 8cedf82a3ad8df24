//! Client calls of the engine's endpoints other than `/execute` and its replay. Responses are checked against
//! their documented fields.

use reqwest::Method;
use serde_json::{Value, json};

use super::http::{path_segment, send};
use super::schema::{
    ACTIVITY, CONNECTION, GRANT, HITL_REQUEST, QUEUED_MESSAGE, SERVER, TASK_MESSAGE, TASK_SUMMARY, TURN,
};
use super::turn::assert_completed;
use super::{Engine, Event, EventStream, HttpResponse, assert_fields, eventually};

/// The body of a turn without planning.
pub(crate) fn direct_message(task: &str, message: &str) -> Value {
    json!({"task_id": task, "message": message, "direct": true})
}

/// `body` with more fields.
pub(crate) fn with_fields(mut body: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("not an object: {fields}") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

impl Engine {
    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        send(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> HttpResponse {
        send(self.request(Method::DELETE, path)).await
    }

    /// Runs a turn without planning, which must complete; returns its events.
    pub(crate) async fn run_turn(&self, task: &str, text: &str) -> Vec<Event> {
        self.run_turn_with(&direct_message(task, text)).await
    }

    /// Runs a turn, which must complete; returns its events.
    pub(crate) async fn run_turn_with(&self, body: &Value) -> Vec<Event> {
        let events = self.execute_with(body).await.collect().await;
        assert_completed(&events);
        events
    }

    /// Starts a turn and reads until a person is asked; returns the stream and the request.
    pub(crate) async fn run_until_hitl_request(&self, body: &Value) -> (EventStream, Event) {
        let mut stream = self.execute_with(body).await;
        let request = stream.next_hitl_request().await;
        (stream, request)
    }

    /// Posts a turn that is expected to be refused.
    pub(crate) async fn post_execute(&self, body: &Value) -> HttpResponse {
        self.post("/execute", body).await
    }

    pub(crate) async fn cancel(&self, task: &str) -> HttpResponse {
        self.post("/execute/cancel", &json!({"task_id": task})).await
    }

    pub(crate) async fn steer(&self, task: &str, message: &str) -> HttpResponse {
        self.post("/execute/steer", &json!({"task_id": task, "message": message})).await
    }

    /// Sends a message that waits for its turn; returns the stream and the first event's position.
    pub(crate) async fn queue_message(&self, task: &str, text: &str) -> (EventStream, u64) {
        let body = with_fields(direct_message(task, text), json!({"on_busy": "queue"}));
        let mut stream = self.execute_with(&body).await;
        let first = stream.next().await.unwrap();
        assert_eq!((first.kind.as_str(), &first.data["status"]), ("busy_update", &json!("queued")));
        let position = first.data["position"].as_u64().unwrap();
        (stream, position)
    }

    /// Sends a message in the background; returns the answer.
    pub(crate) async fn execute_in_background(&self, body: Value) -> Value {
        let answer = self.post("/execute", &with_fields(body, json!({"background": true}))).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        assert_fields(
            &answer.body,
            "status:text task_id:text turn_id:turn position?:int message_id?:message",
        );
        answer.body
    }

    /// The texts of the messages that wait for their turn.
    pub(crate) async fn queued(&self, task: &str) -> Vec<String> {
        let answer = self.get(&format!("{}/queue", task_path(task))).await;
        let answer = answer.assert_ok("entries:array limits:object");
        let entries = answer["entries"].as_array().unwrap();
        for (position, entry) in (1..).zip(entries) {
            assert_fields(entry, QUEUED_MESSAGE);
            assert_eq!(entry["position"], position, "{answer}");
        }
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// A turn of a task.
    pub(crate) async fn turn(&self, task: &str, turn: &Value) -> Value {
        let path = format!("{}/turns/{}", task_path(task), turn.as_str().unwrap());
        self.get(&path).await.assert_ok(TURN)
    }

    /// Waits until a turn is in a state.
    pub(crate) async fn wait_turn_state(&self, task: &str, turn: &Value, state: &str) -> Value {
        eventually(&format!("the turn is {state}"), async || {
            let record = self.turn(task, turn).await;
            (record["state"] == state).then_some(record)
        })
        .await
    }

    /// Answers the pending request of a task.
    pub(crate) async fn respond(&self, task: &str, answer: &str) -> HttpResponse {
        self.respond_with(&json!({"task_id": task, "answer": answer})).await
    }

    pub(crate) async fn respond_with(&self, body: &Value) -> HttpResponse {
        self.post("/hitl/respond", body).await
    }

    /// Calls a method of `/rpc`.
    pub(crate) async fn rpc(&self, method: &str, params: Value) -> HttpResponse {
        self.post("/rpc", &json!({"method": method, "params": params})).await
    }

    /// The result of a method of `/rpc`, which must succeed.
    pub(crate) async fn rpc_result(&self, method: &str, params: Value) -> Value {
        self.rpc(method, params).await.assert_ok("result:object")["result"].take()
    }

    /// Calls a control operation with its parameters.
    pub(crate) async fn control(&self, op: &str, parameters: Value) -> HttpResponse {
        self.post("/rpc", &with_fields(json!({"subsystem": "control", "op": op}), parameters)).await
    }

    /// Quiesces the engine; returns whether it is quiesced.
    pub(crate) async fn quiesce(&self) -> bool {
        self.quiesce_with(json!({})).await
    }

    /// Lets the engine start turns again.
    pub(crate) async fn lift_quiesce(&self) {
        assert!(!self.quiesce_with(json!({"lift": true})).await);
    }

    async fn quiesce_with(&self, parameters: Value) -> bool {
        let answer = self.control("quiesce", parameters).await.assert_ok("result:object");
        assert_fields(&answer["result"], "quiesced:bool");
        answer["result"]["quiesced"].as_bool().unwrap()
    }

    /// The engine's activity.
    pub(crate) async fn activity(&self) -> Value {
        let call = json!({"subsystem": "telemetry", "op": "activity"});
        let answer = self.post("/rpc", &call).await.assert_ok("result:object");
        assert_fields(&answer["result"], ACTIVITY);
        answer["result"].clone()
    }

    /// The requests that await a person.
    pub(crate) async fn pending(&self) -> Vec<Value> {
        self.list("/hitl/pending", "pending", HITL_REQUEST).await
    }

    /// The lasting grants.
    pub(crate) async fn grants(&self) -> Vec<Value> {
        self.list("/hitl/grants", "grants", GRANT).await
    }

    /// The tool servers that the catalog names.
    pub(crate) async fn servers(&self) -> Vec<Value> {
        self.list("/assets/servers", "servers", SERVER).await
    }

    /// The connections to tool servers.
    pub(crate) async fn connections(&self) -> Vec<Value> {
        self.list("/assets/connections", "connections", CONNECTION).await
    }

    /// Requests a connection to a tool server.
    pub(crate) async fn connect(&self, body: &Value) -> HttpResponse {
        self.post("/assets/connect", body).await
    }

    /// Connects a tool server that needs no credentials; returns the connection's id.
    pub(crate) async fn connect_server(&self, server: &str) -> String {
        self.connect_server_with(&json!({"server": server})).await
    }

    /// Connects a tool server; returns the connection's id.
    pub(crate) async fn connect_server_with(&self, body: &Value) -> String {
        let answer = self.connect(body).await.assert_ok("status:text connection:connection");
        assert_eq!(answer["status"], "connected");
        answer["connection"].as_str().unwrap().to_owned()
    }

    /// Removes a connection.
    pub(crate) async fn disconnect(&self, connection: &str) -> HttpResponse {
        self.delete(&format!("/assets/connections/{}", path_segment(connection))).await
    }

    /// Calls a tool outside a turn.
    pub(crate) async fn call_tool(&self, name: &str, params: Value) -> HttpResponse {
        self.post("/rpc", &json!({"method": format!("tool.{name}"), "params": params})).await
    }

    /// The output of a tool that is called outside a turn.
    pub(crate) async fn tool_output(&self, name: &str, params: Value) -> String {
        let answer = self.call_tool(name, params).await.assert_ok("result:object");
        answer["result"]["output"].as_str().unwrap().to_owned()
    }

    /// The messages of a task.
    pub(crate) async fn messages(&self, task: &str) -> Vec<Value> {
        self.list(&task_path(task), "messages", TASK_MESSAGE).await
    }

    /// A page of the tasks, and the total.
    pub(crate) async fn tasks(&self, query: &str) -> (Vec<Value>, u64) {
        let list = self.get(&format!("/tasks{query}")).await.assert_ok("tasks:array total:int");
        let tasks = list["tasks"].as_array().unwrap().clone();
        for task in &tasks {
            assert_fields(task, TASK_SUMMARY);
        }
        (tasks, list["total"].as_u64().unwrap())
    }

    /// The status of a task.
    pub(crate) async fn task_status(&self, task: &str) -> String {
        let (tasks, _) = self.tasks("?limit=1000").await;
        let found = tasks.iter().find(|one| one["task_id"] == task);
        found.unwrap_or_else(|| panic!("{task:?} is not listed"))["status"].as_str().unwrap().to_owned()
    }

    async fn list(&self, path: &str, field: &str, fields: &str) -> Vec<Value> {
        let list = self.get(path).await.assert_ok(&format!("{field}:array"));
        let entries = list[field].as_array().unwrap().clone();
        for entry in &entries {
            assert_fields(entry, fields);
        }
        entries
    }
}

impl EventStream {
    /// Reads until a person is asked.
    pub(crate) async fn next_hitl_request(&mut self) -> Event {
        self.read_until("a hitl_request", |event| event.kind == "hitl_request").await
    }
}

/// The path of a task.
fn task_path(task: &str) -> String {
    format!("/tasks/{}", path_segment(task))
}

/// The roles and texts of listed messages.
pub(crate) fn roles_and_texts(messages: &[Value]) -> Vec<(&str, &str)> {
    messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or("(blocks)")))
        .collect()
}

/// The id of the message that started a turn.
pub(crate) fn message_id(events: &[Event]) -> &str {
    events[0].data["message_id"].as_str().unwrap()
}

/// The id of the message that ended a turn.
pub(crate) fn answer_id(events: &[Event]) -> &str {
    events.last().unwrap().data["answer_message_id"].as_str().unwrap()
}
