//! Calls with an `Idempotency-Key`. The transaction that commits the change of a call marks the call in the same
//! transaction: so whoever finds a call that was cut off knows whether its change was made.

use api::{ProductId, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, Executor, Row as _};

use super::access::with_deadline;
use super::{Registry, RegistryError};
use crate::domain::idempotency::{CallId, CallState, EngineClaim, Fingerprint, KEPT_MS, MAX_CALLS_OF_CALLER};

/// An answer as it is stored: its status, and its body sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredAnswer {
    pub(crate) status: u16,
    pub(crate) sealed_body: String,
}

/// A call that is made.
#[derive(Clone, Debug)]
pub(crate) struct NewCall {
    pub(crate) call_id: CallId,
    pub(crate) caller: String,
    /// The product with which it is removed.
    pub(crate) product_id: Option<ProductId>,
    pub(crate) fingerprint: Fingerprint,
}

/// A call that was made before, or just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredCall {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: CallState<StoredAnswer>,
    /// The product with which it is removed.
    pub(crate) product_id: Option<ProductId>,
}

/// What the transaction that commits the change of a call says of the call.
#[derive(Clone, Debug)]
pub(crate) enum CallMark {
    /// The change of this call is committed. The sealed answer, if it is known by then.
    Applied {
        call_id: CallId,
        sealed_answer: Option<String>,
        /// The product that the change made, with which the call is removed.
        product_id: Option<ProductId>,
    },
    /// The change under this claim is committed, whichever call made the claim, if one with a key did.
    ClaimFulfilled(EngineClaim),
}

/// The call that claims an engine, and what its answer will be once the change is made, if that is known by then.
#[derive(Clone, Debug)]
pub(crate) struct ClaimingCall {
    pub(crate) call_id: CallId,
    pub(crate) sealed_answer: Option<String>,
}

macro_rules! columns {
    () => {
        "fingerprint, engine_id, generation, applied_at, status, answer, answered_at, product_id, attempts"
    };
}

pub(super) const CALL: &str =
    concat!("SELECT ", columns!(), " FROM idempotent_calls WHERE call_id = $1 AND created_at > $2");
pub(super) const COUNT_OF_CALLER: &str = "SELECT COUNT(*) FROM idempotent_calls WHERE caller = $1";
pub(super) const OLDEST_OF_CALLER: &str = "DELETE FROM idempotent_calls WHERE call_id IN \
     (SELECT call_id FROM idempotent_calls WHERE caller = $1 ORDER BY created_at LIMIT $2)";
pub(super) const FULFIL_CLAIM: &str = "UPDATE idempotent_calls SET applied_at = $1 \
     WHERE engine_id = $2 AND generation = $3 AND applied_at IS NULL";
pub(super) const EXPIRED: &str = "DELETE FROM idempotent_calls WHERE created_at <= $1";

impl Registry {
    /// Returns a call that is kept at `now`.
    pub(crate) async fn call(
        &self,
        call_id: &CallId,
        now: Timestamp,
    ) -> Result<Option<StoredCall>, RegistryError> {
        read_call(&self.reads, call_id, now).await
    }

    /// Stores a call, or finds it stored. Waits for the end of every transaction that may still mark it.
    pub(crate) async fn begin_call(
        &self,
        new: &NewCall,
        now: Timestamp,
    ) -> Result<StoredCall, RegistryError> {
        let mut transaction = self.begin().await?;
        let forget = sqlx::query("DELETE FROM idempotent_calls WHERE call_id = $1 AND created_at <= $2")
            .bind(new.call_id.as_str().to_owned())
            .bind(kept_since(now));
        with_deadline(forget.execute(&mut *transaction)).await?;
        let insert = sqlx::query(concat!(
            "INSERT INTO idempotent_calls (call_id, caller, product_id, fingerprint, created_at, attempts) \
             VALUES ($1, $2, $3, $4, $5, 1) \
             ON CONFLICT (call_id) DO UPDATE SET attempts = idempotent_calls.attempts + 1 RETURNING ",
            columns!()
        ))
        .bind(new.call_id.as_str().to_owned())
        .bind(new.caller.clone())
        .bind(new.product_id.map(|product_id| product_id.to_string()))
        .bind(new.fingerprint.as_str().to_owned())
        .bind(now.unix_ms());
        let row = with_deadline(insert.fetch_one(&mut *transaction)).await?;
        let (attempts, call): (i64, _) = (row.try_get(8)?, read(&row)?);
        if attempts == 1 {
            forget_oldest(&mut transaction, &new.caller).await?;
        }
        with_deadline(transaction.commit()).await?;
        Ok(call)
    }

