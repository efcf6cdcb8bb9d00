//! A value against the schema of a type: every mistake at once, in the operator's words.
//!
//! serde stops at the first mistake and does not know its place; this walks the whole value with
//! the schema that schemars derived from the same type, so both always agree. It knows what the
//! types of [`crate::spec`] use (tables, lists, texts, numbers with bounds, words, sizes, addresses, sidecores) and leaves
//! the rest to serde. Recursion is bounded by the schema's depth, not by the value's.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::mac::{MAC_HINT, Mac};
use crate::mistake::{Mistake, Path};
use crate::near::{meant, nearest};
use crate::number;
use crate::size::{SIZE_HINT, Size};
use crate::target::{TARGET_HINT, Target};

/// The schemas of what was read so far: to make one takes longer than to read a value by it, and a daemon that starts
/// reads thousands.
static MADE: Mutex<BTreeMap<TypeId, Arc<Value>>> = Mutex::new(BTreeMap::new());

/// As what a value was written, whose operator is told in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The configuration file.
    Toml,
    /// A body of a request, or what was kept of one.
    Json,
}

/// Checks a value whole and makes the type of it.
pub(crate) fn read<T: JsonSchema + DeserializeOwned + 'static>(
    value: Value,
    at: &Path,
    written: Written,
) -> Result<T, Vec<Mistake>> {
    let schema = schema_of::<T>();
    let mut mistakes = Vec::new();
    Check { root: &schema, written, mistakes: &mut mistakes }.value(&schema, &value, at);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    // What the walk does not know, serde still refuses, without its place.
    serde_json::from_value(value).map_err(|e| vec![Mistake::new(at.clone(), e.to_string(), "")])
}

fn schema_of<T: JsonSchema + 'static>() -> Arc<Value> {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let schema = made.entry(TypeId::of::<T>());
    Arc::clone(schema.or_insert_with(|| Arc::new(schemars::schema_for!(T).to_value())))
}

struct Check<'a, 'm> {
    root: &'a Value,
    written: Written,
    mistakes: &'m mut Vec<Mistake>,
}

