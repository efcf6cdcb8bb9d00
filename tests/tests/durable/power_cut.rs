//! Power cuts of a disk with a volatile cache (reliability P1, P2, P3, P5, W2): whatever a cut
//! takes of what no sync covered, the guest finds nothing older than what it was promised.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::{Context, Result, ensure};
use testing::load::Random;
use testing::timing::{often, told};
use tests::power_cut::{Medium, Mode, Plan, record};
use virtqueue::Format;

/// Over all modes, unless `POWER_CUTS` says otherwise.
const CUTS: [u64; 2] = [150, 2000];
/// Runs of each mode.
const RUNS: [(Medium, Format, &str); 5] = [
    (Medium::Direct, Format::Split, "0"),
    (Medium::Page, Format::Packed, "0"),
    (Medium::Device, Format::Split, "0"),
    (Medium::Page, Format::Split, "0-1"),
    (Medium::Device, Format::Packed, "0-1"),
];
const REQUESTS: u64 = 1200;

#[test]
fn nothing_is_older_than_promised_after_any_power_cut() -> Result<()> {
    let cuts = often("POWER_CUTS", CUTS)?;
    let seed = told("POWER_SEED", 1)?;
    let of_a_run = cuts.div_ceil((Mode::ALL.len() * RUNS.len()) as u64);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut made, mut sectors) = (0, 0);
    println!("seed {seed} (POWER_SEED), {cuts} cuts (POWER_CUTS)");
    println!(
        "{:<14}{:>14}{:>15}{:>12}{:>18}{:>8}",
        "mode", "guest writes", "guest flushes", "host syncs", "required at least", "cuts"
    );
    for mode in Mode::ALL {
        let (mut writes, mut flushes, mut syncs, mut required) = (0, 0, 0, 0);
        for (run, (medium, format, cpus)) in (0..).zip(RUNS) {
            let seed = seed * 100 + run;
            let plan = Plan { mode, medium, format, cpus, requests: REQUESTS, seed };
            let recording = record(&plan).with_context(|| format!("{plan:?}"))?;
            for _ in 0..of_a_run {
                let moment = recording.moment(&mut random);
                sectors += recording.cut(moment).with_context(|| format!("{plan:?}"))?;
                made += 1;
            }
            let numbers = recording.numbers();
            ensure!(
                numbers.host_syncs >= numbers.required,
                "{plan:?}: the host's disk was synced too rarely: {numbers:?}"
            );
            writes += numbers.guest_writes;
            flushes += numbers.guest_flushes;
            syncs += numbers.host_syncs;
            required += numbers.required;
        }
        let name = format!("{mode:?}");
        let of_mode = of_a_run * RUNS.len() as u64;
        println!("{name:<14}{writes:>14}{flushes:>15}{syncs:>12}{required:>18}{of_mode:>8}");
    }
    println!("{made} power cuts, {sectors} sectors compared: 0 older than promised, 0 torn");
    Ok(())
}
