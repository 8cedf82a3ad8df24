//! `roundhouse engine provision`, `start`, `stop`, `destroy` and `rotate-key`: what changes an engine.

use api::orchestrator::{DestroyedEngine, ProvisionedEngine, RotatedKey, StartedEngine, StoppedEngine};
use reqwest::Method;
use serde_json::json;

use super::confirm::{Expected, confirm};
use super::engine::UserArgument;
use super::output::{self, OutputOptions, Render, View};
use super::session::ProductOptions;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::single_line;

/// Arguments of the commands that need no more than a user.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    user: UserArgument,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    product: ProductOptions,
}

/// Arguments of `roundhouse engine provision`.
#[derive(clap::Args)]
pub(crate) struct ProvisionArgs {
    #[command(flatten)]
    args: Args,
    /// The image to run, to which the engine is then pinned; by default it follows the deployment's.
    #[arg(long, value_name = "IMAGE")]
    version: Option<String>,
}

/// Arguments of `roundhouse engine destroy`.
#[derive(clap::Args)]
pub(crate) struct DestroyArgs {
    #[command(flatten)]
    args: Args,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

pub(crate) fn provision(args: ProvisionArgs) -> Result<(), Failure> {
    let ProvisionArgs { args: Args { user, output, product }, version } = args;
    let body = json!({"user_id": user.user.as_str(), "engine_version": version});
    super::run(async {
        let call = Call::new(Method::POST, &["engines", "provision"]).json(&body);
        let render: Render<'_> = &|document, _| {
            let ProvisionedEngine { engine_id, user_id, url, .. } = document.parse()?;
            Ok(format!(
                "The engine of `{}` is running at {} ({engine_id}).",
                single_line(user_id.as_str(), usize::MAX),
                single_line(&url, usize::MAX)
            ))
        };
        output::print(&product.open()?.call(&call).await?, output, render)
    })
}

pub(crate) fn start(args: Args) -> Result<(), Failure> {
    act(args, "start", &|document, user| {
        let StartedEngine { url, .. } = document.parse()?;
        Ok(format!("The engine of `{user}` is running at {}.", single_line(&url, usize::MAX)))
    })
}

pub(crate) fn stop(args: Args) -> Result<(), Failure> {
    act(args, "stop", &|document, user| {
        let StoppedEngine { .. } = document.parse()?;
        Ok(format!("The engine of `{user}` is stopped."))
    })
}

pub(crate) fn rotate_key(args: Args) -> Result<(), Failure> {
    act(args, "rotate-key", &|document, user| {
        let RotatedKey { .. } = document.parse()?;
        Ok(format!(
            "The engine of `{user}` has a new key; the old one is invalid. `roundhouse engine get --json` shows it."
        ))
    })
}

pub(crate) fn destroy(args: DestroyArgs) -> Result<(), Failure> {
    let DestroyArgs { args, yes } = args;
    let Args { user, output, product } = args;
    super::run(async {
        let name = user.user.as_str();
        let session = product.open()?;
        // Before a person is asked: so that nobody confirms what is not there.
        let path = ["engines", name];
        session.call(&Call::get(&path)).await?;
        let shown = single_line(name, usize::MAX);
        let question = format!(
            "This destroys the engine of `{shown}` with everything that it keeps, and cannot be undone."
        );
        confirm(&question, Expected::Name(name), yes).await?;
        let render: Render<'_> = &|document, _| {
            let DestroyedEngine { engine_id, .. } = document.parse()?;
            Ok(format!("The engine of `{shown}` is destroyed ({engine_id})."))
        };
        output::print(&session.call(&Call::new(Method::DELETE, &path)).await?, output, render)
    })
}

fn act(
    args: Args,
    part: &'static str,
    render: &dyn Fn(&Document, &str) -> anyhow::Result<String>,
) -> Result<(), Failure> {
    let Args { user, output, product } = args;
    super::run(async {
        let name = user.user.as_str();
        let path = ["engines", name, part];
        let call = Call::new(Method::POST, &path);
        let document = product.open()?.call(&call).await?;
        let shown = single_line(name, usize::MAX);
        output::print(&document, output, &|document: &Document, _: View| render(document, &shown))
    })
}
