//! `roundhouse rekey`: seals the registry's secrets with another master key.

use http_service::clock::SystemClock;
use http_service::env::ProcessEnv;
use orchestrator::rekey::{Rekey, RekeyError, RekeyOutcome};

use crate::error::Failure;
use crate::terminal::print_line;

pub(crate) fn run() -> Result<(), Failure> {
    let rekey = Rekey::from_env(&ProcessEnv).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(rekey.run(&SystemClock::new())).map_err(|error| match error {
        RekeyError::Failed(_) => error.into(),
        RekeyError::Missing { .. }
        | RekeyError::InUse { .. }
        | RekeyError::Unused { .. }
        | RekeyError::WrongKey { .. }
        | RekeyError::Registry { .. } => Failure::usage(format!("{:#}", anyhow::Error::new(error))),
    })?;
    print_line(&match done {
        RekeyOutcome::Done { engines, wiped } => {
            let done = format!("the secrets of {engines} engine(s) are sealed under the new key");
            let left = "; the database may still hold copies under the old one: run VACUUM (on PostgreSQL: VACUUM \
                        FULL) on it once the disk has room";
            if wiped { done } else { done + left }
        }
        RekeyOutcome::AlreadyDone => "everything was sealed under this key already".to_owned(),
    })?;
    Ok(())
}
