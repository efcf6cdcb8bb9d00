//! What tells the image of a disk from others. Not here: what it is told by (`file::image`), and who compares.

use super::{Disk, Kind};
use crate::names::Names;
use crate::{Astray, ImageFacts};

impl Disk {
    /// Facts by which its image is told from others; nothing of what is no image, or was not seen here.
    pub fn image(&self) -> Option<&ImageFacts> {
        match &self.kind {
            Kind::File(opened) => Some(opened.image()),
            Kind::Away(facts) => facts.image.as_ref(),
            Kind::Null | Kind::Memory(_) | Kind::Remote(_) => None,
        }
    }

    /// Bytes that its open image has now, whatever is served of them; `None` for what has none, or where the kernel does
    /// not say. Waits for as long as its file system does.
    pub fn own_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::File(opened) => opened.end().ok(),
            Kind::Null | Kind::Memory(_) | Kind::Away(_) | Kind::Remote(_) => None,
        }
    }

    /// What others have done to the open image, if something. `names` finds what has its name now. A file that was
    /// taken over without a label gets one, and one that has lost data its mark. Waits for as long as its file system does.
    pub fn astray(&self, names: &dyn Names) -> Option<Astray> {
        match &self.kind {
            Kind::File(opened) => {
                opened.label();
                opened.mark_lost();
                opened.astray(names, self.size_bytes)
            }
            // Of one that was given up only that: nothing of it is served.
            Kind::Away(facts) => facts.anchor.as_ref().and_then(|anchor| anchor.astray(names)),
            _ => None,
        }
    }
}
