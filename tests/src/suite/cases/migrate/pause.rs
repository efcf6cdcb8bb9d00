//! How long a guest that moves stands still, beside the same guest with QEMU's own disk and NIC.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testing::bed::Bed;
use testing::daemon::pause;
use testing::namespace::{Namespace, ended_within};

use super::moving::{Devices, Moving};
use super::spread;

const ROUNDS: u64 = 2;
/// Time for pings before and after a move.
const AROUND: Duration = Duration::from_secs(1);
const SIDES: [(&str, Devices); 2] = [("sidecore", Devices::Split), ("qemu", Devices::Qemu)];

/// What is measured, in milliseconds: the guest's processors and what the network sees, which are judged; and what QEMU
/// calls downtime.
#[derive(Default)]
struct Times {
    pauses: Vec<u64>,
    gaps: Vec<u64>,
    downtimes: Vec<u64>,
}

/// In turns, so that the machine's other work is both's.
pub(super) fn case(bed: &Bed) -> Result<()> {
    let mut all = [Times::default(), Times::default()];
    for round in 0..ROUNDS {
        for ((name, devices), times) in SIDES.into_iter().zip(&mut all) {
            let moving = Moving::new(bed.folder(), devices, 1)?;
            let traffic = moving.traffic()?;
            let part = bed.part(&format!("{name}-{round}"))?;
            for number in 0..bed.often(4, 10) {
                let pings = Pings::begin(moving.site().host())?;
                pause(AROUND);
                moving.moves(&part, &format!("move-{number}"), false)?;
                pause(AROUND);
                times.gaps.push(pings.gap_ms()?);
            }
            let made = moving.made();
            times.pauses.extend(made.iter().filter_map(|moved| moved.pause_ms()));
            times.downtimes.extend(made.iter().map(|moved| moved.downtime_ms()));
            traffic.end(&part)?;
            moving.end(&part)?;
        }
    }
    let [ours, qemus] = all;
    let beside = |a: &Vec<u64>, b: &Vec<u64>| json!({ "sidecore": spread(a.clone()), "qemu": spread(b.clone()) });
    let report = json!({
        "pause_ms": beside(&ours.pauses, &qemus.pauses), "gap_ms": beside(&ours.gaps, &qemus.gaps),
        "downtime_ms": beside(&ours.downtimes, &qemus.downtimes),
    });
    let is_short = ["pause_ms", "gap_ms"].iter().all(|what| {
        let median = |who: &str| report[what][who]["median"].as_f64().unwrap_or(f64::INFINITY);
        median("sidecore") <= 1.2 * median("qemu")
    });
    let judged = if is_short || !bed.judges_times() {
        Ok(report)
    } else {
        Err(anyhow!("over 20% more than QEMU's own: {report}"))
    };
    bed.check("pause", judged);
    Ok(())
}

/// A hundred pings a second.
struct Pings {
    ping: Child,
}

impl Pings {
    fn begin(host: &Namespace) -> Result<Pings> {
        let mut command = host.command("ping");
        command.args(["-D", "-n", "-i", "0.01", "10.9.0.1"]).stdout(Stdio::piped());
        Ok(Pings { ping: command.spawn().context("starting ping")? })
    }

    /// The longest time in which none was answered.
    fn gap_ms(self) -> Result<u64> {
        let mut ping = self.ping;
        kill_process(Pid::from_child(&ping), Signal::INT)?;
        let said = ping.stdout.take().context("ping has an output")?;
        let said = std::io::read_to_string(said)?;
        ended_within(&mut ping, AROUND * 60)?;
        let answers = said.lines().filter(|line| line.contains("bytes from"));
        let at = answers
            .filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse::<f64>().ok());
        let at: Vec<f64> = at.collect();
        ensure!(at.len() > 1, "the guest answers no pings: {said}");
        let gap = at.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
        Ok((gap * 1000.0) as u64)
    }
}
