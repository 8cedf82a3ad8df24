//! Moving engines to another version.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use crate::image::EngineImage;
use crate::orchestrator::EngineStatus;
use crate::serde_helpers::BoundedInt;
use crate::text::{Slug, UserId};
use crate::{EngineId, ErrorDetail, ProductId};

/// The value that stands for the deployment's image.
const DEFAULT: &str = "default";

/// The version that an engine is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionChoice {
    /// The deployment's version, which the engine follows from then on.
    Default,
    /// Exactly this image, to which the engine is pinned.
    Exactly(EngineImage),
}

impl VersionChoice {
    /// Returns the requested image; `None` for the deployment's.
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
    /// An image with an exact version, to which the engine is pinned; or `default` for the deployment's, which it
    /// follows.
    #[schema(value_type = String)]
    pub engine_version: VersionChoice,
}

/// Response of `PUT /engines/{user_id}/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedVersion {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The engine's state.
    pub status: EngineStatus,
    /// The engine's address; null if unknown.
    #[schema(required)]
    pub url: Option<String>,
    /// The engine's new image.
    pub engine_version: EngineImage,
    /// Whether the engine is pinned to it.
    pub pinned: bool,
    /// The engine's previous image.
    pub previous_version: EngineImage,
    /// Whether the major version has changed, and with it possibly the brain's format.
    pub crosses_major: bool,
    /// The format of the copy made of the brain; null if there is no copy or its format is unknown.
    #[schema(required)]
    pub copied_brain_format: Option<u32>,
}

/// Response of `GET /admin/versions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionList {
    /// The deployment's image.
    pub default: EngineImage,
    /// The number of engines of each product on each image.
    pub versions: Vec<VersionCount>,
}

/// The engines of a product on one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionCount {
    /// The product's id.
    pub product_id: ProductId,
    /// The product's short name.
    pub slug: Slug,
    /// The image.
    pub engine_version: EngineImage,
    /// Whether they are pinned to it.
    pub pinned: bool,
    /// The number of engines.
    pub engines: u64,
    /// Whether their next launch uses the deployment's image.
    pub follows: bool,
}

/// The maximum number of engines moved in one call: 1 to 100.
pub type MoveLimit = BoundedInt<1, 100>;

/// Body of `POST /admin/versions/move`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MoveEngines {
    /// The current image of the engines to move.
    pub from: EngineImage,
    /// The version to move to, as in `PUT /engines/{user_id}/version`.
    #[schema(value_type = String)]
    pub engine_version: VersionChoice,
    /// Only engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only engines after this id: `next` of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EngineId>,
    /// The maximum number of engines; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<MoveLimit>,
}

/// Response of `POST /admin/versions/move`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedEngines {
    /// The engines, sorted by id.
    pub engines: Vec<MovedEngine>,
    /// Where to continue; null if there are no more.
    #[schema(required)]
    pub next: Option<EngineId>,
}

/// The result of one engine's move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedEngine {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The engine's product.
    pub product_id: ProductId,
    /// The engine's user.
    pub user_id: UserId,
    /// Why the engine was not moved; null if it was.
    #[schema(required)]
    pub error: Option<ErrorDetail>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_an_exact_image_or_the_default() {
        let read = |text: &str| serde_json::from_str::<ChangeVersion>(text).map(|body| body.engine_version);
        assert_eq!(read(r#"{"engine_version": "default"}"#).unwrap(), VersionChoice::Default);
        let exactly = read(r#"{"engine_version": "svc-engine:1.2.3"}"#).unwrap();
        assert_eq!(serde_json::to_value(&exactly).unwrap(), "svc-engine:1.2.3");
        for bad in ["latest", "svc-engine:latest", "Default", ""] {
            let error = read(&format!(r#"{{"engine_version": "{bad}"}}"#)).unwrap_err().to_string();
            assert!(error.contains("\"default\""), "{bad}: {error}");
        }
    }
}
