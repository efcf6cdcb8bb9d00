//! What ties the guest of one disk to its image, as long as the disk is open.

use super::Remembered;
use crate::disk::bonds::vmm::Vmm;
use crate::disk::image::{Found, Image, ImageRefused, Verdict, judge};

/// What ties a disk's guest to its image.
#[derive(Debug, Default)]
pub(crate) struct Bond {
    /// Nothing while the image is with another process that did not say.
    found: Option<Found>,
    remembered: Remembered,
    /// What was remembered before a front-end began with a new driver. Rings that it tells of later are
    /// judged by that, because one that nobody has used yet looks new in either case.
    before: Option<(u32, Remembered)>,
    /// To be kept before its guest is served.
    unkept: Option<Image>,
    /// Why that could not be kept the last time.
    unkept_why: Option<String>,
    /// Why its guest waits.
    refused: Option<String>,
    /// Its IOhost has said so: that a ring begins changes nothing.
    is_refused_there: bool,
    /// That it is refused was not logged yet.
    is_news: bool,
    refusals: u64,
    /// The front-end that was served last.
    served: Option<u32>,
    /// The process that it is.
    served_to: Option<Vmm>,
    /// What is remembered is kept under another name, or of another socket.
    is_elsewhere: bool,
}

impl Bond {
    /// `is_its_own`: what is remembered is of the guest of this very disk, which comes to its socket.
    pub(crate) fn new(
        mut found: Option<Found>,
        (remembered, is_its_own): (Remembered, bool),
    ) -> Bond {
        // What its IOhost has is known when that has said so; until then it is what it was.
        if let (Some(found), Remembered::Image(image)) = (&mut found, &remembered)
            && image.is_same(&found.image)
            && let Some(number) = image.told_number()
        {
            found.image = found.image.told(number);
        }
        let mut bond = Bond { found, remembered, is_elsewhere: !is_its_own, ..Bond::default() };
        bond.note_cut();
        bond
    }

    /// An image that has lost part of what its guest was on is made as long as before when it is opened: the next look
    /// would find nothing wrong.
    fn note_cut(&mut self) {
        let Remembered::Image(remembered) = &self.remembered else { return };
        if let Some(cut) = self.found.as_ref().and_then(|found| remembered.cut(found)) {
            self.unkept = Some(cut.clone());
            self.remembered = Remembered::Image(cut);
        }
    }

    /// What front-end `connection` of disk `id` may do. `was_running`: a ring of its driver was served before.
    pub(crate) fn judge(&self, id: &str, connection: u32, was_running: bool) -> Verdict {
        match self.judged(id, connection, was_running) {
            Verdict::Same if self.is_elsewhere && self.found.is_some() => Verdict::Remember,
            verdict => verdict,
        }
    }

    fn judged(&self, id: &str, connection: u32, was_running: bool) -> Verdict {
        let remembered = match &self.before {
            Some((of, before)) if *of == connection && was_running => before,
            _ => &self.remembered,
        };
        match remembered {
            Remembered::Nothing => judge(id, None, self.found.as_ref(), was_running),
            Remembered::Image(image) => judge(id, Some(image), self.found.as_ref(), was_running),
            Remembered::Unreadable(_) if !was_running => Verdict::Remember,
            Remembered::Unreadable(why) => {
                let (id, why) = (id.to_string(), why.clone());
                Verdict::Other(ImageRefused::Unreadable { id, why })
            }
        }
    }

    /// A ring of front-end `connection` is to be served, which is that process.
    pub(crate) fn begin(
        &mut self,
        connection: u32,
        verdict: &Verdict,
        vmm: impl FnOnce() -> Option<Vmm>,
    ) {
        if !self.has_served(connection) {
            self.served_to = vmm();
        }
        if !self.is_refused_there {
            self.refused = None;
        }
        self.served = Some(connection);
        let Some(found) = self.found.as_ref().filter(|_| *verdict == Verdict::Remember) else {
            return;
        };
        let now = Remembered::Image(found.image.clone());
        // Once, however many rings it has.
        if self.is_elsewhere || self.remembered != now {
            self.unkept = Some(found.image.clone());
        }
        self.is_elsewhere = false;
        let before = std::mem::replace(&mut self.remembered, now);
        if self.before.as_ref().is_none_or(|(of, _)| *of != connection) {
            self.before = Some((connection, before));
        }
    }

