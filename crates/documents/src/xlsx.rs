//! XLSX: the values of the cells, sheet by sheet, one row per line. A formula is shown as the value that was
//! stored with it; nothing is calculated, and macros are not read.

use std::io::Cursor;

use calamine::{DataRef, ExcelDateTime, Reader as _, Xlsx, XlsxError};

use crate::limits::{MAX_EMPTY_CELLS, MAX_SHEETS};
use crate::package::main_part;
use crate::text_writer::TextWriter;
use crate::zip_archive::Archive;
use crate::{DocumentError, Extracted, Format};

/// What the types of the main part of a workbook name.
const FORMATS: [&str; 2] = ["spreadsheetml", "ms-excel"];

/// The part with the words of all cells.
const SHARED_STRINGS: &str = "xl/sharedStrings.xml";

/// Extracts the values of a workbook.
pub(crate) fn extract(bytes: &[u8]) -> Result<Extracted, DocumentError> {
    let mut archive = Archive::open(bytes)?;
    if main_part(&mut archive, &FORMATS)?.is_none() {
        return Err(Format::Xlsx.other_format());
    }
    // It is held in memory; sheets are not.
    archive.check_size(SHARED_STRINGS)?;
    drop(archive);
    let mut workbook: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|error| xlsx_error(&error))?;
    let sheets = workbook.sheet_names();
    let mut values = Values::default();
    for name in sheets.iter().take(MAX_SHEETS) {
        if values.is_full() {
            break;
        }
        match workbook.worksheet_cells_reader(name) {
            Ok(mut cells) => {
                values.begin_sheet(name);
                while let Some(cell) = cells.next_cell().map_err(|error| xlsx_error(&error))? {
                    values.push(cell.get_position(), cell.get_value());
                    if values.is_full() {
                        break;
                    }
                }
            }
            // A sheet that is a chart has no cells.
            Err(XlsxError::NotAWorksheet(_)) => {}
            Err(error) => return Err(xlsx_error(&error)),
        }
    }
    Ok(Extracted { text: values.finish(sheets.len()), pages: None })
}

fn xlsx_error(error: &XlsxError) -> DocumentError {
    match error {
        XlsxError::Password => DocumentError::Encrypted,
        other => DocumentError::broken(other),
    }
}

/// The values, as they are read.
#[derive(Default)]
struct Values {
    writer: TextWriter,
    has_values: bool,
    /// The position of the last cell that was written: its row and its column.
    last: Option<(u32, u32)>,
}

impl Values {
    fn is_full(&self) -> bool {
        self.writer.is_full()
    }

    fn begin_sheet(&mut self, name: &str) {
        self.writer.end_paragraph();
        self.writer.push(&format!("## Sheet {name}\n\n"));
        self.last = None;
    }

    fn push(&mut self, (row, column): (u32, u32), value: &DataRef<'_>) {
        let value = shown(value);
        if value.is_empty() {
            return;
        }
        self.has_values = true;
        match self.last {
            Some((last_row, last_column)) if last_row == row => {
                let gap = column.saturating_sub(last_column).clamp(1, MAX_EMPTY_CELLS);
                (0..gap).for_each(|_| self.writer.push("\t"));
            }
            _ => {
                self.writer.end_line();
                (0..column.min(MAX_EMPTY_CELLS)).for_each(|_| self.writer.push("\t"));
            }
        }
        self.writer.push(&value.replace(['\n', '\r', '\t'], " "));
        self.last = Some((row, column));
    }

    fn finish(mut self, sheets: usize) -> String {
        if sheets > MAX_SHEETS {
            self.writer
                .note(format!("The workbook has {sheets} sheets: only the first {MAX_SHEETS} are here."));
        }
        if !self.has_values {
            return String::new();
        }
        self.writer.finish()
    }
}

/// A value as text; empty for an empty cell.
fn shown(value: &DataRef<'_>) -> String {
    match value {
        DataRef::Empty => String::new(),
        DataRef::Int(number) => number.to_string(),
        DataRef::Float(number) => number.to_string(),
        DataRef::String(text) | DataRef::DateTimeIso(text) | DataRef::DurationIso(text) => text.clone(),
        DataRef::SharedString(text) => (*text).to_owned(),
        DataRef::Bool(truth) => if *truth { "TRUE" } else { "FALSE" }.to_owned(),
        DataRef::DateTime(time) => shown_time(time),
        DataRef::Error(error) => error.to_string(),
    }
}

/// A date, a time of day, both, or a duration.
fn shown_time(time: &ExcelDateTime) -> String {
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    let clock = format!("{hour:02}:{minute:02}:{second:02}");
    let days = time.as_f64();
    if time.is_duration() {
        return format!("{days} days");
    }
    if (0.0..1.0).contains(&days) {
        return clock;
    }
    let date = format!("{year:04}-{month:02}-{day:02}");
    if days.fract() == 0.0 { date } else { format!("{date} {clock}") }
}
