//! A server and `dpdk-testpmd` in front of it, measured in turn with the other server and its own.

use anyhow::{Context, Result};
use testing::daemon::Daemon;
use testing::report::Row;
use testing::scratch::Scratch;
use testing::server::{CpuTime, Who};
use testing::testpmd::{Counts, Mode, Side, Testpmd, TestpmdSpec};

use super::{Options, Peer, Ring, What};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

const NIC_ID: &str = "bench";
/// Bursts of 32 frames that go round.
const LOOP_BURSTS: u32 = 4;
/// Larger than any frame here, so that the MTU drops none.
const MTU: u32 = 9000;
/// Part of a round that others may take without a word.
const DISTURBED_MAX: f64 = 0.02;

/// Whoever serves.
pub(super) enum Back {
    Sidecore(Box<Daemon>),
    Dpdk(Who, Testpmd),
}

impl Back {
    pub(super) fn who(&self) -> Who {
        match self {
            Back::Sidecore(_) => Who::Sidecore,
            Back::Dpdk(who, _) => *who,
        }
    }

    /// The end of what it printed.
    pub(super) fn last_words(&self) -> String {
        match self {
            Back::Sidecore(daemon) => daemon.last_words(),
            Back::Dpdk(_, server) => server.last_words(),
        }
    }

    pub(super) fn pause(&self) -> Result<()> {
        match self {
            Back::Sidecore(daemon) => daemon.halt(),
            Back::Dpdk(_, server) => server.pause(),
        }
    }

    pub(super) fn resume(&self) -> Result<()> {
        match self {
            Back::Sidecore(daemon) => daemon.resume(),
            Back::Dpdk(_, server) => server.resume(),
        }
    }
}

/// A server with its driver; both stopped while another pair is measured.
struct Bed {
    // The driver goes first: it hangs up, as a guest does.
    driver: Testpmd,
    back: Back,
    what: What,
    rounds: Vec<f64>,
    _dir: Scratch,
}

/// One cell of the comparison: all servers in turn, round by round.
pub(super) fn measure(
    options: &Options,
    ring: Ring,
    what: What,
    frame_bytes: u32,
) -> Result<Vec<Row>> {
    let kind = if ring == Ring::Packed { "packed." } else { "" };
    let name = format!("net.{kind}{}.{frame_bytes}.mpps", what.word());
    let mut beds = Vec::new();
    for who in &options.who {
        eprintln!("bench: {name}: starting {who:?}");
        let bed = Bed::start(options, *who, ring, what, frame_bytes);
        beds.push(bed.with_context(|| format!("{name} of {who:?}"))?);
    }
    let mut disturbed = 0.0f64;
    for _ in 0..options.rounds {
        for bed in &mut beds {
            let who = bed.back.who().word();
            let part = bed.round(options.times_ms()).with_context(|| format!("{name} of {who}"))?;
            disturbed = disturbed.max(part);
        }
    }
    if disturbed > DISTURBED_MAX {
        let percent = disturbed * 100.0;
        eprintln!("bench: {name}: other processes took up to {percent:.0}% of a core");
    }
    let row = |bed: &Bed| Row::new(name.clone(), bed.back.who(), "M/s", &bed.rounds);
    let rows: Vec<Row> = beds.iter().map(row).collect();
    for row in &rows {
        eprintln!("bench: {name}: {} {:.2} M/s", row.who, row.value);
    }
    Ok(rows)
}

impl Bed {
    fn start(
        options: &Options,
        who: Peer,
        ring: Ring,
        what: What,
        frame_bytes: u32,
    ) -> Result<Bed> {
        let dir = Scratch::new(&std::env::temp_dir(), &format!("net-{who:?}").to_lowercase())?;
        let socket = dir.path().join(format!("{NIC_ID}.sock"));
        let back = match who.program()? {
            None => {
                let nic = nic_config(&socket.display().to_string(), what, frame_bytes);
                Back::Sidecore(Box::new(options.start("net-back", &nic)?))
            }
            Some((who, program)) => {
                let spec = TestpmdSpec::new(Side::Vhost, what.server(), &socket, SERVER_CORE);
                let spec = TestpmdSpec { program, frame_bytes, ..spec };
                let mut server = Testpmd::start(dir.path(), "server", &spec)?;
                server.command("start")?;
                Back::Dpdk(who, server)
            }
        };
        let spec = TestpmdSpec::new(Side::VirtioUser, what.driver(), &socket, DRIVER_CORE);
        let spec = TestpmdSpec {
            program: options.client.program()?,
            frame_bytes,
            packed: ring == Ring::Packed,
            in_order: !options.any_order,
            ..spec
        };
        let mut driver = Testpmd::start(dir.path(), "driver", &spec)?;
        match what {
            What::Loop => driver.command(&format!("start tx_first {LOOP_BURSTS}"))?,
            _ => driver.command("start")?,
        };
        back.pause()?;
        driver.pause()?;
        Ok(Bed { driver, back, what, rounds: Vec::new(), _dir: dir })
    }

    /// One round; gives the part of it that other processes took.
    fn round(&mut self, [warm_ms, measured_ms]: [u64; 2]) -> Result<f64> {
        self.back.resume()?;
        self.driver.resume()?;
        wait_ms(warm_ms);
        let (before, waited) = (self.driver.counts()?, self.waited());
        wait_ms(measured_ms);
        let (after, waited) = (self.driver.counts()?, self.waited() - waited);
        self.driver.pause()?;
        self.back.pause()?;
        let elapsed_ns = (after.at_ns - before.at_ns).max(1) as f64;
        let frames = |counts: Counts| match self.what {
            What::Tx => counts.sent,
            _ => counts.received,
        };
        self.rounds.push((frames(after) - frames(before)) as f64 * 1e3 / elapsed_ns);
        Ok(waited as f64 / elapsed_ns)
    }

    /// How long the threads of both sides were ready and had no core, nanoseconds.
    fn waited(&self) -> u64 {
        let pid = match &self.back {
            Back::Sidecore(daemon) => daemon.pid(),
            Back::Dpdk(_, server) => server.pid(),
        };
        let back = CpuTime::of_process(pid).unwrap_or_default();
        let driver = CpuTime::of_process(self.driver.pid()).unwrap_or_default();
        back.waited_ns.max(driver.waited_ns)
    }
}

impl What {
    fn word(self) -> &'static str {
        match self {
            What::Rx => "rx",
            What::Tx => "tx",
            What::Loop => "loop",
            What::Switch => "switch",
        }
    }

    /// What DPDK's server does.
    fn server(self) -> Mode {
        match self {
            What::Rx => Mode::TxOnly,
            What::Tx => Mode::RxOnly,
            What::Loop | What::Switch => Mode::MacSwap,
        }
    }

    /// What the driver does.
    fn driver(self) -> Mode {
        match self {
            What::Rx => Mode::RxOnly,
            What::Tx => Mode::TxOnly,
            What::Loop | What::Switch => Mode::Io,
        }
    }
}

fn nic_config(socket: &str, what: What, frame_bytes: u32) -> String {
    let null = match what {
        What::Rx => format!("null = \"generate\"\nsize = {frame_bytes}\nrate = 0"),
        What::Tx => "null = \"drop\"".to_string(),
        What::Loop | What::Switch => "null = \"echo\"".to_string(),
    };
    // DPDK does not seal its memory.
    format!(
        "\n[[nic]]\nid = \"{NIC_ID}\"\nsocket = \"{socket}\"\nmtu = {MTU}\n\
         allow_unsealed_memory = true\n{null}\n"
    )
}

fn wait_ms(ms: u64) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the processes that are measured work meanwhile"
    )]
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
