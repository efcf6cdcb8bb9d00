//! What only a disk has: its plan, what it is made of, and whether it still holds its data.
//!
//! Not here: its socket, front-ends and queues (`device`). Called by `opening`, which opens it, and by
//! whoever asks a device what it is.

pub(crate) mod bonds;
pub(crate) mod failures;
pub(crate) mod image;
pub(crate) mod images;
pub(crate) mod locks;
pub(crate) mod looks;
mod parting;
pub(crate) mod staging;
pub(crate) mod stalls;
pub(crate) mod sync;
pub(crate) mod unsynced;
pub(crate) mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use backend::{Astray, Disk, Handles, Inherited};
use config::Size;
use config::api::{ApiError, ErrorKind};
use config::plan::DiskPlan;
use control::disk::DiskLocks;
use device::blk::{Limits, Live, Shape, Topology};

use crate::disk::bonds::{Bond, Bonds, Vetting};
use crate::disk::failures::Failures;
use crate::disk::image::{Found, ImageRefused, Verdict};
use crate::disk::images::{FileId, source_of, waits_of};
use crate::disk::parting::Unbegun;
use crate::disk::staging::Staging;
use crate::disk::stalls::Said;
use crate::disk::sync::DiskSync;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::{Opened, Openers, Outcome, Patience, Purpose};
use crate::remote::parts::RemoteParts;

/// Image that does not serve a disk as its plan has it.
#[derive(Debug, thiserror::Error)]
enum DiskError {
    /// Size that is not a multiple of the guest's blocks.
    #[error(
        "it has {size_bytes} bytes, which are not whole blocks of {block_size}: make the image longer, write \
         `size` ({} leaves the rest out), or `block_size = 512`",
        size_bytes / u64::from(*block_size) * u64::from(*block_size)
    )]
    Size { size_bytes: u64, block_size: u32 },
    /// Blocks of the image that are larger than the guest's.
    #[error(
        "past the page cache its image takes whole blocks of {least} bytes alone, and its guest would ask for \
         {block_size}: write `block_size = {least}` if the guest was made for that, or `cache = \"auto\"`"
    )]
    Blocks { least: u32, block_size: u32 },
    /// File system that answers otherwise than the one before.
    #[error(
        "{0} is on another kind of file system than before: restart the daemon, or put it back"
    )]
    FileSystem(String),
}

/// A disk that is open.
pub(crate) struct DiskParts {
    pub(crate) plan: DiskPlan,
    pub(crate) disk: Arc<Disk>,
    pub(crate) shape: Shape,
    pub(crate) live: Arc<Live>,
    /// Where its locks are. While they are not here, nothing of its image is open in `disk`.
    pub(crate) locks: DiskLocks<DiskSync, NotOpen>,
    /// It held nothing when it was opened first ([`Disk::was_empty`]), and nobody has used it since.
    pub(crate) was_empty: bool,
    /// Its image was missing and was made, and nobody was told of that yet: it goes again if nothing comes of the disk.
    pub(crate) made: Option<FileId>,
    /// Which image its guest is on.
    pub(crate) bond: Box<Bond>,
    /// How far its stages are with its queues.
    pub(crate) staging: Box<Staging>,
    /// What others have done to its image, as far as that was seen.
    pub(crate) astray: Option<Astray>,
    /// What was said last of requests that wait.
    pub(crate) stall_said: Option<Box<Said>>,
    /// What was seen of errors that its guest was given.
    pub(crate) failures: Box<Failures>,
    /// A new size, for when its queues are back.
    pub(crate) resizing: Option<u64>,
    /// Why it has not the size that the file says.
    pub(crate) unresized: Option<String>,
    /// Its plan's size waits for the image.
    is_size_late: bool,
    /// Why what was written cannot begin to be made stable.
    pub(crate) unbegun: Option<Box<Unbegun>>,
    /// Which file its image was when that was opened last.
    pub(crate) file: Option<FileId>,
    /// It has lost data, as is known here, and its image is not open: it was given up, or may be elsewhere, and known to
    /// nobody there.
    pub(crate) lost_before: bool,
    /// That its image could not be marked was said.
    pub(crate) unmarked_said: bool,
    /// What it has of a link, if another machine has it.
    pub(crate) remote: Option<RemoteParts>,
}

