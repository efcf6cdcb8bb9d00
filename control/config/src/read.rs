//! Text to [`Spec`]: TOML from a file, JSON from the API, each with all its mistakes at once.
//!
//! Not here: whether the values make sense together ([`crate::plan`]).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::mistake::{Lines, Mistake, Path, Refusal};
use crate::schema::{self, Written};
use crate::spec::Spec;

mod strict;
mod syntax;

/// A file that was read: what it says, and where it says it.
#[derive(Clone, Debug)]
pub struct Document {
    /// What it says.
    pub spec: Spec,
    file: String,
    text: String,
    lines: Lines,
    places: HashMap<Path, Spans>,
}

/// Where a value and its name stand, in bytes of the text.
#[derive(Clone, Debug)]
struct Spans {
    name: Range<usize>,
    value: Range<usize>,
}

impl Document {
    /// Reads a file's text. `file` is its name as the operator gave it.
    pub fn parse(text: &str, file: &str) -> Result<Document, Refusal> {
        let (tree, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            return Err(syntax_refusal(text, file, errors));
        }
        let mut document = Document {
            spec: Spec::default(),
            file: file.to_string(),
            text: text.to_string(),
            lines: Lines::of(text),
            places: HashMap::new(),
        };
        let mut mistakes = Vec::new();
        let value = document.table(tree.get_ref(), &Path::root(), &mut mistakes);
        match schema::read(value, &Path::root(), Written::Toml) {
            Ok(spec) if mistakes.is_empty() => document.spec = spec,
            Ok(_) => {}
            Err(more) => {
                // Of what could not be read it was said why.
                let said: HashSet<Path> = mistakes.iter().map(|it| it.path.clone()).collect();
                mistakes.extend(more.into_iter().filter(|it| !said.contains(&it.path)));
            }
        }
        match mistakes.is_empty() {
            true => Ok(document),
            false => Err(document.refuse(mistakes)),
        }
    }

    /// The mistakes with their lines and columns.
    pub fn refuse(&self, mistakes: Vec<Mistake>) -> Refusal {
        Refusal::locate(&self.file, &self.text, mistakes, |mistake| self.range_of(mistake))
    }

    /// The file's name as the operator gave it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line of a place, from 1; of the nearest place around it that the file names.
    pub fn line_of(&self, path: &Path) -> u32 {
        let start = self.range_of(&Mistake::new(path.clone(), "", "")).start;
        u32::try_from(self.lines.number(start)).unwrap_or(u32::MAX)
    }

    fn range_of(&self, mistake: &Mistake) -> Range<usize> {
        let mut path = Some(mistake.path.clone());
        let mut exact = true;
        while let Some(place) = path {
            if let Some(spans) = self.places.get(&place) {
                // A field that is not there is shown at the header of what it should be in.
                return match exact && !mistake.in_name {
                    true => spans.value.clone(),
                    false => spans.name.clone(),
                };
            }
            exact = false;
            path = place.parent();
        }
        0..0
    }

    fn table(&mut self, table: &DeTable<'_>, at: &Path, mistakes: &mut Vec<Mistake>) -> Value {
        let mut entries = Map::new();
        for (key, value) in table {
            let place = at.key(key.get_ref());
            self.places.insert(place.clone(), Spans { name: key.span(), value: value.span() });
            // A place is kept even for what cannot be read: it is not missing.
            let value = self.value(value, &place, mistakes).unwrap_or(Value::Null);
            entries.insert(key.get_ref().to_string(), value);
        }
        Value::Object(entries)
    }

    fn value(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Value> {
        Some(match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(truth) => Value::Bool(*truth),
            DeValue::Integer(number) => match integer(number) {
                Some(number) => Value::Number(number.into()),
                None => {
                    let wrong = format!("{} is too large a number", number.as_str());
                    mistakes.push(Mistake::new(at.clone(), wrong, "write a smaller number"));
                    return None;
                }
            },
            DeValue::Float(number) => {
                let read = number.as_str().parse::<f64>().ok().and_then(Number::from_f64);
                let Some(number) = read else {
                    // Infinite, or written as if it were; or none at all (TOML 1.0, Float).
                    let wrong = format!("{} is no number that can be had", number.as_str());
                    mistakes.push(Mistake::new(at.clone(), wrong, "write a number in digits"));
                    return None;
                };
                Value::Number(number)
            }
            DeValue::Datetime(_) => {
                let wrong = "a date is not possible here";
                mistakes.push(Mistake::new(at.clone(), wrong, "write a text between quotes"));
                return None;
            }
            DeValue::Array(items) => {
                let mut list = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let place = at.index(index);
                    let spans = Spans { name: item.span(), value: item.span() };
                    self.places.insert(place.clone(), spans);
                    // A place is kept even for a bad item, so that the others keep their numbers.
                    list.push(self.value(item, &place, mistakes).unwrap_or(Value::Null));
                }
                Value::Array(list)
            }
            DeValue::Table(table) => self.table(table, at, mistakes),
        })
    }
}

/// Reads one JSON body of the API. A key that is there twice is a mistake, as it is in a file: who
/// wrote it meant one of the two.
///
/// # Errors
/// Every mistake with its place.
pub fn json<T: JsonSchema + DeserializeOwned + 'static>(body: &[u8]) -> Result<T, Vec<Mistake>> {
    let value = strict::value(body).map_err(|error| {
        vec![Mistake::new(Path::root(), format!("the body is not JSON: {error}"), "")]
    })?;
    schema::read(value, &Path::root(), Written::Json)
}

fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// The first place where the text is no TOML; what follows it would be guesses.
fn syntax_refusal(text: &str, file: &str, errors: Vec<toml::de::Error>) -> Refusal {
    let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    let first = errors.into_iter().min_by_key(start);
    let range = first.as_ref().and_then(toml::de::Error::span).unwrap_or(0..0);
    let message = first.as_ref().map_or("", |error| error.message());
    let (wrong, right) = syntax::mistake(text, &range, message);
    let mistake = Mistake::new(Path::root(), wrong, right);
    Refusal::locate(file, text, vec![mistake], |_| range.clone())
}
