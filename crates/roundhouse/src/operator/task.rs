//! `roundhouse task`: the conversations of a user's engine.

use api::engine::{Role, TaskMessage, TaskMessages, TaskStatus, TaskSummary, Tasks};
use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, Page, ReadOptions, Render, View};
use super::user_engine::UserOptions;
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, table};
use crate::terminal::{escape_hidden_characters, single_line};

/// How many messages of a task are shown.
const SHOWN_MESSAGES: i64 = 20;

/// Arguments of `roundhouse task`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the tasks, the one that changed last first.
    List {
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Show the newest messages of a task, oldest first.
    Show {
        /// The task's id.
        task: String,
        /// The number of messages at most.
        #[arg(long, default_value_t = SHOWN_MESSAGES)]
        limit: i64,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Delete a task with its messages.
    Delete {
        /// The task's id.
        task: String,
        /// Erase, too, what was learned from it.
        #[arg(long)]
        forget_knowledge: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::List { page, read, user } => {
                let engine = user.open().await?;
                let call = page.of(Call::get(&["tasks"]));
                let render = |document: &Document, view: View| list_text(document, page, view);
                watch::show(read, async || engine.call(&call).await, &render).await
            }
            Command::Show { task, limit, read, user } => {
                let engine = user.open().await?;
                let path = ["tasks", &task];
                let call = Call::get(&path).with("limit", Some(limit));
                watch::show(read, async || engine.call(&call).await, &messages_text).await
            }
            Command::Delete { task, forget_knowledge, yes, output, user } => {
                let engine = user.open().await?;
                let path = ["tasks", &task];
                engine.call(&Call::get(&path).with("limit", Some(1))).await?;
                let shown = single_line(&task, usize::MAX);
                confirm(&format!("This deletes the task `{shown}`."), Expected::Yes, yes).await?;
                let call =
                    Call::new(Method::DELETE, &path).with("forget", forget_knowledge.then_some("knowledge"));
                let render: Render<'_> = &|_, _| Ok(format!("The task `{shown}` is deleted."));
                output::print(&engine.call(&call).await?, output, render)
            }
        }
    })
}

fn list_text(document: &Document, page: Page, view: View) -> anyhow::Result<String> {
    let Tasks { tasks, total } = document.parse()?;
    if tasks.is_empty() {
        return Ok(format!("There is no task here; {total} in all."));
    }
    let row = |task: &TaskSummary| {
        let status = match task.status {
            TaskStatus::Idle => Cell::new("idle").styled(Style::Dim),
            TaskStatus::Running => Cell::new("running").styled(Style::Green),
            TaskStatus::Paused => Cell::new("paused").styled(Style::Yellow),
        };
        vec![
            Cell::new(task.task_id.as_str()),
            status,
            task.message_count.into(),
            view.ago(task.updated_at).into(),
        ]
    };
    let columns =
        [Column::text("TASK"), Column::word("STATUS"), Column::number("MESSAGES"), Column::word("CHANGED")];
    let rows: Vec<_> = tasks.iter().map(row).collect();
    let note = page.note(tasks.len(), total);
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn messages_text(document: &Document, view: View) -> anyhow::Result<String> {
    let TaskMessages { messages } = document.parse()?;
    if messages.is_empty() {
        return Ok("The task has no messages.".to_owned());
    }
    Ok(messages.iter().map(|message| message_text(message, view)).collect::<Vec<_>>().join("\n\n"))
}

fn message_text(message: &TaskMessage, view: View) -> String {
    let who = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let replaced = if message.superseded { ", replaced" } else { "" };
    let head = format!("{who}, {} ({}){replaced}", view.ago(message.created_at), message.created_at);
    let head = Style::Bold.paint(&head, view.canvas.colours);
    let text = match &message.content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(block_text).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    };
    format!("{head}\n{}", escape_hidden_characters(text.trim_end()))
}

fn block_text(block: &Value) -> String {
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    match text("type") {
        "text" => text("text").to_owned(),
        "tool_use" => format!("→ {} {}", text("name"), block["input"]),
        "tool_result" => {
            format!("← {}", block["content"].as_str().map_or_else(|| block.to_string(), str::to_owned))
        }
        _ => block.to_string(),
    }
}