/// Whether a ring may be served, as far as the image goes.
pub(crate) enum Admission {
    /// It may.
    Served(Verdict),
    /// What its guest wrote is gone.
    Lost(ImageRefused),
    /// Its guest was on another image, and waits.
    Other(ImageRefused),
}

impl DiskParts {
    /// That a disk of so many bytes is whole sectors and blocks.
    ///
    /// # Errors
    /// What it is not, and what to give instead.
    pub(crate) fn check_size(&self, bytes: u64) -> Result<(), ApiError> {
        let refuse =
            |error: String, hint: String| Err(ApiError::new(ErrorKind::Refused, error, hint));
        let such_as = |unit: u64| {
            let up = bytes.max(1).checked_next_multiple_of(unit).unwrap_or(unit);
            format!("make it a multiple of {unit}, such as {up}")
        };
        if bytes == 0 {
            return refuse("0 bytes are no disk".to_string(), such_as(512));
        }
        if !bytes.is_multiple_of(512) {
            let error = format!("{bytes} bytes are not whole sectors");
            return refuse(error, such_as(512));
        }
        let block_size = self.shape.block_size;
        if !bytes.is_multiple_of(block_size.into()) {
            let error = format!("{bytes} bytes are not whole blocks of {block_size}");
            return refuse(error, such_as(block_size.into()));
        }
        Ok(())
    }

    /// Opens what the disk is made of. With `is_kept` an image that is missing is not made. With `is_lost` one whose locks
    /// follow its guest keeps them: data was lost in it.
    ///
    /// # Errors
    /// Why it cannot be opened and what to do, and which file it is, if that is known.
    pub(crate) fn open(
        plan: DiskPlan,
        (is_kept, is_lost): (bool, bool),
        bonds: &Bonds,
        openers: &mut Openers,
        patience: Patience,
    ) -> Result<DiskParts, (NotOpen, Option<FileId>)> {
        let path = plan.source.path().unwrap_or_default();
        let is_again = patience == Patience::Again;
        let (purpose, vetting) = DiskParts::order(&plan, (is_kept, is_lost), bonds, is_again);
        let (disk, file) = match openers.open(&plan, (purpose, is_kept), vetting, patience) {
            Outcome::Over(disk, file) => (disk, file),
            Outcome::Missing { is_device } => {
                return Err((NotOpen::Wrong(images::is_gone(&plan, is_device)), None));
            }
            Outcome::GivenUp(why) => return Err((NotOpen::Wrong(why), None)),
            Outcome::Unfit(misfit) => return Err((NotOpen::Unfit(misfit), None)),
            Outcome::NotYet(why) => return Err((NotOpen::not_yet(why, path), None)),
        };
        let opened = disk.map_err(|error| (NotOpen::new(&error, &plan), file))?;
        let Opened { disk, was_empty, made } = opened;
        if let Err(why) = check_blocks(&plan, &disk) {
            openers.undo(&plan, disk, made, None);
            return Err((NotOpen::wrong(why), file));
        }
        Ok(DiskParts { file, made, ..DiskParts::of(plan, disk, was_empty) }.bound(bonds))
    }

    /// Has its image opened, and waits for nothing: [`Self::open`] is to be asked for it, with nothing changed. With
    /// `fits` it is not, where it does not fit the disk's size. Gives how long that is worth waiting for; nothing: it is
    /// to be asked now.
    pub(crate) fn begin(
        plan: &DiskPlan,
        fits: bool,
        bonds: &Bonds,
        openers: &mut Openers,
    ) -> Option<Duration> {
        let (purpose, vetting) = DiskParts::order(plan, (false, false), bonds, false);
        openers.begin(plan, (purpose, false, fits), vetting)
    }

    fn order(
        plan: &DiskPlan,
        (is_kept, is_lost): (bool, bool),
        bonds: &Bonds,
        is_again: bool,
    ) -> (Purpose, Vetting) {
        let was_used = is_kept || bonds.may_have_missed(is_again);
        let purpose = if follows(plan) { Purpose::Follow { is_lost } } else { Purpose::Have };
        (purpose, Vetting::of(plan, bonds, was_used))
    }

