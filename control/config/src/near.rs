//! Which name an operator most likely meant by one that is not there.
//!
//! Not here: what is said of it (`schema`, the plans, and the program's command line).

use std::cell::RefCell;
use std::collections::HashMap;

use crate::mistake::KINDS_MAX;

/// Names that one may be taken for. Which is near is told of as many as a refusal shows: each answer is a look at all
/// of them, and a file may have thousands of both.
pub(crate) struct Near<'a> {
    names: Vec<&'a str>,
    told: RefCell<HashMap<String, Option<&'a str>>>,
}

impl<'a> Near<'a> {
    pub(crate) fn of(names: impl IntoIterator<Item = &'a str>) -> Near<'a> {
        Near { names: names.into_iter().collect(), told: RefCell::default() }
    }

    /// As [`nearest`]. One that was told before is told again, so that it stays one kind of mistake.
    pub(crate) fn to(&self, written: &str) -> Option<&'a str> {
        let mut told = self.told.borrow_mut();
        if let Some(near) = told.get(written) {
            return *near;
        }
        if told.len() >= KINDS_MAX {
            return None;
        }
        let near = nearest(written, &self.names);
        told.insert(written.to_string(), near);
        near
    }
}

/// The candidate that the operator most likely meant, if any is near.
pub(crate) fn nearest<'a>(written: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let (distance, name) = closest(written, candidates)?;
    (distance <= 2.min(name.len() / 2)).then_some(name)
}

/// The candidate that takes the fewest edits, and how many.
fn closest<'a>(written: &str, candidates: &[&'a str]) -> Option<(usize, &'a str)> {
    // Long texts are no misspelling of a field, and the distance is quadratic.
    if written.len() > 40 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let written = plain(written);
    let all = candidates.iter().map(|name| (edits(&written, &plain(name)), *name));
    all.min_by_key(|(distance, _)| *distance)
}

/// Fields as other programs call them, each with ours; without any, where we have nothing of the kind.
const ELSEWHERE: &[(&[&str], &[&str])] = &[
    (
        &["file", "filename", "image", "img", "source", "src", "dev", "device"],
        &["path", "interface"],
    ),
    (&["ifname", "iface", "nic", "netdev"], &["interface"]),
    (&["bridge", "br"], &["switch", "tap"]),
    (&["name"], &["id"]),
    (&["capacity", "length", "bytes"], &["size"]),
    (&["ro", "read_only"], &["readonly"]),
    (&["num_queues", "queue_count", "queue_pairs", "mq"], &["queues"]),
    (&["mac_address", "macaddr", "hwaddr", "address"], &["mac"]),
    (&["tag", "vid", "vlan_id", "vlans"], &["vlan"]),
    (&["weight"], &["share"]),
    (&["cores", "cpu", "cpuset"], &["cpus"]),
    (&["model", "type", "driver", "bus", "kind", "file_system", "fs"], &[]),
];

/// The candidate that the operator most likely meant, also by a word of other programs.
pub fn meant<'a>(written: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let written = plain(written);
    let find = |name: &str| candidates.iter().find(|it| plain(it) == name).copied();
    let elsewhere = ELSEWHERE.iter().find(|(words, _)| words.contains(&&*written));
    match elsewhere.filter(|_| find(&written).is_none()) {
        Some((_, ours)) => ours.iter().find_map(|name| find(name)),
        // Two edits make any other field of a short one.
        None => closest(&written, candidates)
            .filter(|(distance, name)| *distance <= if name.len() < 6 { 1 } else { 2 })
            .map(|(_, name)| name),
    }
}

/// Insertions, deletions and replacements that make one text of the other.
fn edits(a: &str, b: &str) -> usize {
    #[cfg(test)]
    COMPARED.with(|compared| compared.set(compared.get() + 1));
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (to, above) in b.iter().zip(row.iter_mut().skip(1)) {
            let best = (diagonal + usize::from(from != *to)).min(left + 1).min(*above + 1);
            diagonal = *above;
            *above = best;
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
thread_local! {
    /// How often two names were compared.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let names = ["queues", "serial", "size", "socket", "allow_unsealed_memory"];
        assert_eq!(nearest("queue", &names), Some("queues"));
        assert_eq!(nearest("Seriel", &names), Some("serial"));
        assert_eq!(nearest("allow-unsealed-memory", &names), Some("allow_unsealed_memory"));
        assert_eq!(nearest("bandwidth", &names), None);
        assert_eq!(meant("filt", &names), None, "any short name is near another one");
        assert_eq!(nearest("", &names), None);
    }

    #[test]
    fn a_word_of_other_programs_is_known_for_ours_or_for_nothing() {
        let disk = ["id", "mode", "path", "size", "readonly"];
        for (written, ours) in [
            ("file", Some("path")),
            ("Image", Some("path")),
            ("read-only", Some("readonly")),
            ("model", None),
            ("bridge", None),
            ("sise", Some("size")),
        ] {
            assert_eq!(meant(written, &disk), ours, "{written}");
        }
        assert_eq!(meant("device", &["interface", "tap"]), Some("interface"));
        assert_eq!(meant("device", &["device", "path"]), Some("device"), "it is one");
    }

    #[test]
    fn what_is_near_is_told_of_as_many_as_are_shown() {
        let names: Vec<String> = (0..200).map(|number| format!("disk{number}")).collect();
        let near = Near::of(names.iter().map(String::as_str));
        let before = COMPARED.get();
        let told = |number: usize| near.to(&format!("disc{number}"));
        for (number, name) in names.iter().enumerate() {
            let right = (number < KINDS_MAX).then_some(name.as_str());
            assert_eq!(told(number), right);
        }
        assert_eq!(told(7), Some("disk7"), "as before");
        assert_eq!(COMPARED.get() - before, KINDS_MAX * names.len());
    }
}
