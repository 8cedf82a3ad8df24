//! The limits of what is read of a document, and of what is made of it.

/// The maximum size of a document, in bytes: what a message can carry.
pub const MAX_DOCUMENT_BYTES: usize = 32 << 20;
/// The maximum length of the text, in characters: some 50,000 tokens, a quarter of what common models can
/// read.
pub const MAX_TEXT_CHARS: usize = 200_000;
/// The most pages of a PDF whose text is extracted.
pub(crate) const MAX_PAGES: usize = 1_000;
/// The maximum size of the content of a page, of a font's character map, and of a stream that holds objects,
/// in bytes, once it is unpacked.
pub(crate) const MAX_STREAM_BYTES: usize = 32 << 20;
/// The most drawing operations of a page that are looked at.
pub(crate) const MAX_PAGE_OPERATIONS: usize = 500_000;
/// How deeply forms of a page may contain each other.
pub(crate) const MAX_FORM_DEPTH: usize = 5;
/// The most sheets of a workbook that are read.
pub(crate) const MAX_SHEETS: usize = 50;
/// The largest gap between two cells of a row that is shown as empty cells.
pub(crate) const MAX_EMPTY_CELLS: u32 = 50;
/// The most entries of an archive.
pub(crate) const MAX_ARCHIVE_ENTRIES: usize = 10_000;
/// The maximum size of a part of an archive, in bytes, once it is unpacked. One whose text is a single word
/// is held in memory twice.
pub(crate) const MAX_PART_BYTES: u64 = 64 << 20;
/// How deeply elements of a part may contain each other. Word itself writes some dozens.
pub(crate) const MAX_XML_DEPTH: usize = 1_000;
