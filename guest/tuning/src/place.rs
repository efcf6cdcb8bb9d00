//! Where a setting is: a file of the kernel's, or a parameter of a NIC that only ethtool's messages reach.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a path at most.
const PATH_BYTES_MAX: usize = 512;
/// Bytes of a device's name at most: those of a NIC have 15, disks' and partitions' 31.
const NAME_BYTES_MAX: usize = 32;
/// How a NIC's parameter begins, in text.
const ETHTOOL: &str = "ethtool:";

/// A setting's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Place {
    /// A file, from the guest's `/`, without it.
    File(String),
    /// What a NIC's driver keeps.
    Nic {
        /// The NIC's name.
        nic: String,
        /// Such as `rx-usecs`, `combined`, `feature-tx-tcp-segmentation`.
        parameter: String,
    },
}

impl Place {
    /// The place of a text; nothing if it is none.
    pub fn of(text: &str) -> Option<Place> {
        if let Some(rest) = text.strip_prefix(ETHTOOL) {
            let (nic, parameter) = rest.split_once(':')?;
            let is_whole = is_name(nic) && is_name(parameter);
            return is_whole.then(|| Place::Nic { nic: nic.into(), parameter: parameter.into() });
        }
        let is_path = text.len() <= PATH_BYTES_MAX && text.split('/').all(is_name);
        is_path.then(|| Place::File(text.to_owned()))
    }
}

/// Whether a text can be the name of a device, or one step of a path: no step that leads up, nothing hidden.
pub fn is_name(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.starts_with('.')
        && text.chars().all(is_known)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "/{path}"),
            Place::Nic { nic, parameter } => write!(f, "{ETHTOOL}{nic}:{parameter}"),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> String {
        place.to_string()
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Place, String> {
        let place = Place::of(text.strip_prefix('/').unwrap_or(&text));
        place.ok_or_else(|| format!("{text:?} is no place of a setting"))
    }
}

/// Puts a subject's names where a template has `{name}`, `{irq}`, `{queue}`.
pub fn filled(template: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(template.to_owned(), |text, (key, name)| text.replace(key, name))
}

/// Whether a text is what a template becomes for some names.
pub fn matches(template: &str, text: &str) -> bool {
    let (mut steps, mut texts) = (template.split(['/', ':']), text.split(['/', ':']));
    loop {
        match (steps.next(), texts.next()) {
            (None, None) => return true,
            (Some(step), Some(text)) if step == text => {}
            (Some("{name}" | "{irq}" | "{queue}"), Some(text)) if is_name(text) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_its_text() {
        for text in ["/sys/block/vda/queue/scheduler", "ethtool:eth0:feature-rx-gro"] {
            let place = Place::try_from(text.to_owned()).unwrap();
            assert_eq!(place.to_string(), text);
        }
    }

    #[test]
    fn what_leads_elsewhere_is_no_place() {
        for text in ["", "sys/../etc/passwd", "sys//block", "sys/block/.hidden", "a\nb", "a b"] {
            assert_eq!(Place::of(text), None, "{text:?}");
        }
        assert_eq!(Place::of("ethtool:eth0"), None);
        assert_eq!(Place::of(&"a/".repeat(400)), None);
    }

    #[test]
    fn a_template_matches_what_it_becomes_and_nothing_else() {
        let template = "sys/block/{name}/queue/scheduler";
        let filled = filled(template, &[("{name}", "vda")]);
        assert_eq!(filled, "sys/block/vda/queue/scheduler");
        assert!(matches(template, &filled));
        assert!(!matches(template, "sys/block/vda/queue/nr_requests"));
        assert!(!matches(template, "sys/block/vda/queue"));
        assert!(!matches(template, "sys/block/../queue/scheduler"));
    }
}