    /// The same disk with what is remembered of its guest's image.
    pub(crate) fn bound(mut self, bonds: &Bonds) -> DiskParts {
        let found = Found::of(&self.disk, &self.plan, bonds.boot());
        self.bond = Box::new(Bond::new(found, bonds.of(&self.plan.id, &self.plan.socket)));
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
        bonds: &Bonds,
    ) -> Result<DiskParts, NotOpen> {
        let disk = Disk::inherit(&source_of(&plan), facts, handles);
        let disk = disk.map_err(|error| NotOpen::Wrong(error.to_string()))?;
        let file = disk.file_id().or_else(|| images::file_of(&plan));
        Ok(DiskParts { file, ..DiskParts::of(plan, disk, facts.was_empty) }.bound(bonds))
    }

    fn of(plan: DiskPlan, disk: Arc<Disk>, was_empty: bool) -> DiskParts {
        let limits = disk.limits();
        let block_size = plan.block_size.unwrap_or_else(|| disk.block_size());
        let shape = Shape {
            block_size,
            physical_block_exp: exponent_of(disk.physical_block_size(), block_size),
            topology: topology_of(&disk, block_size),
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
        // Those of one that does not follow its guest may be away, too: another process was waiting for them.
        let locks = DiskLocks::new(follows(&plan), disk.is_away());
        let (bond, astray) = (Box::default(), None);
        let (stall_said, resizing, unresized, unbegun, remote) = (None, None, None, None, None);
        let is_size_late = false;
        let (file, made) = (None, None);
        let (lost_before, unmarked_said) = (false, false);
        let failures = Box::new(Failures::from(disk.faults()));
        DiskParts {
            plan,
            disk,
            shape,
            live,
            locks,
            was_empty,
            made,
            bond,
            staging: Box::default(),
            astray,
            stall_said,
            failures,
            resizing,
            unresized,
            is_size_late,
            unbegun,
            lost_before,
            unmarked_said,
            remote,
            file,
        }
    }

    /// Whether it could not make data stable, here or at its IOhost, and no operator has said yet that he knows.
    pub(crate) fn sync_failed(&self) -> bool {
        self.disk.sync_failed()
            || self.lost_before
            || self.remote.as_ref().is_some_and(RemoteParts::is_lost)
    }

    /// It has lost data, as somebody says who had it before.
    pub(crate) fn assume_lost(&mut self) {
        self.disk.assume_sync_failed();
        self.lost_before = self.disk.is_away();
    }

    /// What a mark of that says of the disk besides its name: its image, or which one of which link.
    pub(crate) fn marked_as(plan: &DiskPlan) -> Option<String> {
        let image = plan.source.path().map(str::to_string);
        image.or_else(|| RemoteParts::whose(plan))
    }

    /// Its plan is another from here on. A size that waits for its image does so on, if that plan has it, too.
    pub(crate) fn set_plan(&mut self, plan: &DiskPlan) {
        let (before, size) = (self.plan.source.size_bytes(), plan.source.size_bytes());
        if before != size || size == Some(self.disk.size_bytes()) {
            (self.unresized, self.is_size_late) = (None, false);
        }
        self.plan.clone_from(plan);
        self.disk.set_waits(waits_of(plan));
    }

    /// The size of its plan is given when its image, which was given up, is here. Whether it is not here.
    pub(crate) fn resize_late(&mut self, size: Size) -> bool {
        self.is_size_late = self.locks.is_fenced();
        if self.is_size_late {
            let has = Size(self.disk.size_bytes());
            let why = "it waits for its image, and has that size then";
            self.unresized = Some(format!("it has {has} and not {size}: {why}"));
        }
        self.is_size_late
    }

    /// The size that has waited for the image, which is here.
    pub(crate) fn take_late_size(&mut self) -> Option<Size> {
        if !self.locks.is_here() || !std::mem::take(&mut self.is_size_late) {
            return None;
        }
        self.unresized = None;
        self.plan.source.size_bytes().or(self.disk.image_bytes()).map(Size)
    }

    /// What it is opened by when it was given up: of the size that whoever has it was told.
    pub(crate) fn plan_as_given_up(&self) -> DiskPlan {
        let mut plan = self.plan.clone();
        if self.locks.is_fenced() && plan.source.size_bytes().is_some() {
            plan.resized(self.disk.size_bytes());
        }
        plan
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
    pub(crate) fn open_again(
        &self,
        plan: &DiskPlan,
        bonds: &Bonds,
        openers: &mut Openers,
        patience: Patience,
    ) -> Result<Arc<Disk>, NotOpen> {
        let path = plan.source.path().unwrap_or_default();
        let vetting = Vetting::of(plan, bonds, true);
        let (anchor, how) = (self.disk.anchor(), (Purpose::Have, true));
        let disk = match openers.open_by(anchor, plan, how, vetting, patience) {
            Outcome::Over(opened, _) => {
                opened.map(|opened| opened.disk).map_err(|error| NotOpen::new(&error, plan))?
            }
            Outcome::Missing { is_device } => {
                return Err(NotOpen::Wrong(images::is_away(plan, is_device)));
            }
            Outcome::GivenUp(why) => return Err(NotOpen::Wrong(why)),
            Outcome::Unfit(misfit) => return Err(NotOpen::Unfit(misfit)),
            Outcome::NotYet(why) => return Err(NotOpen::not_yet(why, path)),
        };
        // Front-ends were told of the one that was there when the daemon started.
        let is_alike = disk.answers_at_once() == self.shape.in_order;
        let fits = check_blocks(plan, &disk).and_then(|()| match is_alike {
            true => Ok(()),
            false => Err(DiskError::FileSystem(path.to_string())),
        });
        if let Err(why) = fits {
            openers.let_go(plan, disk, None);
            return Err(NotOpen::wrong(why));
        }
        Ok(disk)
    }

    /// Whether a ring of front-end `connection` may be served. `was_running`: its driver was served before, and not as
    /// this device; `comes_back`: it is the guest that was served last.
    ///
    /// A guest whose driver was running is served from its own image alone. It must not be handed the
    /// zeroes of a disk that was empty when it was opened (a RAM disk, an image that was missing), nor
    /// another image, through no ring, until it starts anew.
    pub(crate) fn admits(
        &self,
        connection: u32,
        was_running: bool,
        comes_back: impl FnOnce(&Bond) -> bool,
    ) -> Admission {
        let verdict = self.bond.judge(&self.plan.id, connection, was_running);
        let is_lost = self.was_empty && was_running;
        // Who starts anew is to have what the path names: what is open may have no name any more, and be another's. That
        // it does is not for its guest to say, whose rings are what it writes.
        let is_astray = self.astray == Some(Astray::Replaced);
        if is_astray && !self.bond.has_served(connection) && !comes_back(&self.bond) {
            return Admission::Other(self.names_another());
        }
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

    /// What a guest is told that would have what its disk's path names, and not what is open.
    pub(crate) fn names_another(&self) -> ImageRefused {
        let path = self.plan.source.path().unwrap_or_default().to_string();
        ImageRefused::Replaced { path }
    }

    /// What a guest is told whose disk holds nothing of what it wrote.
    fn lost_by(&self) -> ImageRefused {
        match self.plan.source.path() {
            None => ImageRefused::MemoryLost,
            Some(path) => ImageRefused::WasEmpty { path: path.to_string() },
        }
    }
}

/// Whether its locks follow its rings. Readers keep no reader out, so theirs need not.
pub(crate) fn follows(plan: &DiskPlan) -> bool {
    plan.migratable && !plan.readonly
}

/// That a guest's blocks fit the disk.
fn check_blocks(plan: &DiskPlan, disk: &Disk) -> Result<(), DiskError> {
    let block_size = plan.block_size.unwrap_or_else(|| disk.block_size());
    let (size_bytes, least) = (disk.size_bytes(), disk.blocks_only());
    if !size_bytes.is_multiple_of(block_size.into()) {
        return Err(DiskError::Size { size_bytes, block_size });
    }
    if least > block_size {
        return Err(DiskError::Blocks { least, block_size });
    }
    Ok(())
}

/// How requests of the disk are best cut, in a guest's blocks. What does not fit is not told.
fn topology_of(disk: &Disk, block_size: u32) -> Topology {
    let grain = disk.grain();
    let blocks = |bytes: u32| if bytes.is_multiple_of(block_size) { bytes / block_size } else { 0 };
    Topology {
        alignment_offset: u8::try_from(blocks(grain.alignment_offset)).unwrap_or(0),
        io_min: u16::try_from(blocks(grain.io_min)).unwrap_or(0),
        io_best: blocks(grain.io_best),
        discard_sectors: blocks(grain.discard) * (block_size / 512),
    }
}

/// The power of two by which the physical block is larger than the logical one.
fn exponent_of(physical: u32, logical: u32) -> u8 {
    physical.checked_div(logical).and_then(u32::checked_ilog2).unwrap_or(0) as u8
}
