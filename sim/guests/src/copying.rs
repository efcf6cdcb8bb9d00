//! A guest's memory, copied while it runs: page by page, as its own writes and the dirty log name them.

use guest_memory::{Area, Health, Mapping, Seal};
use std::os::fd::OwnedFd;

use crate::front_end::LOG_BYTES;
use crate::guest::Guest;
use crate::layout::{MEMORY, PAGE};

/// The memory at the place where the guest would go to, and the log as its VMM sees it.
pub(crate) struct Copying {
    bytes: Vec<u8>,
    log: Area,
}

impl std::fmt::Debug for Copying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl Copying {
    /// Begins; nothing is copied yet.
    pub(crate) fn begin(guest: &mut Guest, log: &OwnedFd) -> Result<Copying, String> {
        let map = Mapping::shared(log, 0, LOG_BYTES, Seal::Required, &Health::default());
        let log = Area::whole(map.map_err(|e| e.to_string())?);
        guest.written.extend(0..MEMORY / PAGE);
        Ok(Copying { bytes: vec![0; MEMORY as usize], log })
    }

    /// Copies every page that is said to have changed.
    pub(crate) fn copy(&mut self, guest: &mut Guest) {
        let mut pages = std::mem::take(&mut guest.written);
        for byte in 0..LOG_BYTES {
            let bits = self.log.load_u8(byte as usize);
            self.log.store_u8(byte as usize, 0);
            pages.extend((0..8).filter(|bit| bits >> bit & 1 != 0).map(|bit| byte * 8 + bit));
        }
        for page in pages {
            let at = (page * PAGE) as usize;
            self.bytes[at..at + PAGE as usize].copy_from_slice(&guest.memory.page(page));
        }
    }

    /// The memory there is the memory here.
    ///
    /// # Errors
    /// A page is not, so nobody has said that it had changed.
    pub(crate) fn compare(&self, guest: &Guest) -> Result<(), String> {
        for page in 0..MEMORY / PAGE {
            let at = (page * PAGE) as usize;
            if guest.memory.page(page) != self.bytes[at..at + PAGE as usize] {
                let (number, what) = (guest.spec.number, guest.part_of(page));
                return Err(format!(
                    "guest {number}: page {page} ({what}) was changed and is not in the dirty log"
                ));
            }
        }
        Ok(())
    }
}
