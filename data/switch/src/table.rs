//! Where stations are: addresses by VLAN, with the port that each was last seen on, and when.
//!
//! Not who gets a frame (`switch`). Called by `switch`.
//!
//! Eight places for each address, side by side in two cache lines: keys in one, ports and times in
//! the other. An address that a port owns is *pinned*: it neither ages nor moves. There are four times as many places as addresses may be kept, so that of 8,192 about
//! one meets eight others. Such a one is not learned, and frames to it are flooded.

use core::ops::Range;

use crate::rules::{Limits, MACS_MAX, PortId};

/// Places for one address.
const WAYS: usize = 8;
/// Places for each address that may be kept.
const SPARSE: usize = 4;
/// Time is counted in units of 2^20 ns, so that with a port it fits into 64 bits.
const TICK_SHIFT: u32 = 20;
/// Buckets that are aged for each tick that has passed, and at most in one call: 512 entries take
/// about 1 us, 4,096 about 8 us, which is less than a visit may take.
const SWEEP: usize = 64;
const SWEEP_MAX: usize = 512;

/// One address that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac {
    /// The address.
    pub address: [u8; 6],
    /// Its VLAN; 0 for none.
    pub vlan: u16,
    /// The port it was last seen on.
    pub port: PortId,
    /// How long ago that was, in nanoseconds; exact to about 1 ms. 0 for one that is pinned.
    pub age_ns: u64,
    /// Whether it is the port's own, which neither ages nor moves.
    pub is_pinned: bool,
}

/// What came of a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It is known now.
    Known,
    /// There was no place.
    Full,
    /// Its port has as many as it may have.
    Limit,
    /// It is pinned to another port.
    Taken,
}

/// Keys are never 0, which is an empty place.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    keys: [u64; WAYS],
    seen: [Seen; WAYS],
}

const _: () = assert!(size_of::<Bucket>() == 128);

/// A port in 16 bits and a tick in 48; of 64 bits of nanoseconds only 44 are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    /// A tick that never comes, so that what has it is always young.
    const PINNED: u64 = 0xffff_ffff_ffff;

    fn new(port: PortId, tick: u64) -> Seen {
        Seen(u64::from(port.0) << 48 | tick)
    }

    fn pinned(port: PortId) -> Seen {
        Seen::new(port, Seen::PINNED)
    }

    fn is_pinned(self) -> bool {
        self.tick() == Seen::PINNED
    }

    fn port(self) -> PortId {
        PortId((self.0 >> 48) as u16)
    }

    fn tick(self) -> u64 {
        self.0 & Seen::PINNED
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    /// A power of two of them.
    buckets: Box<[Bucket]>,
    /// Addresses kept, by port number.
    counts: Box<[u32]>,
    /// The sum of these.
    total: u32,
    macs_max: u32,
    ageing: u64,
    keys: [u64; 2],
    /// Up to when, and to which bucket, the table was aged.
    swept: u64,
    next: usize,
    unlearned: u64,
}

impl Table {
    pub(crate) fn new(limits: &Limits, ports: usize, seed: u64) -> Table {
        let macs_max = limits.macs_max.clamp(1, MACS_MAX);
        let buckets = (macs_max as usize * SPARSE / WAYS).next_power_of_two().max(SWEEP);
        let empty = Bucket { keys: [0; WAYS], seen: [Seen(0); WAYS] };
        Table {
            buckets: vec![empty; buckets].into_boxed_slice(),
            counts: vec![0; ports].into_boxed_slice(),
            total: 0,
            macs_max,
            ageing: limits.ageing_ns >> TICK_SHIFT,
            // The second one is multiplied with, and must not be even.
            keys: [scramble(seed), scramble(seed.wrapping_add(1)) | 1],
            swept: 0,
            next: 0,
            unlearned: 0,
        }
    }

