//! A look once a second whether the images of disks are where they were: others may remove, replace, cut
//! or grow them under a running guest, and the kernel tells nobody.
//!
//! Threads of their own look, because a look waits for as long as a file system does. Each file system, and
//! each device, has at most one look under way: one that is dead keeps one thread, and it is said that its
//! images are not looked at. Not here: what is compared (`backend::Disk::astray`).

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backend::{Astray, Disk, Handles};
use config::Size;
use confine::Kind;
use names::Medium;
use tracing::{debug, info, warn};

use crate::defects::{found, late};
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::disk::DiskParts;
use crate::disk::images::ImageNames;
use crate::disk::unsynced::Unsynced;
use crate::opening::openers::Openers;
use crate::threads::{self, Thread};
use crate::turn::Turn;

/// Between two rounds of looks; one that takes longer is followed by the next at the next second.
const INTERVAL: Duration = Duration::from_secs(1);
/// Threads that look: one more than file systems that do not answer, until there are so many of these.
const THREADS_MAX: usize = 17;
/// A round that takes longer is told of.
const OVERDUE: Duration = Duration::from_secs(10);

/// A look: at which device's disk.
struct Look(u32, Weak<Disk>, ImageNames);

/// Looks at all images of one file system, one after the other.
struct Looks(Medium, Vec<Look>);

enum Word {
    /// What one look has shown.
    Looked(u32, Weak<Disk>, Option<Astray>),
    /// All of that file system's are done.
    Over(Medium),
}

/// Looks that are under way.
struct Round {
    since: Instant,
    disks: usize,
    /// That it takes long was said.
    is_said: bool,
}

/// The threads, and what is needed to start one more. They end when the daemon forgets them.
struct Threads {
    give: Sender<Looks>,
    given: Arc<Mutex<Receiver<Looks>>>,
    tell: Sender<Word>,
    told: Receiver<Word>,
    all: Vec<Thread>,
}

impl Threads {
    fn none() -> Threads {
        // What is in them is bounded by the rounds, of which each medium has one.
        let ((give, given), (tell, told)) = (channel(), channel());
        Threads { give, given: Arc::new(Mutex::new(given)), tell, told, all: Vec::new() }
    }

    /// So many, or as many as there can be.
    fn grow(&mut self, count: usize) {
        self.all.retain(|thread| !thread.is_finished());
        while self.all.len() < count.min(THREADS_MAX) {
            let (given, tell) = (Arc::clone(&self.given), self.tell.clone());
            match threads::begin("watch", Kind::Opener, move || run(&given, &tell)) {
                Ok(thread) => self.all.push(thread),
                Err(error) => return debug!("no thread for looks: {error}"),
            }
        }
    }
}

fn run(given: &Mutex<Receiver<Looks>>, tell: &Sender<Word>) {
    loop {
        let looks = threads::task(&given.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(Looks(medium, looks)) = looks else { return };
        for Look(number, weak, names) in looks {
            // Held no longer than for the look: with the last one its locks go.
            let astray = weak.upgrade().and_then(|disk| disk.astray(&names));
            if tell.send(Word::Looked(number, weak, astray)).is_err() {
                return;
            }
        }
        if tell.send(Word::Over(medium)).is_err() {
            return;
        }
    }
}

/// The looks of one daemon.
pub(crate) struct Watch {
    at: Instant,
    under_way: BTreeMap<Medium, Round>,
    threads: Threads,
    has_disks: bool,
}

impl Watch {
    /// The first look is then.
    pub(crate) fn from(now: Instant) -> Watch {
        let (under_way, threads) = (BTreeMap::new(), Threads::none());
        Watch { at: now, under_way, threads, has_disks: true }
    }

    /// When it looks next; never while there is nothing to look at.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.has_disks.then_some(self.at)
    }

    /// Disks were added or opened.
    pub(crate) fn wake(&mut self) {
        self.has_disks = true;
    }

    /// What is known of a disk is to stand on its image: it is looked at now.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.has_disks = true;
        self.at = self.at.min(now);
    }

    /// Begins a round for each medium that has none under way.
    fn begin(&mut self, looks: BTreeMap<Medium, Vec<Look>>, now: Instant) {
        for (medium, looks) in looks {
            if self.under_way.contains_key(&medium) {
                continue;
            }
            let round = Round { since: now, disks: looks.len(), is_said: false };
            if self.threads.give.send(Looks(medium.clone(), looks)).is_ok() {
                self.under_way.insert(medium, round);
            }
        }
    }

    /// The next thing that was seen.
    fn take(&mut self) -> Option<(u32, Weak<Disk>, Option<Astray>)> {
        loop {
            match self.threads.told.try_recv() {
                Ok(Word::Looked(number, disk, astray)) => return Some((number, disk, astray)),
                Ok(Word::Over(medium)) => {
                    if self.under_way.remove(&medium).is_some_and(|round| round.is_said) {
                        info!("images on {medium} are looked at again");
                    }
                }
                // Never the end: one end of it is here.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            }
        }
    }

    /// Says once of each medium for which no look has ended for long.
    fn say_overdue(&mut self, now: Instant) {
        for (medium, round) in &mut self.under_way {
            if round.is_said || now < round.since + OVERDUE {
                continue;
            }
            round.is_said = true;
            let (time_s, disks) = (OVERDUE.as_secs(), round.disks);
            warn!(
                disks,
                "images are not looked at on {medium}, which has not answered for {time_s} s: if one is removed, \
                 replaced or cut, nobody is told"
            );
        }
    }
}

