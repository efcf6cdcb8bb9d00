//! Images that were there once, by their paths: none of them is made anew, since it would hold nothing of what its guest
//! wrote. A disk that is new, or whose path is, gets a new one.
//!
//! Which are open is looked at after each turn in which something was opened or planned otherwise. Not here: how they are
//! kept (`super`), and when an image is made (`opening::open`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use config::Plan;
use config::plan::{DiskPlan, Origin};

/// Between two tries to keep them.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct SeenImages {
    paths: BTreeSet<String>,
    /// Something was added to them that is not kept yet.
    is_behind: bool,
    /// When it is looked at which are open, if that may be others.
    look_at: Option<Instant>,
    /// That they cannot be kept was said.
    is_told: bool,
}

impl SeenImages {
    /// What was kept of those of `plan`. Where a program kept nothing of that, the image of each disk that was made by
    /// command was there, and those on which guests were (`was_used`).
    pub(crate) fn of(
        kept: Option<Vec<String>>,
        plan: &Plan,
        was_used: impl Fn(&DiskPlan) -> bool,
    ) -> SeenImages {
        let was_there = |disk: &&DiskPlan| disk.origin == Origin::Api || was_used(disk);
        let before = || plan.disks.iter().filter(was_there).filter_map(path_of);
        let paths = kept.map_or_else(|| before().collect(), BTreeSet::from_iter);
        SeenImages { paths, ..SeenImages::default() }
    }

    /// Whether the image of that disk was there, as one of this plan: what was taken out of it in between is new.
    pub(crate) fn has(&self, disk: &DiskPlan, plan: &Plan) -> bool {
        let Some(path) = disk.source.path() else { return false };
        let has_it = |planned: &DiskPlan| planned.source.path() == Some(path);
        self.paths.contains(path) && plan.disks.iter().any(has_it)
    }

    /// The image of that disk was there, which is in no plan for a while, and is in this one again.
    pub(crate) fn add(&mut self, disk: &DiskPlan) {
        if let Some(path) = path_of(disk) {
            self.is_behind |= self.paths.insert(path);
        }
    }

    /// Those of the plan that were there, with those that are `open` now.
    pub(super) fn with(&self, open: &[&str], plan: &Plan) -> BTreeSet<String> {
        let before = self.paths.iter().map(String::as_str);
        let seen: BTreeSet<&str> = before.chain(open.iter().copied()).collect();
        let planned = plan.disks.iter().filter_map(path_of);
        planned.filter(|path| seen.contains(path.as_str())).collect()
    }

    /// These are kept now.
    pub(super) fn set(&mut self, paths: BTreeSet<String>) {
        self.paths = paths;
        self.is_told = false;
        self.is_behind = false;
    }

    /// Whether these are kept already.
    pub(super) fn are(&self, paths: &BTreeSet<String>) -> bool {
        !self.is_behind && self.paths == *paths
    }

    /// Something was opened, or is planned otherwise.
    pub(crate) fn look_again(&mut self, now: Instant) {
        self.look_at = Some(now);
    }

    /// When it is looked at which are open.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Whether that is to be done now, once.
    #[must_use]
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        self.look_at.take_if(|at| *at <= now).is_some()
    }

    /// They could not be kept, which is tried again. Whether that is news.
    pub(crate) fn not_kept(&mut self, now: Instant) -> bool {
        self.look_at = Some(now + INTERVAL);
        !std::mem::replace(&mut self.is_told, true)
    }
}

fn path_of(disk: &DiskPlan) -> Option<String> {
    disk.source.path().map(str::to_string)
}
