//! The options of `top`.

use clap::Args;

/// Seconds between two looks, at least and at most.
const INTERVAL: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore top                               on a terminal: until q; ? says which keys there are
  sidecore top --interval 5 --count 12       a minute, for a log
  sidecore top --json | jq '.sidecores[].busy_percent'

Rates are of the time between two looks; P50 and P99 are those of `sidecore show`. BUSY is the
time with requests and frames, POLL the time looking for some in vain; the rest is sleep.
Disks and NICs are in the order of what they do; below them is what guests wait for. VCPUS has a
letter for each vCPU of a guest whose NIC has `redirect`: R runs, w waits for a core, s sleeps,
? was not seen yet. Times of day are UTC.")]
pub(crate) struct TopArgs {
    /// Seconds between two looks, 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: f64,
    /// How often it is shown [default: without end on a terminal, otherwise once].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| INTERVAL.contains(seconds));
    seconds.ok_or_else(|| "a number of seconds from 0.1 to 3600 is wanted, such as 0.5".to_string())
}
