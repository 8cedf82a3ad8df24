//! The commands that only look something up: their results as text.

use api::TaskId;
use api::engine::TaskStatus;
use api::files::FileKind;
use serde_json::Value;

use crate::client::ClientError;
use crate::remote::Remote;
use crate::terminal::single_line;

/// The most conversations, facts or files that are listed.
const MAX_LISTED: u32 = 50;
/// The longest entry of a list, in characters.
const MAX_ENTRY_CHARS: usize = 300;

/// Lists the conversations.
pub(super) async fn tasks(remote: &Remote, current: &TaskId) -> Result<String, ClientError> {
    let (tasks, has_more) = remote.call(async |engine| engine.conversations(MAX_LISTED).await).await?;
    if tasks.is_empty() {
        return Ok("There is no conversation yet.".into());
    }
    let mut list = String::new();
    for task in &tasks {
        let mark = if task.task_id == *current { "*" } else { " " };
        let state = match task.status {
            TaskStatus::Idle => "",
            TaskStatus::Running => ", running",
            TaskStatus::Paused => ", waits for an answer",
        };
        let title = task.title.as_deref().map(|title| format!("  {title}")).unwrap_or_default();
        let entry = format!("{}{title}  ({} messages{state})", task.task_id.as_str(), task.message_count);
        push_line(&mut list, &format!("{mark} {}", single_line(&entry, MAX_ENTRY_CHARS)));
    }
    if has_more {
        push_line(&mut list, "  …");
    }
    push_line(&mut list, "/tasks NAME opens one.");
    Ok(list)
}

/// Shows the working memory and the facts that were said last, or searches what is known.
pub(super) async fn memory(
    remote: &Remote,
    task: &TaskId,
    query: Option<&str>,
) -> Result<String, ClientError> {
    let mut list = String::new();
    if let Some(query) = query {
        let found = remote.call(async |engine| engine.search_knowledge(query).await).await?;
        for result in &found {
            push_line(&mut list, &format!("- {}", single_line(&result.content, MAX_ENTRY_CHARS)));
        }
        return Ok(if found.is_empty() { "Nothing was found.".into() } else { list });
    }
    let working = remote.call(async |engine| engine.working_memory(task).await).await?;
    let working = working.map(|working| working.memory).unwrap_or_default();
    if !working.is_empty() {
        push_line(&mut list, "In this conversation:");
    }
    for (key, value) in &working {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        push_line(&mut list, &format!("- {}", single_line(&format!("{key}: {value}"), MAX_ENTRY_CHARS)));
    }
    let (facts, total) = remote.call(async |engine| engine.facts(MAX_LISTED).await).await?;
    if !facts.is_empty() {
        push_line(&mut list, "About you:");
    }
    for fact in &facts {
        push_line(&mut list, &format!("- {}", single_line(&fact.content, MAX_ENTRY_CHARS)));
    }
    let shown = facts.len() as u64;
    if shown < total {
        push_line(&mut list, &format!("… and {} more; /memory WORDS searches.", total - shown));
    }
    Ok(if list.is_empty() { "Nothing is remembered yet.".into() } else { list })
}

/// Lists the models of the configuration. `chosen` is the one that this terminal uses.
pub(super) async fn models(remote: &Remote, chosen: Option<&str>) -> Result<String, ClientError> {
    let config = remote.call(async |engine| engine.gateway_config().await).await?;
    let Some(models) = config.get("models").and_then(Value::as_object).filter(|models| !models.is_empty())
    else {
        return Ok("The engine has no list of models.".into());
    };
    let mut list = String::new();
    for (name, model) in models {
        let mark = if chosen == Some(name) { "*" } else { " " };
        let text = |field: &str| model[field].as_str().unwrap_or("?").to_owned();
        let entry = format!("{name}  ({} {})", text("provider"), text("model"));
        push_line(&mut list, &format!("{mark} {}", single_line(&entry, MAX_ENTRY_CHARS)));
    }
    let used = chosen.map_or("The configuration chooses".into(), |name| format!("{name} answers"));
    push_line(
        &mut list,
        &format!("{}; /model NAME chooses one, /model default none.", single_line(&used, MAX_ENTRY_CHARS)),
    );
    Ok(list)
}

/// Whether the configuration has a model of this name. A configuration that cannot be read has every model: the
/// engine refuses those that it does not have.
pub(super) async fn has_model(remote: &Remote, name: &str) -> Result<bool, ClientError> {
    let config = remote.call(async |engine| engine.gateway_config().await).await?;
    Ok(config.get("models").and_then(Value::as_object).is_none_or(|models| models.contains_key(name)))
}

/// Lists a folder of the workspace.
pub(super) async fn files(remote: &Remote, folder: &str) -> Result<String, ClientError> {
    let found = remote.call(async |engine| engine.list_folder(folder, MAX_LISTED).await).await?;
    let Some(listing) = found else { return Ok("This is a file, not a folder.".into()) };
    if listing.entries.is_empty() {
        return Ok("The folder is empty.".into());
    }
    let mut list = String::new();
    for entry in &listing.entries {
        let name = single_line(&entry.name, MAX_ENTRY_CHARS);
        let line = match (entry.kind, entry.size) {
            (FileKind::Folder, _) => format!("{name}/"),
            (FileKind::File, Some(size)) => format!("{name}  ({size} bytes)"),
            (FileKind::Link, _) => format!("{name}  (a link)"),
            _ => name,
        };
        push_line(&mut list, &line);
    }
    if listing.next.is_some() {
        push_line(&mut list, "…");
    }
    Ok(list)
}

fn push_line(list: &mut String, line: &str) {
    if !list.is_empty() {
        list.push('\n');
    }
    list.push_str(line);
}
