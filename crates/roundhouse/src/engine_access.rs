//! How the commands find an orchestrator and the keys to it: in a profile, in the environment, or through the files in
//! the folder of a `roundhouse up`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use api::{PlatformKey, ProductId, UserId};
use reqwest::Url;

use crate::client::{Credential, Orchestrator};
use crate::error::Failure;
use crate::profiles::{self, Profile};
use crate::up::folder::{ADDRESS_FILE, ADMIN_KEY_FILE, PLATFORM_KEY_FILE, UpFolder};

const URL_VARIABLE: &str = "ROUNDHOUSE_URL";
const PROFILE_VARIABLE: &str = "ROUNDHOUSE_PROFILE";
const PLATFORM_KEY_VARIABLE: &str = "ROUNDHOUSE_PLATFORM_KEY";
/// The variables with the operator's key, the preferred one first. The second is the orchestrator's own.
const ADMIN_KEY_VARIABLES: [&str; 2] = ["ROUNDHOUSE_ADMIN_KEY", "ORCH_ADMIN_KEY"];

/// Which orchestrator to use. Keys are never arguments, which every user of the machine can read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct AccessOptions {
    /// The folder of the `roundhouse up` to connect to.
    #[arg(long, value_name = "FOLDER", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// The orchestrator's address [env: `ROUNDHOUSE_URL`]; by default the address in the folder of the `roundhouse up`.
    #[arg(long)]
    url: Option<Url>,
    /// The profile with the orchestrator's address and keys [env: `ROUNDHOUSE_PROFILE`], of
    /// `~/.config/roundhouse/profiles.toml`.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["dir", "url"])]
    profile: Option<String>,
}

/// Which engine a command for people talks to.
#[derive(clap::Args)]
pub(crate) struct EngineOptions {
    /// The user whose engine to use; your login name by default.
    #[arg(long, env = "USER", default_value = "me")]
    user: String,
    #[command(flatten)]
    access: AccessOptions,
    /// Reach the engine through the orchestrator, where the engine's own address cannot be reached: from outside the
    /// container of a `roundhouse up`.
    #[arg(long)]
    proxy: bool,
}

impl EngineOptions {
    /// Returns a client of the orchestrator and the id of the user whose engine to use.
    pub(crate) fn resolve(self) -> Result<(Orchestrator, UserId), Failure> {
        let user = parse_user(self.user)?;
        let orchestrator = self.access.resolve()?.product()?;
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

/// Where an orchestrator is, and where the keys to it are.
pub(crate) enum Access {
    /// An address and keys that belong together.
    Profile { name: String, file: PathBuf, profile: Profile },
    /// An address, by default that of the folder; keys of the environment, by default those of the folder.
    Environment { url: Option<Url>, folder: Option<UpFolder> },
}

impl AccessOptions {
    /// Decides where to look. A profile's address is never used with another's keys.
    pub(crate) fn resolve(self) -> Result<Access, Failure> {
        let Self { dir, url, profile } = self;
        let is_given = dir.is_some() || url.is_some();
        if let Some(name) = profile.or_else(|| variable(PROFILE_VARIABLE).filter(|_| !is_given)) {
            let file = profiles::file()?;
            let profile = profiles::read(&file, &name)?;
            return Ok(Access::Profile { name, file, profile });
        }
        let folder = |dir: Option<&Path>| UpFolder::resolve(dir).map_err(Failure::usage);
        if !is_given && let Some(url) = variable(URL_VARIABLE) {
            let url = Url::parse(&url).map_err(|error| Failure::usage(format!("{URL_VARIABLE}: {error}")))?;
            // The keys of a fleet on this machine do not belong to an address from elsewhere.
            return Ok(Access::Environment { url: Some(url), folder: None });
        }
        Ok(Access::Environment { url, folder: Some(folder(dir.as_deref())?) })
    }
}

impl Access {
    /// The orchestrator as the product whose key there is.
    pub(crate) fn product(&self) -> Result<Orchestrator, Failure> {
        let (key, origin) =
            self.find_key("platform key", &[PLATFORM_KEY_VARIABLE], PLATFORM_KEY_FILE, |profile| {
                profile.platform_key.as_deref()
            })?;
        let credential = Credential::product(&PlatformKey::from_text(key), origin)?;
        Ok(Orchestrator::new(self.url()?, credential)?)
    }

    /// The orchestrator as its operator, on behalf of a product if one is given.
    pub(crate) fn operator(&self, product: Option<ProductId>) -> Result<Orchestrator, Failure> {
        let (key, origin) = self.find_key("admin key", &ADMIN_KEY_VARIABLES, ADMIN_KEY_FILE, |profile| {
            profile.admin_key.as_deref()
        })?;
        Ok(Orchestrator::new(self.url()?, Credential::operator(&key, product, origin)?)?)
    }

    fn url(&self) -> Result<Url, Failure> {
        match self {
            Self::Profile { profile, .. } => Ok(profile.url.clone()),
            Self::Environment { url: Some(url), .. } => Ok(url.clone()),
            Self::Environment { url: None, folder: Some(folder) } => {
                Ok(Url::parse(&read_file(folder.path(), ADDRESS_FILE)?)
                    .context("the address file in the folder does not contain a URL")?)
            }
            Self::Environment { url: None, folder: None } => {
                Err(Failure::usage(format!("no orchestrator is named: set {URL_VARIABLE}")))
            }
        }
    }

    /// Finds a key, and says where it is from.
    fn find_key(
        &self,
        kind: &str,
        variables: &[&str],
        file: &str,
        of_profile: impl Fn(&Profile) -> Option<&str>,
    ) -> Result<(String, String), Failure> {
        match self {
            Self::Profile { name, file, profile } => {
                let place = format!("the profile `{name}` in {}", file.display());
                match of_profile(profile) {
                    Some(key) => Ok((key.to_owned(), format!("the {kind} of {place}"))),
                    None => Err(Failure::usage(format!("{place} has no {kind}, which this command needs"))),
                }
            }
            Self::Environment { folder, .. } => {
                let set = variables
                    .iter()
                    .find_map(|name| Some((variable(name)?, format!("the {kind} in {name}"))));
                match (set, folder) {
                    (Some(found), _) => Ok(found),
                    (None, Some(folder)) => Ok((
                        read_file(folder.path(), file)?,
                        format!("the {kind} in {}", folder.path().join(file).display()),
                    )),
                    (None, None) => Err(Failure::usage(format!(
                        "{URL_VARIABLE} is set without a key: set {} as well, or use a profile",
                        variables.first().copied().unwrap_or_default()
                    ))),
                }
            }
        }
    }
}

/// Returns the orchestrator of a folder.
pub(crate) fn open_orchestrator(folder: UpFolder) -> Result<Orchestrator, Failure> {
    Access::Environment { url: None, folder: Some(folder) }.product()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn read_file(folder: &Path, file: &str) -> Result<String, Failure> {
    let path = folder.join(file);
    std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| {
        Failure::usage(format!(
            "{} cannot be read ({error}): run `roundhouse up` first, name its folder with --dir, or another \
             orchestrator with {URL_VARIABLE} or --profile",
            path.display()
        ))
    })
}
