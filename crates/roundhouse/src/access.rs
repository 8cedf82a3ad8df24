//! How the commands for people get at the services of a `roundhouse up`: by what it left in its folder.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use contract::{PlatformKey, UserId};
use reqwest::Url;

use crate::client::Orchestrator;
use crate::error::Failure;
use crate::up::folder::{ADDRESS, Folder, PLATFORM_KEY};

/// Which engine a command for people talks to.
#[derive(clap::Args)]
pub(crate) struct EngineOptions {
    /// The user whose engine it is; your login name by default.
    #[arg(long, env = "USER", default_value = "me")]
    user: String,
    /// The folder of the `roundhouse up` to talk to.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The orchestrator's address; by default that of the `roundhouse up` of the folder.
    #[arg(long)]
    url: Option<Url>,
}

impl EngineOptions {
    /// The orchestrator to ask for the engine, and the user to ask it for.
    pub(crate) fn reach(self) -> Result<(Orchestrator, UserId), Failure> {
        let user = user(self.user)?;
        let folder = Folder::at(self.dir.as_deref()).map_err(Failure::usage)?;
        Ok((orchestrator(&folder, self.url)?, user))
    }
}

/// The user called `user`.
pub(crate) fn user(user: String) -> Result<UserId, Failure> {
    let user = UserId::new(user).map_err(|error| Failure::usage(format!("--user: {error}")))?;
    // A URL cannot carry these two as they are.
    if matches!(user.as_str(), "." | "..") {
        return Err(Failure::usage("--user: `.` and `..` cannot be talked to from here"));
    }
    Ok(user)
}

/// The orchestrator of a folder, or that at `url`; a product of one's own is used through the environment.
pub(crate) fn orchestrator(folder: &Folder, url: Option<Url>) -> Result<Orchestrator, Failure> {
    let key = match std::env::var("ROUNDHOUSE_PLATFORM_KEY") {
        Ok(key) => key,
        Err(_) => read(folder.path(), PLATFORM_KEY)?,
    };
    let url = match url {
        Some(url) => url,
        None => Url::parse(&read(folder.path(), ADDRESS)?).context("the address in the folder")?,
    };
    Ok(Orchestrator::new(url, PlatformKey::from_text(key))?)
}

fn read(folder: &Path, file: &str) -> Result<String, Failure> {
    let path = folder.join(file);
    std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| {
        Failure::usage(format!(
            "{} cannot be read ({error}): run `roundhouse up` first, or name its folder with --dir",
            path.display()
        ))
    })
}
