//! `roundhouse product`: the products of a deployment, for its operator.

use std::path::PathBuf;

use api::orchestrator::{ProductList, ProductSummary, RegisteredProduct};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::input::read_json;
use super::output::{self, OutputOptions, Page, ReadOptions, View};
use super::session::Session;
use super::watch;
use super::{policy, product_keys, product_life};
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::single_line;
use crate::terminal::table::{Cell, Column, fields, table};

/// The products that are asked for at once while one is looked for.
const PAGE: u64 = 1_000;

/// Arguments of `roundhouse product`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the products, the one that was registered first first.
    List {
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Register a product. Its key is shown once, and cannot be shown again.
    Register {
        /// The product's short name, which is unique.
        slug: String,
        /// The product's name for people; the short name by default.
        #[arg(long)]
        name: Option<String>,
        /// The file with the product's policy, or `-` for the standard input; no limits by default.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Show a product: its state, its engines, and how far it is with being disabled or deleted.
    Get(product_life::GetArgs),
    /// Refuse every call of a product and put its engines to sleep. Nothing is lost.
    Disable(product_life::ActArgs),
    /// Let a disabled product work again. Its engines start when somebody needs them.
    Enable(product_life::EnableArgs),
    /// Delete a disabled product with all engines and their users' data. Its audit log is kept.
    Delete(product_life::ActArgs),
    /// Read or replace a product's policy.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Rotate, list or revoke the platform keys of a product.
    Key {
        #[command(subcommand)]
        command: product_keys::Command,
    },
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Print a product's policy, in the form that `policy set` reads.
    Get {
        /// The product's id, or its short name.
        product: String,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Replace a product's policy. What changes is shown first.
    Set {
        /// The product's id, or its short name.
        product: String,
        /// The file with the new policy, or `-` for the standard input.
        file: PathBuf,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::List { page, read, access } => list(page, read, access).await,
            Command::Register { slug, name, policy, output, access } => {
                let policy = policy.as_deref().map(read_json).transpose()?.unwrap_or_else(|| json!({}));
                let body =
                    json!({"display_name": name.as_deref().unwrap_or(&slug), "slug": slug, "policy": policy});
                let session = Session::operator(access)?;
                let call = Call::new(Method::POST, &["products", "register"]);
                output::print(&session.call(&call.json(&body)).await?, output, &registered)
            }
            Command::Get(args) => product_life::get(args).await,
            Command::Disable(args) => product_life::disable(args).await,
            Command::Enable(args) => product_life::enable(args).await,
            Command::Delete(args) => product_life::delete(args).await,
            Command::Policy { command: PolicyCommand::Get { product, output, access } } => {
                let policy = find(&Session::operator(access)?, &product).await?.policy;
                print_policy(&serde_json::to_value(policy)?, output)
            }
            Command::Policy { command: PolicyCommand::Set { product, file, yes, output, access } } => {
                let policy = read_json(&file)?;
                let session = Session::operator(access)?;
                policy::replace(&session, &find(&session, &product).await?, policy, yes, output).await
            }
            Command::Key { command } => product_keys::run(command).await,
        }
    })
}

async fn list(page: Page, read: ReadOptions, access: AccessOptions) -> Result<(), Failure> {
    let session = Session::operator(access)?;
    let call = page.of(Call::get(&["products"]));
    let render = |document: &Document, view: View| list_text(document, page, view);
    watch::show(read, async || session.call(&call).await, &render).await
}

fn list_text(document: &Document, page: Page, view: View) -> anyhow::Result<String> {
    let ProductList { products, total } = document.parse()?;
    if products.is_empty() {
        return Ok(format!("There is no product here; {total} in all."));
    }
    let rows: Vec<_> = products
        .iter()
        .map(|product| {
            vec![
                product.slug.as_str().into(),
                Cell::new(product.display_name.as_str()),
                product.product_id.into(),
                view.ago(product.created_at).into(),
                product_life::state_cell(product.state),
                Cell::new(&policy::summary(&product.policy)),
            ]
        })
        .collect();
    let columns = [
        Column::text("SLUG"),
        Column::text("NAME"),
        Column::word("PRODUCT ID"),
        Column::word("REGISTERED"),
        Column::word("STATE"),
        Column::text("POLICY"),
    ];
    let note = page.note(products.len(), total);
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn registered(document: &Document, view: View) -> anyhow::Result<String> {
    let product: RegisteredProduct = document.parse()?;
    let text = fields(
        &[
            ("Product", product.slug.as_str().into()),
            ("Product id", product.product_id.into()),
            ("Policy", Cell::new(&policy::summary(&product.policy))),
            ("Platform key", product.platform_api_key.expose().into()),
        ],
        view.canvas,
    );
    Ok(format!("{text}\nThe platform key is shown only now: keep it where only the product can read it."))
}

fn print_policy(policy: &Value, output: OutputOptions) -> Result<(), Failure> {
    if output.json {
        return output::print_line(&output::json_of(&Document::from(policy.to_string())));
    }
    let text = serde_json::to_string_pretty(policy)?;
    output::print_line(&crate::terminal::escape_json(&text))
}

/// Finds a product by its id or its short name, which has another form.
pub(super) async fn find(session: &Session, named: &str) -> Result<ProductSummary, Failure> {
    let mut offset = 0;
    loop {
        let call = Call::get(&["products"]).with("limit", Some(PAGE)).with("offset", Some(offset));
        let ProductList { products, total } = session.call(&call).await?.parse()?;
        let count = products.len() as u64;
        let is_named = |product: &ProductSummary| {
            product.slug.as_str() == named || product.product_id.to_string() == named
        };
        if let Some(found) = products.into_iter().find(is_named) {
            return Ok(found);
        }
        offset += count;
        if count == 0 || offset >= total {
            return Err(Failure::NotFound(format!(
                "there is no product `{}`; `roundhouse product list` lists them",
                single_line(named, 100)
            )));
        }
    }
}
