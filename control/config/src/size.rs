//! Sizes as people write them: bytes, or a number with K, M, G or T.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Written `"10G"`, `"10GiB"`, `"512"` or `512`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// What would be right, in the words every refusal of a size uses.
pub const SIZE_HINT: &str = "write bytes, or a whole number with K, M, G or T (powers of 1024), \
                             such as \"10G\"";

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It does not start with a number.
    #[error("{0:?} is not a size")]
    NotANumber(String),
    /// The unit is not one of K, M, G, T.
    #[error("{0:?} is not a unit of size")]
    Unit(String),
    /// The unit is one of bits.
    #[error("{0:?} is a unit of bits, and sizes are in bytes, not bits")]
    Bits(String),
    /// More than 2^63 - 1 bytes.
    #[error("{0:?} is more than 8 EiB")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let trimmed = text.trim();
        let digits_end =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(digits_end);
        let digits: String = digits.chars().filter(|c| *c != '_').collect();
        if digits.is_empty() || unit.starts_with('.') {
            return Err(SizeError::NotANumber(text.to_string()));
        }
        let written = unit.trim_start();
        let shift = match written.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            unit if unit.trim_end_matches("/S").ends_with("BIT") || written.ends_with("bps") => {
                return Err(SizeError::Bits(written.to_string()));
            }
            _ => return Err(SizeError::Unit(written.to_string())),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(1 << shift))
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .map(Size)
            .ok_or_else(|| SizeError::TooLarge(text.to_string()))
    }
}

/// In the largest unit that divides it, so that it reads back as the same number.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return f.pad(&format!("{}{unit}", self.0 >> shift));
            }
        }
        f.pad(&self.0.to_string())
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => bytes.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Bytes, or a whole number with K, M, G or T (powers of 1024).",
            "type": ["string", "integer"],
            "format": "size",
            "examples": ["10G"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("1_000M", 1000 << 20),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            ("2TB", 2 << 40),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_why() {
        for (text, why) in [
            ("", "\"\" is not a size"),
            ("G", "\"G\" is not a size"),
            ("-1", "\"-1\" is not a size"),
            ("1.5G", "\"1.5G\" is not a size"),
            ("10X", "\"X\" is not a unit of size"),
            ("10GG", "\"GG\" is not a unit of size"),
            ("100Mbit", "\"Mbit\" is a unit of bits, and sizes are in bytes, not bits"),
            ("1 Gbit/s", "\"Gbit/s\" is a unit of bits, and sizes are in bytes, not bits"),
            ("8388608T", "\"8388608T\" is more than 8 EiB"),
            ("99999999999999999999", "\"99999999999999999999\" is more than 8 EiB"),
        ] {
            assert_eq!(text.parse::<Size>().unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn a_size_survives_being_written() {
        for bytes in [0, 1, 512, 1024, 1536, 10 << 30, (10 << 30) + 512, 3 << 40] {
            assert_eq!(Size(bytes).to_string().parse::<Size>().unwrap(), Size(bytes));
        }
    }
}
