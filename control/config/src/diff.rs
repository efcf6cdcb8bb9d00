//! From the running plan to the wanted one: an ordered list of changes.
//!
//! Pure: who applies them is `manager`. A disk that cannot be changed in place is removed and added
//! again, so its guest sees the device go. Whoever applies a difference also takes over the wanted
//! plan whole, for lines may have moved without any change.

use std::fmt;

use crate::plan::{DiskPlan, Plan, Source};
use crate::size::Size;
use crate::spec::Policy;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Detach the disk's queues and close its socket.
    Remove {
        /// Its name.
        id: String,
    },
    /// Give a running disk another share or policy.
    Set {
        /// Its name.
        id: String,
        /// Its share from now on.
        share: u32,
        /// Its policy from now on.
        policy: Policy,
    },
    /// Give a running disk another capacity and tell its guest.
    Resize {
        /// Its name.
        id: String,
        /// Its capacity from now on, in bytes.
        size_bytes: u64,
    },
    /// Make a disk.
    Add(Box<DiskPlan>),
}

/// As a reload reports it.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Remove { id } => write!(f, "removed disk {id}"),
            Change::Set { id, share, policy } => {
                write!(f, "set disk {id} to share {share} and policy {policy}")
            }
            Change::Resize { id, size_bytes } => {
                write!(f, "resized disk {id} to {}", Size(*size_bytes))
            }
            Change::Add(disk) => write!(f, "added disk {}", disk.id),
        }
    }
}

/// Everything that is different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// In this order: removals first, so that what is added finds sockets and images free.
    pub changes: Vec<Change>,
    /// What only a restart of the daemon changes, in words.
    pub restart_needed: Vec<String>,
}

/// What makes `wanted` of `running`.
pub fn diff(running: &Plan, wanted: &Plan) -> Difference {
    let mut difference = Difference::default();
    let (mut kept, mut added) = (Vec::new(), Vec::new());
    for old in &running.disks {
        let new = wanted.disk(&old.id);
        if new.is_none_or(|new| !changes_in_place(old, new)) {
            difference.changes.push(Change::Remove { id: old.id.clone() });
        }
    }
    for new in &wanted.disks {
        match running.disk(&new.id) {
            Some(old) if changes_in_place(old, new) => kept.extend(in_place(old, new)),
            _ => added.push(Change::Add(Box::new(new.clone()))),
        }
    }
    difference.changes.extend(kept);
    difference.changes.extend(added);
    let daemon = [
        ("daemon.api", running.daemon.api != wanted.daemon.api),
        ("daemon.run_dir", running.daemon.run_dir != wanted.daemon.run_dir),
        ("daemon.state_dir", running.daemon.state_dir != wanted.daemon.state_dir),
        ("sidecores.cpus", running.sidecores.cpus != wanted.sidecores.cpus),
    ];
    for (name, differs) in daemon {
        if differs {
            difference.restart_needed.push(name.to_string());
        }
    }
    difference
}

/// Whether a front-end that is connected may stay.
fn changes_in_place(old: &DiskPlan, new: &DiskPlan) -> bool {
    let same_source = match (&old.source, &new.source) {
        (Source::Null { .. }, Source::Null { .. }) => true,
        (Source::Memory { .. }, Source::Memory { .. }) => true,
        (Source::File { path: a, cache: c, .. }, Source::File { path: b, cache: d, .. }) => {
            a == b && c == d
        }
        _ => false,
    };
    same_source
        && old.socket == new.socket
        && old.mode == new.mode
        && old.readonly == new.readonly
        && old.serial == new.serial
        && old.queues == new.queues
        && old.allow_unsealed_memory == new.allow_unsealed_memory
}

fn in_place(old: &DiskPlan, new: &DiskPlan) -> Vec<Change> {
    let mut changes = Vec::new();
    if (old.share, old.policy) != (new.share, new.policy) {
        let (id, share, policy) = (new.id.clone(), new.share, new.policy);
        changes.push(Change::Set { id, share, policy });
    }
    // A size that is no longer named leaves the image as it is.
    if let Some(size_bytes) = new.source.size_bytes()
        && old.source.size_bytes() != Some(size_bytes)
    {
        changes.push(Change::Resize { id: new.id.clone(), size_bytes });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{HostCpus, load};

    fn plan(text: &str, running: Option<&Plan>) -> Plan {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn words(difference: &Difference) -> Vec<String> {
        difference.changes.iter().map(Change::to_string).collect()
    }

    const BASE: &str = r#"
disk = [
    { id = "a", path = "/a.img" },
    { id = "b", backend = "memory", size = "1G" },
    { id = "c", path = "/c.img", size = "1G" },
    { id = "d", path = "/d.img" },
]
"#;

    #[test]
    fn the_same_file_changes_nothing_even_when_lines_moved() {
        let running = plan(BASE, None);
        let wanted = plan(&format!("\n\n# moved\n{BASE}"), Some(&running));
        assert_ne!(running.disks, wanted.disks);
        assert_eq!(diff(&running, &wanted), Difference::default());
    }

    #[test]
    fn removals_come_first_and_additions_last() {
        let running = plan(BASE, None);
        let text = r#"
sidecores.cpus = "0-1"
daemon.run_dir = "/elsewhere"
disk = [
    { id = "new", path = "/a.img" },
    { id = "b", backend = "memory", size = "2G", share = 7 },
    { id = "c", path = "/c.img" },
    { id = "d", path = "/d.img", queues = 2 },
]
"#;
        let difference = diff(&running, &plan(text, Some(&running)));
        assert_eq!(
            words(&difference),
            [
                "removed disk a",
                "removed disk d",
                "set disk b to share 7 and policy adaptive",
                "resized disk b to 2G",
                "added disk new",
                "added disk d",
            ]
        );
        assert_eq!(difference.restart_needed, ["daemon.run_dir", "sidecores.cpus"]);
    }

    #[test]
    fn disks_of_the_api_stay_and_follow_the_default_policy() {
        let mut running = plan(BASE, None);
        let spec =
            crate::DiskSpec { path: Some("/api.img".to_string()), ..crate::DiskSpec::new("made") };
        running.disks.push(running.disk_from_api(&spec).unwrap());
        let wanted = plan("sidecores.policy = \"poll\"", Some(&running));
        let difference = diff(&running, &wanted);
        assert_eq!(
            words(&difference),
            [
                "removed disk a",
                "removed disk b",
                "removed disk c",
                "removed disk d",
                "set disk made to share 100 and policy poll",
            ]
        );
    }
}