impl DiskParts {
    /// How to save what may have no name: the descriptor by which this process has it.
    fn save_words(&self) -> String {
        let (Handles::File { cached, .. } | Handles::Away { anchor: Some(cached) }) =
            self.disk.handles()
        else {
            return "copy the disk from within the guest".to_string();
        };
        format!(
            "stop the guest and save it while this daemon runs: `cp --sparse=always /proc/{}/fd/{} NEW`",
            std::process::id(),
            cached.as_raw_fd()
        )
    }

    /// Whether what others do to its image is looked for: it is open, or was given up and is to be opened again.
    fn is_looked_at(&self) -> bool {
        self.locks.is_here() || self.locks.is_fenced() && self.disk.anchor().is_some()
    }

    /// What others have done to its image, and what to do.
    pub(crate) fn astray_text(&self) -> Option<String> {
        let path = self.plan.source.path().filter(|_| self.is_looked_at())?;
        let (id, size) = (&self.plan.id, Size(self.disk.size_bytes()));
        Some(match self.astray? {
            Astray::Replaced | Astray::Removed if self.bond.refused().is_some() => {
                self.names_another().to_string()
            }
            Astray::Removed => format!(
                "{path} was removed or renamed: the disk {} a file that has no such name, and what \
                 has no name at all is lost when the daemon closes it; put it back, or {}",
                if self.locks.is_here() { "goes on with" } else { "waits for" },
                self.save_words()
            ),
            Astray::Replaced => format!(
                "{path} is another image than the one that the disk is on: it goes on with that one until it is \
                 opened again, and a guest of it waits then; put it back, or, if it has no name any more, \
                 {}; or, to have the new one, stop the guest and say `sidecore reload`",
                self.save_words()
            ),
            Astray::Cut { bytes } => format!(
                "{path} was cut to {}, and its guest has a disk of {size}: what was there is lost, \
                 reads of it fail, and writes make the file longer again; restore it",
                Size(bytes)
            ),
            Astray::Grown { bytes } => format!(
                "{path} has grown to {}, and its guest has a disk of {size}: `sidecore disk resize \
                 {id} {}` gives it the rest",
                Size(bytes),
                bytes / 512 * 512
            ),
        })
    }
}

impl Watch {
    /// Notes what was seen, and looks again when that is due.
    pub(crate) fn look(&mut self, turn: &mut Turn, devices: &mut Devices, openers: &mut Openers) {
        let now = turn.now();
        if self.at > now {
            return;
        }
        self.at = now + INTERVAL;
        while let Some((number, disk, astray)) = self.take() {
            match devices.get_mut(number) {
                Some(device) => note_astray(device, &disk, astray, turn),
                None => late("device"),
            }
        }
        self.say_overdue(now);
        // Those that did not end within a second may be stuck, each with a thread.
        self.threads.grow(self.under_way.len() + 1);
        let mut looks: BTreeMap<Medium, Vec<Look>> = BTreeMap::new();
        for (number, device) in devices.iter() {
            let Some(parts) = device.disk().filter(|parts| parts.is_looked_at()) else { continue };
            let Some(medium) = openers.medium_of(&parts.plan) else { continue };
            let look = Look(*number, Arc::downgrade(&parts.disk), ImageNames::of(&parts.plan));
            looks.entry(medium).or_default().push(look);
        }
        self.has_disks = !looks.is_empty();
        self.begin(looks, now);
    }
}

fn note_astray(
    device: &mut Device,
    looked_at: &Weak<Disk>,
    astray: Option<Astray>,
    turn: &mut Turn,
) {
    let parts = found!(turn.defects, device.disk_mut(), "disk that was looked at");
    // It was resized, let go or opened anew meanwhile.
    if looked_at.as_ptr() != Arc::as_ptr(&parts.disk) {
        return;
    }
    Unsynced::say_unmarked(parts);
    let before = std::mem::replace(&mut parts.astray, astray);
    let kind = |astray: &Option<Astray>| astray.as_ref().map(std::mem::discriminant);
    if kind(&before) == kind(&astray) {
        return;
    }
    let said = parts.astray_text();
    if device.may_log(turn.now()) {
        let id = &device.facts().id;
        match said {
            Some(text) => warn!(disk = id, "{text}"),
            None if matches!(before, Some(Astray::Cut { .. })) => warn!(
                disk = id,
                "its image is as long as it was again; what had been cut off is zeroes, unless it was restored"
            ),
            None => info!(disk = id, "its image is as it was again"),
        }
    }
    if before == Some(Astray::Replaced) {
        // Who waits for what the path names may have it now.
        device.judge_again(turn);
    }
}

#[cfg(test)]
mod tests;
