//! A provider, an engine that is configured with it, and the client that talks to the provider directly: it
//! sends the very request that the engine sent last.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context as _, ensure};
use http_body_util::Full;
use hyper::Method;
use strict_provider::{CapturedRequest, Reply};

use crate::bench::{Bench, note};
use crate::client::{Client, Outgoing, address_of};
use crate::engine::{Engine, Home, MESSAGE, Model};
use crate::provider::{Provider, Wire};
use crate::told::{self, Text};

/// Of the engine's request to the provider, what the vendors' protocols ask for beyond the body's type.
const HEADERS: [&str; 4] = ["x-api-key", "x-goog-api-key", "authorization", "anthropic-version"];

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
    fn of(self, turn: usize) -> Cow<'static, str> {
        match self {
            Self::Same => MESSAGE.into(),
            Self::Wordless => "Yes, please.".into(),
            Self::Named => format!("How is the garden{} going in town?", turn % 12).into(),
        }
    }
}

/// See the module.
pub(super) struct Streaming {
    wire: Wire,
    text: String,
    message: Message,
    provider: Provider,
    engine: Engine,
    request: CapturedRequest,
    turns: usize,
}

impl Streaming {
    /// Starts both, and warms them with a turn. Every answer is `text`, in deltas of `chars` characters.
    pub(super) async fn start(bench: &Bench, wire: Wire, text: &str, chars: usize) -> anyhow::Result<Self> {
        Self::start_of(&bench.binary, bench, wire, text, chars).await
    }

    async fn start_of(
        binary: &Path,
        bench: &Bench,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Self> {
        let provider = Provider::start(Reply::of_text(text).chars_per_delta(chars)).await?;
        let api = (wire == Wire::Responses).then_some("responses");
        let model = Model { api, ..Model::of(wire.provider(), provider.llm_base_url(wire)) };
        let (engine, _) = Home::new(binary, bench.folder()?, model)?.start()?;
        let mut client = engine.connect().await?;
        let execute = engine.execute(&client, "warm-up")?;
        let turn = told::stream(&mut client, execute).await?.turn().context("the first turn")?;
        ensure!(turn.text == text, "the first turn's text is not the provider's");
        let request = provider.last_request()?;
        let path = wire.path().split('?').next().unwrap_or_default();
        ensure!(request.path == path, "the engine asks at {}, not at {path}", request.path);
        let (text, message) = (text.to_owned(), Message::Same);
        Ok(Self { wire, text, message, provider, engine, request, turns: 0 })
    }

    /// The same with this message.
    pub(super) fn saying(self, message: Message) -> Self {
        Self { message, ..self }
    }

    /// The same of the build to measure in turn with it; none where there is none, or it does not speak the protocol.
    pub(super) async fn start_beside(
        bench: &Bench,
        wire: Wire,
        text: &str,
        chars: usize,
    ) -> anyhow::Result<Option<Self>> {
        let Some(beside) = &bench.beside else { return Ok(None) };
        let started = Self::start_of(beside, bench, wire, text, chars).await;
        Ok(started.inspect_err(|error| note(&format!("{} is left out: {error:#}", wire.name()))).ok())
    }

    /// So many turns, and as many of the one beside it, one of each after the other.
    pub(super) async fn turns(
        &mut self,
        beside: Option<&mut Self>,
        count: usize,
    ) -> anyhow::Result<(Vec<Text>, Vec<Text>)> {
        let mut client = self.engine.connect().await?;
        let mut beside = match beside {
            Some(beside) => Some((beside.engine.connect().await?, beside)),
            None => None,
        };
        let (mut turns, mut others) = (Vec::new(), Vec::new());
        for _ in 0..count {
            turns.push(self.turn(&mut client).await?);
            if let Some((client, beside)) = &mut beside {
                others.push(beside.turn(client).await?);
            }
        }
        self.request = self.provider.last_request()?;
        if let Some((_, beside)) = beside {
            beside.request = beside.provider.last_request()?;
        }
        Ok((turns, others))
    }

    /// So many answers without the engine.
    pub(super) async fn directly(&mut self, count: usize) -> anyhow::Result<Vec<Text>> {
        let mut client = self.to_provider().await?;
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(self.direct(&mut client).await?);
        }
        Ok(answers)
    }

    /// A connection to the provider.
    pub(super) async fn to_provider(&self) -> anyhow::Result<Client> {
        Client::connect(address_of(&self.provider.base_url())?).await
    }

    /// A turn on a task of its own, so that no turn sends the provider more than another but for what is recalled.
    async fn turn(&mut self, client: &mut Client) -> anyhow::Result<Text> {
        self.turns += 1;
        let (task, message) = (format!("task-{}", self.turns), self.message.of(self.turns));
        let execute = self.engine.execute_with(client, &task, &message, None)?;
        self.right(told::stream(client, execute).await?.turn()?)
    }

    /// The same without the engine.
    pub(super) async fn direct(&mut self, client: &mut Client) -> anyhow::Result<Text> {
        let request = self.direct_request(client)?;
        let told = match self.wire {
            Wire::Ollama => told::lines(client, request).await?,
            _ => told::stream(client, request).await?,
        };
        self.right(told.answer(self.wire)?)
    }

    /// The end of a round.
    ///
    /// # Errors
    /// The provider refused a request of it.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        self.provider.settle()
    }

    fn direct_request(&self, client: &Client) -> anyhow::Result<Outgoing> {
        let mut request = client.request(Method::POST, self.wire.path());
        for name in HEADERS {
            if let Some(value) = self.request.header(name) {
                request = request.header(name, value);
            }
        }
        Ok(request.body(Full::new(self.request.raw.clone()))?)
    }

    fn right(&self, text: Text) -> anyhow::Result<Text> {
        ensure!(text.text == self.text, "the text that came is not the text that was sent");
        Ok(text)
    }
}
