//! The driver against a device written out by hand: a plain reading of the specification, one
//! descriptor at a time, without anything of `Queue`.

use guest_memory::Area;

use super::*;

const PIECES: [Buffer; 3] = [
    Buffer { gpa: 0x1000, len: 16, device_writes: false },
    Buffer { gpa: 0x2000, len: 4096, device_writes: true },
    Buffer { gpa: 0x3000, len: 1, device_writes: true },
];

/// What the device found in the ring: an id to complete, its pieces, and entries it took.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    id: u16,
    pieces: Vec<Buffer>,
    entries: u16,
}

struct Device {
    format: Format,
    size: u16,
    tables: Option<IndirectTables>,
    next: u16,
    lap: bool,
    used: u16,
    used_lap: bool,
}

impl Device {
    fn take(&mut self, raw: &Raw) -> Option<Found> {
        match self.format {
            Format::Split => self.take_split(raw),
            Format::Packed => self.take_packed(raw),
        }
    }

    fn take_split(&mut self, raw: &Raw) -> Option<Found> {
        if raw.avail_index() == self.next {
            return None;
        }
        let id = raw.driver_area().load_u16(4 + 2 * usize::from(self.next % self.size));
        self.next = self.next.wrapping_add(1);
        let (mut pieces, mut index) = (Vec::new(), id);
        loop {
            let found = raw.read_descriptor(index);
            if found.flags & 4 != 0 {
                pieces = self.table(found, 12);
            } else {
                pieces.push(piece(found));
            }
            if found.flags & 1 == 0 {
                return Some(Found { id, pieces, entries: 1 });
            }
            index = found.next_or_id;
        }
    }

    fn take_packed(&mut self, raw: &Raw) -> Option<Found> {
        let (mut pieces, mut entries) = (Vec::new(), 0);
        loop {
            let found = raw.read_descriptor(self.next);
            let (avail, used) = (found.flags & 0x80 != 0, found.flags & 0x8000 != 0);
            if avail != self.lap || used == self.lap {
                assert_eq!(entries, 0, "a chain is seen whole or not at all");
                return None;
            }
            entries += 1;
            self.next += 1;
            if self.next == self.size {
                (self.next, self.lap) = (0, !self.lap);
            }
            if found.flags & 4 != 0 {
                pieces = self.table(found, 14);
            } else {
                pieces.push(piece(found));
            }
            if found.flags & 1 == 0 {
                return Some(Found { id: found.next_or_id, pieces, entries });
            }
        }
    }

    fn table(&self, found: RawDescriptor, flags_at: usize) -> Vec<Buffer> {
        let tables = self.tables.as_ref().expect("indirect was not negotiated");
        let start = (found.gpa - tables.gpa) as usize;
        let read = |entry: usize| {
            let at = start + 16 * entry;
            let flags = tables.area.load_u16(at + flags_at);
            let device_writes = flags & 2 != 0;
            let (gpa, len) = (tables.area.load_u64(at), tables.area.load_u32(at + 8));
            Buffer { gpa, len, device_writes }
        };
        (0..found.len as usize / 16).map(read).collect()
    }

    fn complete(&mut self, raw: &Raw, found: &Found, len: u32) {
        match self.format {
            Format::Split => {
                let at = 4 + 8 * usize::from(self.used % self.size);
                raw.device_area().store_u32(at, found.id.into());
                raw.device_area().store_u32(at + 4, len);
                self.used = self.used.wrapping_add(1);
                raw.set_used_index(self.used);
            }
            Format::Packed => {
                let flags = if self.used_lap { 0x8080 } else { 0 };
                let used = RawDescriptor { gpa: 0, len, flags, next_or_id: found.id };
                raw.write_descriptor(self.used, used);
                self.used += found.entries;
                if self.used >= self.size {
                    (self.used, self.used_lap) = (self.used - self.size, !self.used_lap);
                }
            }
        }
    }
}

fn piece(found: RawDescriptor) -> Buffer {
    Buffer { gpa: found.gpa, len: found.len, device_writes: found.flags & 2 != 0 }
}

fn pair(format: Format, size: u16, indirect_entries: u16, event_index: bool) -> (Driver, Device) {
    let mut arena = Arena::new(Area::anonymous(1 << 20).unwrap(), 0x10_0000);
    let ring = RingSpec { size, format, event_index, indirect_entries };
    let (driver, _) = arena.driver(ring).unwrap();
    let tables = match &driver.ring {
        Ring::Split(split) => split.tables(),
        Ring::Packed(packed) => packed.tables(),
    };
    let tables = tables.cloned();
    let device = Device { format, size, tables, next: 0, lap: true, used: 0, used_lap: true };
    (driver, device)
}

/// Every combination that has rules of its own.
fn every(test: impl Fn(Driver, Device)) {
    for (format, size) in
        [(Format::Split, 8), (Format::Packed, 8), (Format::Packed, 7), (Format::Split, 4)]
    {
        for indirect_entries in [0, 3] {
            for event_index in [false, true] {
                let (driver, device) = pair(format, size, indirect_entries, event_index);
                test(driver, device);
            }
        }
    }
}

#[test]
fn what_is_added_is_found_and_comes_back_for_many_laps() {
    every(|mut driver, mut device| {
        let raw = driver.raw().clone();
        for token in 0..100_000u64 {
            let pieces = &PIECES[..1 + token as usize % 3];
            driver.add(pieces, token).unwrap();
            driver.publish();
            let found = device.take(&raw).expect("published");
            assert_eq!(found.pieces, pieces);
            assert_eq!(driver.take_used(), None);
            device.complete(&raw, &found, token as u32);
            assert_eq!(driver.take_used(), Some(Used { token, len: token as u32 }));
        }
        assert_eq!((driver.in_flight(), driver.fault()), (0, None));
    });
}

