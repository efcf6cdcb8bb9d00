//! Why a device is not open, and what to do about it.
//!
//! Not here: whether it is tried again (`control::retry`). Used by whoever opens devices or asks for that.

use std::fmt;

use backend::{Holder, OpenError};
use config::api::{ApiError, ErrorKind};
use config::plan::DiskPlan;
use control::retry::Obstacle;
use rustix::io::Errno;

use crate::sizes::misfit::Misfit;

/// Why a disk is not open. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotOpen {
    /// Requests of a process that has ended, or that cannot be seen, are still with it, or a process has a
    /// lease on it: in a moment they are not.
    Ended(String),
    /// So may a process that cannot be looked into, and is no sidecore.
    Hidden(String),
    /// Nothing is known yet: its file system has not answered, or it was not even asked for.
    Late(String),
    /// Another disk of this daemon holds it.
    Ours(String),
    /// A process that lives holds it.
    Living(String),
    /// So does a process that lives, and what one that has ended had under way may still land.
    Landing(String),
    /// It does not fit the disk's size, and whoever asks does not insist.
    Unfit(Misfit),
    /// Anything else: it is missing, of a wrong kind, its socket is taken.
    Wrong(String),
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotOpen::Ended(text)
            | NotOpen::Hidden(text)
            | NotOpen::Late(text)
            | NotOpen::Ours(text)
            | NotOpen::Living(text)
            | NotOpen::Landing(text)
            | NotOpen::Wrong(text) => f.write_str(text),
            NotOpen::Unfit(misfit) => {
                let ApiError { error, hint, .. } = misfit.refusal();
                write!(f, "{error}; {hint}")
            }
        }
    }
}

impl std::error::Error for NotOpen {}

impl NotOpen {
    /// Anything else, in the words of its error.
    pub(crate) fn wrong(why: impl fmt::Display) -> NotOpen {
        NotOpen::Wrong(why.to_string())
    }

    /// Of an image of which nobody knows yet.
    pub(crate) fn not_yet(why: NotYet, path: &str) -> NotOpen {
        NotOpen::Late(match why {
            NotYet::Late => {
                format!("{path} is still being opened: its file system has not answered yet")
            }
            NotYet::NoThread => format!(
                "{path} is not being opened yet: no thread is free for it, since file systems of other disks do \
                 not answer; it is tried again"
            ),
        })
    }

    /// Sorts what the back-end said.
    pub(crate) fn new(error: &OpenError, plan: &DiskPlan) -> NotOpen {
        let OpenError::Held { holder, may_land, .. } = error else {
            return match error {
                OpenError::Leased(_) => NotOpen::Ended(error.to_string()),
                _ => NotOpen::Wrong(format!("{error}{}", advice(error, plan))),
            };
        };
        match holder {
            Holder::Ended(_) | Holder::Heir { .. } => NotOpen::Ended(error.to_string()),
            Holder::Hidden => NotOpen::Hidden(error.to_string()),
            Holder::Living(_) if *may_land => NotOpen::Landing(error.to_string()),
            Holder::Living(pid) if *pid == std::process::id() => NotOpen::Ours(error.to_string()),
            Holder::Living(_) => NotOpen::Living(error.to_string()),
        }
    }

    /// Whether it says what somebody found: nothing is known yet otherwise.
    pub(crate) fn is_found(&self) -> bool {
        !matches!(self, NotOpen::Late(_))
    }

    /// What it is to whoever would try again.
    pub(crate) fn obstacle(&self) -> Obstacle {
        match self {
            NotOpen::Ended(_) | NotOpen::Hidden(_) | NotOpen::Late(_) => Obstacle::Passing,
            NotOpen::Ours(_) => Obstacle::Ours,
            NotOpen::Living(_) | NotOpen::Landing(_) => Obstacle::Living,
            NotOpen::Unfit(_) | NotOpen::Wrong(_) => Obstacle::Lasting,
        }
    }
}

/// Why something was not opened, as an answer to who asked for it: what the reason itself says to do, or `otherwise`.
pub(crate) fn refused_with(what: &str, why: &NotOpen, otherwise: &str) -> ApiError {
    let why = why.to_string();
    let (error, hint) = why.split_once("; ").unwrap_or((&why, otherwise));
    ApiError::new(ErrorKind::Refused, format!("{what}: {error}"), hint)
}

/// What to do about the causes that are usual.
fn advice(error: &OpenError, plan: &DiskPlan) -> &'static str {
    match error {
        OpenError::Os { source, .. } if *source == Errno::NOENT => match plan.spec.size {
            None if !plan.readonly => {
                "; correct `path`, put the image back, or for a new disk add a `size`: then an empty \
                 one is made"
            }
            _ => "; correct `path`, or make what it names",
        },
        OpenError::Os { source, .. } if *source == Errno::ACCESS => {
            "; the daemon's user must be able to read it, and to write it if it is not `readonly`"
        }
        OpenError::Os { source, .. } if *source == Errno::PERM && plan.readonly => {
            "; the kernel lets nobody open it: see who else has it, and what the daemon's rights are"
        }
        OpenError::Os { source, .. } if [Errno::ROFS, Errno::PERM].contains(source) => {
            "; make it writable, or say `readonly` if its guest shall only read it"
        }
        OpenError::Os { source, .. } if *source == Errno::MFILE => {
            "; the daemon has too few descriptors: raise `LimitNOFILE` in its unit, or `ulimit -Hn`"
        }
        _ => "",
    }
}

/// Why nobody knows what became of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotYet {
    /// Its file system has not answered.
    Late,
    /// Nobody has asked that: other file systems have all threads.
    NoThread,
}

#[cfg(test)]
mod tests;
