//! A product's policy: its permissions and quotas, and the settings of its engines.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use semver::{Version, VersionReq};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Number;
use url::Url;
use utoipa::ToSchema;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};

use crate::EngineImage;
use crate::serde_helpers::{BoundedInt, count};

/// The permissions and quotas of a product, and the settings of its engines.
///
/// An absent field sets no limit; an unknown one is refused, so that a typo cannot drop a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct Policy {
    /// The maximum number of engines of the product, in any state. 0 refuses all.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub max_engines: Option<u64>,
    /// The maximum number of admits of the product in any 60 seconds. 0 refuses all.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub rate_limit_rpm: Option<u64>,
    /// If true, every call of the product other than a GET is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// The engine images that may be provisioned and followed; if absent, every version of the deployment's image;
    /// if empty, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_engine_versions: Option<AllowedVersions>,
    /// The number of idle seconds after which an engine is put to sleep, instead of the deployment's; 0 means
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_sleep_threshold_s: Option<Seconds>,
    /// The URL to which authorization servers send users back, instead of the deployment's; in force from each
    /// engine's next launch on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth_redirect_base_url: Option<BaseUrl>,
    /// The memory of each engine in MiB, from its next launch on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 64)]
    pub engine_memory_mb: Option<BoundedInt<64, { i64::MAX }>>,
    /// The number of processors of each engine, from its next launch on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_cpus: Option<Cpus>,
    /// The number of processes and threads of each engine, from its next launch on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 16)]
    pub engine_pids: Option<BoundedInt<16, { i64::MAX }>>,
}

impl Policy {
    /// Whether an engine of the product may be provisioned with `image`, moved to it, or follow the deployment to
    /// it. Without a list in the policy, every version of the deployment's image `default` is allowed, but no
    /// other image, because it would receive the secrets and settings that the operator passes to engines.
    pub fn allows(&self, image: &EngineImage, default: &EngineImage) -> bool {
        match &self.allowed_engine_versions {
            Some(allowed) => allowed.allows(image),
            None => image.name() == default.name(),
        }
    }

