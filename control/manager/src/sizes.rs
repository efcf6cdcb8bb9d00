//! What the size of a disk may become: what its medium can have, and what its guest would lose or meet.
//!
//! Called by a reload and for operators who resize.

use std::sync::Arc;

use backend::{Disk, Source as Image};
use config::api::{ApiError, ErrorKind};
use config::plan::{DevicePlan, DiskPlan};
use config::{Change, Size};

use crate::bounds::Bounds;
use crate::devices::Devices;
use crate::disk::images::{self, source_of};
use crate::in_use::InUse;
use crate::insist::INSIST;
use crate::opening::openers::Openers;
use crate::remote::Remote;
use misfit::Misfit;

pub(crate) mod misfit;

/// What is asked to judge a size.
pub(crate) struct Sizes<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) remote: &'a Remote,
    pub(crate) openers: &'a mut Openers,
    pub(crate) bounds: &'a Bounds,
}

/// What a disk has, and what its image has.
pub(crate) struct Own {
    pub(crate) has: u64,
    pub(crate) own: u64,
}

impl Sizes<'_> {
    /// What a disk has, and its image; nothing of one whose image is not open here.
    ///
    /// # Errors
    /// Its file system does not answer.
    pub(crate) fn own(&mut self, id: &str) -> Result<Option<Own>, ApiError> {
        let disk = self.devices.number_of(id).and_then(|number| self.devices.disk(number));
        let Some(disk) = disk.filter(|disk| disk.remote.is_none()) else { return Ok(None) };
        let (image, disk) = (source_of(&disk.plan), Arc::clone(&disk.disk));
        let has = disk.size_bytes();
        let own = self.openers.aside(image, move || disk.own_bytes()).map_err(|_| {
            let error = format!("disk {id:?}: its file system does not answer");
            ApiError::new(ErrorKind::Busy, error, "ask again; nothing was changed")
        })?;
        Ok(own.map(|own| Own { has, own }))
    }

    /// Refuses a size that the disk's medium cannot have; without `force` also a smaller one under a guest, and more
    /// than the whole file system.
    pub(crate) fn check(&mut self, id: &str, size: u64, force: bool) -> Result<(), ApiError> {
        let Some((has, holds)) = self.look_at_sizes(id, size)? else { return Ok(()) };
        if force {
            return Ok(());
        }
        let in_use = InUse { devices: self.devices, remote: self.remote };
        if size < has && in_use.has_guest(id) {
            let error = format!(
                "a guest uses disk {id:?}, which has {} and would have {}: it loses what is behind",
                Size(has),
                Size(size)
            );
            let hint = format!(
                "make its file systems and partitions smaller and stop it first; {INSIST} does it all the same"
            );
            return Err(ApiError::new(ErrorKind::Conflict, error, hint));
        }
        Misfit::of_resize(id, size, has, holds).map_or(Ok(()), |misfit| Err(misfit.refusal()))
    }

    /// What a disk has, and what its medium holds, if that is known. Nothing of a disk that is not here.
    ///
    /// # Errors
    /// It cannot have that size.
    fn look_at_sizes(
        &mut self,
        id: &str,
        size: u64,
    ) -> Result<Option<(u64, Option<u64>)>, ApiError> {
        let disk = self.devices.number_of(id).and_then(|number| self.devices.disk(number));
        let Some(disk) = disk.filter(|disk| disk.remote.is_none()) else { return Ok(None) };
        let (plan, disk) = (disk.plan.clone(), Arc::clone(&disk.disk));
        let has = disk.size_bytes();
        let before = DevicePlan::Disk(plan.clone());
        let mut after = plan.clone();
        after.resized(size);
        let promised = self.bounds.promise_instead(&before, &DevicePlan::Disk(after));
        drop(promised.map_err(|why| {
            let error = format!("disk {id:?}: {why}");
            ApiError::new(ErrorKind::Refused, error, "the disk is as it was")
        })?);
        let holds = self.look_at_size(plan, disk, size).map_err(|(kind, why)| {
            ApiError::new(kind, format!("disk {id:?}: {why}"), "the disk is as it was")
        })?;
        Ok(Some((has, holds)))
    }

    /// How much the medium of a disk holds, if that is known, and that it can have that size. A file system is asked
    /// by a thread that may wait.
    fn look_at_size(
        &mut self,
        plan: DiskPlan,
        disk: Arc<Disk>,
        size: u64,
    ) -> Result<Option<u64>, (ErrorKind, String)> {
        let image = source_of(&plan);
        let is_file = matches!(image, Image::File { .. });
        let look = move || {
            let wrong = images::lost_its_name(&plan, &disk);
            let wrong = wrong.or_else(|| disk.check_size(size).err().map(|why| why.to_string()));
            wrong.map_or_else(|| Ok(disk.medium_bytes()), |why| Err((ErrorKind::Refused, why)))
        };
        if !is_file {
            return look();
        }
        let late = |_| (ErrorKind::Busy, "its file system does not answer; ask again".to_string());
        self.openers.aside(image, look).map_err(late)?
    }

    /// The same for every disk whose size a reload changes. What a guest would lose is not of this part, and those that
    /// only an operator who insists makes so long are given.
    ///
    /// # Errors
    /// The first that cannot have its size.
    pub(crate) fn check_changes(&mut self, changes: &[Change]) -> Result<Vec<Misfit>, ApiError> {
        let mut misfits = Vec::new();
        for change in changes {
            let Change::Resize { id, size_bytes } = change else { continue };
            let looked = self.look_at_sizes(id, *size_bytes).map_err(|refused| {
                let hint = "correct `size` and reload again; nothing was changed";
                ApiError::new(refused.kind, refused.error, hint)
            })?;
            if let Some((has, holds)) = looked {
                misfits.extend(Misfit::of_resize(id, *size_bytes, has, holds));
            }
            let disk = self.devices.number_of(id).and_then(|number| self.devices.disk(number));
            if disk.is_some_and(|disk| disk.resizing.is_some()) {
                let error = format!("disk {id:?} is being resized");
                return Err(ApiError::new(ErrorKind::Busy, error, "try again in a moment"));
            }
        }
        Ok(misfits)
    }
}

#[cfg(test)]
mod tests;
