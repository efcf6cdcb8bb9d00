//! Images are opened on threads of their own: a file system that does not answer, and a search for who
//! holds a lock, take as long as they want, and control serves all tenants meanwhile.
//!
//! Control waits for a moment, so that whoever asks is told at once as a rule. What is not open by then is
//! asked for again when its thread has woken control, or when the device is tried again. A file system that
//! is dead keeps a few threads, and only those of its own images wait for one. Not here: how an image is
//! found (`images`) and what is made of it (`disk`). Called by `open`, `disk::locks` and operators' calls.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError};
use std::time::{Duration, Instant};

use backend::{Anchor, Disk, Source as Image};
use config::plan::{DiskPlan, Source};
use confine::Kind;
use names::Medium;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::now;
use crate::disk::bonds::{Bonds, Vetting};
use crate::disk::images::{FileId, ImageNames, source_of};
use crate::opening::not_open::{NotOpen, NotYet};
use crate::threads::{self, Thread};
use closings::{Closing, Closings};
use media::Media;
use order::Order;

mod closings;
mod media;
mod order;

pub(crate) use order::{Lies, Looked, Opened, Outcome, Purpose, check_image};

/// Threads at a time that ask one file system, or one device: it may be dead, and keep all of them.
const EACH_MAX: usize = 4;
/// The same of all. Each is a thread and some descriptors.
const OPENERS_MAX: usize = 64;
/// So many file systems may be dead before an image on another one waits for a thread.
const _: () = assert!(OPENERS_MAX / EACH_MAX >= 16);
/// What stands for what has no name, and answers without a file system.
const IN_MEMORY: &str = "/dev/null";
/// How long control waits in one turn for images that are asked for the first time, all together: longer than
/// any file system takes that answers at all, on a machine that has too much to do; shorter than clients of the
/// API wait. A start is one turn.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(10);
/// A thread that has not answered for so long is late, and what it asks may be dead.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// How long control waits for one image of what is late already, and for one that a guest waits for.
const LATE_WAIT: Duration = Duration::from_millis(50);
/// When one is tried again: what is to be had at once is had at once.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// How long control may wait for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It is asked for the first time, and whoever asks is told what came of it.
    First,
    /// It is asked for the first time, and the first answer is not the last.
    Soon,
    /// It was asked for before.
    Again,
}

/// What wakes the control loop, if there is one.
#[derive(Clone, Debug, Default)]
struct Wake(Option<Arc<OwnedFd>>);

