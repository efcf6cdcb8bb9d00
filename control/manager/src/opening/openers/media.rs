//! Which file system or device answers for an image, as far as that is known without asking it.
//!
//! Not here: how that is found (`names`). Called by `openers` and `watch`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use names::{Medium, Mounts};

/// What was found of paths is forgotten then: links may lead elsewhere.
const FORGET: Duration = Duration::from_secs(60);
/// The same when there are more: no daemon has so many disks.
const KNOWN_MAX: usize = 16_384;

/// What was found of paths so far.
#[derive(Default)]
pub(super) struct Media {
    mounts: Option<Mounts>,
    known: HashMap<PathBuf, Medium>,
    since: Option<Instant>,
}

impl Media {
    /// With the table of mounts, which takes a descriptor.
    pub(super) fn new() -> Media {
        Media { mounts: Some(Mounts::read()), ..Media::default() }
    }

    /// What answers for a path.
    pub(super) fn of(&mut self, path: &Path, now: Instant) -> Medium {
        let mounts = self.mounts.get_or_insert_with(Mounts::read);
        let is_young = |at: Instant| now.saturating_duration_since(at) < FORGET;
        let is_kept = self.since.is_some_and(is_young) && self.known.len() < KNOWN_MAX;
        if mounts.follow() || !is_kept {
            self.known.clear();
            self.since = Some(now);
        }
        if let Some(medium) = self.known.get(path) {
            return medium.clone();
        }
        let medium = mounts.medium_of(path);
        self.known.insert(path.to_path_buf(), medium.clone());
        medium
    }
}
