//! `roundhouse engines`: lists and changes the versions of a fleet's engines, for the operator.

use std::time::Duration;

use anyhow::Context as _;
use api::orchestrator::ADMIN_KEY_HEADER;
use api::version::{MoveEngines, MoveLimit, MovedEngines, VersionChoice, VersionList};
use api::{EngineImage, ErrorBody, ProductId};
use clap::Subcommand;
use reqwest::header::HeaderValue;
use reqwest::{RequestBuilder, Url};
use serde::de::DeserializeOwned;

use crate::error::Failure;
use crate::terminal::{print_line, single_line};

/// The longest time for one call. In it, several engines are stopped and booted, and rolled back if they fail to
/// start.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(10);

/// How much of a text from the server is shown.
const MAX_SHOWN_CHARS: usize = 500;

/// How many engines are moved in one call.
const MOVES_PER_CALL: i64 = 4;

/// Arguments of `roundhouse engines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// The arguments of `roundhouse engines versions`.
    pub(crate) const fn versions(args: AccessArgs) -> Self {
        Self { command: Command::Versions(args) }
    }

    /// The arguments of `roundhouse engines move`.
    pub(crate) const fn moving(args: MoveArgs) -> Self {
        Self { command: Command::Move(args) }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Print how many engines of each product are on which version, and which of them follow the deployment's.
    Versions(AccessArgs),
    /// Move all engines that are on one version to another one, also across major versions. Each engine is
    /// stopped, its brain copied, and launched on the other version; one that does not become healthy is moved
    /// back.
    Move(MoveArgs),
}

/// Which orchestrator to ask, and as whom.
#[derive(clap::Args)]
pub(crate) struct AccessArgs {
    /// The orchestrator's address.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: Url,
    /// The deployment's admin key.
    #[arg(long, env = "ORCH_ADMIN_KEY", hide_env_values = true)]
    admin_key: String,
}

/// Which engines to move, and where to.
#[derive(clap::Args)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// The image that the engines are on, such as `svc-engine:1.4.2`.
    #[arg(long)]
    from: EngineImage,
    /// The image to move them to and pin them to; or `default`: the deployment's image, which they then follow.
    #[arg(long, value_parser = parse_version_choice)]
    to: VersionChoice,
    /// Only engines of this product, by its id.
    #[arg(long)]
    product: Option<ProductId>,
    /// Stop after this number of engines.
    #[arg(long)]
    at_most: Option<usize>,
}

fn parse_version_choice(text: &str) -> Result<VersionChoice, serde_json::Error> {
    serde_json::from_value(text.into())
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.command {
            Command::Versions(access) => print_versions(&access).await,
            Command::Move(args) => move_engines(args).await,
        }
    })
}

impl AccessArgs {
    fn request(&self, method: reqwest::Method, path: &str) -> anyhow::Result<RequestBuilder> {
        // The orchestrator is the operator's own, and a proxy must not see the key.
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy().build()?;
        let mut key = HeaderValue::from_str(&self.admin_key).context("--admin-key is not a valid key")?;
        key.set_sensitive(true);
        let url = self.url.join(path).context("--url cannot be a base URL")?;
        Ok(http.request(method, url).header(ADMIN_KEY_HEADER, key).timeout(ANSWER_TIMEOUT))
    }
}

/// Returns the response, or the orchestrator's error as a failure.
async fn send<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Failure> {
    let response = request.send().await.context("the orchestrator did not respond")?;
    if response.status().is_success() {
        return Ok(response.json().await.context("the orchestrator's response could not be parsed")?);
    }
    let status = response.status();
    let body: ErrorBody =
        response.json().await.with_context(|| format!("the orchestrator responded with {status}"))?;
    Err(anyhow::anyhow!("{}", single_line(&body.error.message, MAX_SHOWN_CHARS)).into())
}

async fn print_versions(access: &AccessArgs) -> Result<(), Failure> {
    let list: VersionList = send(access.request(reqwest::Method::GET, "admin/versions")?).await?;
    print_line(&format!("The deployment's version is {}.", list.default))?;
    for count in list.versions {
        let relation = match (count.follows, count.pinned) {
            (true, _) if count.engine_version == list.default => "follow the deployment's version",
            (true, _) => "follow the deployment's version from their next launch",
            (false, true) => "pinned",
            (false, false) => {
                "keep theirs: another major version, or the product's policy does not allow the deployment's"
            }
        };
        let (slug, engines, version) = (count.slug, count.engines, count.engine_version);
        print_line(&format!("{slug} ({}): {engines} on {version}, {relation}", count.product_id))?;
    }
    Ok(())
}

async fn move_engines(args: MoveArgs) -> Result<(), Failure> {
    let MoveArgs { access, from, to, product, at_most } = args;
    let (mut remaining, mut moved, mut failed) = (at_most.unwrap_or(usize::MAX), 0_usize, 0_usize);
    let mut after = None;
    while remaining > 0 {
        let limit = i64::try_from(remaining).unwrap_or(i64::MAX).min(MOVES_PER_CALL);
        let body = MoveEngines {
            from: from.clone(),
            engine_version: to.clone(),
            product_id: product,
            after,
            limit: MoveLimit::try_from(limit).ok(),
        };
        let request = access.request(reqwest::Method::POST, "admin/versions/move")?.json(&body);
        let MovedEngines { engines, next } = send(request).await?;
        remaining = remaining.saturating_sub(engines.len());
        for engine in engines {
            let user = single_line(engine.user_id.as_str(), MAX_SHOWN_CHARS);
            match engine.error {
                None => {
                    moved += 1;
                    print_line(&format!("{} of {user}: moved", engine.engine_id))?;
                }
                Some(error) => {
                    failed += 1;
                    let reason = single_line(&error.message, MAX_SHOWN_CHARS);
                    print_line(&format!("{} of {user}: not moved: {reason}", engine.engine_id))?;
                }
            }
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    print_line(&format!("{moved} moved, {failed} not moved."))?;
    if failed > 0 { Err(anyhow::anyhow!("{failed} engines were not moved").into()) } else { Ok(()) }
}
