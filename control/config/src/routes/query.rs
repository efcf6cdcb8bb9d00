//! What follows `?` in the path of a request, checked like a body.

use super::{Parameter, Takes};
use crate::api::{ApiError, ErrorKind, TraceFrom};

/// What was behind `?` in a path.
#[derive(Default)]
pub(super) struct Query {
    pub(super) force: bool,
    pub(super) cursor: TraceFrom,
}

impl Query {
    /// Reads it.
    ///
    /// # Errors
    /// A word that is none of `known`, is there twice, or has another value than true and false.
    pub(super) fn read(query: &str, known: &[Parameter]) -> Result<Query, ApiError> {
        let mut read = Query::default();
        let mut seen: Vec<&str> = Vec::new();
        for word in query.split('&').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, "true"));
            let wrong = |what: &str, hint: String| {
                Err(ApiError::new(ErrorKind::Malformed, format!("`{name}` {what}"), hint))
            };
            let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
                let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
                let hint = match names.is_empty() {
                    true => "this request has none".to_string(),
                    false => format!("known here: {}", names.join(", ")),
                };
                return wrong("is no parameter of this request", hint);
            };
            if seen.contains(&parameter.name) {
                return wrong("is given twice", "give it once".to_string());
            }
            seen.push(parameter.name);
            match (parameter.takes, value) {
                (Takes::Cursor, text) => read.cursor = text.parse()?,
                (Takes::Truth, "true") => read.force = true,
                (Takes::Truth, "false") => read.force = false,
                (Takes::Truth, _) => {
                    return wrong("has another value than true and false", "write true".into());
                }
            }
        }
        Ok(read)
    }
}
