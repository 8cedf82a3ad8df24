//! The read queries of attachments.

use rusqlite::{Connection, Error, MAIN_DB, OptionalExtension as _};

/// The sizes of media in the order of `hashes`, determined without reading the data.
pub(super) fn sizes(reader: &Connection, hashes: Vec<String>) -> Result<Vec<(String, usize)>, Error> {
    let mut query = reader.prepare_cached("SELECT length(data) FROM media WHERE hash = ?1")?;
    let mut sizes = Vec::new();
    for hash in hashes {
        let size: Option<i64> = query.query_row([&hash], |row| row.get(0)).optional()?;
        sizes.extend(size.map(|size| (hash, usize::try_from(size).unwrap_or(usize::MAX))));
    }
    Ok(sizes)
}

/// The whole of an attachment.
pub(super) fn bytes(reader: &Connection, hash: &str) -> Result<Option<Vec<u8>>, Error> {
    let mut query = reader.prepare_cached("SELECT data FROM media WHERE hash = ?1")?;
    query.query_row([hash], |row| row.get(0)).optional()
}

/// A part of an attachment, read without the rest of it; `None` if there is no such attachment, or it is
/// shorter.
pub(super) fn part(
    reader: &Connection,
    hash: &str,
    offset: usize,
    length: usize,
) -> Result<Option<Vec<u8>>, Error> {
    let mut query = reader.prepare_cached("SELECT rowid FROM media WHERE hash = ?1")?;
    let Some(row) = query.query_row([hash], |row| row.get(0)).optional()? else { return Ok(None) };
    let data = reader.blob_open(MAIN_DB, "media", "data", row, true)?;
    if offset.checked_add(length).is_none_or(|end| end > data.len()) {
        return Ok(None);
    }
    let mut part = vec![0; length];
    data.read_at_exact(&mut part, offset)?;
    Ok(Some(part))
}
