//! Identity of the image that a disk's guest is on, and the rule by which a guest is served or waits.
//!
//! Pure: facts in, a verdict out. Not here: where an identity is kept (`images`), and who asks the rings
//! of a guest whether its driver was running (`start`).

use std::fmt;

use backend::{Bytes, Disk, ImageFacts};
use config::plan::{DiskPlan, Source};
use remote::device_of;
use serde::{Deserialize, Serialize};

/// An image as it is kept: what an operator calls it, and what tells it from any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// Path, or name at its IOhost, for messages alone: one image may have many names.
    pub(crate) name: String,
    /// Boot of the host in which it was seen, for numbers that mean nothing in another one.
    boot: String,
    /// Bytes that its guest was told of.
    pub(crate) bytes: u64,
    /// So few of them were there once while its guest was on it, and nobody has accepted that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut_to: Option<u64>,
    what: What,
}

/// What tells it from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum What {
    Null,
    /// Whether a RAM disk holds what it held is asked of the disk itself (`has_lost_what_it_held`).
    Memory,
    File {
        device: (u32, u32),
        inode: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth_ns: Option<i64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    Block {
        device: (u32, u32),
        names: Vec<(String, String)>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        bytes: u64,
    },
    Remote {
        link: String,
        disk: String,
        /// Which image that is, as its IOhost says ([`remote::wire::Bound::image`]); 0: not known.
        #[serde(default, skip_serializing_if = "is_unknown")]
        number: u64,
    },
}

/// What was found in place of a remembered image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) image: Image,
    /// Bytes of the image before it was made longer here; nothing of what is no image.
    pub(crate) was_bytes: Option<u64>,
}

/// What becomes of a guest whose driver wants to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is served, on what is remembered already.
    Same,
    /// It is served, and what was found is to be remembered.
    Remember,
    /// It waits, for that reason.
    Other(ImageRefused),
}

/// Why a guest waits, and is not served from what is there. Each text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImageRefused {
    /// Its disk would have fewer bytes than it was told of.
    #[error(
        "its guest was on {} of {found}, and would have {}: `size` is smaller than it was; put it \
         back and `sidecore reload`, or start the guest anew; `sidecore disk accept {id}` has it go on \
         without what is behind",
        Bytes(*.bytes),
        Bytes(found.bytes)
    )]
    Smaller {
        /// Its disk.
        id: String,
        /// Bytes that it was told of.
        bytes: u64,
        /// What is there.
        found: Box<Image>,
    },
    /// Part of its image was gone.
    #[error(
        "its guest was on {} of {found}, which was cut to {}: restore it, and then, or to \
         go on with what is there, `sidecore disk accept {id}`; or start the guest anew",
        Bytes(*.bytes),
        Bytes(*.left)
    )]
    Cut {
        /// Its disk.
        id: String,
        /// Bytes that it was told of.
        bytes: u64,
        /// What is there.
        found: Box<Image>,
        /// Bytes that were left.
        left: u64,
    },
    /// Its image is not there, and another one is.
    #[error(
        "its guest was on {remembered}, and {} is another image: its requests wait; put that image \
         back, or start the guest anew; `sidecore disk accept {id}` has it go on with what is there, \
         which destroys data unless both hold the same",
        there(remembered, found)
    )]
    Another {
        /// Its disk.
        id: String,
        /// Its image.
        remembered: Box<Image>,
        /// What is there.
        found: Box<Image>,
    },
    /// Its image is not known, since what was kept of it cannot be read.
    #[error(
        "which image its guest was on cannot be read ({why}): put that file back; or start the \
         guest anew; or, if this is its image, `sidecore disk accept {id}`"
    )]
    Unreadable {
        /// Its disk.
        id: String,
        /// The file, and what is wrong with it.
        why: String,
    },
    /// What is open has its path no more, and a new guest is to have what has.
    #[error(
        "what is at {path} now is not what is open here, for which its guest waits: `sidecore reload` opens \
         what is there"
    )]
    Replaced {
        /// The path.
        path: String,
    },
    /// A RAM disk that holds nothing of what its guest wrote.
    #[error(
        "its guest used this RAM disk before it was made here, or in another daemon, and \
         what it wrote is not here: restart the guest"
    )]
    MemoryLost,
    /// An image that was missing or empty when it was opened, and its guest had used it.
    #[error(
        "its guest used this disk before it was opened here, and {path} was missing or \
         empty then: stop the daemon, put the image back and start it; or restart the guest \
         with the empty one"
    )]
    WasEmpty {
        /// The path.
        path: String,
    },
}

