//! The bytes of one simulated disk: what is read, and what a power cut may leave.
//!
//! Sectors of 512 bytes are whole, never torn. Each has what a read finds now, what is stable, and in
//! between the versions that no sync has covered, any of which a cut may leave. Not here: when a command
//! runs (`kernel`).

use std::collections::BTreeMap;

use random::Random;

pub(crate) const SECTOR: usize = 512;
/// Sectors of a page, in which writes through the page cache are kept.
const PAGE_SECTORS: usize = 8;

type Sector = [u8; SECTOR];

/// What a command found of its pages when it was submitted: by that it may do harm when it runs.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    /// Moment of submission.
    pub(crate) serial: u64,
    /// A write through the page cache reads the pages of which it writes a part: the sectors beside.
    beside: Vec<(usize, Sector)>,
}

#[derive(Debug)]
pub(crate) struct Medium {
    visible: Vec<u8>,
    stable: Vec<u8>,
    /// By sector, oldest first, with the moment.
    unsynced: BTreeMap<usize, Vec<(u64, Sector)>>,
    /// What a failed sync has given up: no later one makes it stable.
    given_up: BTreeMap<usize, Vec<Sector>>,
    /// When each sector was last written past the page cache, and each through it.
    direct_at: Vec<u64>,
    cached_at: Vec<u64>,
    serial: u64,
}

impl Medium {
    pub(crate) fn new(sectors: usize) -> Medium {
        let zeroes = vec![0; sectors * SECTOR];
        Medium {
            visible: zeroes.clone(),
            stable: zeroes,
            unsynced: BTreeMap::new(),
            given_up: BTreeMap::new(),
            direct_at: vec![0; sectors],
            cached_at: vec![0; sectors],
            serial: 0,
        }
    }

    /// It has so many sectors at least; those that it had not are zeroes.
    pub(crate) fn grow(&mut self, sectors: usize) {
        if sectors > self.direct_at.len() {
            self.visible.resize(sectors * SECTOR, 0);
            self.stable.resize(sectors * SECTOR, 0);
            self.direct_at.resize(sectors, 0);
            self.cached_at.resize(sectors, 0);
        }
    }

    /// The bytes there now.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let len = into.len().min(self.visible.len().saturating_sub(offset));
        into[..len].copy_from_slice(&self.visible[offset..offset + len]);
        len
    }

    /// One sector as it is read now.
    pub(crate) fn sector(&self, sector: usize) -> &[u8] {
        &self.visible[sector * SECTOR..(sector + 1) * SECTOR]
    }

    /// A command is submitted that will write `len` bytes at `offset`, or none.
    pub(crate) fn begin(&mut self, offset: usize, len: usize, direct: bool) -> Begun {
        self.serial += 1;
        let mut beside = Vec::new();
        if !direct && len > 0 {
            let (first, end) = (offset / SECTOR, (offset + len).div_ceil(SECTOR));
            let from = first / PAGE_SECTORS * PAGE_SECTORS;
            let to = end.next_multiple_of(PAGE_SECTORS).min(self.direct_at.len());
            for sector in (from..to).filter(|sector| !(first..end).contains(sector)) {
                beside.push((sector, self.copy(sector)));
            }
        }
        Begun { serial: self.serial, beside }
    }

    /// The write runs: these bytes are there from now on. Through the page cache, and past it, at once:
    /// whoever comes second undoes the other, as kernels do (decision 0003).
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8], direct: bool, begun: &Begun) {
        self.serial += 1;
        for (index, piece) in bytes.chunks_exact(SECTOR).enumerate() {
            let sector = offset / SECTOR + index;
            if sector >= self.direct_at.len() {
                break;
            }
            let page = sector / PAGE_SECTORS * PAGE_SECTORS;
            let end = (page + PAGE_SECTORS).min(self.cached_at.len());
            let is_overrun =
                direct && (page..end).any(|beside| self.cached_at[beside] > begun.serial);
            if !is_overrun {
                let mut whole = [0; SECTOR];
                whole.copy_from_slice(piece);
                self.put(sector, whole);
            }
            let written = if direct { &mut self.direct_at } else { &mut self.cached_at };
            written[sector] = self.serial;
        }
        for (sector, old) in &begun.beside {
            if self.direct_at[*sector] > begun.serial {
                self.put(*sector, *old);
            }
        }
    }

    /// Zeroes, made by the file system: it drops what it has cached there, and no write undoes it.
    pub(crate) fn clear(&mut self, offset: usize, len: usize) {
        self.serial += 1;
        for sector in offset / SECTOR..((offset + len) / SECTOR).min(self.direct_at.len()) {
            self.put(sector, [0; SECTOR]);
        }
    }

    /// These sectors are stable as they are now.
    pub(crate) fn write_out(&mut self, offset: usize, len: usize) {
        for sector in offset / SECTOR..(offset + len).div_ceil(SECTOR).min(self.direct_at.len()) {
            let now = self.copy(sector);
            self.stable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(&now);
            self.unsynced.remove(&sector);
            self.given_up.remove(&sector);
        }
    }

    /// A sync that was submitted at `serial`: what was written by then is stable.
    pub(crate) fn sync(&mut self, serial: u64) {
        let (stable, given_up) = (&mut self.stable, &mut self.given_up);
        self.unsynced.retain(|sector, versions| {
            if let Some(last) = versions.iter().rposition(|(at, _)| *at <= serial) {
                let (_, bytes) = versions[last];
                stable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(&bytes);
                versions.drain(..=last);
                given_up.remove(sector);
            }
            !versions.is_empty()
        });
    }

    /// A sync that fails: some of what was to be written out never will be, and the kernel has forgotten it.
    pub(crate) fn fail_sync(&mut self, random: &mut Random) {
        let lost: Vec<usize> = self.unsynced.keys().copied().filter(|_| random.one_in(2)).collect();
        for sector in lost {
            let versions = self.unsynced.remove(&sector).unwrap_or_default();
            let given_up = self.given_up.entry(sector).or_default();
            given_up.extend(versions.into_iter().map(|(_, bytes)| bytes));
        }
    }

    /// The power fails: of each sector one of the versions that may be there is.
    pub(crate) fn cut(&mut self, random: &mut Random) {
        let mut left = std::mem::take(&mut self.given_up);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            let all = left.entry(sector).or_default();
            all.extend(versions.into_iter().map(|(_, bytes)| bytes));
        }
        for (sector, versions) in left {
            let pick = random.below(versions.len() as u64 + 1) as usize;
            if let Some(bytes) = versions.get(pick) {
                self.stable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(bytes);
            }
        }
        self.visible.clone_from(&self.stable);
    }

    fn copy(&self, sector: usize) -> Sector {
        let mut bytes = [0; SECTOR];
        bytes.copy_from_slice(self.sector(sector));
        bytes
    }

    fn put(&mut self, sector: usize, bytes: Sector) {
        self.visible[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(&bytes);
        self.unsynced.entry(sector).or_default().push((self.serial, bytes));
    }
}

#[cfg(test)]
mod tests;
