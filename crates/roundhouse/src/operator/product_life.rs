//! `roundhouse product get`, `disable`, `enable` and `delete`: the life of a product.

use api::ProductId;
use api::fleet::EngineFailure;
use api::orchestrator::ProductSummary;
use api::product_state::{DeletionPlan, ProductDetails, ProductState};
use reqwest::Method;

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, ReadOptions, Render, View};
use super::product::find;
use super::session::Session;
use super::{policy, watch};
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Arguments of `roundhouse product get`.
#[derive(clap::Args)]
pub(super) struct GetArgs {
    /// The product's id, or its short name. A deleted product has only its id.
    product: String,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

/// Arguments of the commands that change a product's state.
#[derive(clap::Args)]
pub(super) struct ActArgs {
    /// The product's id, or its short name.
    product: String,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

/// Arguments of `roundhouse product enable`, which takes nothing from anybody.
#[derive(clap::Args)]
pub(super) struct EnableArgs {
    /// The product's id, or its short name.
    product: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

pub(super) async fn get(args: GetArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    // By its id, a deleted product is found, too, which is in no list.
    let id = match args.product.parse::<ProductId>() {
        Ok(id) => id,
        Err(_) => find(&session, &args.product).await?.product_id,
    };
    let id = id.to_string();
    let path = ["products", &id];
    watch::show(args.read, async || session.call(&Call::get(&path)).await, &details_text).await
}

pub(super) async fn disable(args: ActArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let product = find(&session, &args.product).await?;
    let (id, slug) = (product.product_id.to_string(), product.slug.as_str());
    if product.state == ProductState::Active {
        // Before a person is asked: so that they know what they confirm.
        let details: ProductDetails = session.call(&Call::get(&["products", &id])).await?.parse()?;
        let question = format!(
            "This refuses every call of `{slug}` and puts its engines to sleep ({} run or are being changed), until \
             it is enabled again.",
            details.awake
        );
        confirm(&question, Expected::Name(slug), args.yes).await?;
    }
    let render: Render<'_> = &|document, _| {
        let ProductDetails { awake, .. } = document.parse()?;
        Ok(format!(
            "`{slug}` is disabled; engines left: {awake}.\n`roundhouse product get {slug} --watch` shows how far it \
             is, `roundhouse product enable {slug}` enables it again."
        ))
    };
    let path = ["products", &id, "disable"];
    output::print(&session.call(&Call::new(Method::POST, &path)).await?, args.output, render)
}

pub(super) async fn enable(args: EnableArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let product = find(&session, &args.product).await?;
    let (id, slug) = (product.product_id.to_string(), product.slug.as_str());
    let render: Render<'_> = &|document, _| {
        let ProductDetails { .. } = document.parse()?;
        Ok(format!("`{slug}` is enabled: its engines start again when somebody needs them."))
    };
    let path = ["products", &id, "enable"];
    output::print(&session.call(&Call::new(Method::POST, &path)).await?, args.output, render)
}

pub(super) async fn delete(args: ActArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let product = find(&session, &args.product).await?;
    let id = product.product_id.to_string();
    let plan: DeletionPlan = session.call(&Call::get(&["products", &id, "deletion"])).await?.parse()?;
    let slug = product.slug.as_str();
    let question = format!(
        "This destroys the {} engines of `{slug}` with everything that they keep for their users, and its {} \
         platform keys. Its {} audit rows are kept. It cannot be undone.",
        plan.engines, plan.platform_keys, plan.audit_rows
    );
    confirm(&question, Expected::Name(slug), args.yes).await?;
    let render: Render<'_> = &|document, _| {
        let ProductDetails { engines, .. } = document.parse()?;
        Ok(format!(
            "`{slug}` is being deleted; engines left: {engines}.\n`roundhouse product get {id} --watch` shows how far \
             it is."
        ))
    };
    let path = ["products", &id];
    let call = Call::new(Method::DELETE, &path).with("confirmation", Some(plan.confirmation));
    output::print(&session.call(&call).await?, args.output, render)
}

/// The state of a product in one cell.
pub(super) fn state_cell(state: ProductState) -> Cell {
    Cell::new(state.as_str()).styled(match state {
        ProductState::Active => Style::Plain,
        ProductState::Disabled | ProductState::Deleted => Style::Yellow,
        ProductState::Deleting => Style::Red,
    })
}

fn details_text(document: &Document, view: View) -> anyhow::Result<String> {
    let ProductDetails { summary, state_since, engines, awake, engines_to_delete, failing, failures } =
        document.parse()?;
    let ProductSummary { product_id, slug, display_name, policy, created_at, state, .. } = summary;
    let failing_cell = Cell::from(failing).styled(if failing > 0 { Style::Red } else { Style::Plain });
    let mut lines = vec![
        ("Product", slug.as_str().into()),
        ("Product id", product_id.into()),
        ("Name", Cell::new(display_name.as_str())),
        ("Registered", view.exactly(created_at).into()),
        ("State", state_cell(state)),
    ];
    lines.extend(state_since.map(|since| ("Since", view.exactly(since).into())));
    lines.extend([
        ("Policy", Cell::new(&policy::summary(&policy))),
        (
            "Engines",
            match engines_to_delete {
                Some(before) => format!("{engines} of {before} left").into(),
                None => engines.into(),
            },
        ),
        ("Awake", awake.into()),
        ("Failing", failing_cell),
    ]);
    let shown = failures.len();
    let note = (failing > shown as u64).then(|| format!("{shown} of {failing} are shown"));
    let rows: Vec<_> = failures.iter().map(|failure| failure_row(failure, view)).collect();
    let columns =
        [Column::text("USER"), Column::word("FAILING"), Column::number("ATTEMPTS"), Column::text("WHY")];
    let table = (shown > 0).then(|| table(&columns, &rows, view.canvas));
    let sections = [Some(fields(&lines, view.canvas)), table, note];
    Ok(sections.into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

fn failure_row(failure: &EngineFailure, view: View) -> Vec<Cell> {
    let EngineFailure { user_id, since, attempts, error, .. } = failure;
    vec![
        Cell::new(user_id.as_str()),
        view.ago(*since).into(),
        attempts.into(),
        Cell::excerpt(&format!("{} ({})", error.message, error.code), MAX_REASON_CHARS),
    ]
}
