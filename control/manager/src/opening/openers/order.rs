//! What is to be done about one image, and what comes of it. Run by threads of `openers`.

use std::sync::{Arc, Weak};

use backend::{Anchor, Disk, OpenError, Source as Image};
use config::plan::{DiskPlan, Source};
use config::spec::Format;

use crate::disk::bonds::Vetting;
use crate::disk::images::{self, FileId, ImageNames, Maker, source_of};
use crate::opening::not_open::{NotOpen, NotYet};
use crate::sizes::misfit::Misfit;

/// What became of an image.
pub(crate) enum Outcome {
    /// It is open, or was refused, and which file it is.
    Over(Result<Opened, OpenError>, Option<FileId>),
    /// Nothing lies at its name, and none was to be made.
    Missing {
        /// Its name lies where devices are.
        is_device: bool,
    },
    /// This process has given its folder up: why, and what to do.
    GivenUp(String),
    /// It does not fit the size of its disk, and was to.
    Unfit(Misfit),
    /// It is to be asked for again.
    NotYet(NotYet),
}

/// An image that was opened.
pub(crate) struct Opened {
    /// With its locks, unless it was opened to be looked at.
    pub(crate) disk: Arc<Disk>,
    /// It held nothing.
    pub(crate) was_empty: bool,
    /// It was missing, and this one was made: it goes again if nothing comes of the disk.
    pub(crate) made: Option<FileId>,
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

/// What was seen of an image that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) lies: Lies,
    /// Only an operator who insists has that size.
    pub(crate) misfit: Option<Misfit>,
}

impl Looked {
    pub(super) fn at(plan: &DiskPlan, vetting: &Vetting) -> Result<Looked, NotOpen> {
        if let Some(why) = images::given_up(plan) {
            return Err(NotOpen::Wrong(why));
        }
        let misfit = check_image(plan, vetting)?;
        let lies = match (images::file_of(plan), &plan.source) {
            (Some(file), _) => Lies::There(file),
            (None, Source::File { .. }) => Lies::Nowhere,
            (None, _) => Lies::Nameless,
        };
        Ok(Looked { lies, misfit })
    }
}

impl Lies {
    /// Which file it is.
    pub(crate) fn file(self) -> Option<FileId> {
        match self {
            Lies::There(file) => Some(file),
            Lies::Nowhere | Lies::Nameless => None,
        }
    }
}

/// Whether an image could be opened once whoever has it has let go of it, and whether the disk's size fits it then.
/// Nothing is changed. A missing image may be made.
///
/// # Errors
/// Why it could not be opened and what to do.
pub(crate) fn check_image(plan: &DiskPlan, vetting: &Vetting) -> Result<Option<Misfit>, NotOpen> {
    if matches!(plan.source, Source::Remote { .. }) {
        return Ok(None);
    }
    let may_be_made = plan.source.size_bytes().is_some() && !plan.readonly;
    if may_be_made && images::missing(plan).is_some() {
        let holds = images::can_be_made(plan).map_err(NotOpen::wrong)?;
        return Ok(Misfit::of_new(plan, holds));
    }
    let (source, names) = (source_of(plan), ImageNames::of(plan));
    let checked = vetting.vetted(plan, |vet| match plan.migratable {
        // Whoever has it now may be about to make it longer.
        true => Disk::look(&source, &names, vet),
        false => Disk::check(&source, &names, vet),
    });
    let seen = checked.map_err(|e| NotOpen::new(&e, plan))?;
    Ok(Misfit::of_disk(&plan.id, &seen))
}

/// What is to be opened: all that a plan says of it. What became of one order is no answer to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: String,
    pub(super) image: Image,
    names: ImageNames,
    /// What the operator says that it is. What is known of it otherwise may change meanwhile.
    format: Option<Format>,
    purpose: Purpose,
    /// It was given up, and is to be opened by that.
    anchor: Option<Anchor>,
    /// It is open, and to be given up.
    gives_up: Option<Given>,
}

/// An open image that is to be given up; another one of the same name is another order.
#[derive(Clone, Debug)]
struct Given(Weak<Disk>);

impl PartialEq for Given {
    fn eq(&self, other: &Given) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for Given {}

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is to be had.
    Have,
    /// It is to be known, as if it were to be had, and let go again; one that is locked elsewhere is looked at.
    Follow {
        /// Data was lost in it, as far as its daemon knows: then it stays, and so it does if its image says so.
        is_lost: bool,
    },
}