    /// Stores the answer to a call, with which every later one is answered.
    pub(crate) async fn answer_call(
        &self,
        call_id: &CallId,
        answer: &StoredAnswer,
        now: Timestamp,
    ) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        let update = sqlx::query(
            "UPDATE idempotent_calls SET status = $2, answer = $3, answered_at = $4 \
             WHERE call_id = $1 AND answered_at IS NULL",
        )
        .bind(call_id.as_str().to_owned())
        .bind(i64::from(answer.status))
        .bind(answer.sealed_body.clone())
        .bind(now.unix_ms());
        with_deadline(update.execute(&mut *transaction)).await?;
        Ok(with_deadline(transaction.commit()).await?)
    }

    /// Removes a call that nothing was done for.
    pub(crate) async fn forget_call(&self, call_id: &CallId) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        let delete = sqlx::query(
            "DELETE FROM idempotent_calls \
             WHERE call_id = $1 AND answered_at IS NULL AND applied_at IS NULL AND engine_id IS NULL",
        )
        .bind(call_id.as_str().to_owned());
        with_deadline(delete.execute(&mut *transaction)).await?;
        Ok(with_deadline(transaction.commit()).await?)
    }

    /// Removes the calls that are no longer kept at `now`. Returns their number.
    pub(crate) async fn forget_expired_calls(&self, now: Timestamp) -> Result<u64, RegistryError> {
        let mut transaction = self.begin().await?;
        let delete = sqlx::query(EXPIRED).bind(kept_since(now));
        let removed = with_deadline(delete.execute(&mut *transaction)).await?.rows_affected();
        with_deadline(transaction.commit()).await?;
        Ok(removed)
    }
}

/// Marks a call in the transaction that commits its change.
pub(super) async fn mark(
    connection: &mut AnyConnection,
    mark: &CallMark,
    at: Timestamp,
) -> Result<(), RegistryError> {
    let update = match mark {
        CallMark::Applied { call_id, sealed_answer, product_id } => sqlx::query(
            "UPDATE idempotent_calls SET applied_at = $1, status = $3, answer = $4, \
             product_id = COALESCE($5, product_id) WHERE call_id = $2",
        )
        .bind(at.unix_ms())
        .bind(call_id.as_str().to_owned())
        .bind(sealed_answer.as_ref().map(|_| 200_i64))
        .bind(sealed_answer.clone())
        .bind(product_id.map(|product_id| product_id.to_string())),
        CallMark::ClaimFulfilled(EngineClaim { engine_id, generation }) => {
            sqlx::query(FULFIL_CLAIM).bind(at.unix_ms()).bind(engine_id.to_string()).bind(*generation)
        }
    };
    with_deadline(update.execute(connection)).await?;
    Ok(())
}

/// Notes in the transaction that claims an engine which call it is claimed for.
pub(super) async fn note_claim(
    connection: &mut AnyConnection,
    call: &ClaimingCall,
    claim: EngineClaim,
) -> Result<(), RegistryError> {
    let update = sqlx::query(
        "UPDATE idempotent_calls SET engine_id = $2, generation = $3, status = $4, answer = $5 WHERE call_id = $1",
    )
    .bind(call.call_id.as_str().to_owned())
    .bind(claim.engine_id.to_string())
    .bind(claim.generation)
    .bind(call.sealed_answer.as_ref().map(|_| 200_i64))
    .bind(call.sealed_answer.clone());
    with_deadline(update.execute(connection)).await?;
    Ok(())
}

/// Removes the oldest calls of a caller that has more than are kept.
async fn forget_oldest(connection: &mut AnyConnection, caller: &str) -> Result<(), RegistryError> {
    let count = sqlx::query(COUNT_OF_CALLER).bind(caller.to_owned());
    let count: i64 = with_deadline(count.fetch_one(&mut *connection)).await?.try_get(0)?;
    if count > MAX_CALLS_OF_CALLER {
        let oldest = sqlx::query(OLDEST_OF_CALLER).bind(caller.to_owned()).bind(count - MAX_CALLS_OF_CALLER);
        with_deadline(oldest.execute(connection)).await?;
    }
    Ok(())
}

async fn read_call(
    connection: impl Executor<'_, Database = Any>,
    call_id: &CallId,
    now: Timestamp,
) -> Result<Option<StoredCall>, RegistryError> {
    let query = sqlx::query(CALL).bind(call_id.as_str().to_owned()).bind(kept_since(now));
    with_deadline(query.fetch_optional(connection)).await?.as_ref().map(read).transpose()
}

/// Calls that were made at this time or before are no longer kept.
const fn kept_since(now: Timestamp) -> i64 {
    now.unix_ms().saturating_sub(KEPT_MS)
}

fn read(row: &AnyRow) -> Result<StoredCall, RegistryError> {
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let text = |at: usize| row.try_get::<Option<String>, _>(at);
    let number = |at: usize| row.try_get::<Option<i64>, _>(at);
    let engine_id = match text(1)? {
        Some(id) => Some(id.parse().ok().ok_or_else(unreadable("engine_id"))?),
        None => None,
    };
    let claim =
        engine_id.zip(number(2)?).map(|(engine_id, generation)| EngineClaim { engine_id, generation });
    let status = match number(4)? {
        Some(status) => Some(u16::try_from(status).ok().ok_or_else(unreadable("status"))?),
        None => None,
    };
    let answer = status.zip(text(5)?).map(|(status, sealed_body)| StoredAnswer { status, sealed_body });
    let state = match (number(6)?, number(3)?) {
        (Some(_), _) => CallState::Answered(answer.ok_or_else(unreadable("answer"))?),
        (None, Some(_)) => CallState::Applied(answer),
        // What the answer would have been says nothing.
        (None, None) => CallState::Open(claim),
    };
    let product_id = match text(7)? {
        Some(id) => Some(id.parse().ok().ok_or_else(unreadable("product_id"))?),
        None => None,
    };
    Ok(StoredCall { fingerprint: Fingerprint::from_stored(row.try_get(0)?), state, product_id })
}
