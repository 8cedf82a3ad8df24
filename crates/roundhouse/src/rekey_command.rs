//! `roundhouse rekey`: seals the registry's secrets with another master key.

use http_service::clock::SystemClock;
use http_service::env::ProcessEnv;
use orchestrator::rekey::{Rekey, RekeyError, RekeyOutcome};

use crate::error::Failure;
use crate::terminal::print_line;

pub(crate) fn run() -> Result<(), Failure> {
    let rekey = Rekey::from_env(&ProcessEnv).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(rekey.run(&SystemClock::new())).map_err(|error| match error {
        RekeyError::Failed(_) | RekeyError::Backups(_) => error.into(),
        RekeyError::Missing { .. }
        | RekeyError::InUse { .. }
        | RekeyError::Unused { .. }
        | RekeyError::WrongKey { .. }
        | RekeyError::BackupsUnnamed
        | RekeyError::Registry { .. } => Failure::usage(format!("{:#}", anyhow::Error::new(error))),
    })?;
    print_line(&match outcome {
        RekeyOutcome::Done { engines, wiped } => {
            let done = format!("the secrets of {engines} engine(s) are sealed with the new key");
            let hint = "; the database may still hold copies sealed with the old one: run VACUUM (on PostgreSQL: \
                        VACUUM FULL) on it once the disk has room";
            if wiped { done } else { done + hint }
        }
        RekeyOutcome::AlreadyDone => "all secrets were already sealed with this key".to_owned(),
    })?;
    Ok(())
}
