//! Ethernet addresses as people write them, and the one that is made of a name.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An Ethernet address of one station. Written `52:54:00:12:34:56`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// What would be right, in the words every refusal of an address uses.
pub const MAC_HINT: &str = "write six pairs of hexadecimal digits, such as \"52:54:00:12:34:56\"; \
                            the second digit is even";

/// In the first byte: of a group, not of one station.
const GROUP: u8 = 1 << 0;
/// In the first byte: made by the network's administrator, not by the card's maker.
const LOCAL: u8 = 1 << 1;

/// Why a text is no address of a station.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// Not six bytes.
    #[error("{0:?} is not an Ethernet address")]
    Form(String),
    /// A multicast or the broadcast address.
    #[error("{0:?} is the address of a group, not of one card")]
    Group(String),
    /// All zeroes.
    #[error("{0:?} is nobody's address")]
    Zero(String),
}

impl Mac {
    /// The address of a NIC that names none: always the same for one name, locally administered.
    pub fn of_name(name: &str) -> Mac {
        // FNV-1a, then a mix so that names that differ in their last letter differ everywhere. What
        // it makes is a promise: a guest knows its network card by it.
        let mut hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let [a, b, c, d, e, ..] = (hash ^ (hash >> 29)).to_be_bytes();
        Mac([LOCAL, a, b, c, d, e])
    }

    /// Refuses what cannot be the address of one card.
    pub fn check(self) -> Result<Mac, MacError> {
        let text = || self.to_string();
        let Mac([first, ..]) = self;
        match self {
            Mac([0, 0, 0, 0, 0, 0]) => Err(MacError::Zero(text())),
            _ if first & GROUP != 0 => Err(MacError::Group(text())),
            mac => Ok(mac),
        }
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let form = || MacError::Form(text.to_string());
        let mut bytes = [0; 6];
        let mut pairs = text.split([':', '-']);
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| pair.len() == 2).ok_or_else(form)?;
            let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            let read = u8::from_str_radix(pair, 16).ok().filter(|_| is_hex);
            *byte = read.ok_or_else(form)?;
        }
        match pairs.next() {
            Some(_) => Err(form()),
            None => Mac(bytes).check(),
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mac([a, b, c, d, e, g]) = self;
        f.pad(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Mac {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Mac".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An Ethernet address of one station.",
            "type": "string",
            "format": "mac",
            "examples": ["52:54:00:12:34:56"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_people_write_them() {
        for (text, bytes) in [
            ("52:54:00:12:34:56", [0x52, 0x54, 0, 0x12, 0x34, 0x56]),
            ("02-00-00-00-00-0A", [2, 0, 0, 0, 0, 10]),
            ("fe:ff:ff:ff:ff:ff", [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(mac, Mac(bytes));
            assert_eq!(mac.to_string().parse::<Mac>().unwrap(), mac);
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (text, why) in [
            ("", "\"\" is not an Ethernet address"),
            ("52:54:00:12:34", "\"52:54:00:12:34\" is not an Ethernet address"),
            ("52:54:00:12:34:56:78", "\"52:54:00:12:34:56:78\" is not an Ethernet address"),
            ("52:54:0:12:34:567", "\"52:54:0:12:34:567\" is not an Ethernet address"),
            ("52:54:00:12:34:+6", "\"52:54:00:12:34:+6\" is not an Ethernet address"),
            ("00:00:00:00:00:00", "\"00:00:00:00:00:00\" is nobody's address"),
            (
                "01:00:5e:00:00:01",
                "\"01:00:5e:00:00:01\" is the address of a group, not of one card",
            ),
        ] {
            assert_eq!(text.parse::<Mac>().unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn a_name_has_one_address_for_ever() {
        assert_eq!(Mac::of_name("vm1-net").to_string(), "02:d9:7f:ee:2a:8a");
        assert_eq!(Mac::of_name("vm2-net").to_string(), "02:ab:7f:6c:58:23");
        let mut all: Vec<Mac> = (0..4096).map(|n| Mac::of_name(&format!("vm{n}"))).collect();
        assert!(all.iter().all(|mac| mac.check().is_ok() && mac.0[0] == LOCAL));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4096);
    }
}
