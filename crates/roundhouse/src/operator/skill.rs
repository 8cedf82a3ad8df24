//! `roundhouse skill`: the skills of a user's engine.

use std::path::PathBuf;

use api::skills::{Skill, SkillList, SkillSource, SkillSummary};
use clap::Subcommand;
use reqwest::Method;

use super::confirm::{Expected, confirm};
use super::input::read_json;
use super::memory::save;
use super::output::{self, OutputOptions, ReadOptions, Render, View};
use super::user_engine::UserOptions;
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::table::{Cell, Column, fields, table};
use crate::terminal::{escape_hidden_characters, single_line};

/// How much is shown of a description in a list, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;

/// Arguments of `roundhouse skill`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the skills, by name.
    List {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Show a skill.
    Show {
        /// The skill's name.
        name: String,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Create a skill of the user's own.
    Create {
        /// The file with the skill as JSON, in the form that `skill show --json` prints, or `-` for the standard input.
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Delete a skill of the user's own.
    Delete {
        /// The skill's name.
        name: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Export a skill as a tar archive in the Agent Skills format, to be put into a catalog.
    Export {
        /// The skill's name.
        name: String,
        /// The file to write, which must not exist; the standard output by default.
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        user: UserOptions,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::List { read, user } => {
                let engine = user.open().await?;
                watch::show(read, async || engine.call(&Call::get(&["skills"])).await, &list_text).await
            }
            Command::Show { name, read, user } => {
                let engine = user.open().await?;
                let path = ["skills", &name];
                watch::show(read, async || engine.call(&Call::get(&path)).await, &skill_text).await
            }
            Command::Create { file, output, user } => {
                let mut skill = read_json(&file)?;
                // What only the engine decides; a skill that was shown has it.
                if let Some(fields) = skill.as_object_mut() {
                    fields.retain(|name, _| !["source", "created_at", "updated_at"].contains(&name.as_str()));
                }
                let call = Call::new(Method::POST, &["skills", "create"]);
                let render: Render<'_> = &|document, _| {
                    let skill: Skill = document.parse()?;
                    Ok(format!("The skill `{}` was created.", skill.name.as_str()))
                };
                output::print(&user.open().await?.call(&call.json(&skill)).await?, output, render)
            }
            Command::Delete { name, yes, output, user } => {
                let engine = user.open().await?;
                let path = ["skills", &name];
                engine.call(&Call::get(&path)).await?;
                let shown = single_line(&name, MAX_DESCRIPTION_CHARS);
                confirm(&format!("This deletes the skill `{shown}`."), Expected::Yes, yes).await?;
                let render: Render<'_> = &|_, _| Ok(format!("The skill `{shown}` is deleted."));
                output::print(&engine.call(&Call::new(Method::DELETE, &path)).await?, output, render)
            }
            Command::Export { name, file, user } => {
                let path = ["skills", &name, "export"];
                save(user.open().await?.open(&Call::get(&path)).await?, file.as_deref()).await
            }
        }
    })
}

const fn source_name(source: SkillSource) -> &'static str {
    match source {
        SkillSource::Platform => "platform",
        SkillSource::Custom => "custom",
    }
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let SkillList { skills } = document.parse()?;
    if skills.is_empty() {
        return Ok("There are no skills.".to_owned());
    }
    let row = |skill: &SkillSummary| {
        vec![
            Cell::new(skill.name.as_str()),
            source_name(skill.source).into(),
            Cell::new(skill.category.as_deref().unwrap_or("-")),
            Cell::excerpt(skill.description.as_deref().unwrap_or_default(), MAX_DESCRIPTION_CHARS),
        ]
    };
    let columns =
        [Column::text("NAME"), Column::word("FROM"), Column::text("CATEGORY"), Column::text("DESCRIPTION")];
    let rows: Vec<_> = skills.iter().map(row).collect();
    Ok(table(&columns, &rows, view.canvas))
}

fn skill_text(document: &Document, view: View) -> anyhow::Result<String> {
    let skill: Skill = document.parse()?;
    let scripts: Vec<_> = skill.scripts.keys().map(String::as_str).collect();
    let head = fields(
        &[
            ("Name", Cell::new(skill.name.as_str())),
            ("From", source_name(skill.source).into()),
            ("Category", Cell::new(skill.category.as_deref().unwrap_or("-"))),
            ("Description", Cell::new(skill.description.as_deref().unwrap_or("-"))),
            ("Tags", Cell::new(&skill.capabilities.join(", "))),
            ("Scripts", Cell::new(&scripts.join(", "))),
            ("Changed", format!("{} ({})", view.ago(skill.updated_at), skill.updated_at).into()),
        ],
        view.canvas,
    );
    let prompt =
        skill.prompt.as_deref().map(|prompt| format!("\n\n{}", escape_hidden_characters(prompt.trim_end())));
    Ok(head + &prompt.unwrap_or_default())
}
