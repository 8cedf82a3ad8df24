//! Rollouts, and what became of each of their engines. Only the leading orchestrator writes them, one at a time.

use api::rollout::{RolloutCounts, RolloutEngineState, RolloutPhase, RolloutPlan};
use api::{EngineId, EngineImage, ErrorDetail, RolloutId, Timestamp, UserId};
use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::access::with_deadline;
use super::idempotency::{self, CallMark};
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError};
use crate::domain::EngineOwner;

/// The name in `meta` of the deployment's image, if a rollout has changed it.
const DEPLOYMENT_IMAGE: &str = "deployment_image";

/// A rollout as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutRow {
    pub(crate) rollout_id: RolloutId,
    pub(crate) image: EngineImage,
    pub(crate) previous_image: EngineImage,
    pub(crate) plan: RolloutPlan,
    pub(crate) phase: RolloutPhase,
    pub(crate) phase_since: Timestamp,
    pub(crate) paused: bool,
    pub(crate) discards_turns: bool,
    pub(crate) reason: Option<String>,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
}

/// What became of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutEngineRow {
    pub(crate) engine_id: EngineId,
    pub(crate) owner: EngineOwner,
    pub(crate) previous_image: EngineImage,
    pub(crate) state: RolloutEngineState,
    pub(crate) since: Timestamp,
    /// The format of its brain before it was moved, if known.
    pub(crate) brain_format: Option<u32>,
    /// What its row had when it was moved; `None` before.
    pub(crate) moved: Option<MovedRow>,
    /// Why it failed, is skipped or is stuck.
    pub(crate) error: Option<ErrorDetail>,
}

/// What an engine's row had when the engine was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedRow {
    pub(crate) generation: i64,
    /// The number of automatic restarts.
    pub(crate) restarts: i64,
}

impl MovedRow {
    pub(crate) const fn of(row: &EngineRow) -> Self {
        Self { generation: row.generation, restarts: row.restarts }
    }
}

/// The engines that a rollout moves next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    /// Those that sleep or are stopped.
    AtRest,
    /// Those that run.
    Running,
}

macro_rules! select_rollouts {
    ($rest:literal) => {
        concat!(
            "SELECT rollout_id, engine_version, previous_version, plan, phase, phase_since, paused, discards_turns, \
             reason, started_at, ended_at FROM rollouts ",
            $rest
        )
    };
}

macro_rules! select_rollout_engines {
    ($rest:literal) => {
        concat!(
            "SELECT engine_id, product_id, user_id, previous_version, state, since, brain_format, generation, restarts, error \
             FROM rollout_engines ",
            $rest
        )
    };
}

/// The engines that a rollout is still to move: they follow the deployment, are on another image, and have not failed
/// in this rollout. Those that are about to come or go, or have failed for good, are not waited for; those that are
/// restarted soon are.
macro_rules! waiting {
    () => {
        "WHERE pinned = 0 AND engine_version <> $1 AND (status IN ('sleeping', 'stopped', 'running') \
         OR status = 'failed' AND restart_at IS NOT NULL) \
         AND NOT EXISTS (SELECT 1 FROM rollout_engines r WHERE r.rollout_id = $2 \
         AND r.engine_id = engines.engine_id AND r.state <> 'moved' AND r.state <> 'rolled_back')"
    };
}

pub(super) const COUNT_WAITING: &str = concat!("SELECT COUNT(*) FROM engines ", waiting!());
pub(super) const WAITING_AT_REST: &str = concat!(
    "SELECT ",
    super::row::engine_columns!(),
    " FROM engines ",
    waiting!(),
    " AND status IN ('sleeping', 'stopped') AND claim_kind IS NULL ORDER BY engine_id LIMIT $3"
);
pub(super) const WAITING_RUNNING: &str = concat!(
    "SELECT ",
    super::row::engine_columns!(),
    " FROM engines ",
    waiting!(),
    " AND status = 'running' AND claim_kind IS NULL ORDER BY engine_id LIMIT $3"
);
pub(super) const UNHEALTHY: &str = select_rollout_engines!(
    "WHERE rollout_id = $1 AND state = 'moved' AND EXISTS (SELECT 1 FROM engines e \
     WHERE e.engine_id = rollout_engines.engine_id AND e.engine_version = $2 AND e.claim_kind IS NULL \
     AND (e.status = 'failed' OR e.restarts > rollout_engines.restarts)) ORDER BY engine_id LIMIT $3"
);
pub(super) const ROLLOUT_ENGINES: &str = select_rollout_engines!(
    "WHERE rollout_id = $1 AND ($2 = '' OR state = $2) AND engine_id > $3 ORDER BY engine_id LIMIT $4"
);
const NEWCOMERS: &str = select_engines!(
    "WHERE pinned = 0 AND engine_version = $1 AND status IN ('sleeping', 'stopped', 'running', 'failed') \
     AND claim_kind IS NULL AND NOT EXISTS (SELECT 1 FROM rollout_engines r WHERE r.rollout_id = $2 \
     AND r.engine_id = engines.engine_id) ORDER BY engine_id LIMIT $3"
);

