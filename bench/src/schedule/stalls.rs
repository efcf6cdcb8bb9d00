//! How often the machine itself stops a thread for longer than 8 us: one that only looks at the clock, and
//! one that copies 4 KiB at a time between places all over 192 MiB, as a sidecore with streams does.
//!
//! Not about any daemon. On virtual machines the second is stopped far more often than the first (their
//! hypervisor has to look after the pages it touches), and what happens to a request then is the p99 of a mixed load
//! wherever this is near 1%.

use testing::clock::now_ns;
use testing::load::Random;
use testing::report::Row;
use testing::server::Who;

use super::Options;

const BYTES: usize = 96 << 20;
const PIECE: usize = 4 << 10;
/// A copy takes less than 2 us.
const STALL_NS: u64 = 8_000;

pub(super) fn measure(options: &Options) -> Vec<Row> {
    let for_ns = if options.quick { 100_000_000 } else { 400_000_000 };
    let mut random = Random(1);
    let (mut from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let (mut spin, mut copy) = (Vec::new(), Vec::new());
    for _ in 0..testing::report::ROUNDS_MIN {
        spin.push(stalled_percent(for_ns, || {}));
        copy.push(stalled_percent(for_ns, || {
            let mut at = || random.below((BYTES / PIECE) as u64) as usize * PIECE;
            let (one, other) = (at(), at());
            if let (Some(to), Some(from)) =
                (to.get_mut(one..one + PIECE), from.get(other..other + PIECE))
            {
                to.copy_from_slice(from);
            }
        }));
        std::mem::swap(&mut from, &mut to);
    }
    [("spin", spin), ("copy", copy)]
        .map(|(what, values)| {
            let name = format!("schedule.machine.{what}_stalled_percent");
            Row::new(name, Who::Machine, "%", &values)
        })
        .into()
}

/// The part of the time, in hundredths, that went into turns of more than `STALL_NS`.
fn stalled_percent(for_ns: u64, mut turn: impl FnMut()) -> f64 {
    let start = now_ns();
    let (mut last, mut stalled) = (start, 0);
    while last - start < for_ns {
        turn();
        let now = now_ns();
        if now - last > STALL_NS {
            stalled += now - last;
        }
        last = now;
    }
    stalled as f64 / (last - start) as f64 * 100.0
}