impl Found {
    /// What disk `disk`, which was opened as `plan` says, is made of. Nothing when that is not known.
    pub(crate) fn of(disk: &Disk, plan: &DiskPlan, boot: &str) -> Option<Found> {
        let (what, was_bytes) = match (&plan.source, disk.image()) {
            (Source::Null { .. }, _) => (What::Null, None),
            (Source::Memory { .. }, _) => (What::Memory, None),
            (Source::Remote { link, name }, _) => {
                (What::Remote { link: link.clone(), disk: name.clone(), number: 0 }, None)
            }
            (Source::File { .. }, None) => return None,
            (Source::File { .. }, Some(facts)) => What::of_facts(facts),
        };
        let name = match &plan.source {
            Source::File { path, .. } => path.clone(),
            Source::Remote { link, name } => format!("{name} of link {link}"),
            other => format!("a {} disk", other.kind()),
        };
        let (boot, bytes) = (boot.to_string(), disk.size_bytes());
        let image = Image { name, boot, bytes, cut_to: None, what };
        Some(Found { image, was_bytes })
    }
}

impl Found {
    /// The same image, of which its guest is told so many bytes.
    pub(crate) fn resized(&self, bytes: u64) -> Found {
        let image = Image { bytes, ..self.image.clone() };
        Found { image, was_bytes: self.was_bytes.map(|was| was.max(bytes)) }
    }
}

impl What {
    fn of_facts(facts: &ImageFacts) -> (What, Option<u64>) {
        match facts.clone() {
            ImageFacts::File { device, inode, birth_ns, label, bytes } => {
                (What::File { device, inode, birth_ns, label }, Some(bytes))
            }
            ImageFacts::Block { device, names, sequence, bytes } => {
                (What::Block { device, names, sequence, bytes }, Some(bytes))
            }
        }
    }

    /// Whether both are one image (decision 0018). A kernel's numbers of devices count in one boot alone (`same_boot`), and
    /// whoever cannot be told from another for certain is another.
    fn is_same(&self, other: &What, same_boot: bool) -> bool {
        match (self, other) {
            (
                What::File { device, inode, birth_ns, label },
                What::File { device: d, inode: i, birth_ns: b, label: l },
            ) => {
                let agree = |known: bool, equal: bool| !known || equal;
                let births = birth_ns.is_some() && b.is_some();
                let labels = label.is_some() && l.is_some();
                // A file system without a device of its own, and any one after a boot, may have another number.
                let is_fixed = same_boot && device.0 != 0 && d.0 != 0;
                let is_certain = births || labels || (same_boot && device == d);
                inode == i
                    && agree(births, birth_ns == b)
                    && agree(labels, label == l)
                    // Without a birth time, a file in the place of a removed one has its number.
                    && (births || label.is_some() == l.is_some() || label.is_none())
                    && agree(is_fixed, device == d)
                    && is_certain
            }
            (
                What::Block { device, names, sequence, bytes },
                What::Block { device: d, names: n, sequence: s, bytes: b },
            ) => match (sequence, s) {
                (Some(one), Some(other)) if same_boot && one == other => names == n,
                // A loop device is what it was set up on, each time anew.
                (Some(_), Some(_)) if same_boot && is_loop(names) => false,
                _ if names.iter().any(|(name, _)| name != "start") => names == n,
                _ => {
                    let is_alike = if same_boot { sequence == s } else { bytes == b };
                    device == d && names == n && is_alike
                }
            },
            (What::Remote { link, disk, number }, What::Remote { link: l, disk: d, number: n }) => {
                link == l && disk == d && (*number == 0 || *n == 0 || number == n)
            }
            _ => self == other,
        }
    }
}

fn is_unknown(number: &u64) -> bool {
    *number == 0
}

fn is_loop(names: &[(String, String)]) -> bool {
    names.iter().any(|(name, _)| name == "loop")
}

