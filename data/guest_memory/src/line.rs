//! Waiting for a change of one line of memory, by the processor: `umwait` (WAITPKG, Intel) or `mwaitx`
//! (MONITORX, AMD). The core rests meanwhile, and a store of any processor to the line ends it.
//!
//! The order is the caller's: [`LineWait::watch`], look at the value, [`LineWait::wait`]. What is stored
//! after the first ends the last, at once if it came in between; so does an interrupt, and nothing
//! at all may. Not when to wait, nor for how long (`sidecore`).

use crate::area::Area;

/// How this processor waits. Whoever has one may: it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineWait(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Waitpkg,
    Monitorx,
}

/// Of CPUID leaf 7, ECX.
const WAITPKG: u32 = 1 << 5;
/// Of CPUID leaf 0x8000_0001, ECX.
const MONITORX: u32 = 1 << 29;

impl LineWait {
    /// `None` where it has neither.
    #[cfg(target_arch = "x86_64")]
    pub fn of_this_processor() -> Option<LineWait> {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        // Each leaf is only there when the first one of its range says so.
        let leaf_7 = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ecx } else { 0 };
        let has_extended = __cpuid(0x8000_0000).eax > 0x8000_0000;
        let extended = if has_extended { __cpuid(0x8000_0001).ecx } else { 0 };
        LineWait::of_cpuid(leaf_7, extended)
    }

    /// `None` where it has neither.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn of_this_processor() -> Option<LineWait> {
        LineWait::of_cpuid(0, 0)
    }

    fn of_cpuid(leaf_7: u32, extended: u32) -> Option<LineWait> {
        if leaf_7 & WAITPKG != 0 {
            Some(LineWait(Kind::Waitpkg))
        } else if extended & MONITORX != 0 {
            Some(LineWait(Kind::Monitorx))
        } else {
            None
        }
    }

    /// What [`Self::wait`] counts in: the processor's time stamp, which goes on evenly.
    #[inline]
    pub fn ticks(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 processor has it.
            unsafe { core::arch::x86_64::_rdtsc() }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            0
        }
    }

    /// A store to the line of byte `at` ends this thread's next [`Self::wait`]. Reads the byte, as a
    /// load does. Nothing happens when `at` is out of range; a wait then lasts as long as it may.
    #[inline]
    pub fn watch(self, area: &Area, at: usize) {
        let Some(place) = area.range(at, 1) else { return };
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `range()` checked that the byte is in the mapping, which lives as long as `area`; only
        // a load is made, and memory that went away is handled like under any other (`faults`). The
        // processor has the instruction: that is what `self` says.
        unsafe {
            let address = place.as_ptr().expose_provenance();
            match self.0 {
                Kind::Waitpkg => core::arch::asm!("umonitor {}", in(reg) address, options(nostack)),
                Kind::Monitorx => core::arch::asm!(
                    "monitorx", in("rax") address, in("ecx") 0, in("edx") 0, options(nostack)
                ),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    /// Rests until the line changes, or so many ticks have passed, or for no reason. Of the depths of
    /// rest the lightest, from which it is soonest back.
    #[inline]
    pub fn wait(self, at_most_ticks: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: neither touches memory, and the processor has the instruction: that is what `self`
        // says. `rbx`, which the compiler keeps for itself, is as before afterwards.
        unsafe {
            match self.0 {
                // C0.1. The moment at which it ends at the latest is in EDX:EAX.
                Kind::Waitpkg => {
                    let until = self.ticks().saturating_add(at_most_ticks.into());
                    core::arch::asm!(
                        "umwait {:e}", in(reg) 1, in("eax") until as u32,
                        in("edx") (until >> 32) as u32, options(nostack)
                    );
                }
                // 0xf0: stay in C0. Bit 1 of ECX: for at most EBX ticks.
                Kind::Monitorx => core::arch::asm!(
                    "xchg rbx, rsi", "mwaitx", "xchg rbx, rsi",
                    inout("rsi") u64::from(at_most_ticks) => _, in("eax") 0xf0, in("ecx") 2,
                    options(nostack)
                ),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at_most_ticks;
    }
}

impl core::fmt::Display for LineWait {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self.0 {
            Kind::Waitpkg => "umwait",
            Kind::Monitorx => "mwaitx",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_the_processor_says_is_believed() {
        assert_eq!(LineWait::of_cpuid(!WAITPKG, !MONITORX), None);
        let name = |leaf_7, extended| LineWait::of_cpuid(leaf_7, extended).unwrap().to_string();
        assert_eq!(name(WAITPKG, 0), "umwait");
        assert_eq!(name(WAITPKG, MONITORX), "umwait");
        assert_eq!(name(0, MONITORX), "mwaitx");
    }

    /// With a bound of a second, so that only the store can be what ended it, each of many times.
    #[test]
    #[ignore = "needs a processor with WAITPKG or MONITORX"]
    fn a_store_to_the_line_ends_a_wait() {
        let line = LineWait::of_this_processor().unwrap();
        let area = Area::anonymous(4096).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let value = area.load_u16(66).wrapping_add(1);
                    area.store_release_u16(66, value);
                    std::thread::yield_now();
                }
            });
            for _ in 0..1000 {
                let before = area.load_acquire_u16(66);
                while area.load_acquire_u16(66) == before {
                    line.watch(&area, 64);
                    if area.load_acquire_u16(66) == before {
                        line.wait(u32::MAX);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    #[ignore = "needs a processor with WAITPKG or MONITORX"]
    fn a_wait_ends_by_itself_and_one_on_nothing_too() {
        let line = LineWait::of_this_processor().unwrap();
        let area = Area::anonymous(4096).unwrap();
        for at in [0, 4095, 4096, usize::MAX] {
            line.watch(&area, at);
            line.wait(20_000);
        }
    }
}