impl<'a> Check<'a, '_> {
    fn value(&mut self, schema: &'a Value, value: &Value, at: &Path) {
        let (schema, nullable) = self.resolve(schema);
        if value.is_null() && nullable {
            return;
        }
        if let Some(words) = words_of(schema) {
            self.word(&words, value, at);
        } else if schema["format"] == "size" {
            self.size(value, at);
        } else if schema["format"] == "mac" {
            self.mac(value, at);
        } else if schema["format"] == "target" {
            self.target(value, at);
        } else if admits(schema, "object") {
            self.table(schema, value, at);
        } else if admits(schema, "array") {
            match value {
                Value::Array(items) => {
                    for (index, item) in items.iter().enumerate() {
                        self.value(&schema["items"], item, &at.index(index));
                    }
                }
                other => {
                    let (items, _) = self.resolve(&schema["items"]);
                    let right = match admits(items, "object") {
                        true => self.tables(at),
                        false => ("a list", as_list(items, other)),
                    };
                    self.kind(at, other, right.0, &right.1);
                }
            }
        } else if admits(schema, "integer") {
            self.integer(schema, value, at);
        } else if admits(schema, "boolean") && !value.is_boolean() {
            self.kind(at, value, "true or false", "write true or false, without quotes");
        } else if admits(schema, "string") && !value.is_string() {
            self.kind(at, value, "a text", &as_text(at, value));
        }
    }

    /// What a list of tables is called there, and how it is written.
    fn tables(&self, at: &Path) -> (&'static str, String) {
        match self.written {
            Written::Toml => ("a list of tables", format!("write it as `[[{}]]`", at.names())),
            Written::Json => {
                ("a list of objects", "write it as `[{\"FIELD\": VALUE}]`".to_string())
            }
        }
    }

    fn table(&mut self, schema: &'a Value, value: &Value, at: &Path) {
        let fields = schema["properties"].as_object();
        let Value::Object(entries) = value else {
            let [open, close] = if at.is_item() { ["[[", "]]"] } else { ["[", "]"] };
            let (what, right) = match self.written {
                Written::Toml => (
                    "a table",
                    format!(
                        "write its fields below a header of its own: {open}{}{close}",
                        at.names()
                    ),
                ),
                Written::Json => {
                    ("an object", "write its fields in an object: {\"FIELD\": VALUE}".to_string())
                }
            };
            return self.kind(at, value, what, &right);
        };
        for (key, entry) in entries {
            match fields.and_then(|fields| fields.get(key)) {
                Some(field) => self.value(field, entry, &at.key(key)),
                None => self.unknown(schema, key, at),
            }
        }
        for required in schema["required"].as_array().into_iter().flatten() {
            let Some(name) = required.as_str() else {
                continue;
            };
            if !entries.contains_key(name) {
                let field = fields.and_then(|fields| fields.get(name));
                let right = match field.and_then(|field| field["description"].as_str()) {
                    Some(text) => format!("add `{name}`: {}", first_sentence(text)),
                    None => format!("add `{name}`"),
                };
                self.mistakes.push(Mistake::new(at.clone(), format!("`{name}` is missing"), right));
            }
        }
    }

    fn unknown(&mut self, schema: &Value, key: &str, at: &Path) {
        if let Some(why) = schema["x-fixed"][key].as_str() {
            let wrong = format!("`{key}` cannot be changed at run time");
            return self.mistakes.push(Mistake::in_name(at.key(key), wrong, why));
        }
        let fields = schema["properties"].as_object();
        let names: Vec<&str> = fields.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let place = match at.0.is_empty() {
            true => "here".to_string(),
            false => format!("of {at}"),
        };
        let right = match meant(key, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("known here: {}", names.join(", ")),
        };
        let wrong = format!("`{key}` is not a field {place}");
        self.mistakes.push(Mistake::in_name(at.key(key), wrong, right));
    }

    fn word(&mut self, words: &[String], value: &Value, at: &Path) {
        let names: Vec<&str> = words.iter().map(String::as_str).collect();
        let all = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        match value {
            Value::String(text) if names.contains(&text.as_str()) => {}
            Value::String(text) => {
                let right = match nearest(text, &names) {
                    Some(name) => format!("did you mean \"{name}\"? Possible: {all}"),
                    None => format!("possible: {all}"),
                };
                self.push(at, format!("{text:?} is not possible here"), right);
            }
            other => self.kind(at, other, "a word", &format!("write one of {all}")),
        }
    }

    fn size(&mut self, value: &Value, at: &Path) {
        let read = match value {
            Value::String(text) => text.parse::<Size>(),
            Value::Number(number) => number.to_string().parse::<Size>(),
            other => return self.kind(at, other, "a size", SIZE_HINT),
        };
        if let Err(error) = read {
            self.push(at, error.to_string(), SIZE_HINT);
        }
    }

    fn mac(&mut self, value: &Value, at: &Path) {
        let Value::String(text) = value else {
            return self.kind(at, value, "an Ethernet address", MAC_HINT);
        };
        if let Err(error) = text.parse::<Mac>() {
            self.push(at, error.to_string(), MAC_HINT);
        }
    }

    fn target(&mut self, value: &Value, at: &Path) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return self.kind(at, other, "a sidecore", TARGET_HINT),
        };
        if text.parse::<Target>().is_err() {
            self.push(at, format!("{text:?} is no sidecore"), TARGET_HINT);
        }
    }

    fn integer(&mut self, schema: &Value, value: &Value, at: &Path) {
        let least = schema["minimum"].as_i64().unwrap_or(i64::MIN);
        let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
        let right = number::allowed(at.field(), least, most);
        match value {
            Value::Number(number) if number.is_f64() => {
                self.push(at, format!("{number} is not a whole number"), right);
            }
            Value::Number(number) => {
                if !number.as_i64().is_some_and(|n| (least..=most).contains(&n)) {
                    self.push(at, format!("{number} is out of bounds"), right);
                }
            }
            other => self.kind(at, other, "a number", &right),
        }
    }

    fn kind(&mut self, at: &Path, found: &Value, wanted: &str, right: &str) {
        let found = match found {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a table",
        };
        self.push(at, format!("{wanted} is needed here, not {found}"), right);
    }

    fn push(&mut self, at: &Path, wrong: impl Into<String>, right: impl Into<String>) {
        self.mistakes.push(Mistake::new(at.clone(), wrong, right));
    }

    /// Follows references, and says whether nothing may stand there.
    fn resolve(&self, mut schema: &'a Value) -> (&'a Value, bool) {
        let mut nullable = schema["type"].as_array().is_some_and(|t| t.contains(&"null".into()));
        // Deep enough for a reference to an option of a reference; a loop ends here.
        for _ in 0..8 {
            let target = schema["$ref"]
                .as_str()
                .and_then(|name| name.strip_prefix('#'))
                .and_then(|pointer| self.root.pointer(pointer));
            if let Some(target) = target {
                schema = target;
            } else if let Some(choices) = schema["anyOf"].as_array() {
                nullable |= choices.iter().any(|choice| choice["type"] == "null");
                let Some(some) = choices.iter().find(|choice| choice["type"] != "null") else {
                    break;
                };
                schema = some;
            } else {
                break;
            }
        }
        (schema, nullable)
    }
}

