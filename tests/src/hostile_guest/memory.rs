//! A hostile guest's memory: how it is announced, and its bytes: data, headers, tables.
//!
//! By guest address; what is outside of memory is not written. Not the rings' indices (the parent).

use std::os::fd::{AsFd, OwnedFd};

use anyhow::Result;
use guest_memory::Area;

use super::{BASE, D, GAP, Guest, HEADER, MEMORY, SECOND, STATUS, TABLE, USER};
use crate::raw_front_end::{Answer, NEED_REPLY, VERSION, request, table};

impl Guest {
    /// Announces one more piece of memory, as any file, from its start on.
    ///
    /// # Errors
    /// The session's.
    pub fn lend(&mut self, gpa: u64, bytes: u64, file: OwnedFd) -> Result<Answer> {
        self.lent.push(([gpa, bytes, gpa + USER, 0], file));
        self.tell_memory(VERSION | NEED_REPLY)?;
        self.raw.answer()
    }

    /// Announces memory, all of it where it was.
    ///
    /// # Errors
    /// The session's.
    pub fn share_memory(&mut self) -> Result<()> {
        self.tell_memory(VERSION)
    }

    fn tell_memory(&self, flags: u32) -> Result<()> {
        let half = MEMORY / 2;
        let own = self.file.as_fd();
        let mut regions = match self.layout.two_regions {
            false => vec![[BASE, MEMORY, BASE + USER, 0]],
            true => vec![[BASE, half, BASE + USER, 0], [SECOND, half, SECOND + USER, half + GAP]],
        };
        let mut fds = vec![own; regions.len()];
        for (region, file) in &self.lent {
            regions.push(*region);
            fds.push(file.as_fd());
        }
        self.raw.send(request::SET_MEM_TABLE, flags, &table(&regions), &fds)
    }

    /// The file that memory is.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Copies bytes into guest memory. Outside of it nothing is written.
    pub fn put(&self, gpa: u64, bytes: &[u8]) {
        // One half at a time, as the second may be elsewhere in the file.
        let first = bytes.len().min(SECOND.saturating_sub(gpa) as usize);
        let (low, high) = bytes.split_at(first);
        if !low.is_empty() {
            self.memory.write(self.offset(gpa), low);
        }
        if !high.is_empty() {
            self.memory.write(self.offset(gpa + first as u64), high);
        }
    }

    /// Bytes of guest memory.
    pub fn get(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let first = len.min(SECOND.saturating_sub(gpa) as usize);
        let (low, high) = bytes.split_at_mut(first);
        if !low.is_empty() {
            self.memory.read(self.offset(gpa), low);
        }
        if !high.is_empty() {
            self.memory.read(self.offset(gpa + first as u64), high);
        }
        bytes
    }

    /// Makes bytes zero.
    pub fn zero(&self, gpa: u64, len: u64) {
        self.put(gpa, &vec![0; len as usize]);
    }

    /// Writes a 16-bit word so that all before it is seen first.
    pub fn put_u16(&self, gpa: u64, value: u16) {
        self.memory.store_release_u16(self.offset(gpa), value);
    }

    /// Reads a 16-bit word before all that follows.
    pub fn get_u16(&self, gpa: u64) -> u16 {
        self.memory.load_acquire_u16(self.offset(gpa))
    }

    /// Memory itself, for a thread of its own; see [`Guest::offset`].
    pub fn memory(&self) -> Area {
        self.memory.clone()
    }

    /// Where a guest address is in [`Guest::memory`].
    pub fn offset(&self, gpa: u64) -> usize {
        let gap = if self.layout.two_regions && gpa >= SECOND { GAP } else { 0 };
        (gpa.wrapping_sub(BASE).wrapping_add(gap)) as usize
    }

    /// Writes a request's header at [`HEADER`] and spoils its status.
    pub fn header(&self, kind: u32, sector: u64) {
        self.header_at(0, kind, sector);
    }

    /// As [`Guest::header`], for place `slot`.
    pub fn header_at(&self, slot: u16, kind: u32, sector: u64) {
        let at = HEADER + u64::from(slot) * 64;
        self.put(at, &u64::from(kind).to_le_bytes());
        self.put(at + 8, &sector.to_le_bytes());
        self.put(at + 32, &[0xff]);
    }

    /// The status of the first header.
    pub fn status(&self) -> u8 {
        self.get(STATUS, 1)[0]
    }

    /// Writes entry `index` of a table in this ring's format.
    pub fn entry(&self, table: u64, index: u16, D(gpa, len, flags, other): D) {
        let at = table + u64::from(index) * 16;
        self.put(at, &gpa.to_le_bytes());
        self.put(at + 8, &len.to_le_bytes());
        let (first, second) = if self.layout.is_packed() { (other, flags) } else { (flags, other) };
        self.put_u16(at + 12, first);
        self.put_u16(at + 14, second);
    }

    /// Writes an indirect table at [`TABLE`].
    pub fn table(&self, entries: &[D]) {
        for (index, entry) in (0..).zip(entries) {
            self.entry(TABLE, index, *entry);
        }
    }
}
