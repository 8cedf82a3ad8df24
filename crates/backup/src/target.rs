//! Where backups are kept: a folder, or a bucket of S3, Google Cloud Storage or Azure.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http_service::env::Env;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreScheme};
use url::Url;

/// The variables of the vendors' own tools, which say how to reach a store and with which credentials.
const VENDOR_PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// A place for backups.
#[derive(Clone)]
pub struct Target {
    url: Url,
    /// The vendors' variables that are set.
    options: Vec<(String, String)>,
}

/// The target cannot be used. The text is for the operator, and has no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backup store {target} cannot be used: {reason}")]
pub struct InvalidTarget {
    target: String,
    reason: String,
}

impl Target {
    /// What a target's text must be, as the end of the sentence "it must be ...".
    pub const EXPECTED: &str = "a URL such as file:///var/backups/roundhouse, s3://bucket/folder, gs://bucket/folder or \
         az://container/folder, without a user, a password or a query";

    /// Parses a URL. `env` has the variables with the credentials.
    pub fn parse(text: &str, env: &dyn Env) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let (scheme, _) = ObjectStoreScheme::parse(&url).ok()?;
        let is_supported = matches!(
            scheme,
            ObjectStoreScheme::Local
                | ObjectStoreScheme::AmazonS3
                | ObjectStoreScheme::GoogleCloudStorage
                | ObjectStoreScheme::MicrosoftAzure
        );
        let has_secrets = !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some();
        if !is_supported || has_secrets {
            return None;
        }
        let of_vendor = |name: &String| VENDOR_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let options = env.names().into_iter().filter(of_vendor);
        let options = options.filter_map(|name| env.get(&name).map(|value| (name.to_lowercase(), value)));
        Some(Self { url, options: options.collect() })
    }

    /// The folder that the backups are kept in; `None` if they are in a bucket.
    pub fn folder(&self) -> Option<PathBuf> {
        let is_local = ObjectStoreScheme::parse(&self.url)
            .is_ok_and(|(scheme, _)| matches!(scheme, ObjectStoreScheme::Local));
        if is_local { self.url.to_file_path().ok() } else { None }
    }

    /// Opens the store. Does not contact it yet.
    pub(crate) fn open(&self) -> Result<Arc<dyn ObjectStore>, InvalidTarget> {
        let (scheme, _) = ObjectStoreScheme::parse(&self.url).map_err(|error| self.error(&error))?;
        if matches!(scheme, ObjectStoreScheme::Local) {
            let path = self.url.to_file_path().map_err(|()| self.error(&"it is not a path"))?;
            std::fs::create_dir_all(&path).map_err(|error| self.error(&error))?;
            let store = LocalFileSystem::new_with_prefix(path).map_err(|error| self.error(&error))?;
            // A backup that is reported as made survives a power failure.
            return Ok(Arc::new(store.with_fsync(true)));
        }
        let options = self.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let (store, prefix) =
            object_store::parse_url_opts(&self.url, options).map_err(|error| self.error(&error))?;
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        Ok(if prefix == Path::default() { store } else { Arc::new(PrefixStore::new(store, prefix)) })
    }

    fn error(&self, reason: &dyn fmt::Display) -> InvalidTarget {
        InvalidTarget { target: self.to_string(), reason: reason.to_string() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// Without the options, which have credentials.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