    /// Notes that `address` was seen on `port`, which may have `macs_max` of them. One that `is_own`
    /// is pinned, whatever the limits; the others' ports lose it.
    #[inline(always)]
    pub(crate) fn learn(
        &mut self,
        address: u64,
        vlan: u16,
        port: PortId,
        is_own: bool,
        macs_max: u32,
        now_ns: u64,
    ) -> Learned {
        let now = now_ns >> TICK_SHIFT;
        if now > self.swept {
            self.sweep(now);
        }
        let key = key(address, vlan);
        let at = self.bucket(key);
        let fresh = if is_own { Seen::pinned(port) } else { Seen::new(port, now) };
        let Some(bucket) = self.buckets.get_mut(at) else { return Learned::Full };
        if let Some(way) = position(bucket, key)
            && let Some(seen) = bucket.seen.get_mut(way)
        {
            // Written once in a tick, so that the line stays clean between.
            if *seen == fresh {
                return Learned::Known;
            }
            let is_same = seen.port() == port && !seen.is_pinned();
            if is_same && !is_aged(*seen, now, self.ageing) {
                *seen = fresh;
                return Learned::Known;
            }
            return self.relearn(at, way, fresh, macs_max, now);
        }
        self.learn_new(at, key, fresh, macs_max, now)
    }

    /// Makes `address` the port's own before it has sent anything. One that is another port's own stays
    /// that until it is not.
    pub(crate) fn pin(&mut self, address: u64, vlan: u16, port: PortId) {
        self.learn(address, vlan, port, true, u32::MAX, self.swept << TICK_SHIFT);
    }

    /// An address that was here before: it moved, has aged, or is pinned.
    #[cold]
    fn relearn(&mut self, at: usize, way: usize, fresh: Seen, macs_max: u32, now: u64) -> Learned {
        let Some(bucket) = self.buckets.get_mut(at) else { return Learned::Full };
        let Some((key, seen)) = bucket.keys.get_mut(way).zip(bucket.seen.get_mut(way)) else {
            return Learned::Full;
        };
        let (old, new) = (seen.port(), fresh.port());
        if seen.is_pinned() {
            return if old == new { Learned::Known } else { Learned::Taken };
        }
        if is_aged(*seen, now, self.ageing) {
            let key = std::mem::take(key);
            self.uncount(old);
            return self.learn_new(at, key, fresh, macs_max, now);
        }
        let count = self.counts.get(usize::from(new.0));
        if !fresh.is_pinned() && count.is_none_or(|count| *count >= macs_max) {
            return Learned::Limit;
        }
        *seen = fresh;
        self.uncount(old);
        self.count(new);
        Learned::Known
    }

    #[cold]
    fn learn_new(&mut self, at: usize, key: u64, fresh: Seen, macs_max: u32, now: u64) -> Learned {
        self.clear_aged(at, now);
        let port = fresh.port();
        if !fresh.is_pinned() && self.learned(port) >= macs_max {
            return Learned::Limit;
        }
        let way = match fresh.is_pinned() {
            true => self.make_room(at),
            false => self.free(at).filter(|_| self.total < self.macs_max),
        };
        let bucket = self.buckets.get_mut(at);
        let Some((way, bucket)) = way.zip(bucket) else {
            self.unlearned += 1;
            return Learned::Full;
        };
        if let Some((place, seen)) = bucket.keys.get_mut(way).zip(bucket.seen.get_mut(way)) {
            (*place, *seen) = (key, fresh);
            self.count(port);
        }
        Learned::Known
    }

    fn free(&self, at: usize) -> Option<usize> {
        position(self.buckets.get(at)?, 0)
    }

    /// A place that is free, or that the one silent for longest gives up. None when all are pinned.
    fn make_room(&mut self, at: usize) -> Option<usize> {
        if let Some(free) = self.free(at) {
            return Some(free);
        }
        let bucket = self.buckets.get(at)?;
        let oldest = *bucket.seen.iter().min_by_key(|seen| seen.tick())?;
        if oldest.is_pinned() {
            return None;
        }
        self.clear(at, |seen| seen == oldest);
        self.free(at)
    }

    /// The port of an address that has not aged.
    #[inline]
    pub(crate) fn find(&self, address: u64, vlan: u16, now_ns: u64) -> Option<PortId> {
        let key = key(address, vlan);
        let bucket = self.buckets.get(self.bucket(key))?;
        let seen = *bucket.seen.get(position(bucket, key)?)?;
        (!is_aged(seen, now_ns >> TICK_SHIFT, self.ageing)).then_some(seen.port())
    }

    /// Forgets all addresses of a port: a walk until the last of them is found.
    pub(crate) fn forget(&mut self, port: PortId) {
        for at in 0..self.buckets.len() {
            if self.learned(port) == 0 {
                return;
            }
            self.clear(at, |seen| seen.port() == port);
        }
    }

