//! Where an operator wants a device: at one sidecore, or where its load has it.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where queues or a NIC shall be. Written as the sidecore's number, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At that one, and nowhere else.
    Sidecore(u16),
    /// Where they are, until their load has them moved: nobody holds them there any more.
    Auto,
}

/// What would be right, in the words every refusal of a target uses.
pub const TARGET_HINT: &str = "write the number of a sidecore, such as 0, or \"auto\"";

/// What would be right instead of a text that is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{TARGET_HINT}")]
pub struct TargetError;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u16>() {
            _ if text == "auto" => Ok(Target::Auto),
            Ok(sidecore) if is_plain => Ok(Target::Sidecore(sidecore)),
            _ => Err(TargetError),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Sidecore(sidecore) => sidecore.fmt(f),
            Target::Auto => f.pad("auto"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Target::Sidecore(sidecore) => serializer.serialize_u16(*sidecore),
            Target::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Target {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Target".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The number of a sidecore, or `auto`.",
            "type": ["string", "integer"],
            "format": "target",
            "examples": [1, "auto"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_and_written_as_people_do() {
        for (text, target) in [("0", Target::Sidecore(0)), ("auto", Target::Auto)] {
            assert_eq!(text.parse::<Target>(), Ok(target));
            assert_eq!(target.to_string(), text);
        }
        for text in ["", "+1", "-1", "70000", "Auto", "1.5"] {
            assert_eq!(text.parse::<Target>().unwrap_err().to_string(), TARGET_HINT, "{text}");
        }
        let json = serde_json::to_string(&[Target::Sidecore(7), Target::Auto]).unwrap();
        assert_eq!(json, "[7,\"auto\"]");
        let read: Vec<Target> = serde_json::from_str(&json).unwrap();
        assert_eq!(read, [Target::Sidecore(7), Target::Auto]);
    }
}