    /// Whether the product is restricted to reading.
    pub fn is_suspended(&self) -> bool {
        self.suspended == Some(true)
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The derived method: because of `remote`, it is an inherent one beside the trait's.
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde also accepts an array for a struct: `[]` would be a policy without limits.
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Policy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
                Policy::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The images that a product's engines may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<VersionRule>", into = "Vec<VersionRule>")]
pub struct AllowedVersions(Vec<VersionRule>);

impl AllowedVersions {
    /// The maximum number of rules: each replaced policy is stored in the audit log.
    pub const MAX: usize = 100;

    /// Whether one of the rules allows `image`.
    pub fn allows(&self, image: &EngineImage) -> bool {
        self.0.iter().any(|rule| rule.allows(image))
    }
}

/// The error for a list with too many rules.
#[derive(Debug, thiserror::Error)]
#[error("must be a list of at most {} entries", AllowedVersions::MAX)]
pub struct TooManyRules;

impl TryFrom<Vec<VersionRule>> for AllowedVersions {
    type Error = TooManyRules;

    fn try_from(rules: Vec<VersionRule>) -> Result<Self, TooManyRules> {
        if rules.len() > Self::MAX { Err(TooManyRules) } else { Ok(Self(rules)) }
    }
}

impl From<AllowedVersions> for Vec<VersionRule> {
    fn from(allowed: AllowedVersions) -> Self {
        allowed.0
    }
}

/// An allowed image, or a range of versions of any image. Serialized exactly as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VersionRule {
    text: Box<str>,
    matcher: VersionMatcher,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum VersionMatcher {
    Image(EngineImage),
    Range(VersionReq),
}

impl VersionRule {
    /// The longest accepted requirement, in bytes.
    const MAX_BYTES: usize = 256;

    fn allows(&self, image: &EngineImage) -> bool {
        match &self.matcher {
            VersionMatcher::Image(allowed) => allowed == image,
            VersionMatcher::Range(range) => {
                image.version().parse().is_ok_and(|version: Version| range.matches(&version))
            }
        }
    }
}

/// The error for a text that is neither an image nor a version requirement.
#[derive(Debug, thiserror::Error)]
#[error("must be an image such as svc-engine:1.2.3 or a semver requirement such as ^1.2")]
pub struct InvalidRule;

impl TryFrom<String> for VersionRule {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Self, InvalidRule> {
        // No requirement contains a colon, and every image reference does.
        let matcher = if text.contains(':') {
            VersionMatcher::Image(text.parse().map_err(|_| InvalidRule)?)
        } else if text.len() > Self::MAX_BYTES {
            return Err(InvalidRule);
        } else {
            VersionMatcher::Range(text.parse().map_err(|_| InvalidRule)?)
        };
        Ok(Self { text: text.into(), matcher })
    }
}

impl From<VersionRule> for String {
    fn from(rule: VersionRule) -> Self {
        rule.text.into()
    }
}

/// A duration in seconds, which may have decimals. Serialized exactly as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Number", into = "Number")]
pub struct Seconds(Number);

impl Seconds {
    /// Returns the duration; [`Duration::MAX`] if it is too long for the type.
    pub fn duration(&self) -> Duration {
        let seconds = self.0.as_f64().unwrap_or(f64::MAX);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// The error for a negative duration.
#[derive(Debug, thiserror::Error)]
#[error("must be seconds, 0 or more, decimals allowed")]
pub struct InvalidSeconds;

impl TryFrom<Number> for Seconds {
    type Error = InvalidSeconds;

    fn try_from(number: Number) -> Result<Self, InvalidSeconds> {
        let is_valid = number.as_f64().is_some_and(|seconds| seconds.is_finite() && seconds >= 0.0);
        if is_valid { Ok(Self(number)) } else { Err(InvalidSeconds) }
    }
}

impl From<Seconds> for Number {
    fn from(seconds: Seconds) -> Self {
        seconds.0
    }
}

/// A number of processors, which may have decimals. Serialized exactly as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Number", into = "Number")]
pub struct Cpus(Number);

impl Cpus {
    /// Returns the number of processors: above zero, and finite.
    pub fn get(&self) -> f64 {
        self.0.as_f64().unwrap_or(f64::MAX)
    }
}

/// The error for a number of processors that is not above zero.
#[derive(Debug, thiserror::Error)]
#[error("must be a number above 0")]
pub struct InvalidCpus;

impl TryFrom<Number> for Cpus {
    type Error = InvalidCpus;

    fn try_from(number: Number) -> Result<Self, InvalidCpus> {
        let is_valid = number.as_f64().is_some_and(|cpus| cpus.is_finite() && cpus > 0.0);
        if is_valid { Ok(Self(number)) } else { Err(InvalidCpus) }
    }
}

impl From<Cpus> for Number {
    fn from(cpus: Cpus) -> Self {
        cpus.0
    }
}

/// An `http` or `https` URL to which paths are appended. Serialized exactly as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(Box<str>);

impl BaseUrl {
    /// The longest accepted URL, in bytes.
    const MAX_BYTES: usize = 2_048;

    /// Returns the URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The error for a text that is not such a URL.
#[derive(Debug, thiserror::Error)]
#[error(
    "must be an http or https URL of at most {} bytes, without credentials, query and fragment",
    BaseUrl::MAX_BYTES
)]
pub struct InvalidBaseUrl;

impl TryFrom<&str> for BaseUrl {
    type Error = InvalidBaseUrl;

    fn try_from(text: &str) -> Result<Self, InvalidBaseUrl> {
        // The parser accepts and repairs many texts that other programs, which get this text unchanged, may
        // reject.
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\?#@\"<>`{}|^".contains(&byte));
        let has_scheme = ["http://", "https://"].iter().any(|scheme| {
            text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
        if text.len() > Self::MAX_BYTES || !is_plain || !has_scheme || Url::parse(text).is_err() {
            return Err(InvalidBaseUrl);
        }
        Ok(Self(text.into()))
    }
}

impl Serialize for BaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for BaseUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(&*Cow::<str>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

macro_rules! schema {
    ($type:ident, $schema:expr) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl utoipa::ToSchema for $type {
            fn name() -> Cow<'static, str> {
                stringify!($type).into()
            }
        }
    };
}

schema!(
    AllowedVersions,
    ArrayBuilder::new()
        .items(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some("An image, or a semver requirement on the version of any image"))
                .examples(["svc-engine:1.2.3", "^1.2"])
        )
        .max_items(Some(AllowedVersions::MAX))
);
schema!(
    Seconds,
    ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0)).description(Some("Decimals allowed"))
);
schema!(
    Cpus,
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .exclusive_minimum(Some(0))
        .description(Some("Decimals allowed"))
);
schema!(
    BaseUrl,
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::Custom("uri".into())))
        .description(Some("http or https, without credentials, query and fragment"))
        .max_length(Some(BaseUrl::MAX_BYTES))
);

#[cfg(test)]
#[path = "../tests/unit/policy.rs"]
mod tests;
