//! Two guests on a switch: our driver's side of both on core 1, the daemon on core 0.

use anyhow::{Context, Result, ensure};
use guest_memory::GuestMap;
use testing::clock::now_ns;
use testing::daemon::Daemon;
use testing::net_frontend::frames::{self, SEGMENT_BYTES};
use testing::net_frontend::{Header, Nic, NicSpec, Stream, Sunk, feature};
use testing::report::Row;
use testing::server::Who;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use super::{Options, Ring};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

const SEGMENT_SLOTS: u16 = 32;
/// A page, as Linux's driver has them.
const BUFFER_BYTES: u32 = 4096;
/// Frames that are compared before anything is measured.
const COMPARED: usize = 50;

/// What goes from the first guest to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Small,
    Segments,
}

impl Load {
    fn spec(self, ring: RingSpec) -> NicSpec {
        let spec = match self {
            Load::Small => NicSpec { send_slots: 256, ..NicSpec::default() },
            Load::Segments => NicSpec {
                features: feature::MRG_RXBUF
                    | feature::CSUM
                    | feature::HOST_TSO4
                    | feature::GUEST_CSUM
                    | feature::GUEST_TSO4,
                receive_pieces: vec![BUFFER_BYTES],
                send_slots: SEGMENT_SLOTS,
                send_bytes: SEGMENT_BYTES as u32,
                ..NicSpec::default()
            },
        };
        NicSpec { ring, ..spec }
    }

    fn frame(self, ends: [u16; 2]) -> (Header, Vec<u8>) {
        let [from, to] = ends.map(frames::mac);
        match self {
            Load::Small => (Header::default(), frames::small(from, to)),
            Load::Segments => (frames::segment_header(), frames::segment(from, to)),
        }
    }
}

/// A daemon with two NICs on a switch, and their drivers.
struct Bed {
    nics: [Nic; 2],
    daemon: Daemon,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for ring in &options.ring {
        let (format, word) = match ring {
            Ring::Split => (Format::Split, ""),
            Ring::Packed => (Format::Packed, "packed."),
        };
        let ring = RingSpec { size: 256, format, event_index: true, indirect_entries: 0 };
        let small = rounds(options, Load::Small, ring, None)?;
        let name = format!("net.{word}switch.64.mpps");
        rows.push(told(name, Who::Sidecore, "M/s", small.iter().map(|one| one[0]).collect()));
        let mut memcpy = Memcpy::new()?;
        let segments = rounds(options, Load::Segments, ring, Some(&mut memcpy))?;
        let name = format!("net.{word}switch.64k.gbps");
        let of = |at: usize| segments.iter().map(|one| one[at]).collect();
        rows.push(told(name.clone(), Who::Sidecore, "GB/s", of(1)));
        rows.push(told(name, Who::Machine, "GB/s", of(2)));
    }
    Ok(rows)
}

fn told(name: String, who: Who, unit: &'static str, rounds: Vec<f64>) -> Row {
    let row = Row::new(name, who, unit, &rounds);
    eprintln!("bench: {}: {} {:.2} {unit}", row.name, row.who, row.value);
    row
}

/// Of each round: millions of frames a second, GB/s, and GB/s of plain copies.
fn rounds(
    options: &Options,
    load: Load,
    ring: RingSpec,
    mut memcpy: Option<&mut Memcpy>,
) -> Result<Vec<[f64; 3]>> {
    let mut bed = Bed::start(options, load, ring)?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let (sunk, elapsed_ns) = bed.round(load, options.times_ms())?;
        let elapsed_ns = elapsed_ns as f64;
        let copied = match &mut memcpy {
            Some(memcpy) => memcpy.round(options.times_ms()[1])?,
            None => 0.0,
        };
        let [frames, bytes] = [sunk.frames, sunk.bytes].map(|count| count as f64);
        rounds.push([frames * 1e3 / elapsed_ns, bytes / elapsed_ns, copied]);
    }
    Ok(rounds)
}

impl Bed {
    fn start(options: &Options, load: Load, ring: RingSpec) -> Result<Bed> {
        let mut config = "\n[[switch]]\nid = \"lan\"\n".to_string();
        for number in 0..2 {
            let mac: Vec<String> =
                frames::mac(number).iter().map(|byte| format!("{byte:02x}")).collect();
            config += &format!(
                "\n[[nic]]\nid = \"vm{number}\"\nswitch = \"lan\"\nmac = \"{}\"\n",
                mac.join(":")
            );
        }
        let daemon = options.start("switch", &config)?;
        let nic = |id: &str| -> Result<Nic> {
            Nic::connect(&daemon.socket(id), load.spec(ring))
                .with_context(|| format!("sidecore says:\n{}", daemon.last_words()))
        };
        let mut nics = [nic("vm0")?, nic("vm1")?];
        compare(&mut nics, load).with_context(|| format!("{load:?} frames on a switch"))?;
        daemon.halt()?;
        Ok(Bed { nics, daemon })
    }

