//! How the interactive commands find the orchestrator of a `roundhouse up`: through the address and key files in
//! its folder.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use api::{PlatformKey, UserId};
use reqwest::Url;

use crate::client::Orchestrator;
use crate::error::Failure;
use crate::up::folder::{ADDRESS_FILE, PLATFORM_KEY_FILE, UpFolder};

/// Which engine a command for people talks to.
#[derive(clap::Args)]
pub(crate) struct EngineOptions {
    /// The user whose engine to use; your login name by default.
    #[arg(long, env = "USER", default_value = "me")]
    user: String,
    /// The folder of the `roundhouse up` to connect to.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The orchestrator's address; by default the address in the folder of the `roundhouse up`.
    #[arg(long)]
    url: Option<Url>,
    /// Reach the engine through the orchestrator, where the engine's own address cannot be reached: from outside the
    /// container of a `roundhouse up`.
    #[arg(long)]
    proxy: bool,
}

impl EngineOptions {
    /// Returns a client of the orchestrator and the id of the user whose engine to use.
    pub(crate) fn resolve(self) -> Result<(Orchestrator, UserId), Failure> {
        let user = parse_user(self.user)?;
        let folder = UpFolder::resolve(self.dir.as_deref()).map_err(Failure::usage)?;
        let orchestrator = open_orchestrator(&folder, self.url)?;
        Ok((if self.proxy { orchestrator.through_proxy() } else { orchestrator }, user))
    }
}

/// Parses `user` into an id that can be used in a URL.
pub(crate) fn parse_user(user: String) -> Result<UserId, Failure> {
    let user = UserId::new(user).map_err(|error| Failure::usage(format!("--user: {error}")))?;
    // Dot segments are removed when a URL is parsed.
    if matches!(user.as_str(), "." | "..") {
        return Err(Failure::usage("--user: `.` and `..` cannot be used in a URL"));
    }
    Ok(user)
}

/// Returns the orchestrator of a folder, or the one at `url`, whose product key comes from the environment.
pub(crate) fn open_orchestrator(folder: &UpFolder, url: Option<Url>) -> Result<Orchestrator, Failure> {
    let key = match std::env::var("ROUNDHOUSE_PLATFORM_KEY") {
        Ok(key) => key,
        Err(_) => read_file(folder.path(), PLATFORM_KEY_FILE)?,
    };
    let url = match url {
        Some(url) => url,
        None => Url::parse(&read_file(folder.path(), ADDRESS_FILE)?)
            .context("the address file in the folder does not contain a URL")?,
    };
    Ok(Orchestrator::new(url, PlatformKey::from_text(key))?)
}

fn read_file(folder: &Path, file: &str) -> Result<String, Failure> {
    let path = folder.join(file);
    std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| {
        Failure::usage(format!(
            "{} cannot be read ({error}): run `roundhouse up` first, or name its folder with --dir",
            path.display()
        ))
    })
}