    /// Whether front-end `connection` is the one that was served last.
    pub(crate) fn has_served(&self, connection: u32) -> bool {
        self.served == Some(connection)
    }

    /// Whether the front-end that was served last was that process, or none was.
    pub(crate) fn has_served_to(&self, vmm: impl FnOnce() -> Option<Vmm>) -> bool {
        self.served.is_none() || self.served_to.is_some() && self.served_to == vmm()
    }

    /// The image that is to be kept before its guest is served, if it is not kept yet.
    pub(crate) fn take_unkept(&mut self) -> Option<Image> {
        self.unkept.take()
    }

    /// What became of keeping `image`: nothing, or why it could not be kept. Whether that is news.
    pub(crate) fn kept(&mut self, image: &Image, why: Option<String>) -> bool {
        let is_news = why.is_some() && self.unkept_why.is_none();
        if why.is_some() && self.unkept.is_none() {
            self.unkept = Some(image.clone());
        }
        self.unkept_why = why;
        is_news
    }

    /// Why it is not kept which image its guest is on.
    pub(crate) fn unkept_why(&self) -> Option<&str> {
        self.unkept_why.as_deref()
    }

    /// The guest of front-end `connection` waits, for that reason. What it was on before it seemed to be a new one is what it
    /// is on.
    pub(crate) fn refuse_connection(&mut self, connection: u32, why: String) {
        if let Some((_, before)) = self.before.take_if(|(of, _)| *of == connection) {
            if let Remembered::Image(image) = &before {
                self.unkept = Some(image.clone());
            }
            self.remembered = before;
        }
        self.refuse(why);
    }

    fn refuse(&mut self, why: String) {
        self.is_news = self.refused.as_ref() != Some(&why);
        self.refusals += u64::from(self.is_news);
        self.refused = Some(why);
    }

    /// Its guest waits for its image at its IOhost, until that says otherwise.
    pub(crate) fn refuse_there(&mut self, why: String) {
        self.refuse(why);
        self.is_refused_there = true;
    }

    /// Whether its guest waits, and the log has said so.
    pub(crate) fn is_refused_again(&mut self) -> bool {
        self.refused.is_some() && !std::mem::take(&mut self.is_news)
    }

    /// Whether what is there has the name of what its guest was on, or nothing is known of that.
    pub(crate) fn has_same_name(&self) -> bool {
        match (&self.remembered, &self.found) {
            (Remembered::Image(image), Some(found)) => image.name == found.image.name,
            _ => true,
        }
    }

    /// Whether the guest of this disk was on the image that was found.
    pub(crate) fn is_known(&self) -> bool {
        match (&self.remembered, &self.found) {
            (Remembered::Image(image), Some(found)) => image.is_same(&found.image),
            _ => false,
        }
    }

    /// The front-end that was refused is gone.
    pub(crate) fn forget_refusal(&mut self) {
        (self.refused, self.is_refused_there) = (None, false);
    }

    /// What operators call the image that is there.
    pub(crate) fn name(&self) -> String {
        self.found.as_ref().map_or_else(String::new, |found| found.image.name.clone())
    }

    /// Why its guest waits, if it does.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// How often a guest was refused.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Its image was opened anew. Whether it is another one than before, or, where nothing was open before, than its
    /// guest was on.
    pub(crate) fn find(&mut self, found: Option<Found>) -> bool {
        let before = std::mem::replace(&mut self.found, found);
        let before = match (&before, &self.remembered) {
            (Some(before), _) => &before.image,
            (None, Remembered::Image(image)) => image,
            (None, _) => return false,
        };
        let is_other = self.found.as_ref().is_some_and(|now| !before.is_same(&now.image));
        self.note_cut();
        if is_other {
            // Also of a front-end that stays, what counts from here on is what its guest is on.
            self.before = None;
        }
        is_other
    }

