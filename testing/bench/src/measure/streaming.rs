//! A provider, an engine that is configured with it, and the client that talks to the provider directly: it
//! sends the very request that the engine sent last.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context as _, ensure};
use http_body_util::Full;
use hyper::Method;
use mock_llm::{CapturedRequest, Reply};

use crate::client::{Client, HttpRequest, parse_address};
use crate::context::{BenchContext, log_progress};
use crate::engine::{DEFAULT_MESSAGE, Engine, EngineSetup, ModelConfig};
use crate::provider::{FixedReplyProvider, Wire};
use crate::streamed::{self, TimedText};

/// Of the engine's request to the provider, what the vendors' protocols ask for beyond the body's type.
const FORWARDED_HEADERS: [&str; 4] = ["x-api-key", "x-goog-api-key", "authorization", "anthropic-version"];

/// What the user says in each turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The same in all: memory is searched, and its only word is soon in too much to be worth telling.
    Same,
    /// Without a word that could be searched for.
    Wordless,
    /// With a name that one turn in twelve has, so that each turn is told of some of those before.
    Named,
}

impl Message {
    /// What is said in this turn.
    fn for_turn(self, turn: usize) -> Cow<'static, str> {
        match self {
            Self::Same => DEFAULT_MESSAGE.into(),
            Self::Wordless => "Yes, please.".into(),
            Self::Named => format!("How is the garden{} going in town?", turn % 12).into(),
        }
    }
}

/// See the module.
pub(super) struct StreamingSetup {
    wire: Wire,
    text: String,
    message: Message,
    provider: FixedReplyProvider,
    engine: Engine,
    request: CapturedRequest,
    turn_count: usize,
}

impl StreamingSetup {
    /// Starts both, and warms them with a turn. Every answer is `text`, in deltas of `chars` characters.
    pub(super) async fn start(
        bench: &BenchContext,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Self> {
        Self::start_binary(&bench.binary, bench, wire, text, chars).await
    }

    async fn start_binary(
        binary: &Path,
        bench: &BenchContext,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Self> {
        let provider = FixedReplyProvider::start(Reply::from_text(text).chars_per_delta(chars)).await?;
        let api = (wire == Wire::Responses).then_some("responses");
        let model =
            ModelConfig { api, ..ModelConfig::new(wire.provider_name(), provider.llm_base_url(wire)) };
        let (engine, _) = EngineSetup::new(binary, bench.new_folder()?, model)?.start()?;
        let mut client = engine.connect().await?;
        let execute = engine.execute(&client, "warm-up")?;
        let turn = streamed::send_sse(&mut client, execute).await?.turn_text().context("the first turn")?;
        ensure!(turn.text == text, "the first turn's text is not the provider's");
        let request = provider.last_request()?;
        let path = wire.path().split('?').next().unwrap_or_default();
        ensure!(request.path == path, "the engine asks at {}, not at {path}", request.path);
        let (text, message) = (text.to_owned(), Message::Same);
        Ok(Self { wire, text, message, provider, engine, request, turn_count: 0 })
    }

    /// The same with this message.
    pub(super) fn with_message(self, message: Message) -> Self {
        Self { message, ..self }
    }

    /// The same of the build to measure in turn with it; none where there is none, or it does not speak the protocol.
    pub(super) async fn start_comparison(
        bench: &BenchContext,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Option<Self>> {
        let Some(beside) = &bench.comparison_binary else { return Ok(None) };
        let started = Self::start_binary(beside, bench, wire, text, chars).await;
        Ok(started.inspect_err(|error| log_progress(&format!("{} is left out: {error:#}", wire.name()))).ok())
    }

    /// So many turns, and as many of the one beside it, one of each after the other.
    pub(super) async fn run_turns(
        &mut self,
        beside: Option<&mut Self>,
        count: usize,
    ) -> anyhow::Result<(Vec<TimedText>, Vec<TimedText>)> {
        let mut client = self.engine.connect().await?;
        let mut beside = match beside {
            Some(beside) => Some((beside.engine.connect().await?, beside)),
            None => None,
        };
        let (mut turns, mut others) = (Vec::new(), Vec::new());
        for _ in 0..count {
            turns.push(self.run_turn(&mut client).await?);
            if let Some((client, beside)) = &mut beside {
                others.push(beside.run_turn(client).await?);
            }
        }
        self.request = self.provider.last_request()?;
        if let Some((_, beside)) = beside {
            beside.request = beside.provider.last_request()?;
        }
        Ok((turns, others))
    }

    /// So many answers without the engine.
    pub(super) async fn run_direct_turns(&mut self, count: usize) -> anyhow::Result<Vec<TimedText>> {
        let mut client = self.connect_to_provider().await?;
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(self.run_direct_turn(&mut client).await?);
        }
        Ok(answers)
    }

    /// A connection to the provider.
    pub(super) async fn connect_to_provider(&self) -> anyhow::Result<Client> {
        Client::connect(parse_address(&self.provider.base_url())?).await
    }

    /// A turn on a task of its own, so that no turn sends the provider more than another but for what is recalled.
    async fn run_turn(&mut self, client: &mut Client) -> anyhow::Result<TimedText> {
        self.turn_count += 1;
        let (task, message) = (format!("task-{}", self.turn_count), self.message.for_turn(self.turn_count));
        let execute = self.engine.execute_with(client, &task, &message, None)?;
        self.check_text(streamed::send_sse(client, execute).await?.turn_text()?)
    }

    /// The same without the engine.
    pub(super) async fn run_direct_turn(&mut self, client: &mut Client) -> anyhow::Result<TimedText> {
        let request = self.direct_request(client)?;
        let told = match self.wire {
            Wire::Ollama => streamed::send_ndjson(client, request).await?,
            _ => streamed::send_sse(client, request).await?,
        };
        self.check_text(told.provider_text(self.wire)?)
    }

    /// The end of a round.
    ///
    /// # Errors
    /// The provider refused a request of it.
    pub(super) fn finish_round(&self) -> anyhow::Result<()> {
        self.provider.check_and_clear()
    }

    fn direct_request(&self, client: &Client) -> anyhow::Result<HttpRequest> {
        let mut request = client.request(Method::POST, self.wire.path());
        for name in FORWARDED_HEADERS {
            if let Some(value) = self.request.header(name) {
                request = request.header(name, value);
            }
        }
        Ok(request.body(Full::new(self.request.raw.clone()))?)
    }

    fn check_text(&self, text: TimedText) -> anyhow::Result<TimedText> {
        ensure!(text.text == self.text, "the text that came is not the text that was sent");
        Ok(text)
    }
}
