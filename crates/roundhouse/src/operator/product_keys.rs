//! `roundhouse product key`: the platform keys of a product, which are rotated with an overlap.

use api::orchestrator::ProductSummary;
use api::product_keys::{CreatedPlatformKey, PlatformKeyList, PlatformKeySummary, RevokedPlatformKey};
use api::{PlatformKeyId, Timestamp};
use clap::Subcommand;
use reqwest::Method;
use serde_json::json;

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, ReadOptions, Render, View};
use super::product::find;
use super::session::Session;
use super::{times, watch};
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::table::{Cell, Column, fields, table};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make a new key, which works beside the old ones. It is shown once, and cannot be shown again.
    Rotate {
        /// The product's id, or its short name.
        product: String,
        /// Let the old keys stop working after this time; by default they work until they are revoked.
        #[arg(long, value_name = "SECONDS")]
        old_keys_expire_in: Option<i64>,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// List the keys that work, the oldest first.
    List {
        /// The product's id, or its short name.
        product: String,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Revoke a key. It is refused from then on.
    Revoke {
        /// The product's id, or its short name.
        product: String,
        /// The key's id.
        key: PlatformKeyId,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
}

pub(super) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Rotate { product, old_keys_expire_in, yes, output, access } => {
            let session = Session::operator(access)?;
            let product = find(&session, &product).await?;
            rotate(&session, &product, old_keys_expire_in, yes, output).await
        }
        Command::List { product, read, access } => {
            let session = Session::operator(access)?;
            let id = find(&session, &product).await?.product_id.to_string();
            let path = ["products", &id, "keys"];
            watch::show(read, async || session.call(&Call::get(&path)).await, &list_text).await
        }
        Command::Revoke { product, key, yes, output, access } => {
            let session = Session::operator(access)?;
            let product = find(&session, &product).await?;
            revoke(&session, &product, key, yes, output).await
        }
    }
}

async fn rotate(
    session: &Session,
    product: &ProductSummary,
    old_keys_expire_in: Option<i64>,
    yes: bool,
    options: OutputOptions,
) -> Result<(), Failure> {
    let slug = product.slug.as_str();
    if let Some(seconds) = old_keys_expire_in {
        let question =
            format!("Whoever uses a key that `{slug}` has by now is refused after {seconds} seconds.");
        confirm(&question, Expected::Yes, yes).await?;
    }
    let id = product.product_id.to_string();
    let path = ["products", &id, "keys"];
    let body = json!({"old_keys_expire_in_s": old_keys_expire_in});
    let render: Render<'_> = &|document, view| {
        let CreatedPlatformKey { platform_api_key, summary } = document.parse()?;
        let lines = [
            ("Product", slug.into()),
            ("Key id", summary.key_id.into()),
            ("Platform key", platform_api_key.expose().into()),
        ];
        Ok(format!(
            "{}\nThe platform key is shown only now: keep it where only the product can read it.\n\
             The old keys work {}; `roundhouse product key list` shows them.",
            fields(&lines, view.canvas),
            match old_keys_expire_in {
                Some(seconds) => format!("for {seconds} more seconds"),
                None => "until they are revoked".to_owned(),
            }
        ))
    };
    let call = Call::new(Method::POST, &path).json(&body);
    output::print(&session.call(&call).await?, options, render)
}

async fn revoke(
    session: &Session,
    product: &ProductSummary,
    key: PlatformKeyId,
    yes: bool,
    options: OutputOptions,
) -> Result<(), Failure> {
    let (id, key_id) = (product.product_id.to_string(), key.to_string());
    let slug = product.slug.as_str();
    // Before a person is asked: so that they know whether another key is left.
    let keys: PlatformKeyList = session.call(&Call::get(&["products", &id, "keys"])).await?.parse()?;
    let others = keys.keys.iter().filter(|other| other.key_id != key).count();
    let question = format!(
        "Whoever uses this key of `{slug}` is refused from then on, and {others} other keys of it work."
    );
    confirm(&question, Expected::Yes, yes).await?;
    let path = ["products", &id, "keys", &key_id];
    let render: Render<'_> = &|document, _| {
        let RevokedPlatformKey { key_id, .. } = document.parse()?;
        Ok(format!("The key {key_id} of `{slug}` is revoked."))
    };
    output::print(&session.call(&Call::new(Method::DELETE, &path)).await?, options, render)
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let PlatformKeyList { keys } = document.parse()?;
    if keys.is_empty() {
        return Ok("No key of this product works.".to_owned());
    }
    let expiry = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| times::until(at, view.now));
    let row = |key: &PlatformKeySummary| {
        vec![
            key.key_id.into(),
            view.ago(key.created_at).into(),
            expiry(key.expires_at).into(),
            Cell::new(if key.registration { "registration" } else { "rotation" }),
        ]
    };
    let columns = [Column::word("KEY ID"), Column::word("MADE"), Column::word("EXPIRES"), Column::word("BY")];
    Ok(table(&columns, &keys.iter().map(row).collect::<Vec<_>>(), view.canvas))
}
