//! The value of a field in a word, as a list of changes says it.
//!
//! Which fields are compared is `diff::words`' matter.

use std::fmt;

/// The value of a field, in a word; or that it has none. Two are alike only if their values are: a group may have the
/// name `none`.
#[derive(PartialEq, Eq)]
pub(crate) struct Word {
    value: Option<String>,
    /// How it is said that there is no value.
    absent: &'static str,
}

impl Word {
    /// Of a field that always has a value.
    pub(crate) fn of(value: impl fmt::Display) -> Word {
        Word::or(Some(value), "")
    }

    /// Of a field that may have none.
    pub(crate) fn or(value: Option<impl fmt::Display>, absent: &'static str) -> Word {
        Word { value: value.map(|value| value.to_string()), absent }
    }
}

/// A value that reads as if there were none is in quotes.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.as_deref() {
            None => f.write_str(self.absent),
            Some(value) if value == self.absent => write!(f, "{value:?}"),
            Some(value) => f.write_str(value),
        }
    }
}
