//! The size of the warm pool: how many engines are booted ahead.

use http_service::env::EnvReader;

use super::backend::BackendKind;
use crate::domain::warm_pool::PoolSize;

const PER_PRODUCT: &str = "ORCH_WARM_ENGINES";
const TOTAL: &str = "ORCH_WARM_ENGINES_MAX";

/// The most warm engines of one product.
const MAX_PER_PRODUCT: usize = 64;
/// The most warm engines of all products.
const MAX_TOTAL: usize = 512;
/// Warm engines of all products, unless it is set.
const DEFAULT_TOTAL: usize = 16;

/// No engines are booted ahead.
pub const NO_WARM_POOL: PoolSize = PoolSize { per_product: 0, total: DEFAULT_TOTAL };

/// The lines of a configuration's display.
pub(super) fn display(size: PoolSize) -> [(&'static str, String); 2] {
    [(PER_PRODUCT, size.per_product.to_string()), (TOTAL, size.total.to_string())]
}

/// Reads the size. The pool of a deployment on Kubernetes has none: an engine's volume is bound to its Pod's node when it
/// is first launched, and its marks are in a folder of this host.
pub(super) fn read(reader: &mut EnvReader<'_>, backend: &BackendKind) -> PoolSize {
    let number = |max: usize| move |text: &str| text.parse().ok().filter(|number| *number <= max);
    let per_product = reader.parse_or(
        PER_PRODUCT,
        "the number of engines that are booted ahead for each product, from 0 (none) to 64",
        0,
        number(MAX_PER_PRODUCT),
    );
    let total = reader.parse_or(
        TOTAL,
        "the most engines that are booted ahead for all products, from 0 to 512",
        DEFAULT_TOTAL,
        number(MAX_TOTAL),
    );
    if per_product > 0 && matches!(backend, BackendKind::Kubernetes(_)) {
        reader.add_error(PER_PRODUCT, reader.text(PER_PRODUCT), "0 or unset with ORCH_BACKEND=kubernetes");
    }
    PoolSize { per_product, total }
}