    /// Whether that is another image than the one that was there before it was closed; of one that was closed by another
    /// process, and `is_lent`, than the one that clients have.
    pub(crate) fn is_another(&self, found: &Found, is_lent: bool) -> bool {
        let before = match (&self.found, &self.remembered) {
            (Some(before), _) => &before.image,
            (None, Remembered::Image(image)) if is_lent => image,
            (None, _) => return false,
        };
        !before.is_same(&found.image)
    }

    /// Its guest is told of so many bytes. What is to be kept, if its guest is on this image.
    pub(crate) fn resized(&mut self, bytes: u64) -> Option<Image> {
        let found = self.found.as_mut()?;
        *found = found.resized(bytes);
        let image = found.image.clone();
        // A guest that waits for more bytes than these goes on waiting for them; one of whose bytes some were gone, for
        // its operator.
        let waits_for = match &self.remembered {
            Remembered::Image(remembered) if remembered.is_cut() => return None,
            Remembered::Image(remembered) if self.refused.is_some() => remembered.bytes,
            _ => 0,
        };
        (self.is_known() && bytes >= waits_for).then(|| {
            self.remembered = Remembered::Image(image.clone());
            image
        })
    }

    /// Whether no guest of it is remembered.
    pub(crate) fn is_new(&self) -> bool {
        self.remembered == Remembered::Nothing
    }

    /// Whether its guest goes on with what is there, whatever an operator says; or nothing is there.
    pub(crate) fn is_served(&self) -> bool {
        let is_cut = matches!(&self.remembered, Remembered::Image(image) if image.is_cut());
        let is_known = self.is_known() && !is_cut || self.remembered == Remembered::Nothing;
        self.found.is_none() || is_known && self.refused.is_none()
    }

    /// An operator has its guest go on with what is there. `None`: it would anyway.
    pub(crate) fn accept(&mut self) -> Option<Image> {
        if self.is_served() {
            return None;
        }
        let found = self.found.as_ref()?;
        // Of another machine's it is known when it is served.
        let image = found.image.told(0);
        self.found = Some(Found { image: image.clone(), ..found.resized(image.bytes) });
        self.before = None;
        self.forget_refusal();
        self.remembered = Remembered::Image(image.clone());
        Some(image)
    }

    /// A guest that is being taken over from another process is on the image. What is to be kept, if nothing is
    /// remembered: that process did not.
    pub(crate) fn inherit(&mut self) -> Option<Image> {
        (self.remembered == Remembered::Nothing).then(|| self.export()).flatten()
    }

    /// The image is served to other machines from here on. What is to be kept, if it is not what was remembered.
    pub(crate) fn export(&mut self) -> Option<Image> {
        let image = self.found.as_ref()?.image.clone();
        let now = Remembered::Image(image.clone());
        (std::mem::replace(&mut self.remembered, now.clone()) != now).then_some(image)
    }

    /// What clients of this daemon are told of the image ([`Image::number`]).
    pub(crate) fn number(&self) -> u64 {
        self.found.as_ref().map_or(0, |found| found.image.number())
    }

    /// The image of another machine that the guest of this disk was on, as its IOhost told it; 0: not known.
    pub(crate) fn told_number(&self) -> u64 {
        match &self.remembered {
            Remembered::Image(image) if self.is_known() => image.told_number().unwrap_or(0),
            _ => 0,
        }
    }

    /// Its IOhost serves that image to it from here on; 0: whatever it has. What is to be kept, if it is not kept yet.
    pub(crate) fn tell(&mut self, number: u64) -> Option<Image> {
        let found = self.found.as_mut()?;
        let before = found.image.told_number()?;
        let is_known = match &self.remembered {
            // Whatever number it had.
            Remembered::Image(image) => image.told(number).is_same(&found.image.told(number)),
            Remembered::Nothing | Remembered::Unreadable(_) => false,
        };
        found.image = found.image.told(number);
        let image = found.image.clone();
        let now = Remembered::Image(image.clone());
        if !is_known || before == number && self.remembered == now {
            return None;
        }
        self.remembered = now;
        Some(image)
    }

    /// Its guest has gone elsewhere in order: whatever it is on when it comes back is not known here.
    pub(crate) fn part(&mut self) -> bool {
        let had = self.remembered != Remembered::Nothing;
        (self.remembered, self.before, self.refused) = (Remembered::Nothing, None, None);
        had
    }
}
