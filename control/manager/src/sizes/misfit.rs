//! A size that only an operator who insists gives a disk: its image has more, or its file system has less.
//!
//! Not here: who looks at images (`opening`), nor what a guest loses (`in_use`).

use std::fmt;

use backend::Disk;
use config::api::{ApiError, ErrorKind};
use config::plan::DiskPlan;
use config::{Size, Source};

use crate::insist::INSIST;

/// The largest block of a guest: less than that is what ends within one, and is left out knowingly.
const BLOCK_BYTES: u64 = 4096;

/// A disk that does not fit what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) id: String,
    /// Bytes that it is to have.
    size: u64,
    beside: Beside,
}

/// What its size does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Its image has so many bytes, and its guest would see the first of them alone.
    Image(u64),
    /// The whole file system of its image has so many, and less than the disk.
    FileSystem(u64),
}

impl Misfit {
    /// Of a disk of `size` bytes, whose image `has` so many, or would be made longer on a file system that `holds` so many
    /// in all.
    pub(crate) fn of(id: &str, size: u64, has: u64, holds: Option<u64>) -> Option<Misfit> {
        let beside = match holds {
            _ if has >= size.saturating_add(BLOCK_BYTES) => Beside::Image(has),
            Some(holds) if size > has && size > holds => Beside::FileSystem(holds),
            _ => return None,
        };
        Some(Misfit { id: id.to_string(), size, beside })
    }

    /// Of a disk that gets another size: one that becomes shorter leaves the rest of its image as it is.
    pub(crate) fn of_resize(id: &str, size: u64, has: u64, holds: Option<u64>) -> Option<Misfit> {
        Misfit::of(id, size, has.min(size), holds)
    }

    /// Of one whose image was opened, or looked at.
    pub(crate) fn of_disk(id: &str, disk: &Disk) -> Option<Misfit> {
        Misfit::of(id, disk.size_bytes(), disk.image()?.bytes(), disk.medium_bytes())
    }

    /// Of one whose image is missing, and would be made on a file system that `holds` so many bytes.
    pub(crate) fn of_new(plan: &DiskPlan, holds: Option<u64>) -> Option<Misfit> {
        Misfit::of(&plan.id, plan.source.size_bytes()?, 0, holds)
    }

    /// Refuses that.
    pub(crate) fn refusal(&self) -> ApiError {
        let Misfit { id, size, beside } = self;
        let error = format!("disk {id:?} would have {}, and {self}", Size(*size));
        let hint = match beside {
            Beside::Image(_) => format!(
                "its guest would see the first {} of it alone: leave `size` out for all of it; {INSIST} does it all \
                 the same",
                Size(*size)
            ),
            Beside::FileSystem(_) => format!(
                "its guest would meet the end of that before the end of its disk; {INSIST} does it all the same"
            ),
        };
        ApiError::new(ErrorKind::Conflict, error, hint)
    }
}

/// What it does not fit, in words.
impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.beside {
            Beside::Image(has) => write!(f, "its image has {}", Size(has)),
            Beside::FileSystem(holds) => {
                // Exact to the byte it would be a number that nobody reads.
                let unit = if holds >= 1 << 20 { 1 << 20 } else { 512 };
                write!(f, "the whole file system of its image has {}", Size(holds / unit * unit))
            }
        }
    }
}

/// Whether two disks have the same part of what has one name.
pub(crate) fn is_same_part(a: &Source, b: &Source) -> bool {
    a.path().is_some() && a.path() == b.path() && a.size_bytes() == b.size_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_both_sizes() {
        let told = |size: u64, has: u64, holds: Option<u64>| {
            Misfit::of("a", size << 20, has << 20, holds.map(|holds| holds << 20))
                .map(|misfit| misfit.refusal())
                .map(|refused| (refused.error, refused.hint))
        };
        assert_eq!(told(8, 8, Some(20)), None);
        assert_eq!(told(9, 8, Some(20)), None);
        assert_eq!(Misfit::of("a", 512, 4607, None), None);
        assert_eq!(told(30, 30, Some(20)), None, "it is so long already");
        let (error, hint) = told(1, 8, Some(20)).expect("it is shorter");
        assert_eq!(error, "disk \"a\" would have 1M, and its image has 8M");
        assert!(hint.starts_with("its guest would see the first 1M of it alone: leave"), "{hint}");
        let (error, _) = told(1 << 10, 0, Some(20)).expect("it is longer");
        assert_eq!(
            error,
            "disk \"a\" would have 1G, and the whole file system of its image has 20M"
        );
        assert_eq!(Misfit::of_resize("a", 1 << 20, 8 << 20, Some(20 << 20)), None);
    }
}
