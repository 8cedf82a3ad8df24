//! A mock provider and an engine that uses it. The baseline is a client that calls the provider directly, with the
//! request that the engine sent last.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context as _, ensure};
use http_body_util::Full;
use hyper::Method;
use mock_llm::{CapturedRequest, Reply};

use crate::client::{Client, HttpRequest, parse_address};
use crate::context::{BenchContext, log_progress};
use crate::engine::{DEFAULT_MESSAGE, Engine, EngineSetup, ModelConfig};
use crate::front::Front;
use crate::provider::{FixedReplyProvider, Wire};
use crate::streamed::{self, TimedText};

/// The headers of the engine's request that the vendor protocols require, in addition to the content type.
const FORWARDED_HEADERS: [&str; 4] = ["x-api-key", "x-goog-api-key", "authorization", "anthropic-version"];

/// The user's message in each turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The same message in all turns: memory is searched, but its only word soon occurs too often to be recalled.
    Same,
    /// A message without a searchable word.
    Wordless,
    /// A message with a name that occurs in every twelfth turn, so that earlier turns are recalled.
    Named,
}

impl Message {
    /// Returns the message of a turn.
    fn for_turn(self, turn: usize) -> Cow<'static, str> {
        match self {
            Self::Same => DEFAULT_MESSAGE.into(),
            Self::Wordless => "Yes, please.".into(),
            Self::Named => format!("How is the garden{} going in town?", turn % 12).into(),
        }
    }
}

/// A running engine and its provider.
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
    /// Starts both and runs a warm-up turn. Every answer is `text`, in deltas of `chars` characters.
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
        ensure!(request.path == path, "the engine sent its request to {}, not to {path}", request.path);
        let (text, message) = (text.to_owned(), Message::Same);
        Ok(Self { wire, text, message, provider, engine, request, turn_count: 0 })
    }

    /// Uses this message in later turns.
    pub(super) fn with_message(self, message: Message) -> Self {
        Self { message, ..self }
    }

    /// Starts the comparison build; `None` if there is none, or if it does not speak the protocol.
    pub(super) async fn start_comparison(
        bench: &BenchContext,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Option<Self>> {
        let Some(comparison) = &bench.comparison_binary else { return Ok(None) };
        let started = Self::start_binary(comparison, bench, wire, text, chars).await;
        Ok(started.inspect_err(|error| log_progress(&format!("{} is left out: {error:#}", wire.name()))).ok())
    }

    /// Runs `count` turns, alternating with as many turns of the comparison build.
    pub(super) async fn run_turns(
        &mut self,
        comparison: Option<&mut Self>,
        count: usize,
    ) -> anyhow::Result<(Vec<TimedText>, Vec<TimedText>)> {
        let mut client = self.engine.connect().await?;
        let mut comparison = match comparison {
            Some(comparison) => Some((comparison.engine.connect().await?, comparison)),
            None => None,
        };
        let (mut turns, mut others) = (Vec::new(), Vec::new());
        for _ in 0..count {
            turns.push(self.run_turn(&mut client).await?);
            if let Some((client, comparison)) = &mut comparison {
                others.push(comparison.run_turn(client).await?);
            }
        }
        self.request = self.provider.last_request()?;
        if let Some((_, comparison)) = comparison {
            comparison.request = comparison.provider.last_request()?;
        }
        Ok((turns, others))
    }

    /// Sends `count` requests directly to the provider.
    pub(super) async fn run_direct_turns(&mut self, count: usize) -> anyhow::Result<Vec<TimedText>> {
        let mut client = self.connect_to_provider().await?;
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(self.run_direct_turn(&mut client).await?);
        }
        Ok(answers)
    }

    /// Opens a connection to the provider.
    pub(super) async fn connect_to_provider(&self) -> anyhow::Result<Client> {
        Client::connect(parse_address(&self.provider.base_url())?).await
    }

    /// Opens a connection to the engine.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        self.engine.connect().await
    }

    /// Runs a turn in a task of its own through another protocol.
    pub(super) async fn run_front_turn(
        &mut self,
        client: &mut Client,
        front: Front,
    ) -> anyhow::Result<TimedText> {
        self.turn_count += 1;
        let (task, message) = (format!("task-{}", self.turn_count), self.message.for_turn(self.turn_count));
        let request = self.engine.front(client, front, &task, &message)?;
        self.check_text(front.text(&streamed::send_sse(client, request).await?)?)
    }

    /// Runs a turn in a task of its own, so that the requests to the provider differ only in what is recalled.
    pub(super) async fn run_turn(&mut self, client: &mut Client) -> anyhow::Result<TimedText> {
        self.turn_count += 1;
        let (task, message) = (format!("task-{}", self.turn_count), self.message.for_turn(self.turn_count));
        let execute = self.engine.execute_with(client, &task, &message, None)?;
        self.check_text(streamed::send_sse(client, execute).await?.turn_text()?)
    }

    /// Sends one request directly to the provider.
    pub(super) async fn run_direct_turn(&mut self, client: &mut Client) -> anyhow::Result<TimedText> {
        let request = self.direct_request(client)?;
        let response = streamed::send_to_provider(client, request, self.wire).await?;
        self.check_text(response.provider_text(self.wire)?)
    }

    /// Ends a round.
    ///
    /// # Errors
    /// The provider refused a request of the round.
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
        ensure!(text.text == self.text, "the received text is not the text that was sent");
        Ok(text)
    }
}
