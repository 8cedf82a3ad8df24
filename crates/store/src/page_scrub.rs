//! Finds and overwrites the unused bytes of a page of the brain. When SQLite moves a row to another page, it
//! leaves a copy behind, which `secure_delete` does not overwrite when the row itself is deleted later.

use std::ops::Range;

/// Whether a page is a pointer-map page: page 2, and then one after each group of pages that a map describes with
/// five bytes per page.
fn is_pointer_map(number: u32, page_size: usize) -> bool {
    let described = u32::try_from(page_size / 5).unwrap_or(u32::MAX);
    number >= 2 && (number - 2).is_multiple_of(described.saturating_add(1))
}

/// Returns the page with its unused bytes overwritten by zeros; `None` if there is nothing to overwrite or the
/// page is not a page of a table or an index. The brain must be far smaller than 64 GiB: only then an overflow
/// page, which begins with the number of the next one, cannot be mistaken for another kind.
pub(super) fn scrub_page(number: u32, page: &[u8]) -> Option<Vec<u8>> {
    if is_pointer_map(number, page.len()) {
        return None;
    }
    let unused = unused_ranges(page, if number == 1 { 100 } else { 0 })?;
    let is_clean = |range: &Range<usize>| {
        page.get(range.clone()).is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
    };
    if unused.iter().all(is_clean) {
        return None;
    }
    let mut page = page.to_vec();
    for range in unused {
        page.get_mut(range)?.fill(0);
    }
    Some(page)
}

/// The unused ranges of a page whose header begins at `header`: the gap between the cell pointers and the cells,
/// and the free blocks without their links. `None` if the page is not well-formed.
fn unused_ranges(page: &[u8], header: usize) -> Option<Vec<Range<usize>>> {
    let pointers = match page.get(header)? {
        2 | 5 => header + 12,
        10 | 13 => header + 8,
        _ => return None,
    };
    let content = match read_u16_at(page, header + 5)? {
        0 => 65_536,
        content => content,
    };
    let pointers_end = pointers + 2 * read_u16_at(page, header + 3)?;
    if pointers_end > content || content > page.len() {
        return None;
    }
    let mut unused: Vec<Range<usize>> = std::iter::once(pointers_end..content).collect();
    let (mut block, mut min_offset) = (read_u16_at(page, header + 1)?, content);
    while block != 0 {
        let (next, size) = (read_u16_at(page, block)?, read_u16_at(page, block + 2)?);
        // Free blocks are sorted by their offsets.
        if block < min_offset || size < 4 || block + size > page.len() {
            return None;
        }
        unused.push(block + 4..block + size);
        (block, min_offset) = (next, block + size);
    }
    Some(unused)
}

/// Reads a big-endian 16-bit number.
fn read_u16_at(page: &[u8], at: usize) -> Option<usize> {
    let bytes = page.get(at..at.checked_add(2)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
#[path = "../tests/unit/page_scrub.rs"]
mod tests;
