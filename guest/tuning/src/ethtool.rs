//! The kernel's messages about a NIC, as bytes: generic netlink's family `ethtool` (Linux 5.6 and later;
//! Documentation/networking/ethtool-netlink.rst). Replies are read bounded: whatever is cut off or lies is no answer.

/// Bytes of a reply at most.
pub const REPLY_BYTES_MAX: usize = 64 << 10;

/// The controller of generic netlink, which knows the families.
const CONTROLLER: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
/// The kind of an attribute without its flags.
const NLA_KIND: u16 = 0x3fff;
/// Bytes of a message's head, and of generic netlink's.
const HEAD: usize = 16;
const GENERIC: usize = 4;

/// In each request.
const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const FLAG_OMIT_REPLY: u32 = 2;

const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HW: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const FEATURES_NOCHANGE: u16 = 5;
const BITSET_NOMASK: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// How a parameter begins that is a feature.
const FEATURE: &str = "feature-";

/// A number that a NIC keeps: the messages that get and set it, and its attribute.
struct Number {
    name: &'static str,
    get: u8,
    set: Option<u8>,
    attribute: u16,
}

const NUMBERS: [Number; 4] = [
    Number { name: "combined-max", get: 17, set: None, attribute: 5 },
    Number { name: "combined", get: 17, set: Some(18), attribute: 9 },
    Number { name: "rx-usecs", get: 19, set: Some(20), attribute: 2 },
    Number { name: "tx-usecs", get: 19, set: Some(20), attribute: 6 },
];

/// What the kernel answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// It is done, or refused with this error of the system's.
    Ended(i32),
    /// Attributes.
    Told(&'a [u8]),
}

/// Asks for the number of the family.
pub fn family_request() -> Vec<u8> {
    let mut name = b"ethtool".to_vec();
    name.push(0);
    message(CONTROLLER, CTRL_CMD_GETFAMILY, NLM_F_REQUEST, &attribute(CTRL_ATTR_FAMILY_NAME, &name))
}

/// The number of the family.
pub fn family(told: &[u8]) -> Option<u16> {
    let found = find(told, CTRL_ATTR_FAMILY_ID)?;
    Some(u16::from_ne_bytes(found.try_into().ok()?))
}

/// Asks for a parameter; nothing if there is no such parameter.
pub fn get(family: u16, nic: &str, parameter: &str) -> Option<Vec<u8>> {
    let command = match parameter.strip_prefix(FEATURE) {
        Some(_) => FEATURES_GET,
        None => number(parameter)?.get,
    };
    Some(message(family, command, NLM_F_REQUEST, &header(nic, 0)))
}

/// Sets a parameter; nothing if there is no such parameter, or it cannot have that value.
pub fn set(family: u16, nic: &str, parameter: &str, value: &str) -> Option<Vec<u8>> {
    let mut body = header(nic, FLAG_OMIT_REPLY);
    let command = if let Some(feature) = parameter.strip_prefix(FEATURE) {
        let mut bit = attribute(BIT_NAME, &[feature.as_bytes(), &[0]].concat());
        match value {
            "on" => bit.extend(attribute(BIT_VALUE, &[])),
            "off" => {}
            _ => return None,
        }
        let bits = nested(BITSET_BITS, &nested(BITS_BIT, &bit));
        body.extend(nested(FEATURES_WANTED, &bits));
        FEATURES_SET
    } else {
        let number = number(parameter)?;
        body.extend(attribute(number.attribute, &value.parse::<u32>().ok()?.to_ne_bytes()));
        number.set?
    };
    Some(message(family, command, NLM_F_REQUEST | NLM_F_ACK, &body))
}

/// A parameter's value, as attributes tell it: a number; `on`, `off`, or that and `-fixed` where it cannot be set.
pub fn told(attributes: &[u8], parameter: &str) -> Option<String> {
    let Some(feature) = parameter.strip_prefix(FEATURE) else {
        let found = find(attributes, number(parameter)?.attribute)?;
        return Some(u32::from_ne_bytes(found.try_into().ok()?).to_string());
    };
    let has = |set: u16| find(attributes, set).map(|set| has_bit(set, feature));
    let is_on = has(FEATURES_ACTIVE)?;
    let is_settable = has(FEATURES_HW)? && !has(FEATURES_NOCHANGE).unwrap_or(false);
    let word = if is_on { "on" } else { "off" };
    Some(if is_settable { word.to_owned() } else { format!("{word}-fixed") })
}

