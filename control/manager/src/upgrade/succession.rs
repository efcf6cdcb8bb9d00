//! Which side of an upgrade a process is on: at most one.
//!
//! Not here: the course of either (`predecessor`, `heir`, `guard`).

use std::time::Instant;

use super::guard::Probation;
use super::predecessor::Upgrade;

/// Which side of an upgrade this process is on.
#[derive(Default)]
pub(crate) enum Succession {
    #[default]
    None,
    /// It has just taken over, and its predecessor watches it.
    OnProbation(Probation),
    /// Another process is to take over.
    Upgrading(Upgrade),
}

impl Succession {
    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        match self {
            Succession::None => None,
            Succession::OnProbation(probation) => Some(probation.due_at()),
            Succession::Upgrading(upgrade) => Some(upgrade.due_at(now)),
        }
    }

    pub(crate) fn probation(&self) -> Option<&Probation> {
        match self {
            Succession::OnProbation(probation) => Some(probation),
            _ => None,
        }
    }

    pub(crate) fn upgrade(&self) -> Option<&Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    pub(crate) fn upgrade_mut(&mut self) -> Option<&mut Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    /// It is over, or there is none.
    pub(crate) fn take_probation(&mut self) -> Option<Probation> {
        match std::mem::take(self) {
            Succession::OnProbation(probation) => Some(probation),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The same of an upgrade.
    pub(crate) fn take_upgrade(&mut self) -> Option<Upgrade> {
        match std::mem::take(self) {
            Succession::Upgrading(upgrade) => Some(upgrade),
            other => {
                *self = other;
                None
            }
        }
    }
}
