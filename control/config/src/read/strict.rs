//! JSON whose objects have each key once. serde_json keeps the last of several, so that a body could say
//! one thing to whoever looks at it and another to whoever obeys it.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value of a text. Recursion is bounded by serde_json.
///
/// # Errors
/// It is no JSON, or a key is there twice.
pub(super) fn value(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Strict>(bytes).map(|strict| strict.0)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Any).map(Strict)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut table = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if table.contains_key(&key) {
                return Err(de::Error::custom(format!("the key {key:?} is there twice")));
            }
            let Strict(value) = entries.next_value()?;
            table.insert(key, value);
        }
        Ok(table.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_is_read_as_serde_json_reads_it() {
        for text in [
            "null",
            "true",
            "-7",
            "18446744073709551615",
            "1.5e3",
            r#""a\u0041\n""#,
            r#"[1, [2, {}], {"a": {"a": 1}, "b": [null]}]"#,
        ] {
            let usual: Value = serde_json::from_str(text).unwrap();
            assert_eq!(value(text.as_bytes()).unwrap(), usual, "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_at_any_depth() {
        for text in [
            r#"{"id":"a","id":"b"}"#,
            r#"{"id":"a","size":1,"id":"a"}"#,
            r#"{"a":[{"b":{"c":1,"c":2}}]}"#,
            // The same key, written otherwise.
            r#"{"id":"a","\u0069d":"b"}"#,
        ] {
            let error = value(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("is there twice"), "{text}: {error}");
        }
        assert!(value(b"{} {}").is_err());
    }
}
