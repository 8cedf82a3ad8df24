//! Handles a registry that is behind the running engines: it was restored from a backup, or its server lost its
//! last commits.

use super::access::with_deadline;
use super::row::EngineRow;
use super::{Registry, RegistryError};

impl Registry {
    /// Raises the row's generation to `generation` if the row is still as `seen`, so that later changes supersede
    /// what was launched for that generation.
    pub(crate) async fn raise_generation(
        &self,
        seen: &EngineRow,
        generation: i64,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(seen.owner.product_id, 0).await?;
        let raise =
            sqlx::query("UPDATE engines SET generation = $1 WHERE engine_id = $2 AND generation = $3")
                .bind(generation)
                .bind(seen.engine_id.to_string())
                .bind(seen.generation);
        with_deadline(raise.execute(tx.connection())).await?;
        tx.commit().await
    }
}
