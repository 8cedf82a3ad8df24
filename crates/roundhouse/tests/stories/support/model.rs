//! The language model that the stories play, and what it was asked.

use serde_json::json;
use strict_provider::{CapturedRequest, Gate, Reply, StrictProvider};

use super::{Engine, LoneEngine, Program, in_time};

/// The wires that an engine speaks.
pub(crate) const WIRES: [&str; 2] = ["anthropic", "openai"];

/// A picture of one pixel, a PNG in base64.
pub(crate) const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// An engine with a model at its disposal.
pub(crate) struct Rig {
    pub(crate) provider: StrictProvider,
    pub(crate) place: LoneEngine,
    pub(crate) program: Program,
    pub(crate) engine: Engine,
}

/// A provider that refuses what its vendor would refuse, thinking in another place included.
async fn strict() -> StrictProvider {
    StrictProvider::builder().bind_thinking(true).start().await.unwrap()
}

impl Rig {
    /// An engine that speaks Anthropic's words.
    pub(crate) async fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::on("anthropic", replies).await
    }

    /// An engine that speaks the words of `wire`.
    pub(crate) async fn on(wire: &str, replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::of(wire, replies, |place| place).await
    }

    /// An engine whose place was made ready.
    pub(crate) async fn of(
        wire: &str,
        replies: impl IntoIterator<Item = Reply>,
        ready: impl FnOnce(LoneEngine) -> LoneEngine,
    ) -> Self {
        let provider = strict().await;
        provider.enqueue_all(replies);
        let place = ready(LoneEngine::new().with_provider(wire, &provider));
        let (program, engine) = place.start().await;
        Self { provider, place, program, engine }
    }

    /// Ends the engine with SIGKILL and starts it again.
    pub(crate) async fn kill_and_start(self) -> Self {
        let Self { provider, place, program, .. } = self;
        program.end(rustix::process::Signal::KILL).await;
        let (program, engine) = place.start().await;
        Self { provider, place, program, engine }
    }

    /// Ends the engine as an orchestrator does and starts it again.
    pub(crate) async fn stop_and_start(self) -> Self {
        let Self { provider, place, program, .. } = self;
        program.end(rustix::process::Signal::TERM).await.well();
        let (program, engine) = place.start().await;
        Self { provider, place, program, engine }
    }

    /// How often the model was asked.
    pub(crate) fn calls(&self) -> usize {
        self.provider.requests().len()
    }

    /// What the model was told when it was asked last.
    pub(crate) fn told(&self) -> Told {
        Told::of(self.provider.requests().last().expect("the model was asked"))
    }

    /// What the model was told each time.
    pub(crate) fn told_each(&self) -> Vec<Told> {
        self.provider.requests().iter().map(Told::of).collect()
    }
}

/// The messages of a request to the model, as JSON text.
#[derive(Debug)]
pub(crate) struct Told(pub(crate) String);

impl Told {
    fn of(request: &CapturedRequest) -> Self {
        Self(request.body["messages"].to_string())
    }

    /// Asserts that all of `words` are there, in this order.
    #[track_caller]
    pub(crate) fn has(&self, words: &[&str]) -> &Self {
        let mut rest = self.0.as_str();
        for word in words {
            let found = rest.find(word);
            let at = found.unwrap_or_else(|| panic!("no {word:?} in its place among {words:?}: {}", self.0));
            rest = &rest[at + word.len()..];
        }
        self
    }

    /// Asserts that none of `words` is there.
    #[track_caller]
    pub(crate) fn lacks(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(!self.0.contains(word), "{word:?} is in: {}", self.0);
        }
        self
    }
}

/// What the model of a story may do at the end of an answer.
pub(crate) trait Act: Sized {
    /// Notes something in working memory.
    fn notes(self, key: &str, value: &str) -> Self;
    /// Wants to write a file, for which it needs leave.
    fn writes(self, path: &str) -> Self;
    /// Asks the user.
    fn asks(self, question: &str) -> Self;
}

impl Act for Reply {
    fn notes(self, key: &str, value: &str) -> Self {
        self.tool_use("working_memory_set", json!({"key": key, "value": value}))
    }

    fn writes(self, path: &str) -> Self {
        self.tool_use("write_file", json!({"path": path, "content": format!("This is {path}.")}))
    }

    fn asks(self, question: &str) -> Self {
        self.tool_use("ask_user", json!({"question": question}))
    }
}

/// The model notes something in working memory.
pub(crate) fn note(key: &str, value: &str) -> Reply {
    Reply::new().notes(key, value)
}

/// The model wants to write a file, for which it needs leave.
pub(crate) fn write(path: &str) -> Reply {
    Reply::new().writes(path)
}

/// The model asks the user.
pub(crate) fn question(text: &str) -> Reply {
    Reply::new().asks(text)
}

/// Waits until an answer of the model stands at the gate.
pub(crate) async fn reached(gate: &Gate) {
    in_time("the model's answer is held", gate.reached()).await;
}

/// Waits until nobody reads an answer of the model any more.
pub(crate) async fn left_alone(provider: &StrictProvider) {
    in_time("nobody listens to the model", provider.wait_until_idle()).await;
}
