//! How text looks on a terminal with colours.

/// The look of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Dim,
    Bold,
    Red,
    Yellow,
    Green,
}

impl Style {
    /// The escape sequence that begins the style.
    pub(crate) const fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
            Self::Green => "\x1b[32m",
        }
    }

    /// The text in this style, if there may be colours.
    pub(crate) fn paint(self, text: &str, colours: bool) -> String {
        match self {
            Self::Plain => text.to_owned(),
            _ if !colours || text.is_empty() => text.to_owned(),
            _ => format!("{}{text}{RESET}", self.sequence()),
        }
    }
}

/// The end of every style.
pub(crate) const RESET: &str = "\x1b[0m";