    /// How many addresses are kept of a port.
    pub(crate) fn learned(&self, port: PortId) -> u32 {
        self.counts.get(usize::from(port.0)).copied().unwrap_or(0)
    }

    pub(crate) fn unlearned(&self) -> u64 {
        self.unlearned
    }

    /// How many buckets there are: what [`Self::macs`] has in parts.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// All of these buckets that have not aged.
    pub(crate) fn macs(&self, those: Range<usize>, now_ns: u64) -> impl Iterator<Item = Mac> + '_ {
        let now = now_ns >> TICK_SHIFT;
        let end = those.end.min(self.buckets.len());
        let buckets = self.buckets.get(those.start.min(end)..end).unwrap_or_default();
        let places = buckets.iter().flat_map(|bucket| bucket.keys.iter().zip(&bucket.seen));
        let known =
            places.filter(move |(key, seen)| **key != 0 && !is_aged(**seen, now, self.ageing));
        known.map(move |(key, seen)| {
            let [_, _, a, b, c, d, e, f] = (key >> 12).to_be_bytes();
            Mac {
                address: [a, b, c, d, e, f],
                vlan: (key & 0xfff) as u16,
                port: seen.port(),
                age_ns: now.saturating_sub(seen.tick()) << TICK_SHIFT,
                is_pinned: seen.is_pinned(),
            }
        })
    }

    /// Ages as many buckets as time has passed.
    #[cold]
    fn sweep(&mut self, now: u64) {
        let passed = usize::try_from(now - self.swept).unwrap_or(usize::MAX);
        let buckets = passed.saturating_mul(SWEEP).min(SWEEP_MAX).min(self.buckets.len());
        for _ in 0..buckets {
            self.clear_aged(self.next, now);
            self.next = (self.next + 1) & (self.buckets.len() - 1);
        }
        self.swept = now;
    }

    fn clear_aged(&mut self, at: usize, now: u64) {
        let ageing = self.ageing;
        self.clear(at, |seen| is_aged(seen, now, ageing));
    }

    /// Empties the places of a bucket that `is_gone`.
    fn clear(&mut self, at: usize, is_gone: impl Fn(Seen) -> bool) {
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        for (key, seen) in bucket.keys.iter_mut().zip(&bucket.seen) {
            if *key == 0 || !is_gone(*seen) {
                continue;
            }
            *key = 0;
            self.total = self.total.saturating_sub(1);
            if let Some(count) = self.counts.get_mut(usize::from(seen.port().0)) {
                *count = count.saturating_sub(1);
            }
        }
    }

    fn count(&mut self, port: PortId) {
        self.total += 1;
        if let Some(count) = self.counts.get_mut(usize::from(port.0)) {
            *count += 1;
        }
    }

    fn uncount(&mut self, port: PortId) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.counts.get_mut(usize::from(port.0)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Which bucket, by two multiplications with secrets: after one alone, addresses in a row would
    /// still come at even distances, and may meet more often than by chance.
    #[inline]
    fn bucket(&self, key: u64) -> usize {
        let [first, second] = self.keys;
        let hash = fold(fold(key ^ first, second), FRACTION);
        hash as usize & (self.buckets.len() - 1)
    }
}

#[inline]
fn key(address: u64, vlan: u16) -> u64 {
    KEY | address << 12 | u64::from(vlan)
}

/// Above 48 bits of address and 12 of VLAN: a frame may be sent to address 0.
const KEY: u64 = 1 << 60;

/// The place of a key; of 0, the first that is free.
#[inline]
fn position(bucket: &Bucket, key: u64) -> Option<usize> {
    bucket.keys.iter().position(|one| *one == key)
}

/// Both halves of a product.
#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

/// An odd number with about as many ones as zeroes.
const FRACTION: u64 = 0x2437_4d5e_c6a4_6e95;

/// Whether that was longer ago than addresses are known for; a clock that went back ages nothing.
#[inline]
fn is_aged(seen: Seen, now: u64, ageing: u64) -> bool {
    now.saturating_sub(seen.tick()) > ageing
}

/// Spreads a seed over 64 bits (splitmix64).
fn scramble(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests;
