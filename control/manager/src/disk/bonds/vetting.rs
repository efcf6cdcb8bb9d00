//! What is known of an image before it is opened: whether it may be of another format than raw.

use backend::{Disk, OpenError, Vet};
use config::plan::DiskPlan;
use config::spec::Format;

use super::{Bond, Bonds, Remembered};
use crate::disk::image::Found;
use crate::disk::images::{ImageNames, source_of};

/// What is known of an image before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Vetting {
    pub(crate) vet: Vet,
    remembered: (Remembered, bool),
    boot: String,
}

impl Vetting {
    /// It is raw, whatever it begins with.
    #[cfg(test)]
    pub(crate) fn none() -> Vetting {
        Vetting { vet: Vet::Raw, remembered: (Remembered::Nothing, true), boot: String::new() }
    }

    /// Of the disk that `plan` has. `was_used`: it was taken before, so far as is known.
    pub(crate) fn of(plan: &DiskPlan, bonds: &Bonds, was_used: bool) -> Vetting {
        let remembered = bonds.of(&plan.id, &plan.socket);
        let vet = match (plan.format, &remembered.0) {
            (Some(Format::Raw), _) => Vet::Raw,
            (None, Remembered::Unreadable(_)) => Vet::Used,
            (None, _) if was_used => Vet::Used,
            (None, _) => Vet::Unknown,
        };
        Vetting { vet, remembered, boot: bonds.boot().to_string() }
    }

    /// What `open` makes of the image of the disk that `plan` has, whose guest may have made what it begins with.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn vetted<T>(
        &self,
        plan: &DiskPlan,
        open: impl Fn(Vet) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        match open(self.vet) {
            Err(OpenError::Foreign { .. }) if self.is_known(plan) => open(Vet::Raw),
            opened => opened,
        }
    }

    /// Whether the guest of that disk was on what is there.
    fn is_known(&self, plan: &DiskPlan) -> bool {
        let there = Disk::look(&source_of(plan), &ImageNames::of(plan), Vet::Raw);
        there.is_ok_and(|there| {
            Bond::new(Found::of(&there, plan, &self.boot), self.remembered.clone()).is_known()
        })
    }
}
