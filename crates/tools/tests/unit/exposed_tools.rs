use std::path::Path;

use api::CallId;
use api::tool_names::{BUILT_IN, TOOL_SEARCH};
use catalog::{AgentSpec, Catalog, Permission, Permissions};
use futures::future::BoxFuture;
use proptest::prelude::*;
use resources::memory_budget::MemoryBudget;
use testkit::test_sandbox;

use super::super::fixture::WorkspaceFixture;
use super::super::{Invocation, ProcessPermits, ToolDeps, ToolError, ToolStep, Toolbox};
use super::*;

/// A tool of an MCP server, with a schema of its own.
struct Remote {
    name: String,
    properties: usize,
}

impl Tool for Remote {
    fn spec(&self) -> ToolSpec {
        let property =
            |at| (format!("property_{at}"), json!({"type": "string", "description": "What it is for."}));
        let properties: Map<String, Value> = (0..self.properties).map(property).collect();
        ToolSpec {
            name: self.name.clone(),
            description: "Does something far away.".into(),
            input_schema: json!({"type": "object", "properties": properties}),
        }
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn is_mcp_tool(&self) -> bool {
        self.name.contains("__")
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async { Err(ToolError("it is far away".into())) })
    }
}

fn remotes(names: &[&str]) -> Vec<Arc<dyn Tool>> {
    let remote = |name: &&str| Arc::new(Remote { name: (*name).to_owned(), properties: 3 }) as Arc<dyn Tool>;
    names.iter().map(remote).collect()
}

fn call(name: &str, input: Value) -> ToolUse {
    ToolUse {
        call_id: CallId::new(),
        provider_id: "p".into(),
        name: name.into(),
        input,
        signature: None,
        broken: None,
    }
}

fn assistant_message(call: ToolUse) -> Vec<Message> {
    vec![Message::user("hello"), Message::Assistant { model: "m".into(), blocks: vec![Block::ToolUse(call)] }]
}

fn answer(call: ToolUse) -> Answer {
    Answer { blocks: vec![Block::ToolUse(call)], ..Answer::default() }
}

/// A toolbox with every built-in tool.
fn full_toolbox(fixture: &WorkspaceFixture) -> Toolbox {
    let providers = r#"{"providers": [{"provider": "searxng", "url": "http://search.internal"}]}"#;
    std::fs::write(fixture.catalog_folder().join("web-search.json"), providers).unwrap();
    let setup = ToolDeps {
        workspace: fixture.path(""),
        workspace_lock: crate::WorkspaceLock::default(),
        brain: fixture.skills().brain().clone(),
        catalog: Catalog::load(&fixture.catalog_folder(), catalog::Environment::default()),
        skill_dirs: fixture.skill_dirs(),
        sandbox: Some(test_sandbox(&fixture.path(""), &[])),
        process_permits: ProcessPermits::default(),
        web_allowlist: fetch::WebAllowlist::default(),
        memory_budget: MemoryBudget::default(),
        documents: crate::documents::DocumentReader::new(None, &fixture.path("")),
    };
    let agent = AgentSpec {
        name: "writer".into(),
        description: "Writes.".into(),
        model: None,
        tools: None,
        max_turns: 1,
        max_tokens: None,
        prompt: "Write.".into(),
    };
    let toolbox = Toolbox::built_in(&setup).with_agents(&[Arc::new(agent)]);
    // A tool of a server that does not fit into the window, so that the model has to search for it.
    toolbox.with_mcp_tools(remotes(&["mail__send"]))
}

#[tokio::test]
async fn every_built_in_tool_has_a_reserved_name_and_every_reserved_name_a_tool() {
    let exposed = full_toolbox(&WorkspaceFixture::new()).exposed_tools(0);
    let offered: BTreeSet<&str> = exposed.declarations().iter().map(|spec| spec.name.as_str()).collect();
    let reserved = BTreeSet::from(BUILT_IN);
    let (unreserved, missing) = (&offered - &reserved, &reserved - &offered);
    assert!(unreserved.is_empty(), "`BUILT_IN` of `tool_names.rs` lacks {unreserved:?}");
    assert!(missing.is_empty(), "`Toolbox::built_in` lacks {missing:?}");
}

#[tokio::test]
async fn the_documentation_describes_every_built_in_tool() {
    let page = |name: &str| {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).unwrap()
    };
    let (tools, contract) = (page("tools.md"), page("contract.md"));
    let (before, _) = tools.split_once("work only\nin a turn").unwrap();
    let (_, need_turn) = before.rsplit_once("(`TOOL_DENIED`). ").unwrap();
    let need_turn_too = contract.lines().find(|line| line.contains(" | in a turn | ")).unwrap();
    let toolbox = full_toolbox(&WorkspaceFixture::new());
    for name in BUILT_IN {
        let code = format!("`{name}`");
        assert!(tools.contains(&code), "docs/tools.md does not name {code}");
        // The search for servers' tools has a section of its own.
        let Some(tool) = toolbox.find(name).filter(|_| name != TOOL_SEARCH) else { continue };
        let mut rows = tools.lines().map(|line| line.split(" | ").collect::<Vec<_>>());
        let row = rows.find(|cells| cells.len() == 4 && cells[0].contains(&code));
        let row = row.unwrap_or_else(|| panic!("docs/tools.md has no row for {code} in its table"));
        let permission = if tool.permission() == Permission::Allow { "allow" } else { "ask" };
        assert!(row[2].starts_with(permission), "docs/tools.md: {code} has the permission {permission}");
        for (page, list) in [("tools.md", need_turn), ("contract.md", need_turn_too)] {
            let is_listed = list.contains(&code);
            assert_eq!(is_listed, tool.needs_turn(), "docs/{page} lists the tools that need a turn: {code}");
        }
    }
}

