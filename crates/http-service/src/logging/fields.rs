//! Formatting of the fields of spans and events in text log lines.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

/// A formatter with the same output as the library's own. Each request has a span with several fields, nearly all
/// plain text: these are written unchanged, at a quarter of the cost of escaping each character.
pub(super) struct FieldFormatter;

impl<'w> FormatFields<'w> for FieldFormatter {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = FieldVisitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct FieldVisitor<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl FieldVisitor<'_> {
    fn write(&mut self, record: impl FnOnce(&mut Writer<'_>, bool) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = record(&mut self.writer, self.is_empty);
            self.is_empty = false;
        }
    }

    fn record_default(&mut self, record: impl FnOnce(&mut DefaultVisitor<'_>)) {
        self.write(|writer, is_empty| {
            let mut visitor = DefaultVisitor::new(writer.by_ref(), is_empty);
            record(&mut visitor);
            visitor.finish()
        });
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let name = field.name();
        let needs_default = name == "message" || name.starts_with("r#") || self.writer.has_ansi_escapes();
        if needs_default || !is_plain(value) {
            return self.record_default(|visitor| visitor.record_str(field, value));
        }
        self.write(|writer, is_empty| {
            let parts = [if is_empty { "" } else { " " }, name, "=\"", value, "\""];
            parts.iter().try_for_each(|part| writer.write_str(part))
        });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.record_default(|visitor| visitor.record_error(field, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_default(|visitor| visitor.record_debug(field, value));
    }
}

/// Whether `text` needs no escapes between quotes.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use pretty_assertions::assert_eq;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::fmt::format::DefaultFields;

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for LogBuffer {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn written<F>(fields: F, ansi: bool) -> String
    where
        F: for<'w> FormatFields<'w> + Send + Sync + 'static,
    {
        let buffer = LogBuffer::default();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(ansi)
            .fmt_fields(fields)
            .with_writer(buffer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let odd = "a \"quoted\" \\ \u{1b}[31m bell\u{7} ünïcode 🦀\n";
            let error = io::Error::new(io::ErrorKind::NotFound, io::Error::other("inside"));
            for text in ["plain", "", odd] {
                let span = tracing::info_span!("request", text, number = 7, shown = %text, later = tracing::field::Empty);
                span.record("later", text);
                span.in_scope(|| {
                    tracing::info!(text, r#type = text, list = ?[1, 2], error = &error as &dyn Error, "Said {text}.");
                    tracing::info!(message = text, text, truth = true);
                });
            }
        });
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn every_field_is_written_as_the_librarys_own_formatter_writes_it() {
        for ansi in [false, true] {
            let expected = written(DefaultFields::new(), ansi);
            assert!(expected.lines().count() >= 6, "{expected}");
            assert_eq!(written(FieldFormatter, ansi), expected);
        }
    }
}