impl Image {
    /// What clients of this IOhost are told of it, and of no other one; 0 where it is known by nothing that lasts.
    /// By the time of birth rather than by the label, which a file may get when clients know it already.
    pub(crate) fn number(&self) -> u64 {
        let text = match &self.what {
            What::File { inode, birth_ns: Some(birth), .. } => format!("birth {birth} {inode}"),
            What::File { inode, label: Some(label), .. } => format!("label {label} {inode}"),
            What::Block { names, .. } if !names.is_empty() => format!("block {names:?}"),
            _ => return 0,
        };
        device_of(&text).max(1)
    }

    /// The image that an IOhost told of, if it is another machine's.
    pub(crate) fn told_number(&self) -> Option<u64> {
        match self.what {
            What::Remote { number, .. } => Some(number),
            _ => None,
        }
    }

    /// The same disk of another machine, of which its IOhost told that.
    pub(crate) fn told(&self, told: u64) -> Image {
        let mut image = self.clone();
        if let What::Remote { number, .. } = &mut image.what {
            *number = told;
        }
        image
    }

    /// Whether part of it was gone, whatever it has now: it may have been made as long as before, of zeroes.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut_to.is_some()
    }

    /// The same image, of which less was found than its guest was told of. Nothing, if that is not so, or known.
    pub(crate) fn cut(&self, found: &Found) -> Option<Image> {
        let left = found.was_bytes.filter(|bytes| *bytes < self.bytes)?;
        let is_news = self.is_same(&found.image) && self.cut_to.is_none_or(|known| left < known);
        is_news.then(|| Image { cut_to: Some(left), ..self.clone() })
    }

    /// Whether it is the same image, whatever its name.
    pub(crate) fn is_same(&self, other: &Image) -> bool {
        let same_boot = !self.boot.is_empty() && self.boot == other.boot;
        self.what.is_same(&other.what, same_boot)
    }
}

/// Name and mark of an image, as an operator can find it.
impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.what {
            What::File { inode, label, .. } => {
                write!(f, " (inode {inode}")?;
                if let Some(label) = label {
                    write!(f, ", label {}", label.get(..8).unwrap_or(label))?;
                }
                f.write_str(")")
            }
            What::Block { device: (major, minor), names, .. } => {
                write!(f, " (device {major}:{minor}")?;
                names.iter().try_for_each(|(name, text)| write!(f, ", {name} {text}"))?;
                f.write_str(")")
            }
            What::Null | What::Memory | What::Remote { .. } => Ok(()),
        }
    }
}

/// The rule. `remembered` is what the disk's guest was on last, `found` what is there, and `was_running`
/// whether the driver that wants to go on was served before, here or elsewhere.
///
/// What is unknown is allowed: a daemon that a guest has moved to never knew its disk.
pub(crate) fn judge(
    id: &str,
    remembered: Option<&Image>,
    found: Option<&Found>,
    was_running: bool,
) -> Verdict {
    let Some(found) = found else { return Verdict::Same };
    let Some(remembered) = remembered else { return Verdict::Remember };
    let is_same = remembered.is_same(&found.image);
    let is_less = |bytes: &u64| *bytes < remembered.bytes;
    let lost = remembered.cut_to.or(found.was_bytes.filter(is_less)).filter(|_| is_same);
    let is_smaller = found.image.bytes < remembered.bytes;
    let (id, seen) = (|| id.to_string(), || Box::new(found.image.clone()));
    let bytes = remembered.bytes;
    match (is_same, lost) {
        (true, None) if *remembered == found.image => Verdict::Same,
        (true, None) if !(is_smaller && was_running) => Verdict::Remember,
        _ if !was_running => Verdict::Remember,
        (true, None) => Verdict::Other(ImageRefused::Smaller { id: id(), bytes, found: seen() }),
        (true, Some(left)) => {
            Verdict::Other(ImageRefused::Cut { id: id(), bytes, found: seen(), left })
        }
        (false, _) => {
            let remembered = Box::new(remembered.clone());
            Verdict::Other(ImageRefused::Another { id: id(), remembered, found: seen() })
        }
    }
}

/// What was found, and that it bears the same name, if it does.
fn there(remembered: &Image, found: &Image) -> String {
    match remembered.name == found.name {
        true => format!("what is there now, {found},"),
        false => found.to_string(),
    }
}

#[cfg(test)]
mod tests;
