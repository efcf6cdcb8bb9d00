//! The guests of a stand, ordered together.

use anyhow::{Context, Result};

use super::configurations::Configuration;
use super::loads::{Load, Part};
use super::vm::Guest;
use crate::orders::{Answer, Order};

/// Guests that take orders.
#[derive(Debug)]
pub(crate) struct Guests {
    all: Vec<Guest>,
}

/// What a guest did of its part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

impl Outcome {
    /// Operations a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

impl Guests {
    /// Those that said that they are ready.
    pub(crate) fn ready(all: Vec<Guest>) -> Guests {
        Guests { all }
    }

    /// The threads of the vCPUs of each of those guests.
    pub(crate) fn vcpus(&self, part: &Part) -> Vec<Vec<u32>> {
        self.of(part).map(|guest| guest.vcpus.clone()).collect()
    }

    /// Does a load once, all guests of all parts at the same time; gives what each part's did.
    ///
    /// # Errors
    /// One could not, or does not answer.
    pub(crate) fn together(
        &mut self,
        load: &Load,
        configuration: &Configuration,
    ) -> Result<Vec<Vec<Outcome>>> {
        let disk = configuration.disk();
        let in_part = |part: &Part, guest: &Guest| part.guests.contains(&guest.seat.0);
        for part in &load.parts {
            for guest in self.all.iter_mut().filter(|guest| in_part(part, guest)) {
                let order = part.kind.order(guest.seat, disk, part.operations, part.for_ms);
                guest.tell(&order).with_context(|| format!("guest {}", guest.seat.0))?;
            }
        }
        let mut done = Vec::new();
        for part in &load.parts {
            let guests = self.all.iter_mut().filter(|guest| in_part(part, guest));
            done.push(guests.map(|guest| outcome(guest, part)).collect::<Result<_>>()?);
        }
        Ok(done)
    }

    /// Tells one guest what is no load, and waits until it is done.
    ///
    /// # Errors
    /// It could not, or does not answer.
    pub(crate) fn tell(&mut self, guest: usize, order: &Order) -> Result<()> {
        let guest = self.all.get_mut(guest).with_context(|| format!("no guest {guest}"))?;
        guest.tell(order)?;
        guest.answer().map(|_| ())
    }

    fn of(&self, part: &Part) -> impl Iterator<Item = &Guest> {
        self.all.iter().filter(|guest| part.guests.contains(&guest.seat.0))
    }
}

fn outcome(guest: &mut Guest, part: &Part) -> Result<Outcome> {
    let number = guest.seat.0;
    let answer = guest.answer().with_context(|| format!("guest {number}"))?;
    let Answer::Done { operations, elapsed_ns, p50_ns, p99_ns } = answer else {
        anyhow::bail!("guest {number} says {answer:?}");
    };
    let is_enough = match part.for_ms {
        None => operations == part.operations,
        Some(_) => operations >= part.operations,
    };
    anyhow::ensure!(is_enough, "guest {number}: {operations} of {} were done", part.operations);
    Ok(Outcome { operations, elapsed_ns, p50_ns, p99_ns })
}
