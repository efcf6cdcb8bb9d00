//! Images are opened on threads of their own: a file system that does not answer, and a search for who
//! holds a lock, take as long as they want, and control serves all tenants meanwhile.
//!
//! Control waits for a moment, so that whoever asks is told at once as a rule. What is not open by then is
//! asked for again when the device is tried again. Not here: how an image is found (`images`) and what is
//! made of it (`disk`). Called by `shut` and `follow`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use backend::{Disk, OpenError, Source as Image};
use config::plan::{DiskPlan, Source};
use confine::Kind;

use crate::bonds::{Bonds, Vetting};
use crate::disk::{DiskParts, source_of};
use crate::images::{self, FileId, ImageNames};
use crate::shut::NotOpen;

/// Images that are being opened at a time. Each is a thread and some descriptors; a file system that does not
/// answer keeps its threads.
const OPENERS_MAX: usize = 16;
/// How long control waits for an image that is opened for the first time: longer than any file system takes
/// that answers at all, on a machine that has too much to do; shorter than clients of the API wait.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// The same while another image is late already: all that are late hold control up for
/// `FIRST_WAIT + OPENERS_MAX * LATE_WAIT` at most.
const LATE_WAIT: Duration = Duration::from_millis(50);
/// When one is tried again, or a guest waits for it: what is to be had at once is had at once.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// How long control may wait for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It is asked for the first time.
    First,
    /// It was asked for before.
    Again,
}

/// What became of an image.
pub(crate) enum Opening {
    /// It is open, or was refused, and which file it is.
    Over(Result<Arc<Disk>, OpenError>, Option<FileId>),
    /// Nothing lies at its name, and none was to be made.
    Missing,
    /// This process has given its folder up: why, and what to do.
    GivenUp(String),
    /// Nobody knows yet: it is to be asked for again.
    Late,
}

/// What lies at the name of an image that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// A file or block device.
    There(FileId),
    /// Nothing: an empty image would be made.
    Nowhere,
    /// It has no name.
    Nameless,
}

impl Lies {
    fn of(plan: &DiskPlan, vetting: &Vetting) -> Result<Lies, NotOpen> {
        if let Some(why) = images::given_up(plan) {
            return Err(NotOpen::Wrong(why));
        }
        DiskParts::check(plan, vetting)?;
        Ok(match (images::file_of(plan), &plan.source) {
            (Some(file), _) => Lies::There(file),
            (None, Source::File { .. }) => Lies::Nowhere,
            (None, _) => Lies::Nameless,
        })
    }

    /// Which file it is.
    pub(crate) fn file(self) -> Option<FileId> {
        match self {
            Lies::There(file) => Some(file),
            Lies::Nowhere | Lies::Nameless => None,
        }
    }
}

/// The threads that open images.
#[derive(Default)]
pub(crate) struct Openers {
    jobs: Vec<Job>,
    /// What they open is not wanted any more: they close it, when they have it.
    leaving: Vec<(Image, JoinHandle<()>)>,
}

/// An image that is being opened.
struct Job {
    order: Order,
    outcome: Receiver<Opening>,
    thread: JoinHandle<()>,
    /// It was waited for as long as is waited for any.
    is_late: bool,
}

/// What is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    id: String,
    image: Image,
    names: ImageNames,
    purpose: Purpose,
}

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is to be had.
    Have,
    /// It is to be had; one that is locked elsewhere is looked at.
    Follow,
}

impl Order {
    /// With `is_kept` a missing image is not made.
    fn run(&self, plan: &DiskPlan, is_kept: bool, vetting: &Vetting) -> Opening {
        if is_kept && images::missing(plan).is_some() {
            return Opening::Missing;
        }
        if let Some(why) = images::given_up(plan) {
            return Opening::GivenUp(why);
        }
        let disk = vetting.vetted(plan, |vet| match Disk::open_by(&self.image, &self.names, vet) {
            Err(OpenError::Held { holder, .. })
                if self.purpose == Purpose::Follow && !holder.is_this_process() =>
            {
                Disk::look(&self.image, &self.names, vet)
            }
            opened => opened,
        });
        Opening::Over(disk, images::file_of(plan))
    }

