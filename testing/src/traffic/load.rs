//! iperf3 both ways at once, in the background of something else.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::now_ns;
use crate::daemon::pause;
use crate::place::{Place, end_of};
use crate::timing::PATIENCE;

/// How long it lasts at most, seconds: longer than whatever it is in the background of.
const SECONDS: u32 = 86_400;
/// Each way.
const RATE: &str = "10M";
/// Between two looks at what it says.
const LOOK: Duration = Duration::from_millis(500);

/// A load that runs in a place. Its connections are those of the beginning: iperf3 does not connect again.
pub struct Load<'a> {
    place: &'a dyn Place,
}

impl<'a> Load<'a> {
    /// Starts it, to the iperf3 server at `address`, at 10 Mbit/s each way.
    ///
    /// # Errors
    /// The place does not answer.
    pub fn start(place: &'a dyn Place, address: &str) -> Result<Load<'a>> {
        Load::begin(place, address, RATE)
    }

    /// The same at another rate, as iperf3 has it.
    ///
    /// # Errors
    /// The place does not answer.
    pub fn begin(place: &'a dyn Place, address: &str, rate: &str) -> Result<Load<'a>> {
        let words = format!("-f k -i 1 --forceflush --bidir -b {rate} -t {SECONDS} -c {address}");
        place.run(&format!("iperf3 {words} >load 2>&1 & echo $! >load-pid"))?;
        Ok(Load { place })
    }

    /// Whether frames go both ways: the rates of a last second, kbit/s, out and back.
    ///
    /// # Errors
    /// It is broken, or the place does not answer.
    pub fn flows(&self) -> Result<Option<[f64; 2]>> {
        let said = self.place.does("grep -E 'error|[RT]X-C.*bits/sec' load | tail -n 6")?.1;
        if said.contains("error") {
            bail!("the load is broken: {}", end_of(&said));
        }
        Ok(rates(&said))
    }

    /// Ends it. It has some time to flow again after what came last.
    ///
    /// # Errors
    /// It is broken, or silent.
    pub fn end(self) -> Result<String> {
        let start = now_ns();
        let found = loop {
            match self.flows() {
                Ok(None) if Duration::from_nanos(now_ns() - start) < PATIENCE => pause(LOOK),
                found => break found,
            }
        };
        let ended = self.place.does("kill -INT \"$(cat load-pid)\"");
        let Some([out, back]) = found? else { bail!("nothing flows both ways any more") };
        ended?;
        Ok(format!("out and back {out:.0} and {back:.0} kbit/s in a last second"))
    }
}

/// The last but one second of each way, since the last one may not be over: where both are more than nothing.
fn rates(said: &str) -> Option<[f64; 2]> {
    let way = |mark: &str| {
        let lines = said.lines().filter(|line| line.contains(mark));
        let rates = lines.filter_map(|line| line.split_once(" Kbits/sec")?.0.rsplit(' ').next());
        let rates: Vec<f64> = rates.filter_map(|rate| rate.parse().ok()).collect();
        rates.iter().rev().nth(1).copied().filter(|rate| *rate > 0.0)
    };
    Some([way("TX-C")?, way("RX-C")?])
}