impl Wake {
    fn wake(&self) {
        if let Some(fd) = &self.0 {
            // Fails only when it is readable already.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

/// The threads that open images.
#[derive(Default)]
pub(crate) struct Openers {
    jobs: Vec<Job>,
    /// Threads whose answer nobody waits for: they close what they have, when they have it.
    leaving: Vec<Leaving>,
    closings: Closings,
    media: Media,
    /// How long control has waited in this turn.
    waited: Duration,
    wake: Wake,
}

/// An image that is being opened.
struct Job {
    order: Order,
    medium: Medium,
    outcome: Receiver<Outcome>,
    /// It has an outcome.
    is_over: Arc<AtomicBool>,
    thread: Thread,
    begun: Instant,
}

/// A thread that goes on by itself.
struct Leaving {
    image: Image,
    medium: Medium,
    thread: Thread,
    begun: Instant,
}

impl Openers {
    /// Those of a control loop, which hears of what is over by [`Self::wake_fd`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> std::io::Result<Openers> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Wake(Some(Arc::new(wake)));
        Ok(Openers { wake, media: Media::new(), ..Openers::default() })
    }

    /// Readable when something is over.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.0.as_ref().map(|fd| fd.as_fd())
    }

    /// Takes that word; to be called before what is over is looked at.
    pub(crate) fn hear(&self) {
        if let Some(fd) = &self.wake.0 {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }

    /// A turn of the control loop begins, in which it may wait again.
    pub(crate) fn begin_turn(&mut self) {
        self.waited = Duration::ZERO;
        // One for which no thread was left is in the way of whoever opens the image again.
        self.closings.go_on(&self.wake);
    }

    /// What answers for a disk's image, as far as that is known without asking it.
    pub(crate) fn medium_of(&mut self, plan: &DiskPlan) -> Option<Medium> {
        Some(self.media.of(plan.source.path()?.as_ref(), now()))
    }

    /// Opens the image of a disk, or takes what became of it since it was asked for last. With `is_kept` a missing one
    /// is not made.
    pub(crate) fn open(
        &mut self,
        plan: &DiskPlan,
        (purpose, is_kept): (Purpose, bool),
        vetting: Vetting,
        patience: Patience,
    ) -> Outcome {
        self.open_by(None, plan, (purpose, is_kept), vetting, patience)
    }

    /// The same of an image that was given up, if it was: it is opened by what was kept of it.
    pub(crate) fn open_by(
        &mut self,
        anchor: Option<&Anchor>,
        plan: &DiskPlan,
        (purpose, is_kept): (Purpose, bool),
        vetting: Vetting,
        patience: Patience,
    ) -> Outcome {
        let order = Order::of(plan, purpose).by(anchor);
        if !matches!(plan.source, Source::File { .. }) {
            return order.run(plan, (is_kept, false), &vetting);
        }
        self.outcome_of(order, plan, is_kept, vetting, patience)
    }

    /// Has an open image given up ([`Disk::give_up`]), or takes what became of that since it was asked for last: its
    /// file system may not answer. What is kept of it comes as what was opened does.
    pub(crate) fn give_up(
        &mut self,
        disk: &Arc<Disk>,
        plan: &DiskPlan,
        vetting: Vetting,
        patience: Patience,
    ) -> Outcome {
        self.outcome_of(Order::to_give_up(plan, disk), plan, true, vetting, patience)
    }

    fn outcome_of(
        &mut self,
        order: Order,
        plan: &DiskPlan,
        is_kept: bool,
        vetting: Vetting,
        patience: Patience,
    ) -> Outcome {
        let at = match self.job_of(order, plan, (is_kept, false), vetting) {
            Ok(at) => at,
            Err(not_yet) => return Outcome::NotYet(not_yet),
        };
        let late = Outcome::NotYet(NotYet::Late);
        let Some(job) = self.jobs.get(at) else { return late };
        let wait = self.patience_for(&job.medium, patience);
        let began = now();
        let outcome = threads::wait(&job.outcome, wait);
        self.waited += now().saturating_duration_since(began);
        if matches!(outcome, Err(RecvTimeoutError::Timeout)) {
            return late;
        }
        self.jobs.remove(at);
        outcome.unwrap_or(late)
    }

    /// Has the image of a disk opened, if that takes a thread, and waits for nothing: it is asked for by
    /// [`Self::open`] in the same words. With `fits` one that does not fit its disk's size is not opened. Gives how long
    /// it is worth waiting for.
    pub(crate) fn begin(
        &mut self,
        plan: &DiskPlan,
        (purpose, is_kept, fits): (Purpose, bool, bool),
        vetting: Vetting,
    ) -> Option<Duration> {
        if !matches!(plan.source, Source::File { .. }) {
            return None;
        }
        let order = Order::of(plan, purpose);
        let at = self.job_of(order, plan, (is_kept, fits), vetting).ok()?;
        let medium = self.jobs.get(at)?.medium.clone();
        Some(if self.is_late(&medium) { LATE_WAIT } else { FIRST_WAIT })
    }

    /// Whether nothing is being opened for the disk of that name that has no outcome.
    pub(crate) fn has_answered(&self, id: &str) -> bool {
        let of_it = self.jobs.iter().filter(|job| job.order.id == id);
        of_it.into_iter().all(|job| job.is_over.load(Ordering::Acquire))
    }

    /// The disks of whose images it is known what became of them, and nobody has asked yet.
    pub(crate) fn answered(&self) -> Vec<String> {
        let over = self.jobs.iter().filter(|job| job.is_over.load(Ordering::Acquire));
        over.map(|job| job.order.id.clone()).collect()
    }

    /// What lies at the name of a disk's image, if it could be opened once whoever has it has let go of it. Nothing is
    /// changed. Waits as [`Self::open`] does.
    ///
    /// # Errors
    /// Why it could not be opened and what to do.
    pub(crate) fn check(&mut self, plan: &DiskPlan, bonds: &Bonds) -> Result<Looked, NotOpen> {
        let vetting = Vetting::of(plan, bonds, false);
        if !matches!(plan.source, Source::File { .. }) {
            return Looked::at(plan, &vetting);
        }
        let asked = plan.clone();
        let looked = self.aside(source_of(plan), move || Looked::at(&asked, &vetting));
        looked.unwrap_or_else(|why| {
            Err(NotOpen::not_yet(why, plan.source.path().unwrap_or_default()))
        })
    }

    /// Does what an image's file system may hold up, on a thread of its own. Waits as [`Self::open`] does. What it has
    /// is not the last of anything: when it cannot begin, it is dropped here.
    ///
    /// # Errors
    /// It was not over by then, or not begun, and that image is late from here on.
    pub(crate) fn aside<T: Send + 'static>(
        &mut self,
        image: Image,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotYet> {
        let medium = self.has_room(&image)?;
        let (tell, outcome) = threads::outcome();
        let begun = now();
        let thread = threads::begin("opener", Kind::Opener, move || drop(tell.send(run())));
        let thread = thread.map_err(|_| NotYet::NoThread)?;
        let over = threads::wait(&outcome, self.patience_for(&medium, Patience::First));
        self.waited += now().saturating_duration_since(begun);
        if over.is_err() {
            self.leaving.push(Leaving { image, medium, thread, begun });
        }
        over.map_err(|_| NotYet::Late)
    }

    /// Closes an image for the last time; who calls it waits for nothing. False: that is done already, since it is
    /// no file. A `device` is told of when it is over ([`Self::closed`]).
    pub(crate) fn let_go(&mut self, plan: &DiskPlan, disk: Arc<Disk>, device: Option<u32>) -> bool {
        self.undo(plan, disk, None, device)
    }

    /// The same; an image that was `made` for the disk, of which nothing has come, is removed.
    pub(crate) fn undo(
        &mut self,
        plan: &DiskPlan,
        disk: Arc<Disk>,
        made: Option<FileId>,
        device: Option<u32>,
    ) -> bool {
        let path = match source_of(plan) {
            // The last that leads to a file may be what was kept of it when it was given up.
            Image::File { path, .. }
                if !disk.is_away() || disk.anchor().is_some() || made.is_some() =>
            {
                path
            }
            _ => return false,
        };
        let medium = self.media.of(&path, now());
        let made = made.map(|made| (ImageNames::of(plan), made));
        self.closings.close(Closing { medium, path, disk, made, device }, &self.wake);
        true
    }

    /// Devices whose images are closed since this was asked last.
    pub(crate) fn closed(&self) -> Vec<u32> {
        self.closings.go_on(&self.wake);
        self.closings.take_over()
    }

    /// Whether some image is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closings.is_any()
    }

    /// Lets go what is being opened for disks that nobody waits for.
    pub(crate) fn keep_only(&mut self, is_wanted: impl Fn(&str) -> bool) {
        if !self.jobs.is_empty() {
            self.keep_jobs(|job| is_wanted(&job.order.id));
        }
    }

    fn keep_jobs(&mut self, is_wanted: impl Fn(&Job) -> bool) {
        // With its receiver gone the thread closes what it has.
        let gone = self.jobs.extract_if(.., |job| !is_wanted(job));
        self.leaving.extend(gone.map(|Job { order, medium, thread, begun, outcome, .. }| {
            // In a simulation it may lie here, and no thread has it.
            outcome.try_iter().for_each(|outcome| order.undo(outcome));
            Leaving { image: order.image, medium, thread, begun }
        }));
    }

    /// The place of an order among the jobs, where it is begun if it is not there.
    fn job_of(
        &mut self,
        order: Order,
        plan: &DiskPlan,
        how: (bool, bool),
        vetting: Vetting,
    ) -> Result<usize, NotYet> {
        self.keep_jobs(|job| job.order.id != order.id || job.order == order);
        if let Some(at) = self.jobs.iter().position(|job| job.order == order) {
            return Ok(at);
        }
        let medium = self.has_room(&order.image)?;
        let job = self.job(order, medium, plan, how, vetting).ok_or(NotYet::NoThread)?;
        self.jobs.push(job);
        Ok(self.jobs.len() - 1)
    }

    /// A thread that runs an order, and says once what came of it.
    fn job(
        &self,
        order: Order,
        medium: Medium,
        plan: &DiskPlan,
        how: (bool, bool),
        vetting: Vetting,
    ) -> Option<Job> {
        let (tell, outcome) = threads::outcome();
        let is_over = Arc::new(AtomicBool::new(false));
        let (runs, plan, over) = (order.clone(), plan.clone(), Arc::clone(&is_over));
        let wake = self.wake.clone();
        let before = self.closings.last_of(plan.source.path().unwrap_or(IN_MEMORY).as_ref());
        let thread = threads::begin_after("opener", Kind::Opener, before, move || {
            let outcome = runs.run(&plan, how, &vetting);
            over.store(true, Ordering::Release);
            wake.wake();
            if let Err(SendError(outcome)) = tell.send(outcome) {
                runs.undo(outcome);
            }
        });
        Some(Job { order, medium, outcome, is_over, thread: thread.ok()?, begun: now() })
    }

    /// What answers for an image, if one more thread may ask it.
    fn has_room(&mut self, image: &Image) -> Result<Medium, NotYet> {
        self.leaving.retain(|leaving| !leaving.thread.is_finished());
        let path = match image {
            Image::File { path, .. } => path.as_path(),
            _ => Path::new(IN_MEMORY),
        };
        let medium = self.media.of(path, now());
        let is_it =
            |other: &Image| matches!(other, Image::File { path: theirs, .. } if theirs == path);
        // A thread that nobody waits for may have the locks of that image.
        if self.leaving.iter().any(|leaving| is_it(&leaving.image)) {
            return Err(NotYet::Late);
        }
        let on_it = self.asking().filter(|(theirs, _)| **theirs == medium).count();
        match self.asking().count() {
            _ if on_it >= EACH_MAX => Err(NotYet::Late),
            OPENERS_MAX.. => Err(NotYet::NoThread),
            _ => Ok(medium),
        }
    }

    /// What the threads ask, and since when.
    fn asking(&self) -> impl Iterator<Item = (&Medium, Instant)> {
        let jobs = self.jobs.iter().map(|job| (&job.medium, job.begun));
        jobs.chain(self.leaving.iter().map(|leaving| (&leaving.medium, leaving.begun)))
    }

    /// Whether a thread waits for longer than one should.
    fn is_late(&self, medium: &Medium) -> bool {
        let now = now();
        self.asking().any(|(theirs, begun)| theirs == medium && begun + LATE_AFTER <= now)
    }

    /// How long control waits now.
    fn patience_for(&self, medium: &Medium, patience: Patience) -> Duration {
        let wait = match patience {
            Patience::Again => SHORT_WAIT,
            Patience::Soon => LATE_WAIT,
            Patience::First if self.is_late(medium) => LATE_WAIT,
            Patience::First => FIRST_WAIT,
        };
        wait.min(FIRST_WAIT.saturating_sub(self.waited).max(SHORT_WAIT))
    }
}

#[cfg(test)]
mod tests;
