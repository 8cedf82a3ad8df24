//! Numbers in the headers of binary formats.

/// An unsigned number of up to four bytes, the highest first.
pub(crate) fn big(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte)))
}

/// An unsigned number of up to four bytes, the lowest first.
pub(crate) fn little(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u32::from(*byte)))
}