    /// A thread that runs it, and says once what came of it.
    fn begin(self, plan: &DiskPlan, is_kept: bool, vetting: Vetting) -> Option<Job> {
        // Nothing lies in the channel: the thread has the image until it is taken.
        let (tell, outcome) = sync_channel(0);
        let (order, plan) = (self.clone(), plan.clone());
        let thread = std::thread::Builder::new().name("opener".to_string());
        let thread = thread.spawn(move || {
            // What it has of control's list is what it keeps when this fails.
            let _ = confine::thread(Kind::Opener);
            let _ = tell.send(order.run(&plan, is_kept, &vetting));
        });
        Some(Job { order: self, outcome, thread: thread.ok()?, is_late: false })
    }
}

impl Openers {
    /// Opens the image of a disk, or takes what became of it since it was asked for last. With `is_kept` a missing one
    /// is not made.
    pub(crate) fn open(
        &mut self,
        plan: &DiskPlan,
        (purpose, is_kept): (Purpose, bool),
        vetting: Vetting,
        patience: Patience,
    ) -> Opening {
        let (id, image, names) = (plan.id.clone(), source_of(plan), ImageNames::of(plan));
        let order = Order { id, image, names, purpose };
        if !matches!(plan.source, Source::File { .. }) {
            return order.run(plan, is_kept, &vetting);
        }
        self.keep_jobs(|job| job.order.id != order.id || job.order == order);
        self.leaving.retain(|(_, thread)| !thread.is_finished());
        let at = match self.jobs.iter().position(|job| job.order == order) {
            Some(at) => at,
            None if self.is_full() || self.is_leaving(&order.image) => return Opening::Late,
            None => match order.begin(plan, is_kept, vetting) {
                Some(job) => {
                    self.jobs.push(job);
                    self.jobs.len() - 1
                }
                None => return Opening::Late,
            },
        };
        let wait = match patience {
            Patience::Again => SHORT_WAIT,
            Patience::First if self.jobs.iter().any(|job| job.is_late) => LATE_WAIT,
            Patience::First => FIRST_WAIT,
        };
        let Some(job) = self.jobs.get_mut(at) else { return Opening::Late };
        match job.outcome.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {
                job.is_late |= patience == Patience::First;
                Opening::Late
            }
            outcome => {
                self.jobs.remove(at);
                outcome.unwrap_or(Opening::Late)
            }
        }
    }

    /// What lies at the name of a disk's image, if it could be opened once whoever has it has let go of it. Nothing is
    /// changed. Waits as [`Self::open`] does.
    ///
    /// # Errors
    /// Why it could not be opened and what to do.
    pub(crate) fn check(&mut self, plan: &DiskPlan, bonds: &Bonds) -> Result<Lies, NotOpen> {
        let vetting = Vetting::of(plan, bonds, false);
        if !matches!(plan.source, Source::File { .. }) {
            return Lies::of(plan, &vetting);
        }
        let asked = plan.clone();
        let lies = self.aside(source_of(plan), move || Lies::of(&asked, &vetting));
        lies.unwrap_or_else(|| Err(NotOpen::late(plan.source.path().unwrap_or_default())))
    }

    /// Does what an image's file system may hold up, on a thread of its own. Waits as [`Self::open`] does; nothing:
    /// it was not over by then, or not begun, and that image is late from here on.
    pub(crate) fn aside<T: Send + 'static>(
        &mut self,
        image: Image,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.leaving.retain(|(_, thread)| !thread.is_finished());
        if self.is_full() || self.is_leaving(&image) {
            return None;
        }
        let is_any_late = !self.leaving.is_empty() || self.jobs.iter().any(|job| job.is_late);
        let (tell, outcome) = sync_channel(1);
        let thread = std::thread::Builder::new().name("opener".to_string());
        let thread = thread.spawn(move || {
            let _ = confine::thread(Kind::Opener);
            let _ = tell.send(run());
        });
        let over = outcome.recv_timeout(if is_any_late { LATE_WAIT } else { FIRST_WAIT });
        if over.is_err() {
            self.leaving.extend(thread.ok().map(|thread| (image, thread)));
        }
        over.ok()
    }

    /// Lets go what is being opened for disks that nobody wants any more.
    pub(crate) fn keep_only(&mut self, is_wanted: impl Fn(&str) -> bool) {
        if !self.jobs.is_empty() {
            self.keep_jobs(|job| is_wanted(&job.order.id));
        }
    }

    fn keep_jobs(&mut self, is_wanted: impl Fn(&Job) -> bool) {
        // With its receiver gone the thread closes what it has.
        let gone = self.jobs.extract_if(.., |job| !is_wanted(job));
        self.leaving.extend(gone.map(|job| (job.order.image, job.thread)));
    }

    fn is_full(&self) -> bool {
        self.jobs.len() + self.leaving.len() >= OPENERS_MAX
    }

    /// Whether a thread that is not wanted any more may have the locks of that image.
    fn is_leaving(&self, image: &Image) -> bool {
        let Image::File { path, .. } = image else { return false };
        let is_it = |(other, _): &(Image, JoinHandle<()>)| matches!(other, Image::File { path: theirs, .. } if theirs == path);
        self.leaving.iter().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use config::plan::{HostCpus, load};

    use super::*;

    fn plan(folder: &std::path::Path, size: &str) -> DiskPlan {
        let path = folder.join("a.raw");
        let text = format!("[[disk]]\nid = \"a\"\npath = {path:?}\nsize = \"{size}\"\n");
        let host =
            HostCpus { online: vec![0], auto: vec![0], auto_count: 1, waits_on_lines: false };
        load(&text, "f", "/", &host, None).expect("a plan").disks.remove(0)
    }

    /// Asks until it is known what became of it.
    fn ask(openers: &mut Openers, plan: &DiskPlan, is_kept: bool) -> Opening {
        loop {
            match openers.open(plan, (Purpose::Have, is_kept), Vetting::none(), Patience::Again) {
                Opening::Late => std::thread::yield_now(),
                over => return over,
            }
        }
    }

    #[test]
    fn an_image_that_is_late_is_taken_later_whatever_has_become_known_since() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = plan(folder.path(), "1M");
        let mut openers = Openers::default();
        assert!(matches!(ask(&mut openers, &plan, true), Opening::Missing));
        // Asked for as a new one, and again as one that is kept.
        let first = openers.open(&plan, (Purpose::Have, false), Vetting::none(), Patience::Again);
        let over = match first {
            Opening::Late => ask(&mut openers, &plan, true),
            over => over,
        };
        let Opening::Over(Ok(disk), Some(file)) = over else { panic!("it is not open") };
        assert_eq!(disk.file_id(), Some(file));
        assert!(openers.jobs.is_empty() && openers.leaving.is_empty());
    }

    #[test]
    fn what_nobody_wants_any_more_is_closed_before_it_is_opened_otherwise() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (plan(folder.path(), "1M"), plan(folder.path(), "2M"));
        let mut openers = Openers::default();
        for turn in 0..20 {
            let _ = openers.open(&one, (Purpose::Have, false), Vetting::none(), Patience::Again);
            if turn % 2 == 0 {
                openers.keep_only(|_| false);
            }
            let Opening::Over(opened, _) = ask(&mut openers, &other, false) else {
                panic!("it is not open")
            };
            // Its lock is not that of the thread before.
            let disk = opened.expect("it is open");
            assert_eq!(disk.size_bytes(), 2 << 20);
        }
    }
}
