//! Programs and tools that the model runs, and catalogs that permit them.

use std::fs;
use std::path::Path;

use mock_llm::Reply;
use serde_json::{Value, json};

use super::turn::of_kind;
use super::{EngineFixture, Event, StandaloneEngine};

/// A shell command that starts programs which try to outlive it, each in a different way, and waits. Each has its
/// working directory on its command line.
pub(crate) const LINGERING_PROGRAMS: &str = "
    trap '' TERM INT HUP
    cling='$SIG{$_} = \"IGNORE\" for qw(TERM INT HUP); sleep 600 while 1'
    nohup perl -e \"$cling\" clings \"$PWD\" >/dev/null 2>&1 &
    (setsid perl -e \"$cling\" clings \"$PWD\" >/dev/null 2>&1 &)
    perl -MPOSIX -e 'exit if fork; POSIX::setsid(); exit if fork; close STDOUT; exec @ARGV' perl -e \"$cling\" clings \"$PWD\"
    perl -e 'kill STOP => $$; sleep 600' clings \"$PWD\" &
    perl -e \"$cling\" clings \"$PWD\"
";
/// The number of programs that it starts.
pub(crate) const LINGERING_PROGRAM_COUNT: usize = 5;

/// The model runs a command.
pub(crate) fn shell_reply(command: &str) -> Reply {
    tool_reply("shell", json!({"command": command}))
}

/// The model calls a tool.
pub(crate) fn tool_reply(tool: &str, input: Value) -> Reply {
    Reply::new().tool_use(tool, input)
}

/// The last answer of a turn.
pub(crate) fn done_reply() -> Reply {
    Reply::from_text("Done.")
}

/// The results of a turn's tool calls: the output or the error.
pub(crate) fn tool_results(events: &[Event]) -> Vec<Result<&str, &str>> {
    let results = of_kind(events, "tool_result").into_iter();
    results
        .map(|event| match event.data["error"].as_str() {
            Some(error) => Err(error),
            None => Ok(event.data["output"].as_str().unwrap()),
        })
        .collect()
}

/// The turn's stop reason.
pub(crate) fn stop_reason(events: &[Event]) -> &str {
    events.last().unwrap().data["stop_reason"].as_str().unwrap()
}

/// Writes a file of a catalog.
pub(crate) fn write_catalog_file(catalog: &Path, name: &str, text: &str) {
    let file = catalog.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

impl StandaloneEngine {
    /// Writes a file of its catalog.
    pub(crate) fn with_catalog_file(self, name: &str, text: &str) -> Self {
        write_catalog_file(Path::new(&self.variables["CATALOG_DIR"]), name, text);
        self
    }

    /// Lets its agent run programs where they cannot be confined, for stories that are not about confinement.
    pub(crate) fn allowing_unconfined(self) -> Self {
        self.with_env("ENGINE_ALLOW_UNCONFINED", "true")
    }

    /// Lets its agent use all tools without approval.
    pub(crate) fn allowing_all_tools(self) -> Self {
        self.allowing_unconfined().with_catalog_file("permissions.json", r#"{"default": "allow"}"#)
    }
}

impl EngineFixture {
    /// An engine whose agent runs programs with approval.
    pub(crate) async fn allowing_unconfined(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with_setup("anthropic", replies, StandaloneEngine::allowing_unconfined).await
    }

    /// An engine whose agent needs no approvals.
    pub(crate) async fn allowing_all_tools(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with_setup("anthropic", replies, StandaloneEngine::allowing_all_tools).await
    }

    /// The names of the tools in the last model call.
    pub(crate) fn offered_tools(&self) -> Vec<String> {
        let request = self.provider.requests().pop().expect("the model was called");
        let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}
