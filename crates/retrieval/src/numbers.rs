//! Counts as floating-point numbers.

/// A count as a number to compute with; exact up to 2³².
pub(crate) fn float(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

/// The number of items.
pub(crate) fn count(items: usize) -> u64 {
    u64::try_from(items).unwrap_or(u64::MAX)
}

/// `sat(x) = 2.2·x / (x + 1.2)`: the saturation of BM25 with k₁ = 1.2, its usual value. It is 1 at 1 and
/// below 2.2, so a word that is repeated without end counts for hardly more than two.
pub(crate) fn saturate(count: f64) -> f64 {
    2.2 * count / (count + 1.2)
}

/// `idf(df) = ln(1 + (n − df + ½) / (df + ½))`: how much it says that a word is there, as BM25 has it.
pub(crate) fn inverse_frequency(documents: u64, frequency: u64) -> f64 {
    let (documents, frequency) = (float(documents.max(frequency)), float(frequency));
    (1.0 + (documents - frequency + 0.5) / (frequency + 0.5)).ln()
}
