//! What only a disk has: its plan, what it is made of, and whether it still holds its data.
//!
//! Not here: its socket, front-ends and queues (`device`). Called by `shut`, which opens it, and by
//! whoever asks a device what it is.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use backend::{Astray, Cache, Disk, Handles, Inherited, OpenError, Source, Vet};
use config::plan::DiskPlan;
use config::spec::Format;
use device::blk::{Limits, Live, Shape};

use crate::device::{Link, QueueState};
use crate::follow::Stand;
use crate::image::{Found, Verdict};
use crate::images::{Bond, Images, Remembered};
use crate::remote::RemoteParts;
use crate::shut::NotOpen;
use crate::start;

/// A disk that is open.
pub(crate) struct DiskParts {
    pub(crate) plan: DiskPlan,
    pub(crate) disk: Arc<Disk>,
    pub(crate) shape: Shape,
    pub(crate) live: Arc<Live>,
    /// Where its locks are, if they follow its rings.
    pub(crate) stand: Option<Stand>,
    /// It held nothing when it was opened first ([`Disk::was_empty`]), and nobody has used it since.
    pub(crate) was_empty: bool,
    /// Which image its guest is on.
    pub(crate) bond: Bond,
    /// What others have done to its image, as far as that was seen.
    pub(crate) astray: Option<Astray>,
    /// A new size, for when its queues are back.
    pub(crate) resizing: Option<u64>,
    /// What it has of a link, if another machine has it.
    pub(crate) remote: Option<RemoteParts>,
}

/// Whether a ring may be served, as far as the image goes.
pub(crate) enum Admission {
    /// It may.
    Served(Verdict),
    /// What its guest wrote is gone.
    Lost(String),
    /// Its guest was on another image, and waits.
    Other(String),
}

impl DiskParts {
    /// Opens what the disk is made of.
    ///
    /// # Errors
    /// Why it cannot be opened and what to do.
    pub(crate) fn open(plan: DiskPlan, images: &Images) -> Result<DiskParts, NotOpen> {
        let source = source_of(&plan);
        let remembered = images.of(&plan.id);
        // Readers keep no reader out, so their locks need not follow anything.
        let follows = plan.migratable && !plan.readonly;
        let open = |vet: Vet| match Disk::open_vetted(&source, vet) {
            Err(OpenError::Held { holder, .. }) if follows && !holder.is_this_process() => {
                Disk::look(&source, vet)
            }
            opened => opened,
        };
        let is_told = plan.format == Some(Format::Raw);
        let mut disk = match open(if is_told { Vet::Raw } else { Vet::Unknown }) {
            // Its guest may have made what it begins with.
            Err(OpenError::Foreign { .. })
                if Disk::look(&source, Vet::Raw).is_ok_and(|disk| {
                    let found = Found::of(&disk, &plan, images.boot());
                    Bond::new(found, remembered.clone()).is_known()
                }) =>
            {
                open(Vet::Raw)
            }
            opened => opened,
        }
        .map_err(|e| NotOpen::new(&e, &plan))?;
        let was_empty = disk.was_empty();
        if follows {
            disk = disk.away();
        }
        Ok(DiskParts::of(plan, disk, was_empty).bound(remembered, images))
    }

    /// The same disk with what is remembered of its guest's image.
    pub(crate) fn bound(mut self, remembered: Remembered, images: &Images) -> DiskParts {
        self.bond = Bond::new(Found::of(&self.disk, &self.plan, images.boot()), remembered);
        self
    }

    /// Takes over what another process had open, or only knew of.
    ///
    /// # Errors
    /// It is not of such a disk.
    pub(crate) fn inherit(
        plan: DiskPlan,
        facts: &Inherited,
        handles: Handles<OwnedFd>,
        images: &Images,
    ) -> Result<DiskParts, NotOpen> {
        let disk = Disk::inherit(&source_of(&plan), facts, handles);
        let disk = disk.map_err(|error| NotOpen::Wrong(error.to_string()))?;
        let remembered = images.of(&plan.id);
        Ok(DiskParts::of(plan, disk, facts.was_empty).bound(remembered, images))
    }

    fn of(plan: DiskPlan, disk: Arc<Disk>, was_empty: bool) -> DiskParts {
        let follows = plan.migratable && !plan.readonly;
        let limits = disk.limits();
        let shape = Shape {
            block_size: disk.block_size(),
            physical_block_exp: exponent_of(disk.physical_block_size(), disk.block_size()),
            readonly: plan.readonly,
            queues: plan.queues,
            serial: plan.serial_bytes(),
            limits: Limits {
                discard_sectors_max: limits.discard_sectors_max,
                zeroes_sectors_max: limits.zeroes_sectors_max,
            },
            in_order: disk.answers_at_once(),
        };
        let live = Live::new(disk.size_bytes());
        let stand = if disk.is_away() { Stand::Away(None) } else { Stand::Here };
        let stand = follows.then_some(stand);
        DiskParts {
            plan,
            disk,
            shape,
            live,
            stand,
            was_empty,
            bond: Bond::default(),
            astray: None,
            resizing: None,
            remote: None,
        }
    }

