//! All engines of the registry, as they are compared with what exists, and the ends of those that it had.

use std::collections::HashMap;

use api::orchestrator::EngineStatus;
use api::{EngineId, UserId};
use backend::Instance;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::{Registry, RegistryError};
use crate::domain::EngineOwner;
use crate::domain::drift::{KnownEngine, Registered};

/// How many engines are read at once, so that no read takes long.
const PAGE: i64 = 5_000;
/// How many engines are looked up at once.
const LOOKUPS: usize = 500;

/// A page of all engines. No index but that of the id: every row is read.
pub(super) const SELECT_PAGE: &str = "SELECT engine_id, product_id, user_id, status, claim_kind, instance, generation \
                           FROM engines WHERE engine_id > $1 ORDER BY engine_id LIMIT $2";

impl Registry {
    /// Returns all engines, the warm ones included, each as it was at some instant of the call. An engine that this
    /// version cannot read is left alone. No operation is known of any.
    pub(crate) async fn registered_engines(&self) -> Result<HashMap<EngineId, Registered>, RegistryError> {
        let mut engines = HashMap::new();
        // Read first: a warm engine that is claimed meanwhile gets its other row in the same transaction.
        let warm =
            with_deadline(sqlx::query("SELECT engine_id FROM warm_engines").fetch_all(&self.reads)).await?;
        for row in &warm {
            if let Ok(engine_id) = row.try_get::<String, _>(0)?.parse() {
                engines.insert(engine_id, Registered::LeftAlone);
            }
        }
        let mut after = String::new();
        loop {
            let page = sqlx::query(SELECT_PAGE).bind(after).bind(PAGE);
            let rows = with_deadline(page.fetch_all(&self.reads)).await?;
            let Some(last) = rows.last() else { return Ok(engines) };
            after = last.try_get(0)?;
            for row in &rows {
                // Nothing exists under an id that cannot be read.
                if let Ok(engine_id) = row.try_get::<String, _>(0)?.parse() {
                    let engine = read(row).map_or(Registered::LeftAlone, Registered::Engine);
                    engines.insert(engine_id, engine);
                }
            }
        }
    }

    /// Returns the owners of those of `engines` that were destroyed, or whose provision was rolled back, as the audit
    /// log says.
    pub(crate) async fn ended_engines(
        &self,
        engines: &[EngineId],
    ) -> Result<HashMap<EngineId, EngineOwner>, RegistryError> {
        let mut ended = HashMap::new();
        for engines in engines.chunks(LOOKUPS) {
            // Only numbers are part of the text.
            let mut query = sqlx::query(sqlx::AssertSqlSafe(select_ended(engines.len())));
            for engine_id in engines {
                query = query.bind(engine_id.to_string());
            }
            for row in with_deadline(query.fetch_all(&self.reads)).await? {
                let text = |at: usize| row.try_get::<Option<String>, _>(at);
                let (engine_id, product_id, user_id) = (text(0)?, text(1)?, text(2)?);
                let engine_id = engine_id.and_then(|id| id.parse().ok());
                let product_id = product_id.and_then(|id| id.parse().ok());
                let user_id = user_id.and_then(|id| UserId::new(id).ok());
                if let (Some(engine_id), Some(product_id), Some(user_id)) = (engine_id, product_id, user_id) {
                    ended.insert(engine_id, EngineOwner { product_id, user_id });
                }
            }
        }
        Ok(ended)
    }
}

/// The ends of so many engines. The condition is that of the index.
pub(super) fn select_ended(engines: usize) -> String {
    let parameters: Vec<_> = (1..=engines).map(|number| format!("${number}")).collect();
    format!(
        "SELECT engine_id, product_id, user_id FROM audit_log \
         WHERE event IN ('destroy', 'provision_failed') AND engine_id IN ({})",
        parameters.join(", ")
    )
}

fn read(row: &AnyRow) -> Option<KnownEngine> {
    let text = |at: usize| row.try_get::<String, _>(at).ok();
    let optional = |at: usize| row.try_get::<Option<String>, _>(at).ok();
    Some(KnownEngine {
        owner: EngineOwner { product_id: text(1)?.parse().ok()?, user_id: UserId::new(text(2)?).ok()? },
        status: EngineStatus::from_name(&text(3)?)?,
        is_claimed: optional(4)?.is_some(),
        is_attended: false,
        instance: optional(5)?.map(Instance::new),
        generation: row.try_get(6).ok()?,
    })
}