#[test]
fn requests_may_end_in_any_order_until_the_ring_is_full_again() {
    every(|mut driver, mut device| {
        let raw = driver.raw().clone();
        let empty = driver.free_descriptors();
        for lap in 0..1000u64 {
            let mut sent = 0;
            while driver.add(&PIECES[..2], lap << 8 | sent).is_ok() {
                sent += 1;
            }
            let each = if device.tables.is_some() { 1 } else { 2 };
            assert_eq!(sent, u64::from(empty / each), "as many as fit");
            driver.publish();
            let mut found: Vec<Found> = std::iter::from_fn(|| device.take(&raw)).collect();
            assert_eq!(found.len() as u64, sent);
            let turn = lap as usize % found.len();
            found.rotate_left(turn);
            found.iter().for_each(|one| device.complete(&raw, one, 1));
            let mut tokens: Vec<u64> =
                std::iter::from_fn(|| driver.take_used()).map(|used| used.token).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..sent).map(|n| lap << 8 | n).collect::<Vec<_>>());
            assert_eq!(driver.free_descriptors(), empty);
        }
    });
}

#[test]
fn a_prepared_request_is_added_again_and_again_but_not_twice_at_once() {
    every(|mut driver, mut device| {
        let raw = driver.raw().clone();
        let prepared = driver.prepare(&PIECES).unwrap();
        for token in 0..10_000 {
            driver.add_prepared(prepared, token).unwrap();
            assert_eq!(driver.add_prepared(prepared, 0), Err(AddError::Full));
            driver.publish();
            let found = device.take(&raw).unwrap();
            assert_eq!(found.pieces, PIECES);
            device.complete(&raw, &found, 7);
            assert!(!driver.forget(prepared), "in flight");
            assert_eq!(driver.take_used(), Some(Used { token, len: 7 }));
        }
        assert!(driver.forget(prepared));
        assert!(!driver.forget(prepared));
        assert_eq!(driver.add_prepared(prepared, 0), Err(AddError::Full));
        assert_eq!(driver.free_descriptors(), device.size);
    });
}

#[test]
fn a_completion_of_nothing_is_a_fault_for_ever() {
    every(|mut driver, mut device| {
        let raw = driver.raw().clone();
        for token in 0..2 {
            driver.add(&PIECES[..1], token).unwrap();
        }
        driver.publish();
        let found = device.take(&raw).unwrap();
        device.complete(&raw, &found, 0);
        device.complete(&raw, &found, 0);
        assert!(driver.take_used().is_some());
        assert_eq!(driver.take_used(), None);
        assert_eq!(driver.fault(), Some(Fault::NotInFlight { id: found.id.into() }));
        assert_eq!(driver.in_flight(), 1);
    });
}

#[test]
fn a_used_index_that_runs_ahead_is_a_fault() {
    let (mut driver, _) = pair(Format::Split, 8, 0, false);
    driver.add(&PIECES[..1], 0).unwrap();
    driver.publish();
    driver.raw().set_used_index(2);
    assert_eq!(driver.take_used(), None);
    assert_eq!(driver.fault(), Some(Fault::UsedIndex { from: 0, to: 2, in_flight: 1 }));
}

#[test]
fn kicks_follow_the_devices_wish() {
    for (format, flags_at) in [(Format::Split, 0), (Format::Packed, 2)] {
        let (mut driver, _) = pair(format, 8, 0, false);
        assert!(!driver.publish(), "nothing was added");
        driver.add(&PIECES[..1], 0).unwrap();
        assert!(driver.publish());
        driver.raw().device_area().store_u16(flags_at, 1);
        driver.add(&PIECES[..1], 1).unwrap();
        assert!(!driver.publish());
    }
}

#[test]
fn with_event_indices_only_the_place_asked_for_kicks() {
    let (mut driver, _) = pair(Format::Split, 8, 0, true);
    driver.raw().device_area().store_u16(4 + 8 * 8, 2);
    let (mut packed, _) = pair(Format::Packed, 8, 0, true);
    packed.raw().device_area().store_u16(0, 2 | 1 << 15);
    packed.raw().device_area().store_u16(2, 2);
    for driver in [&mut driver, &mut packed] {
        let kicks: Vec<bool> = (0..5)
            .map(|token| {
                driver.add(&PIECES[..1], token).unwrap();
                driver.publish()
            })
            .collect();
        assert_eq!(kicks, [false, false, true, false, false]);
    }
}

#[test]
fn arming_looks_again() {
    every(|mut driver, mut device| {
        let raw = driver.raw().clone();
        driver.disarm_calls();
        driver.add(&PIECES[..1], 0).unwrap();
        driver.publish();
        assert!(!driver.arm_calls());
        let found = device.take(&raw).unwrap();
        device.complete(&raw, &found, 0);
        assert!(driver.arm_calls());
        assert!(driver.take_used().is_some());
        assert!(!driver.arm_calls());
    });
}

#[test]
fn an_impossible_ring_is_refused() {
    let area = Area::anonymous(4096).unwrap();
    let arena = |size, format| {
        let ring = RingSpec { size, format, event_index: false, indirect_entries: 0 };
        Arena::new(area.clone(), 0).driver(ring).map(drop)
    };
    assert!(matches!(arena(6, Format::Split), Err(DriverError::Size { .. })));
    assert!(matches!(arena(0, Format::Packed), Err(DriverError::Size { .. })));
    assert!(matches!(arena(1024, Format::Split), Err(DriverError::Place { .. })));
    assert_eq!(arena(6, Format::Packed), Ok(()));
}