    /// Whether it could not make data stable, here or at its IOhost, and no operator has said yet that he knows.
    pub(crate) fn sync_failed(&self) -> bool {
        self.disk.sync_failed() || self.remote.as_ref().is_some_and(|remote| remote.is_lost)
    }

    /// What a mark of that says of the disk besides its name: its image, or which one of which link.
    pub(crate) fn marked_as(&self) -> Option<String> {
        let image = self.plan.source.path().map(str::to_string);
        image.or_else(|| RemoteParts::whose(&self.plan))
    }

    /// One that another machine has.
    pub(crate) fn of_remote(plan: DiskPlan, disk: Arc<Disk>, remote: RemoteParts) -> DiskParts {
        let readonly = disk.is_readonly();
        let mut parts = DiskParts::of(plan, disk, false);
        parts.shape.readonly |= readonly;
        parts.remote = Some(remote);
        parts
    }

    /// Opens it once more as `plan` has it, with its locks. An image that is gone is not made anew.
    ///
    /// # Errors
    /// Why it cannot be opened and what to do.
    pub(crate) fn open_again(&self, plan: &DiskPlan) -> Result<Arc<Disk>, NotOpen> {
        if let Some(path) = plan.source.path().filter(|path| !Path::new(path).exists()) {
            return Err(NotOpen::Wrong(format!("{path} is missing: put it back")));
        }
        // What it begins with is its guest's: it was vetted when it was taken first.
        let disk = Disk::open(&source_of(plan)).map_err(|e| NotOpen::new(&e, plan))?;
        // Front-ends were told of the one that was there when the daemon started.
        match disk.answers_at_once() == self.shape.in_order {
            true => Ok(disk),
            false => {
                let path = plan.source.path().unwrap_or_default();
                let why = format!(
                    "{path} is on another kind of file system than before: restart \
                                   the daemon, or put it back"
                );
                Err(NotOpen::Wrong(why))
            }
        }
    }

    /// Whether a ring of front-end `link`, whose number is `number`, may be served.
    ///
    /// A guest whose driver was running is served from its own image alone. It must not be handed the
    /// zeroes of a disk that was empty when it was opened (a RAM disk, an image that was missing), nor
    /// another image, through no ring, until it starts anew.
    pub(crate) fn admits(&self, queues: &[QueueState], number: u32, link: &Link) -> Admission {
        let was_running = was_running(queues, link);
        let verdict = self.bond.judge(&self.plan.id, number, was_running);
        let is_lost = self.was_empty && was_running;
        match verdict {
            // An image that was missing was made anew in its place.
            Verdict::Other(_) if is_lost && self.bond.has_same_name() => {
                Admission::Lost(self.lost_by())
            }
            Verdict::Other(why) => Admission::Other(why),
            _ if is_lost => Admission::Lost(self.lost_by()),
            verdict => Admission::Served(verdict),
        }
    }

    /// What a guest is told whose disk holds nothing of what it wrote.
    fn lost_by(&self) -> String {
        match self.plan.source.path() {
            None => {
                "its guest used this RAM disk before the daemon was started, or in another daemon, and \
                     what it wrote is not here: restart the guest"
                    .to_string()
            }
            Some(path) => format!(
                "its guest used this disk before the daemon was started, and {path} was missing or \
                 empty then: stop the daemon, put the image back and start it; or restart the guest \
                 with the empty one"
            ),
        }
    }
}

/// Whether some ring of a front-end, enabled or not, was served before, and not as this device: its driver
/// counts on what it wrote.
fn was_running(queues: &[QueueState], link: &Link) -> bool {
    let was_used = |(index, queue): (usize, &QueueState)| {
        let facts = link.session.set_up(index as u16).filter(|_| !queue.was_attached);
        let features = link.session.features();
        facts.is_some_and(|facts| start::was_used(&facts, features, &link.front_end))
    };
    queues.iter().enumerate().any(was_used)
}

/// What the back-end is asked to open.
fn source_of(plan: &DiskPlan) -> Source {
    match &plan.source {
        // Whoever opens one asks its link (`remote`), and never comes here.
        config::Source::Remote { .. } => Source::Null { size_bytes: 0 },
        config::Source::Null { size_bytes } => Source::Null { size_bytes: *size_bytes },
        config::Source::Memory { size_bytes } => Source::Memory { size_bytes: *size_bytes },
        config::Source::File { path, size_bytes, cache } => Source::File {
            path: path.into(),
            size_bytes: *size_bytes,
            readonly: plan.readonly,
            cache: match cache {
                config::spec::Cache::Auto => Cache::Auto,
                config::spec::Cache::Direct => Cache::Direct,
                config::spec::Cache::Page => Cache::Page,
            },
        },
    }
}

/// The power of two by which the physical block is larger than the logical one.
fn exponent_of(physical: u32, logical: u32) -> u8 {
    physical.checked_div(logical).and_then(u32::checked_ilog2).unwrap_or(0) as u8
}