impl Registry {
    /// Stores a rollout that begins, and marks the call for which it does.
    pub(crate) async fn insert_rollout(
        &self,
        rollout: &RolloutRow,
        call: Option<&CallMark>,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin().await?;
        let insert = sqlx::query(
            "INSERT INTO rollouts (rollout_id, engine_version, previous_version, plan, phase, phase_since, paused, \
             discards_turns, reason, started_at, ended_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(rollout.rollout_id.to_string())
        .bind(rollout.image.as_str().to_owned())
        .bind(rollout.previous_image.as_str().to_owned())
        .bind(plan_text(&rollout.plan)?)
        .bind(rollout.phase.as_str())
        .bind(rollout.phase_since.unix_ms())
        .bind(i64::from(rollout.paused))
        .bind(i64::from(rollout.discards_turns))
        .bind(rollout.reason.clone())
        .bind(rollout.started_at.unix_ms())
        .bind(rollout.ended_at.map(Timestamp::unix_ms));
        with_deadline(insert.execute(&mut *tx)).await?;
        if let Some(call) = call {
            idempotency::mark(&mut tx, call, rollout.started_at).await?;
        }
        with_deadline(tx.commit()).await?;
        Ok(())
    }

    /// Replaces what a stored rollout may change, and together with it, if `deployment_image` is given, the image of
    /// the deployment: a text that [`Registry::deployment_image`] returns. Marks the call for which that is done.
    pub(crate) async fn update_rollout(
        &self,
        rollout: &RolloutRow,
        deployment_image: Option<&str>,
        call: Option<(&CallMark, Timestamp)>,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin().await?;
        let update = sqlx::query(
            "UPDATE rollouts SET plan = $2, phase = $3, phase_since = $4, paused = $5, discards_turns = $6, \
             reason = $7, ended_at = $8 WHERE rollout_id = $1",
        )
        .bind(rollout.rollout_id.to_string())
        .bind(plan_text(&rollout.plan)?)
        .bind(rollout.phase.as_str())
        .bind(rollout.phase_since.unix_ms())
        .bind(i64::from(rollout.paused))
        .bind(i64::from(rollout.discards_turns))
        .bind(rollout.reason.clone())
        .bind(rollout.ended_at.map(Timestamp::unix_ms));
        with_deadline(update.execute(&mut *tx)).await?;
        if let Some(image) = deployment_image {
            set_deployment_image(&mut tx, image).await?;
        }
        if let Some((call, at)) = call {
            idempotency::mark(&mut tx, call, at).await?;
        }
        with_deadline(tx.commit()).await?;
        Ok(())
    }

    /// Returns what rollouts have made of the deployment's image; `None` if there was none.
    pub(crate) async fn deployment_image(&self) -> Result<Option<String>, RegistryError> {
        self.meta(DEPLOYMENT_IMAGE).await
    }

    /// Returns the rollout that is under way.
    pub(crate) async fn rollout_under_way(&self) -> Result<Option<RolloutRow>, RegistryError> {
        let query = sqlx::query(select_rollouts!("WHERE ended_at IS NULL"));
        with_deadline(query.fetch_optional(&self.reads)).await?.as_ref().map(read_rollout).transpose()
    }

    /// Returns a rollout.
    pub(crate) async fn rollout(&self, rollout_id: RolloutId) -> Result<Option<RolloutRow>, RegistryError> {
        let query = sqlx::query(select_rollouts!("WHERE rollout_id = $1")).bind(rollout_id.to_string());
        with_deadline(query.fetch_optional(&self.reads)).await?.as_ref().map(read_rollout).transpose()
    }

    /// Returns the last rollouts, newest first.
    pub(crate) async fn rollouts(&self, limit: i64) -> Result<Vec<RolloutRow>, RegistryError> {
        let query = sqlx::query(select_rollouts!("ORDER BY rollout_id DESC LIMIT $1")).bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_rollout).collect()
    }