#[test]
fn plain_names_are_told_as_they_are() {
    let exposed = ExposedTools::new(&remotes(&["read_file", "mail__send"]), 200_000);
    assert_eq!(
        exposed.declarations().iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(),
        ["read_file", "mail__send"]
    );
    let messages = assistant_message(call("mail__send", json!({})));
    assert!(matches!(exposed.messages_to_wire(&messages), Cow::Borrowed(_)));
}

#[test]
fn names_that_vendors_refuse_get_one_that_leads_back() {
    let long = "x".repeat(200);
    let names = ["mail__send now", "mail__sende.mail", "über__tool", &long, "a/b"];
    let exposed = ExposedTools::new(&remotes(&names), 200_000);
    for name in names {
        assert!(exposed.contains(name));
        let messages = assistant_message(call(name, json!({"a": 1})));
        let sent = exposed.messages_to_wire(&messages);
        let Message::Assistant { blocks, .. } = &sent[1] else { panic!() };
        let Block::ToolUse(sent) = &blocks[0] else { panic!() };
        assert!(
            sent.name.len() <= MAX_WIRE_NAME_BYTES
                && sent.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        );
        assert!(exposed.declarations().iter().any(|spec| spec.name == sent.name));
        let received = exposed.answer_from_wire(answer(sent.clone()));
        assert_eq!(received.calls().next().unwrap().name, name);
    }
}

#[test]
fn two_tools_of_one_name_are_told_once() {
    let exposed = ExposedTools::new(&remotes(&["a", "b", "a", TOOL_CALL]), 200_000);
    assert_eq!(exposed.declarations().len(), 2);
}

#[test]
fn too_many_tools_of_servers_are_searched_for() {
    let mut tools = remotes(&["read_file", "shell"]);
    tools.extend(
        (0..500).map(|at| {
            Arc::new(Remote { name: format!("s{}__t{at}", at % 20), properties: 5 }) as Arc<dyn Tool>
        }),
    );
    let toolbox = Toolbox::new(tools, Permissions::default());
    let exposed = toolbox.exposed_tools(200_000);
    let names: Vec<_> = exposed.declarations().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["read_file", "shell", "tool_search", "tool_call"]);
    assert!(exposed.tokens() < 200_000 / CONTEXT_SHARE_DIVISOR);

    // A found tool is called by its own name, and is sent back as the model wrote it.
    let sent_call = call("tool_call", json!({"tool": "s3__t23", "input": {"property_1": "x"}}));
    let received = exposed.answer_from_wire(answer(sent_call.clone()));
    let own = received.calls().next().unwrap().clone();
    assert_eq!((own.name.as_str(), &own.input, &own.broken), ("s3__t23", &json!({"property_1": "x"}), &None));
    let messages = assistant_message(own);
    let sent = exposed.messages_to_wire(&messages);
    let Message::Assistant { blocks, .. } = &sent[1] else { panic!() };
    assert_eq!(
        blocks[0],
        Block::ToolUse(ToolUse { call_id: received.calls().next().unwrap().call_id, ..sent_call })
    );

    for malformed in [
        json!({}),
        json!({"tool": "shell", "input": {}}),
        json!({"tool": "s1__t1", "input": "x"}),
        json!({"tool": "no"}),
    ] {
        let received = exposed.answer_from_wire(answer(call("tool_call", malformed.clone())));
        let own = received.calls().next().unwrap();
        assert!(own.broken.as_deref().unwrap().contains("tool_search"), "{malformed}");
        assert_eq!((own.name.as_str(), &own.input), ("tool_call", &malformed));
    }
    // With a window in which they fit, all are declared.
    assert_eq!(toolbox.exposed_tools(10_000_000).declarations().len(), 502);
}

proptest! {
    /// Every name has a wire name that vendors accept, and different names have different ones.
    #[test]
    fn every_name_has_one_on_the_wire(one in "\\PC{0,90}", other in "\\PC{0,90}") {
        let takes = |name: &str| (1..=MAX_WIRE_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        prop_assert!(takes(&wire_name(&one)));
        prop_assert_eq!(one == other, wire_name(&one) == wire_name(&other));
    }
}

#[test]
fn what_was_recorded_is_exposed_again_as_it_was() {
    let tools = remotes(&["own", "a tool with spaces", "server__one", "server__two"]);
    // With all schemas, and with those of the servers left out.
    for window in [1_000_000, 10] {
        let exposed = ExposedTools::new(&tools, window);
        let searchable = exposed.searchable().map(str::to_owned).collect();
        let again = ExposedTools::from_recorded(exposed.specs(), searchable);
        assert_eq!(again.hash(), exposed.hash(), "{window}");
        assert_eq!(again.tokens(), exposed.tokens());
        for name in ["own", "a tool with spaces", "server__one"] {
            assert!(again.contains(name), "{window}: {name}");
            let message = assistant_message(call(name, json!({})));
            assert_eq!(again.messages_to_wire(&message), exposed.messages_to_wire(&message));
        }
    }
    let fewer = ExposedTools::new(&remotes(&["own"]), 1_000_000);
    assert_ne!(fewer.hash(), ExposedTools::new(&tools, 1_000_000).hash());
}
