//! What only a disk of another machine has: its link, its name there, and what was lost of it.
//!
//! Not here: what its requests do (`availability`), the asking (`disks`), nor how requests get there (`backend::link`).

use std::sync::Arc;
use std::time::Instant;

use backend::link::LinkKey;
use backend::{Disk, Grain, Limits, RemoteDisk};
use config::plan::{DiskPlan, Source};
use remote::wire::News;

use super::availability::{Availability, LogLine};
use super::features::Features;

/// A disk's part of its link.
pub(crate) struct RemoteParts {
    link: LinkKey,
    /// Its sidecore: that of the link.
    core: usize,
    /// Its name there.
    name: String,
    availability: Availability,
    /// Writes that were said to be done are gone: no flush succeeds, until an operator knows.
    is_lost: bool,
}

impl RemoteParts {
    /// Of a disk that is not asked for, whose link may be silent.
    pub(super) fn new(
        (link, core): (LinkKey, usize),
        name: &str,
        silent_since: Option<Instant>,
    ) -> RemoteParts {
        let (name, availability) = (name.to_string(), Availability::new(silent_since));
        RemoteParts { link, core, name, availability, is_lost: false }
    }

    /// Which disk it is, as marks say it.
    pub(crate) fn whose(plan: &DiskPlan) -> Option<String> {
        match &plan.source {
            Source::Remote { link, name } => Some(format!("{link}/{name}")),
            _ => None,
        }
    }

    pub(crate) fn link(&self) -> LinkKey {
        self.link
    }

    pub(crate) fn core(&self) -> usize {
        self.core
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    #[cfg(test)]
    pub(super) fn be_called(&mut self, name: &str) {
        self.name = name.to_string();
    }

    /// What its guest's requests do, and why.
    pub(crate) fn availability(&self) -> &Availability {
        &self.availability
    }

    pub(super) fn availability_mut(&mut self) -> &mut Availability {
        &mut self.availability
    }

    /// Its number on its link, while it is asked for.
    pub(super) fn number(&self) -> Option<u16> {
        self.availability.number()
    }

    /// Whether its link knows it, so that queues of it can be served.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.number().is_some()
    }

    /// What the log is to say of it, if it has not.
    pub(crate) fn take_news(&mut self, now: Instant) -> Option<LogLine> {
        self.availability.take_news(now)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Writes are gone, or an operator knows of that. Whether it was otherwise.
    pub(crate) fn set_lost(&mut self, is_lost: bool) -> bool {
        std::mem::replace(&mut self.is_lost, is_lost) != is_lost
    }

    /// The disk as its queues reach it, by its number, or none that anybody goes by.
    pub(super) fn disk(&self, news: &News, readonly: bool) -> Arc<Disk> {
        let features = Features::of_bits(news.features);
        Disk::remote(RemoteDisk {
            link: self.link,
            disk: self.number().unwrap_or(0),
            size_bytes: news.size,
            block_size: features.block_size,
            physical_block_size: features.physical_block_size,
            grain: Grain { discard: features.discard_bytes, ..Grain::default() },
            limits: Limits {
                discard_sectors_max: features.discard_sectors_max,
                zeroes_sectors_max: features.zeroes_sectors_max,
            },
            readonly: readonly || features.readonly,
        })
    }
}