/// The first message of a datagram.
pub fn reply(datagram: &[u8]) -> Option<Reply<'_>> {
    let length = u32::from_ne_bytes(datagram.get(..4)?.try_into().ok()?);
    let message = datagram.get(..usize::try_from(length).ok()?)?;
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind == NLMSG_ERROR {
        let error = message.get(HEAD..HEAD + 4)?.try_into().ok()?;
        return Some(Reply::Ended(i32::from_ne_bytes(error)));
    }
    message.get(HEAD + GENERIC..).map(Reply::Told)
}

fn number(parameter: &str) -> Option<&'static Number> {
    NUMBERS.iter().find(|number| number.name == parameter)
}

/// Whether a bit set has a bit of that name, and it is set.
fn has_bit(set: &[u8], name: &str) -> bool {
    let is_list = find(set, BITSET_NOMASK).is_some();
    let Some(bits) = find(set, BITSET_BITS) else { return false };
    let is_it = |bit: &[u8]| {
        let is_named =
            find(bit, BIT_NAME).is_some_and(|it| it.strip_suffix(&[0]) == Some(name.as_bytes()));
        is_named && (is_list || find(bit, BIT_VALUE).is_some())
    };
    attributes(bits).any(|(kind, bit)| kind == BITS_BIT && is_it(bit))
}

fn header(nic: &str, flags: u32) -> Vec<u8> {
    let mut body = attribute(HEADER_DEV_NAME, &[nic.as_bytes(), &[0]].concat());
    body.extend(attribute(HEADER_FLAGS, &flags.to_ne_bytes()));
    nested(HEADER, &body)
}

fn nested(kind: u16, body: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, body)
}

/// An attribute, filled to a multiple of four bytes. Bodies here are far below 64 KiB.
fn attribute(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, command: u8, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEAD + GENERIC + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

/// The attributes of some bytes, up to the first that is not whole.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_KIND;
        let body = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(it, _)| *it == kind).map(|(_, body)| body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bit(name: &str, is_set: bool) -> Vec<u8> {
        let mut body = attribute(BIT_NAME, &[name.as_bytes(), &[0]].concat());
        if is_set {
            body.extend(attribute(BIT_VALUE, &[]));
        }
        nested(BITS_BIT, &body)
    }

    fn features(hw: bool, is_active: bool) -> Vec<u8> {
        let set = |kind, bits: Vec<u8>| nested(kind, &nested(BITSET_BITS, &bits));
        let list = |kind, bits: Vec<u8>| {
            nested(kind, &[attribute(BITSET_NOMASK, &[]), nested(BITSET_BITS, &bits)].concat())
        };
        let active = if is_active { bit("rx-gro", false) } else { Vec::new() };
        [set(FEATURES_HW, bit("rx-gro", hw)), list(FEATURES_ACTIVE, active)].concat()
    }

    #[test]
    fn features_are_read() {
        let told = |hw, is_active| told(&features(hw, is_active), "feature-rx-gro").unwrap();
        assert_eq!(told(true, true), "on");
        assert_eq!(told(true, false), "off");
        assert_eq!(told(false, true), "on-fixed");
        assert_eq!(told(false, false), "off-fixed");
    }

    #[test]
    fn numbers_are_read_and_set() {
        let attributes = attribute(9, &4u32.to_ne_bytes());
        assert_eq!(told(&attributes, "combined").unwrap(), "4");
        assert_eq!(told(&attributes, "combined-max"), None);
        let message = set(20, "eth0", "combined", "2").unwrap();
        let Some(Reply::Told(body)) = reply(&message) else { panic!("{message:?}") };
        assert_eq!(told(body, "combined").unwrap(), "2");
        assert_eq!(set(20, "eth0", "combined-max", "2"), None);
        assert_eq!(set(20, "eth0", "combined", "-2"), None);
        assert_eq!(set(20, "eth0", "feature-rx-gro", "maybe"), None);
        assert_eq!(get(20, "eth0", "speed"), None);
    }

    #[test]
    fn an_error_ends_a_request() {
        let mut bytes = message(NLMSG_ERROR, 0, 0, &[]);
        bytes[HEAD..HEAD + 4].copy_from_slice(&(-95i32).to_ne_bytes());
        assert_eq!(reply(&bytes), Some(Reply::Ended(-95)));
        assert_eq!(reply(&bytes[..10]), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_bounded(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = reply(&bytes);
            let _ = family(&bytes);
            let _ = told(&bytes, "feature-rx-gro");
            let _ = told(&bytes, "rx-usecs");
            prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
