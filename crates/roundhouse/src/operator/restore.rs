//! `roundhouse restore`: restores engines through the orchestrator, and the registry without one.

use api::backup::{BackupAction, StartBackupJob};
use api::{ProductId, UserId};
use clap::Subcommand;
use http_service::env::ProcessEnv;
use orchestrator::registry_restore::{RegistryRestore, RegistryRestoreError, RegistryRestored};

use super::backup::{RunArgs, follow, parse_user};
use super::confirm::{Expected, confirm};
use super::output;
use crate::error::Failure;

/// Arguments of `roundhouse restore`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replace what a user's engine has by one of its backups. What it has now is backed up first.
    Engine {
        /// The user's product.
        #[arg(long, value_name = "ID")]
        product: ProductId,
        /// The user.
        #[arg(long, value_name = "USER", value_parser = parse_user)]
        user: UserId,
        /// The backup, as `roundhouse backup list` prints it; by default the latest one.
        #[arg(long, value_name = "BACKUP")]
        backup: Option<String>,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Replace what the engines of a product have by their latest backups.
    Product {
        /// The product.
        #[arg(long, value_name = "ID")]
        product: ProductId,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Replace what all engines of the deployment have by their latest backups, as after the loss of the host.
    All {
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Fill an empty database with the registry's latest backup, before the orchestrator is started. Reads
    /// `ORCH_DATABASE_URL`, `ORCH_MASTER_KEY`, `ORCH_BACKUP_URL`, `ORCH_BACKEND` and `ORCH_DATA_ROOT_PATH`.
    Registry {
        /// The backup; by default the latest one.
        #[arg(long, value_name = "BACKUP")]
        backup: Option<String>,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::Engine { product, user, backup, yes, run } => {
                let question =
                    "This replaces what the user's engine has by its backup, and interrupts what it does.";
                confirm(question, Expected::Name(user.as_str()), yes).await?;
                follow(&order(Some(product), Some(user), backup), run).await
            }
            Command::Product { product, yes, run } => {
                let question = "This replaces what all engines of the product have by their latest backups.";
                confirm(question, Expected::Name(&product.to_string()), yes).await?;
                follow(&order(Some(product), None, None), run).await
            }
            Command::All { yes, run } => {
                let question = "This replaces what the engines of all products have by their latest backups.";
                confirm(question, Expected::Name("all"), yes).await?;
                follow(&order(None, None, None), run).await
            }
            Command::Registry { backup } => restore_registry(backup).await,
        }
    })
}

const fn order(
    product_id: Option<ProductId>,
    user_id: Option<UserId>,
    backup_id: Option<String>,
) -> StartBackupJob {
    StartBackupJob { action: BackupAction::Restore, product_id, user_id, backup_id, full: false }
}

async fn restore_registry(backup: Option<String>) -> Result<(), Failure> {
    let backup_id = backup.map(|text| text.parse()).transpose().map_err(Failure::usage)?;
    let restore = RegistryRestore::from_env(&ProcessEnv, backup_id).map_err(Failure::usage)?;
    let restored = restore.run().await.map_err(|error| match error {
        RegistryRestoreError::NotEmpty(_) | RegistryRestoreError::Target(_) => {
            Failure::usage_with_causes(error)
        }
        RegistryRestoreError::Backup(_)
        | RegistryRestoreError::Failed(_)
        | RegistryRestoreError::DataRoot { .. } => error.into(),
    })?;
    let RegistryRestored { backup_id, rows, needs_rekey } = restored;
    output::print_line(&format!(
        "The registry is restored from {backup_id}: {} products, {} engines. Start the orchestrator, and restore the \
         engines: `roundhouse restore all`.",
        rows.products, rows.engines
    ))?;
    if needs_rekey {
        output::note(
            "This backup is from before the master key was changed: run `roundhouse rekey` with the key of that time in \
             ORCH_MASTER_KEY_OLD before the orchestrator is started.",
        );
    }
    Ok(())
}