    /// Counts a rollout's engines by state; `waiting` only while it is under way.
    pub(crate) async fn rollout_counts(&self, rollout: &RolloutRow) -> Result<RolloutCounts, RegistryError> {
        let query =
            sqlx::query("SELECT state, COUNT(*) FROM rollout_engines WHERE rollout_id = $1 GROUP BY state")
                .bind(rollout.rollout_id.to_string());
        let mut counts = RolloutCounts::default();
        for row in with_deadline(query.fetch_all(&self.reads)).await? {
            let (state, count): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let state = RolloutEngineState::from_name(&state).ok_or(unreadable("state"))?;
            let counted = match state {
                RolloutEngineState::Moving => &mut counts.moving,
                RolloutEngineState::Moved => &mut counts.moved,
                RolloutEngineState::Failed => &mut counts.failed,
                RolloutEngineState::Unhealthy => &mut counts.unhealthy,
                RolloutEngineState::Skipped => &mut counts.skipped,
                RolloutEngineState::RolledBack => &mut counts.rolled_back,
                RolloutEngineState::Stuck => &mut counts.stuck,
            };
            *counted = count.unsigned_abs();
        }
        if rollout.ended_at.is_none() && rollout.phase != RolloutPhase::RollingBack {
            counts.waiting = self.count_rollout_waiting(&rollout.image, Some(rollout.rollout_id)).await?;
        }
        Ok(counts)
    }

    /// Counts the engines that a rollout to `image` is still to move.
    pub(crate) async fn count_rollout_waiting(
        &self,
        image: &EngineImage,
        rollout_id: Option<RolloutId>,
    ) -> Result<u64, RegistryError> {
        let query = sqlx::query(COUNT_WAITING)
            .bind(image.as_str().to_owned())
            .bind(rollout_id.map(|rollout_id| rollout_id.to_string()).unwrap_or_default());
        let count: i64 = with_deadline(query.fetch_one(&self.reads)).await?.try_get(0)?;
        Ok(count.unsigned_abs())
    }

    /// Returns at most `limit` engines that a rollout moves next.
    pub(crate) async fn rollout_candidates(
        &self,
        rollout: &RolloutRow,
        candidates: Candidates,
        limit: i64,
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let query = match candidates {
            Candidates::AtRest => WAITING_AT_REST,
            Candidates::Running => WAITING_RUNNING,
        };
        self.engines_of_rollout(query, rollout, limit).await
    }

    /// Returns at most `limit` engines that follow the deployment and are on a rollout's image without having been
    /// moved to it: they began on it, or were launched on it after the rollout was complete.
    pub(crate) async fn rollout_newcomers(
        &self,
        rollout: &RolloutRow,
        limit: i64,
    ) -> Result<Vec<EngineRow>, RegistryError> {
        self.engines_of_rollout(NEWCOMERS, rollout, limit).await
    }

    async fn engines_of_rollout(
        &self,
        query: &'static str,
        rollout: &RolloutRow,
        limit: i64,
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let query = sqlx::query(query)
            .bind(rollout.image.as_str().to_owned())
            .bind(rollout.rollout_id.to_string())
            .bind(limit);
        self.unreadable_rows.read_engines(&with_deadline(query.fetch_all(&self.reads)).await?)
    }

    /// Returns at most `limit` engines that were moved, and have failed or been restarted since.
    pub(crate) async fn unhealthy_rollout_engines(
        &self,
        rollout: &RolloutRow,
        limit: i64,
    ) -> Result<Vec<RolloutEngineRow>, RegistryError> {
        let query = sqlx::query(UNHEALTHY)
            .bind(rollout.rollout_id.to_string())
            .bind(rollout.image.as_str().to_owned())
            .bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_rollout_engine).collect()
    }

    /// Returns a page of a rollout's engines in a state, or in any, after `after` in the order of their ids.
    pub(crate) async fn rollout_engines(
        &self,
        rollout_id: RolloutId,
        state: Option<RolloutEngineState>,
        after: Option<EngineId>,
        limit: i64,
    ) -> Result<Vec<RolloutEngineRow>, RegistryError> {
        let query = sqlx::query(ROLLOUT_ENGINES)
            .bind(rollout_id.to_string())
            .bind(state.map(RolloutEngineState::as_str).unwrap_or_default())
            .bind(after.map(|after| after.to_string()).unwrap_or_default())
            .bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_rollout_engine).collect()
    }

    /// Stores what became of an engine, whether it is known to the rollout or not.
    pub(crate) async fn put_rollout_engine(
        &self,
        rollout_id: RolloutId,
        engine: &RolloutEngineRow,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin().await?;
        let error = engine.error.as_ref().map(serde_json::to_string).transpose();
        let put = sqlx::query(
            "INSERT INTO rollout_engines (rollout_id, engine_id, product_id, user_id, previous_version, state, since, \
             brain_format, generation, restarts, error) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
             ON CONFLICT (rollout_id, engine_id) DO UPDATE SET state = excluded.state, since = excluded.since, \
             previous_version = excluded.previous_version, brain_format = excluded.brain_format, \
             generation = excluded.generation, restarts = excluded.restarts, error = excluded.error",
        )
        .bind(rollout_id.to_string())
        .bind(engine.engine_id.to_string())
        .bind(engine.owner.product_id.to_string())
        .bind(engine.owner.user_id.as_str().to_owned())
        .bind(engine.previous_image.as_str().to_owned())
        .bind(engine.state.as_str())
        .bind(engine.since.unix_ms())
        .bind(engine.brain_format.map(i64::from))
        .bind(engine.moved.map(|moved| moved.generation))
        .bind(engine.moved.map(|moved| moved.restarts))
        .bind(error.map_err(|_| unreadable("error"))?);
        with_deadline(put.execute(&mut *tx)).await?;
        with_deadline(tx.commit()).await?;
        Ok(())
    }

    /// Lets a rollout try once more to move back the engines that could not go back.
    pub(crate) async fn retry_stuck_rollout_engines(
        &self,
        rollout: &RolloutRow,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin().await?;
        // Those that began on its image have no other one to go back to.
        let retry = sqlx::query(
            "UPDATE rollout_engines SET state = 'moved' \
             WHERE rollout_id = $1 AND state = 'stuck' AND previous_version <> $2",
        )
        .bind(rollout.rollout_id.to_string())
        .bind(rollout.image.as_str().to_owned());
        with_deadline(retry.execute(&mut *tx)).await?;
        with_deadline(tx.commit()).await?;
        Ok(())
    }

    /// Forgets an engine of a rollout: it is gone, or was not moved after all.
    pub(crate) async fn remove_rollout_engine(
        &self,
        rollout_id: RolloutId,
        engine_id: EngineId,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin().await?;
        let remove = sqlx::query("DELETE FROM rollout_engines WHERE rollout_id = $1 AND engine_id = $2")
            .bind(rollout_id.to_string())
            .bind(engine_id.to_string());
        with_deadline(remove.execute(&mut *tx)).await?;
        with_deadline(tx.commit()).await?;
        Ok(())
    }
}

