//! Two guests on a switch: our driver's side of both on core 1, the daemon on core 0. Beside it
//! DPDK's testpmd, which sends what comes in at one of its two ports out at the other.

use anyhow::{Context, Result, ensure};
use guest_memory::GuestMap;
use testing::clock::now_ns;
use testing::net_frontend::frames::{self, SEGMENT_BYTES};
use testing::net_frontend::{Header, Nic, NicSpec, Stream, Sunk, feature};
use testing::report::Row;
use testing::scratch::Scratch;
use testing::server::Who;
use testing::testpmd::{Mode, Side, Testpmd, TestpmdSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use super::pairs::Back;
use super::{Options, Peer, Ring};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

const SEGMENT_SLOTS: u16 = 32;
/// A page, as Linux's driver has them.
const BUFFER_BYTES: u32 = 4096;
/// Frames that are compared before anything is measured.
const COMPARED: usize = 50;

/// What goes from the first guest to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Frames of so many bytes.
    Frames(u32),
    Segments,
}

impl Load {
    fn spec(self, ring: RingSpec) -> NicSpec {
        let spec = match self {
            Load::Frames(_) => NicSpec { send_slots: 256, ..NicSpec::default() },
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
            Load::Frames(bytes) => {
                let mut frame = frames::small(from, to);
                // Behind the IP packet, as padding.
                frame.resize(bytes as usize, 0x5a);
                (Header::default(), frame)
            }
            Load::Segments => (frames::segment_header(), frames::segment(from, to)),
        }
    }
}

/// A server of two NICs, and their drivers.
struct Bed {
    nics: [Nic; 2],
    back: Back,
    _dir: Scratch,
}

/// Frames of one size, of all servers in turn.
pub(super) fn frames(options: &Options, ring: Ring, frame_bytes: u32) -> Result<Vec<Row>> {
    let load = Load::Frames(frame_bytes);
    let name = format!("net.{}switch.{frame_bytes}.mpps", word(ring));
    let start = |who: &Peer| {
        eprintln!("bench: {name}: starting {who:?}");
        Bed::start(options, *who, load, spec_of(ring)).with_context(|| format!("{name} of {who:?}"))
    };
    let mut beds = options.who.iter().map(start).collect::<Result<Vec<Bed>>>()?;
    let mut rounds: Vec<Vec<f64>> = beds.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (bed, rounds) in beds.iter_mut().zip(&mut rounds) {
            let who = bed.back.who().word();
            let round = bed.round(load, options.times_ms());
            let (sunk, elapsed_ns) = round.with_context(|| format!("{name} of {who}"))?;
            rounds.push(sunk.frames as f64 * 1e3 / elapsed_ns as f64);
        }
    }
    let row = |(bed, rounds): (&Bed, Vec<f64>)| told(name.clone(), bed.back.who(), "M/s", rounds);
    Ok(beds.iter().zip(rounds).map(row).collect())
}

/// GB/s of 64 KiB segments through our switch, and of plain copies in the same rounds.
pub(super) fn segments(options: &Options, ring: Ring) -> Result<Vec<Row>> {
    let name = format!("net.{}switch.64k.gbps", word(ring));
    let mut memcpy = Memcpy::new()?;
    let mut bed = Bed::start(options, Peer::Sidecore, Load::Segments, spec_of(ring))?;
    let [mut moved, mut copied] = [Vec::new(), Vec::new()];
    for _ in 0..options.rounds {
        let (sunk, elapsed_ns) = bed.round(Load::Segments, options.times_ms())?;
        moved.push(sunk.bytes as f64 / elapsed_ns as f64);
        copied.push(memcpy.round(options.times_ms()[1])?);
    }
    let ours = told(name.clone(), Who::Sidecore, "GB/s", moved);
    Ok(vec![ours, told(name, Who::Machine, "GB/s", copied)])
}

fn word(ring: Ring) -> &'static str {
    match ring {
        Ring::Split => "",
        Ring::Packed => "packed.",
    }
}

fn spec_of(ring: Ring) -> RingSpec {
    let format = match ring {
        Ring::Split => Format::Split,
        Ring::Packed => Format::Packed,
    };
    RingSpec { size: 256, format, event_index: true, indirect_entries: 0 }
}

fn told(name: String, who: Who, unit: &'static str, rounds: Vec<f64>) -> Row {
    let row = Row::new(name, who, unit, &rounds);
    eprintln!("bench: {}: {} {:.2} {unit}", row.name, row.who, row.value);
    row
}

impl Bed {
    fn start(options: &Options, who: Peer, load: Load, ring: RingSpec) -> Result<Bed> {
        let dir = Scratch::new(&std::env::temp_dir(), &format!("switch-{who:?}").to_lowercase())?;
        let (back, sockets) = match who.program()? {
            None => {
                let daemon = options.start("switch", &switch_config())?;
                let sockets = ["vm0", "vm1"].map(|id| daemon.socket(id));
                (Back::Sidecore(Box::new(daemon)), sockets)
            }
            Some((who, program)) => {
                let sockets = ["vm0.sock", "vm1.sock"].map(|name| dir.path().join(name));
                let spec = TestpmdSpec::new(Side::Vhost, Mode::Io, &sockets[0], SERVER_CORE);
                let spec = TestpmdSpec { program, second: Some(sockets[1].clone()), ..spec };
                let mut server = Testpmd::start(dir.path(), "server", &spec)?;
                server.command("start")?;
                (Back::Dpdk(who, server), sockets)
            }
        };
        let nic = |socket| {
            Nic::connect(socket, load.spec(ring))
                .with_context(|| format!("the server says:\n{}", back.last_words()))
        };
        let mut nics = [nic(&sockets[0])?, nic(&sockets[1])?];
        compare(&mut nics, load).with_context(|| format!("{load:?} from guest to guest"))?;
        back.pause()?;
        Ok(Bed { nics, back, _dir: dir })
    }

    fn round(&mut self, load: Load, [warm_ms, measured_ms]: [u64; 2]) -> Result<(Sunk, u64)> {
        self.back.resume()?;
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
        self.back.pause()?;
        let frames = after.frames - before.frames;
        ensure!(frames > 0, "nothing arrived");
        Ok((Sunk { frames, bytes: after.bytes - before.bytes }, end_ns - start_ns))
    }
}

fn switch_config() -> String {
    let mut config = "\n[[switch]]\nid = \"lan\"\n".to_string();
    for number in 0..2 {
        let mac: Vec<String> =
            frames::mac(number).iter().map(|byte| format!("{byte:02x}")).collect();
        let mac = mac.join(":");
        config += &format!("\n[[nic]]\nid = \"vm{number}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n");
    }
    config
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
