//! Engines that are moved to another version.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use crate::image::EngineImage;
use crate::orchestrator::EngineStatus;
use crate::serde_helpers::BoundedInt;
use crate::text::{Slug, UserId};
use crate::{EngineId, ErrorDetail, ProductId};

/// The word for the deployment's own image.
const DEFAULT: &str = "default";

/// Which version an engine is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionChoice {
    /// The deployment's, which it follows from then on.
    Default,
    /// This one, with which it stays.
    Exactly(EngineImage),
}

impl VersionChoice {
    /// The image asked for; none for the deployment's.
    pub fn into_image(self) -> Option<EngineImage> {
        match self {
            Self::Default => None,
            Self::Exactly(image) => Some(image),
        }
    }
}

impl Serialize for VersionChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Default => serializer.serialize_str(DEFAULT),
            Self::Exactly(image) => image.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for VersionChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        if text == DEFAULT {
            return Ok(Self::Default);
        }
        let image = text.parse().map_err(|error| de::Error::custom(format!("{error}, or \"{DEFAULT}\"")))?;
        Ok(Self::Exactly(image))
    }
}

/// Body of `PUT /engines/{user_id}/version`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangeVersion {
    /// An image pinned to an exact version, with which the engine stays; or `default`: the deployment's, which it follows.
    #[schema(value_type = String)]
    pub engine_version: VersionChoice,
}

/// Answer of `PUT /engines/{user_id}/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedVersion {
    /// The engine's id.
    pub engine_id: EngineId,
    /// Its state.
    pub status: EngineStatus,
    /// Its address; null where unknown.
    #[schema(required)]
    pub url: Option<String>,
    /// The image that it is on now.
    pub engine_version: EngineImage,
    /// Whether it stays with that.
    pub pinned: bool,
    /// The image that it was on before.
    pub previous_version: EngineImage,
    /// Whether the major version is another one: then the brain's format may be, too.
    pub crosses_major: bool,
    /// The format of the copy that was made of its brain; null if none was made or it is not known.
    #[schema(required)]
    pub copied_brain_format: Option<u32>,
}

/// Answer of `GET /admin/versions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionList {
    /// The deployment's image.
    pub default: EngineImage,
    /// How many engines of each product are on each image.
    pub versions: Vec<VersionCount>,
}

/// The engines of a product that are on one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionCount {
    /// The product's id.
    pub product_id: ProductId,
    /// Its short name.
    pub slug: Slug,
    /// The image.
    pub engine_version: EngineImage,
    /// Whether they stay with it.
    pub pinned: bool,
    /// How many there are.
    pub engines: u64,
    /// Whether their next launch is from the deployment's image.
    pub follows: bool,
}

/// How many engines are moved in one call: 1 to 100.
pub type MoveLimit = BoundedInt<1, 100>;

/// Body of `POST /admin/versions/move`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MoveEngines {
    /// The image that the engines are on.
    pub from: EngineImage,
    /// What `PUT /engines/{user_id}/version` takes.
    #[schema(value_type = String)]
    pub engine_version: VersionChoice,
    /// Only engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only engines behind this one: `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EngineId>,
    /// How many at most; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<MoveLimit>,
}

/// Answer of `POST /admin/versions/move`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedEngines {
    /// The engines, in the order of their ids.
    pub engines: Vec<MovedEngine>,
    /// Where to go on; null if there are no more.
    #[schema(required)]
    pub next: Option<EngineId>,
}

/// What came of one engine's move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedEngine {
    /// The engine's id.
    pub engine_id: EngineId,
    /// Whose product it is.
    pub product_id: ProductId,
    /// The product's user.
    pub user_id: UserId,
    /// Why it was not moved; null if it was.
    #[schema(required)]
    pub error: Option<ErrorDetail>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_an_exact_image_or_the_default() {
        let read = |text: &str| serde_json::from_str::<ChangeVersion>(text).map(|ask| ask.engine_version);
        assert_eq!(read(r#"{"engine_version": "default"}"#).unwrap(), VersionChoice::Default);
        let exactly = read(r#"{"engine_version": "svc-engine:1.2.3"}"#).unwrap();
        assert_eq!(serde_json::to_value(&exactly).unwrap(), "svc-engine:1.2.3");
        for bad in ["latest", "svc-engine:latest", "Default", ""] {
            let why = read(&format!(r#"{{"engine_version": "{bad}"}}"#)).unwrap_err().to_string();
            assert!(why.contains("\"default\""), "{bad}: {why}");
        }
    }
}
