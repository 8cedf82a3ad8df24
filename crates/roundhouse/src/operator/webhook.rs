//! `roundhouse webhook`: the webhooks that get the rows of a product's audit log.

use api::audit_webhooks::{
    AuditWebhook, AuditWebhookList, CreatedAuditWebhook, DeadLetter, DeadLetterList, DeletedAuditWebhook,
    RotatedWebhookSecret, SettledDeadLetters,
};
use api::{AuditWebhookId, Timestamp};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, ReadOptions, Render, View};
use super::session::{ProductOptions, Session};
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::table::{Cell, Column, fields, table};

/// How much is shown of a reason, in characters.
const MAX_REASON_CHARS: usize = 200;

/// Arguments of `roundhouse webhook`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a webhook. Its secret is shown once, and cannot be shown again.
    Create {
        /// Where the rows are sent.
        #[arg(id = "receiver", value_name = "RECEIVER")]
        url: String,
        /// Only rows of this event, such as `crash`; may be repeated. By default all rows.
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<String>,
        /// Begin behind the row with this number, 0 for all rows; by default with new rows.
        #[arg(long, value_name = "ROW")]
        after: Option<i64>,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// List the webhooks, the oldest first.
    List {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Show a webhook, and how far it has come.
    Get {
        /// The webhook's id.
        webhook: AuditWebhookId,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Change, pause or resume a webhook. What is not named stays as it is.
    Update {
        /// The webhook's id.
        webhook: AuditWebhookId,
        /// Send the rows here.
        #[arg(id = "receiver", long = "to", value_name = "RECEIVER")]
        url: Option<String>,
        /// Send only rows of this event; may be repeated.
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<String>,
        /// Send all rows.
        #[arg(long, conflicts_with = "events")]
        all_events: bool,
        /// Send nothing for the time being.
        #[arg(long)]
        pause: bool,
        /// Send again, also what was not sent meanwhile.
        #[arg(long, conflicts_with = "pause")]
        resume: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Make a new secret, which is shown once. For 24 hours rows are signed with the old one, too.
    RotateSecret {
        /// The webhook's id.
        webhook: AuditWebhookId,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Delete a webhook and its dead letters.
    Delete {
        /// The webhook's id.
        webhook: AuditWebhookId,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Send the rows behind a position, also those that were delivered before.
    Replay {
        /// The webhook's id.
        webhook: AuditWebhookId,
        /// The number of the row behind which it begins; 0 for all rows.
        #[arg(long, value_name = "ROW")]
        after: i64,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// List the rows that were given up, the oldest first.
    DeadLetters {
        /// The webhook's id.
        webhook: AuditWebhookId,
        /// The number of rows at most; 100 by default.
        #[arg(long)]
        limit: Option<i64>,
        /// Only rows behind the one with this number.
        #[arg(long, value_name = "ROW")]
        after: Option<i64>,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Send rows that were given up once more.
    Retry {
        /// The webhook's id.
        webhook: AuditWebhookId,
        #[command(flatten)]
        rows: Rows,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Forget rows that were given up. They stay in the audit log.
    Discard {
        /// The webhook's id.
        webhook: AuditWebhookId,
        #[command(flatten)]
        rows: Rows,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
}

/// Which dead letters are meant.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Rows {
    /// The numbers of the rows.
    #[arg(value_name = "ROW")]
    rows: Vec<i64>,
    /// All of them.
    #[arg(long)]
    all: bool,
}

impl Rows {
    fn body(&self) -> Value {
        if self.all { json!({}) } else { json!({"rows": self.rows}) }
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::Create { url, events, after, output, product } => {
                let body = json!({"url": url, "events": events, "after": after});
                let call = Call::new(Method::POST, &["webhooks"]);
                output::print(&product.open()?.call(&call.json(&body)).await?, output, &created)
            }
            Command::List { read, product } => {
                let session = product.open()?;
                let call = Call::get(&["webhooks"]);
                watch::show(read, async || session.call(&call).await, &list_text).await
            }
            Command::Get { webhook, read, product } => {
                let (session, id) = (product.open()?, webhook.to_string());
                let path = ["webhooks", &id];
                watch::show(read, async || session.call(&Call::get(&path)).await, &details).await
            }
            Command::Update { webhook, url, events, all_events, pause, resume, output, product } => {
                let body = update(
                    url.as_deref(),
                    events,
                    all_events,
                    pause.then_some(true).or(resume.then_some(false)),
                )?;
                let id = webhook.to_string();
                let path = ["webhooks", &id];
                let call = Call::new(Method::PATCH, &path).json(&body);
                output::print(&product.open()?.call(&call).await?, output, &details)
            }
            Command::RotateSecret { webhook, output, product } => {
                let id = webhook.to_string();
                let path = ["webhooks", &id, "secret"];
                let call = Call::new(Method::POST, &path);
                output::print(&product.open()?.call(&call).await?, output, &rotated)
            }
            Command::Delete { webhook, yes, output, product } => {
                delete(&product.open()?, webhook, yes, output).await
            }
            Command::Replay { webhook, after, output, product } => {
                let (id, body) = (webhook.to_string(), json!({"after": after}));
                let path = ["webhooks", &id, "replay"];
                let call = Call::new(Method::POST, &path).json(&body);
                output::print(&product.open()?.call(&call).await?, output, &details)
            }
            Command::DeadLetters { webhook, limit, after, read, product } => {
                let (session, id) = (product.open()?, webhook.to_string());
                let path = ["webhooks", &id, "dead-letters"];
                let call = Call::get(&path).with("limit", limit).with("after", after);
                watch::show(read, async || session.call(&call).await, &dead_letters).await
            }
            Command::Retry { webhook, rows, output, product } => {
                settle(&product.open()?, webhook, ("retry", "are sent once more"), &rows, output).await
            }
            Command::Discard { webhook, rows, yes, output, product } => {
                let what = if rows.all { "All dead letters".to_owned() } else { rows.rows.len().to_string() };
                confirm(&format!("{what} of {webhook} will be forgotten."), Expected::Yes, yes).await?;
                settle(&product.open()?, webhook, ("discard", "are forgotten"), &rows, output).await
            }
        }
    })
}

fn update(
    url: Option<&str>,
    events: Vec<String>,
    all_events: bool,
    paused: Option<bool>,
) -> Result<Value, Failure> {
    let events = (all_events || !events.is_empty()).then_some(events);
    if url.is_none() && events.is_none() && paused.is_none() {
        return Err(Failure::usage("name what is to be changed: see `roundhouse webhook update --help`"));
    }
    Ok(json!({"url": url, "events": events, "paused": paused}))
}

async fn delete(
    session: &Session,
    webhook: AuditWebhookId,
    yes: bool,
    options: OutputOptions,
) -> Result<(), Failure> {
    let id = webhook.to_string();
    let path = ["webhooks", &id];
    // Before a person is asked: so that they know what is lost.
    let found: AuditWebhook = session.call(&Call::get(&path)).await?.parse()?;
    let question = format!(
        "Nothing is sent to {} any more, and {} dead letters of it are forgotten.",
        found.url, found.dead_letters
    );
    confirm(&question, Expected::Yes, yes).await?;
    let render: Render<'_> = &|document, _| {
        let DeletedAuditWebhook { webhook_id, .. } = document.parse()?;
        Ok(format!("The webhook {webhook_id} is deleted."))
    };
    output::print(&session.call(&Call::new(Method::DELETE, &path)).await?, options, render)
}

async fn settle(
    session: &Session,
    webhook: AuditWebhookId,
    (action, done): (&str, &str),
    rows: &Rows,
    options: OutputOptions,
) -> Result<(), Failure> {
    let (id, body) = (webhook.to_string(), rows.body());
    let path = ["webhooks", &id, "dead-letters", action];
    let call = Call::new(Method::POST, &path).json(&body);
    let render: Render<'_> = &|document, _| {
        let SettledDeadLetters { count } = document.parse()?;
        Ok(format!("{count} dead letters {done}."))
    };
    output::print(&session.call(&call).await?, options, render)
}

fn created(document: &Document, view: View) -> anyhow::Result<String> {
    let CreatedAuditWebhook { secret, webhook } = document.parse()?;
    let lines = [("Webhook", webhook.webhook_id.into()), ("Secret", secret.expose().into())];
    Ok(format!(
        "{}\nThe secret is shown only now: the receiver verifies the signatures with it.",
        fields(&lines, view.canvas)
    ))
}

fn rotated(document: &Document, view: View) -> anyhow::Result<String> {
    let RotatedWebhookSecret { webhook_id, secret, old_secret_expires_at } = document.parse()?;
    let lines = [("Webhook", webhook_id.into()), ("Secret", secret.expose().into())];
    Ok(format!(
        "{}\nThe secret is shown only now. Rows are also signed with the old one until {old_secret_expires_at}.",
        fields(&lines, view.canvas)
    ))
}

fn details(document: &Document, view: View) -> anyhow::Result<String> {
    let webhook: AuditWebhook = document.parse()?;
    let dropped = webhook.dead_letters_dropped;
    let lines = [
        ("Webhook", webhook.webhook_id.into()),
        ("Address", webhook.url.as_str().into()),
        ("Events", events(&webhook).into()),
        ("State", webhook.state.as_str().into()),
        ("Created", view.exactly(webhook.created_at).into()),
        ("Settled up to", format!("row {}", webhook.position).into()),
        ("Users behind", webhook.behind.to_string().into()),
        ("Delivered", when(webhook.delivered_at, view).into()),
        ("Last error", Cell::excerpt(webhook.last_error.as_deref().unwrap_or("-"), MAX_REASON_CHARS)),
        ("Dead letters", format!("{} ({dropped} dropped)", webhook.dead_letters).into()),
    ];
    Ok(fields(&lines, view.canvas))
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let AuditWebhookList { webhooks } = document.parse()?;
    if webhooks.is_empty() {
        return Ok("This product has no webhook.".to_owned());
    }
    let row = |webhook: &AuditWebhook| {
        vec![
            webhook.webhook_id.into(),
            webhook.state.as_str().into(),
            webhook.position.into(),
            webhook.behind.to_string().into(),
            webhook.dead_letters.to_string().into(),
            when(webhook.delivered_at, view).into(),
            Cell::new(&webhook.url),
            events(webhook).into(),
        ]
    };
    let columns = [
        Column::word("WEBHOOK"),
        Column::word("STATE"),
        Column::number("ROW"),
        Column::number("BEHIND"),
        Column::number("DEAD"),
        Column::word("DELIVERED"),
        Column::text("ADDRESS"),
        Column::text("EVENTS"),
    ];
    Ok(table(&columns, &webhooks.iter().map(row).collect::<Vec<_>>(), view.canvas))
}

fn dead_letters(document: &Document, view: View) -> anyhow::Result<String> {
    let DeadLetterList { dead_letters } = document.parse()?;
    let Some(last) = dead_letters.last() else { return Ok("There is no such dead letter.".to_owned()) };
    let note = format!("Later ones: --after {}", last.row.id);
    let row = |letter: &DeadLetter| {
        vec![
            letter.row.id.into(),
            view.ago(letter.row.at).into(),
            Cell::new(&letter.row.event),
            letter.row.user_id.as_ref().map_or_else(|| "-".into(), |user| Cell::new(user.as_str())),
            i64::from(letter.attempts).into(),
            Cell::excerpt(&letter.error, MAX_REASON_CHARS),
        ]
    };
    let columns = [
        Column::number("ROW"),
        Column::word("WHEN"),
        Column::word("EVENT"),
        Column::text("USER"),
        Column::number("TRIED"),
        Column::text("ERROR"),
    ];
    let rows: Vec<_> = dead_letters.iter().map(row).collect();
    Ok(format!("{}\n{note}", table(&columns, &rows, view.canvas)))
}

fn events(webhook: &AuditWebhook) -> String {
    let names: Vec<_> = webhook.events.iter().map(|event| event.as_str()).collect();
    if names.is_empty() { "all".to_owned() } else { names.join(",") }
}

fn when(at: Option<Timestamp>, view: View) -> String {
    at.map_or_else(|| "-".to_owned(), |at| view.ago(at))
}