async fn set_deployment_image(tx: &mut Transaction<'static, Any>, text: &str) -> Result<(), RegistryError> {
    let set = sqlx::query(
        "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(DEPLOYMENT_IMAGE)
    .bind(text.to_owned());
    with_deadline(set.execute(&mut **tx)).await?;
    Ok(())
}

const fn unreadable(column: &'static str) -> RegistryError {
    RegistryError::Unreadable { column }
}

fn plan_text(plan: &RolloutPlan) -> Result<String, RegistryError> {
    serde_json::to_string(plan).map_err(|_| unreadable("plan"))
}

fn parse<T: std::str::FromStr>(row: &AnyRow, index: usize, column: &'static str) -> Result<T, RegistryError> {
    row.try_get::<String, _>(index)?.parse().map_err(|_| unreadable(column))
}

fn user_id(row: &AnyRow, index: usize) -> Result<UserId, RegistryError> {
    UserId::new(row.try_get::<String, _>(index)?).map_err(|_| unreadable("user_id"))
}

fn read_rollout(row: &AnyRow) -> Result<RolloutRow, RegistryError> {
    let plan: String = row.try_get(3)?;
    let phase: String = row.try_get(4)?;
    Ok(RolloutRow {
        rollout_id: parse(row, 0, "rollout_id")?,
        image: parse(row, 1, "engine_version")?,
        previous_image: parse(row, 2, "previous_version")?,
        plan: serde_json::from_str(&plan).map_err(|_| unreadable("plan"))?,
        phase: RolloutPhase::from_name(&phase).ok_or(unreadable("phase"))?,
        phase_since: Timestamp::from_unix_ms(row.try_get(5)?),
        paused: row.try_get::<i64, _>(6)? != 0,
        discards_turns: row.try_get::<i64, _>(7)? != 0,
        reason: row.try_get(8)?,
        started_at: Timestamp::from_unix_ms(row.try_get(9)?),
        ended_at: row.try_get::<Option<i64>, _>(10)?.map(Timestamp::from_unix_ms),
    })
}

fn read_rollout_engine(row: &AnyRow) -> Result<RolloutEngineRow, RegistryError> {
    let state: String = row.try_get(4)?;
    let brain_format: Option<i64> = row.try_get(6)?;
    let (generation, restarts): (Option<i64>, Option<i64>) = (row.try_get(7)?, row.try_get(8)?);
    let error: Option<String> = row.try_get(9)?;
    let error = error.map(|error| serde_json::from_str(&error)).transpose();
    Ok(RolloutEngineRow {
        engine_id: parse(row, 0, "engine_id")?,
        owner: EngineOwner { product_id: parse(row, 1, "product_id")?, user_id: user_id(row, 2)? },
        previous_image: parse(row, 3, "previous_version")?,
        state: RolloutEngineState::from_name(&state).ok_or(unreadable("state"))?,
        since: Timestamp::from_unix_ms(row.try_get(5)?),
        brain_format: brain_format.and_then(|format| u32::try_from(format).ok()),
        moved: generation.zip(restarts).map(|(generation, restarts)| MovedRow { generation, restarts }),
        error: error.map_err(|_| unreadable("error"))?,
    })
}