    fn round(&mut self, load: Load, [warm_ms, measured_ms]: [u64; 2]) -> Result<(Sunk, u64)> {
        self.daemon.resume()?;
        let [one, two] = &mut self.nics;
        let (one, two) = (one.pair(0), two.pair(0));
        let (header, frame) = load.frame([0, 1]);
        let mut out = Stream::new(one, &header, &frame)?;
        let mut back = Stream::new(two, &Header::default(), &[])?;
        let mut run = |until_ns: u64| -> Result<(Sunk, u64)> {
            loop {
                for _ in 0..64 {
                    out.pump(one)?;
                    back.sink(two)?;
                }
                let now = now_ns();
                if now >= until_ns {
                    return Ok((back.sunk(), now));
                }
            }
        };
        let (before, start_ns) = run(now_ns() + warm_ms * 1_000_000)?;
        let (after, end_ns) = run(start_ns + measured_ms * 1_000_000)?;
        out.end(one)?;
        while back.sink(two)? > 0 {}
        back.end(two)?;
        self.daemon.halt()?;
        let frames = after.frames - before.frames;
        ensure!(frames > 0, "nothing arrived");
        Ok((Sunk { frames, bytes: after.bytes - before.bytes }, end_ns - start_ns))
    }
}

/// A frame each way, so that the switch has seen both, then a number of them, byte by byte.
fn compare(nics: &mut [Nic; 2], load: Load) -> Result<()> {
    for turn in 0..COMPARED {
        let (from, to) = if turn % 2 == 0 { (0, 1) } else { (1, 0) };
        let (header, frame) = load.frame([from as u16, to as u16]);
        ensure!(nics[from].pair(0).send(&header, &frame, &[])?, "no room in an empty ring");
        let found = nics[to].pair(0).receive_within(2000)?.context("nothing arrived")?;
        ensure!(found.bytes == frame, "frame {turn} arrived as another");
        let same = Header { buffers: header.buffers, ..found.header } == header;
        ensure!(same, "the header {header:?} arrived as {:?}", found.header);
    }
    Ok(())
}

/// Plain copies of as many bytes from as many places to as many places, on the server's core.
struct Memcpy {
    from: GuestMap,
    to: GuestMap,
    next: u64,
}

impl Memcpy {
    /// Bytes that the receive buffers have room for.
    const TO_BYTES: u64 = 256 * BUFFER_BYTES as u64;
    const FROM_STRIDE: u64 = (SEGMENT_BYTES as u64).next_multiple_of(64);

    fn new() -> Result<Memcpy> {
        let from = GuestMap::anonymous(u64::from(SEGMENT_SLOTS) * Memcpy::FROM_STRIDE)?;
        let to = GuestMap::anonymous(Memcpy::TO_BYTES + SEGMENT_BYTES as u64)?;
        for map in [&from, &to] {
            let all = map.span(0, map.end() as u32).context("a map without memory")?;
            ensure!(map.zero(all), "memory cannot be written");
        }
        Ok(Memcpy { from, to, next: 0 })
    }

    /// GB/s.
    fn round(&mut self, measured_ms: u64) -> Result<f64> {
        crate::blk::pin(SERVER_CORE)?;
        let (start_ns, mut bytes) = (now_ns(), 0u64);
        while now_ns() - start_ns < measured_ms * 1_000_000 {
            for _ in 0..SEGMENT_SLOTS {
                let len = SEGMENT_BYTES as u32;
                let slot = self.next % u64::from(SEGMENT_SLOTS);
                // Seventeen pages further each time, as the buffers of the receiver are.
                let at = self.next * 17 * u64::from(BUFFER_BYTES) % Memcpy::TO_BYTES;
                let from = self.from.span(slot * Memcpy::FROM_STRIDE, len);
                let to = self.to.span(at, len);
                let (from, to) = from.zip(to).context("a segment outside of memory")?;
                ensure!(self.to.copy_from(to, &self.from, from), "a copy failed");
                self.next += 1;
                bytes += u64::from(len);
            }
        }
        let elapsed_ns = now_ns() - start_ns;
        crate::blk::pin(DRIVER_CORE)?;
        Ok(bytes as f64 / elapsed_ns as f64)
    }
}
