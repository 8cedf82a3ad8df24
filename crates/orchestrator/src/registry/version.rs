//! The image from which an engine is launched, and its change during a move to another version.

use api::{EngineId, EngineImage, ProductId, Slug};
use sqlx::Row as _;

use super::access::with_deadline;
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError};

/// The number of a product's engines on one image.
#[derive(Clone, Debug)]
pub(crate) struct VersionCount {
    pub(crate) product_id: ProductId,
    pub(crate) slug: Slug,
    pub(crate) image: EngineImage,
    pub(crate) pinned: bool,
    pub(crate) engines: u64,
}

impl Registry {
    /// Sets the image of an engine that the caller has claimed, and whether the engine is pinned to it.
    pub(crate) async fn set_version(
        &self,
        row: &EngineRow,
        image: &EngineImage,
        pinned: bool,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, 0).await?;
        let update = sqlx::query(
            "UPDATE engines SET engine_version = $1, pinned = $2 \
             WHERE engine_id = $3 AND generation = $4 AND claim_kind IS NOT NULL",
        )
        .bind(image.as_str().to_owned())
        .bind(i64::from(pinned))
        .bind(row.engine_id.to_string())
        .bind(row.generation);
        if with_deadline(update.execute(tx.connection())).await?.rows_affected() == 0 {
            return Err(RegistryError::ClaimLost { engine_id: row.engine_id });
        }
        tx.commit().await
    }

    /// Returns how many engines of each product are on each image. Rows that cannot be read are left out.
    pub(crate) async fn version_counts(&self) -> Result<Vec<VersionCount>, RegistryError> {
        let query = sqlx::query(
            "SELECT e.product_id, p.slug, e.engine_version, e.pinned, COUNT(*) FROM engines e \
             JOIN products p ON p.product_id = e.product_id \
             GROUP BY e.product_id, p.slug, e.engine_version, e.pinned ORDER BY e.product_id, e.engine_version, e.pinned",
        );
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            let (product_id, slug, image): (String, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let (pinned, engines): (i64, i64) = (row.try_get(3)?, row.try_get(4)?);
            let (Ok(product_id), Ok(slug), Ok(image)) = (product_id.parse(), Slug::new(slug), image.parse())
            else {
                continue;
            };
            let (pinned, engines) = (pinned != 0, engines.unsigned_abs());
            counts.push(VersionCount { product_id, slug, image, pinned, engines });
        }
        Ok(counts)
    }

    /// Returns the engines on `image`, of one product or of all, after `after` in the order of their ids.
    /// Unreadable rows are skipped.
    pub(crate) async fn engines_on_image(
        &self,
        image: &EngineImage,
        product_id: Option<ProductId>,
        after: Option<EngineId>,
        limit: i64,
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let query = sqlx::query(select_engines!(
            "WHERE engine_version = $1 AND engine_id > $2 AND ($3 = '' OR product_id = $3) \
             ORDER BY engine_id LIMIT $4"
        ))
        .bind(image.as_str().to_owned())
        .bind(after.map(|after| after.to_string()).unwrap_or_default())
        .bind(product_id.map(|product_id| product_id.to_string()).unwrap_or_default())
        .bind(limit);
        self.unreadable_rows.read_engines(&with_deadline(query.fetch_all(&self.reads)).await?)
    }
}