/// What was written instead of a list of such items, as one of these.
fn as_list(items: &Value, written: &Value) -> String {
    let number = |text: &str| text.trim().parse::<i64>().is_ok();
    let one = match written {
        Value::String(text) if !admits(items, "integer") => {
            let texts = text.split(',').map(|text| format!("{:?}", text.trim()));
            Some(texts.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) if text.split(',').all(number) => {
            Some(text.split(',').map(str::trim).collect::<Vec<_>>().join(", "))
        }
        Value::Number(number) if admits(items, "integer") => Some(number.to_string()),
        _ => None,
    };
    match one {
        Some(one) => format!("write it between brackets: [{one}]"),
        None if admits(items, "integer") => {
            "write numbers between brackets, such as [10, 20]".into()
        }
        None => "write texts between brackets, such as [\"a\", \"b\"]".into(),
    }
}

/// What was written instead of a text, as one.
fn as_text(at: &Path, written: &Value) -> String {
    let bare = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match written {
        Value::Number(number) => format!("write it between quotes: \"{number}\""),
        Value::Bool(truth) => format!("write it between quotes, if that is meant: \"{truth}\""),
        // Which are written as the kernel does.
        Value::Array(all) if at.field() == "cpus" && !all.is_empty() => {
            match all.iter().map(bare).collect::<Option<Vec<_>>>() {
                Some(all) => format!("write \"{}\"", all.join(",")),
                None => "write cpus such as \"2,3\" or \"2-5\", or \"auto\"".to_string(),
            }
        }
        Value::Array(all) => match all.first().and_then(bare) {
            Some(first) if all.len() == 1 => format!("write it without brackets: {first:?}"),
            _ => "write one text between quotes".to_string(),
        },
        _ => "write one text between quotes".to_string(),
    }
}

/// The words of an enum, if the schema is one.
pub(crate) fn words_of(schema: &Value) -> Option<Vec<String>> {
    let word = |value: &Value| value.as_str().map(str::to_string);
    if let Some(listed) = schema["enum"].as_array() {
        return listed.iter().map(word).collect();
    }
    schema["oneOf"].as_array()?.iter().map(|choice| word(&choice["const"])).collect()
}

fn admits(schema: &Value, kind: &str) -> bool {
    match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(several) => several.iter().any(|one| one == kind),
        _ => false,
    }
}

/// In one line, however it was broken.
fn first_sentence(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.split_once(". ").map_or(line.as_str(), |(first, _)| first).to_string()
}