impl Purpose {
    /// What is to be had of an image that was opened: nobody else is to have one in which data was lost.
    fn kept_or_away(self, disk: Arc<Disk>) -> Arc<Disk> {
        match self {
            Purpose::Follow { is_lost } if !is_lost && !disk.sync_failed() => disk.away(),
            Purpose::Have | Purpose::Follow { .. } => disk,
        }
    }
}

impl Order {
    pub(super) fn of(plan: &DiskPlan, purpose: Purpose) -> Order {
        Order {
            id: plan.id.clone(),
            image: source_of(plan),
            names: ImageNames::of(plan),
            format: plan.format,
            purpose,
            anchor: None,
            gives_up: None,
        }
    }

    /// That an open image be given up. What is told of it then is in the place of one that was opened.
    pub(super) fn to_give_up(plan: &DiskPlan, disk: &Arc<Disk>) -> Order {
        let gives_up = Some(Given(Arc::downgrade(disk)));
        Order { gives_up, ..Order::of(plan, Purpose::Have) }
    }

    /// The same, of an image that was given up.
    pub(super) fn by(self, anchor: Option<&Anchor>) -> Order {
        Order { anchor: anchor.cloned(), ..self }
    }

    /// With `is_kept` a missing image is not made. With `fits` one is opened that fits alone: it is not even made longer.
    pub(super) fn run(
        &self,
        plan: &DiskPlan,
        (is_kept, fits): (bool, bool),
        vetting: &Vetting,
    ) -> Outcome {
        if let Some(Given(open)) = &self.gives_up {
            return given_up(open);
        }
        // A file that was given up is had by what was kept of it, whatever has its name.
        let is_named = !self.anchor.as_ref().is_some_and(Anchor::is_of_file);
        if is_kept && is_named && images::missing(plan).is_some() {
            return Outcome::Missing { is_device: images::is_among_devices(plan) };
        }
        if let Some(why) = images::given_up(plan) {
            return Outcome::GivenUp(why);
        }
        // What is wrong with it otherwise is said by its opening.
        if fits && let Ok(Some(misfit)) = check_image(plan, vetting) {
            return Outcome::Unfit(misfit);
        }
        let names = Maker::new(self.names);
        let open = |vet| match &self.anchor {
            Some(anchor) => Disk::open_by_anchor(&self.image, &names, anchor),
            None => Disk::open_by(&self.image, &names, vet),
        };
        let disk = vetting.vetted(plan, |vet| match open(vet) {
            Err(OpenError::Held { holder, .. })
                if self.purpose != Purpose::Have && !holder.is_this_process() =>
            {
                Disk::look(&self.image, &names, vet)
            }
            opened => opened,
        });
        let made = names.made();
        let disk = disk.and_then(|disk| self.keep(made).map(|()| disk));
        if disk.is_err() {
            self.unmake(made);
        }
        let opened = disk.map(|disk| {
            let was_empty = disk.was_empty();
            let disk = self.purpose.kept_or_away(disk);
            Opened { disk, was_empty, made }
        });
        Outcome::Over(opened, images::file_of(plan))
    }

    /// What came of it and nobody takes is closed, and what was made for it removed.
    pub(super) fn undo(&self, outcome: Outcome) {
        if let Outcome::Over(Ok(Opened { disk, made, .. }), _) = outcome {
            drop(disk);
            self.unmake(made);
        }
    }

    /// Has what was made survive a power cut: whoever asked for the disk is told that it is there, and it is not made
    /// anew then.
    fn keep(&self, made: Option<FileId>) -> Result<(), OpenError> {
        match (&self.image, made) {
            (Image::File { path, .. }, Some(_)) => images::keep_made(path, self.names),
            _ => Ok(()),
        }
    }

    fn unmake(&self, made: Option<FileId>) {
        if let (Image::File { path, .. }, Some(made)) = (&self.image, made) {
            images::unmake(path, self.names, made);
        }
    }
}

/// What is kept of an image that is given up. Its file system is asked for that.
fn given_up(open: &Weak<Disk>) -> Outcome {
    // Whoever had it has closed it.
    let Some(open) = open.upgrade() else { return Outcome::NotYet(NotYet::Late) };
    let away = open.give_up();
    Outcome::Over(away.map(|disk| Opened { disk, was_empty: false, made: None }), None)
}
