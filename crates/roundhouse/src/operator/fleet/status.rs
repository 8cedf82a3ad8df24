//! `roundhouse fleet status`: the engines of all products as figures.

use api::fleet::{FleetOverview, ProductStatus};
use api::product_state::ProductState;

use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::figures::{states, summary};
use crate::operator::output::{ReadOptions, View};
use crate::operator::session::Session;
use crate::operator::watch;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

/// Arguments of `roundhouse fleet status`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

pub(super) async fn show(args: Args) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let call = Call::get(&["fleet", "status"]);
    watch::show(args.read, async || session.call(&call).await, &overview_text).await
}

/// The status across all products.
pub(in crate::operator) fn overview_text(document: &Document, view: View) -> anyhow::Result<String> {
    let overview: FleetOverview = document.parse()?;
    let FleetOverview {
        active_since,
        engines,
        drained_since,
        maintenance,
        changes_under_way,
        capacity,
        products,
    } = &overview;
    let drained = match drained_since {
        Some(since) => Cell::new(&view.exactly(*since)).styled(Style::Yellow),
        None => Cell::new("no"),
    };
    let maintenance = maintenance.as_ref().map(|maintenance| {
        let text = format!("{}: {}", view.exactly(maintenance.since), maintenance.message.as_str());
        ("Maintenance", Cell::new(&text).styled(Style::Yellow))
    });
    let ports = match capacity.ports {
        Some(ports) => format!("{} of {ports} leased", capacity.leased_ports),
        None => "each engine has an address of its own".to_owned(),
    };
    let mut lines = summary(engines).to_vec();
    lines.extend(maintenance);
    lines.extend([
        ("Changing", changes_under_way.into()),
        ("Drained", drained),
        ("Active", view.exactly(*active_since).into()),
        ("Ports", ports.into()),
        ("Boots", format!("{} at the same time", capacity.concurrent_boots).into()),
    ]);
    let sections = [Some(fields(&lines, view.canvas)), states(engines, view), products_text(products, view)];
    Ok(sections.into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

fn products_text(products: &[ProductStatus], view: View) -> Option<String> {
    let row = |product: &ProductStatus| {
        let states = product.by_status.iter().map(|(status, count)| format!("{count} {}", status.as_str()));
        let suspended = product.suspended.then(|| "suspended".to_owned());
        let state = (product.state != ProductState::Active).then(|| product.state.as_str().to_owned());
        vec![
            product.slug.as_str().into(),
            product.product_id.into(),
            product.total.into(),
            product.max_engines.map_or_else(|| "-".into(), Cell::from),
            Cell::new(&state.into_iter().chain(suspended).chain(states).collect::<Vec<_>>().join(", ")),
        ]
    };
    let columns = [
        Column::text("PRODUCT"),
        Column::word("ID"),
        Column::number("ENGINES"),
        Column::number("MAX"),
        Column::text("STATES"),
    ];
    let rows: Vec<_> = products.iter().map(row).collect();
    (!rows.is_empty()).then(|| table(&columns, &rows, view.canvas))
}
