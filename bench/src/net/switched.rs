//! Two guests on a switch: our driver's side of both on core 1, the daemon on core 0.

use anyhow::{Context, Result, ensure};
use bench::clock::now_ns;
use bench::net_frontend::{Header, Nic, NicSpec, Stream, Sunk, feature};
use bench::report::Row;
use bench::scratch::Scratch;
use bench::server::{Server, Who};
use guest_memory::GuestMap;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use super::{Options, Ring};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]];
/// An IP packet of 64 KiB less one byte, which is the longest, with its Ethernet header.
const SEGMENT_BYTES: usize = 14 + 65_535;
/// TCP payload of each packet on a wire.
const MSS: u16 = 1448;
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

    fn frame(self, [from, to]: [usize; 2]) -> (Header, Vec<u8>) {
        match self {
            Load::Small => (Header::default(), small(MACS[from], MACS[to])),
            Load::Segments => (segment_header(), segment(MACS[from], MACS[to])),
        }
    }
}

/// A daemon with two NICs on a switch, and their drivers.
struct Bed {
    nics: [Nic; 2],
    server: Server,
    _dir: Scratch,
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
        let dir = Scratch::new(&std::env::temp_dir(), "switch")?;
        let mut config = "\n[[switch]]\nid = \"lan\"\n".to_string();
        for (number, mac) in MACS.iter().enumerate() {
            let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            let socket = dir.path().join(format!("vm{number}.sock"));
            config += &format!(
                "\n[[nic]]\nid = \"vm{number}\"\nsocket = \"{}\"\nswitch = \"lan\"\nmac = \"{}\"\n",
                socket.display(),
                mac.join(":")
            );
        }
        let binary = options.sidecore()?;
        let mut server = Server::sidecore_with(&binary, dir.path(), SERVER_CORE, &config)?;
        let mut nic = |id: &str| -> Result<Nic> {
            let socket = server.wait_for(id)?;
            Nic::connect(&socket, load.spec(ring))
                .with_context(|| format!("sidecore says:\n{}", server.last_words()))
        };
        let mut nics = [nic("vm0")?, nic("vm1")?];
        compare(&mut nics, load).with_context(|| format!("{load:?} frames on a switch"))?;
        server.pause()?;
        Ok(Bed { nics, server, _dir: dir })
    }

    fn round(&mut self, load: Load, [warm_ms, measured_ms]: [u64; 2]) -> Result<(Sunk, u64)> {
        self.server.resume()?;
        let [one, two] = &mut self.nics;
        let (one, two) = (one.pair(0), two.pair(0));
        let (header, frame) = load.frame([0, 1]);
        let mut out = Stream::new(one, &header, &frame)?;
        let mut back = Stream::new(two, &Header::default(), &[])?;
        let mut run = |until_ns: u64| -> Result<()> {
            let mut turns = 0u32;
            loop {
                out.pump(one)?;
                back.sink(two)?;
                turns += 1;
                if turns % 64 == 0 && now_ns() >= until_ns {
                    return Ok(());
                }
            }
        };
        let start_ns = now_ns() + warm_ms * 1_000_000;
        run(start_ns)?;
        let (start_ns, before) = (now_ns(), back.sunk());
        let mut measured = |until_ns: u64| -> Result<Sunk> {
            loop {
                for _ in 0..64 {
                    out.pump(one)?;
                    back.sink(two)?;
                }
                if now_ns() >= until_ns {
                    return Ok(back.sunk());
                }
            }
        };
        let after = measured(start_ns + measured_ms * 1_000_000)?;
        let elapsed_ns = now_ns() - start_ns;
        out.end(one)?;
        while back.sink(two)? > 0 {}
        back.end(two)?;
        self.server.pause()?;
        let frames = after.frames - before.frames;
        ensure!(frames > 0, "nothing arrived");
        Ok((Sunk { frames, bytes: after.bytes - before.bytes }, elapsed_ns))
    }
}

/// A frame each way, so that the switch has seen both, then a number of them, byte by byte.
fn compare(nics: &mut [Nic; 2], load: Load) -> Result<()> {
    for turn in 0..COMPARED {
        let [from, to] = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        let (header, frame) = load.frame([from, to]);
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

/// UDP in 64 bytes.
fn small(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ethernet(from, to);
    frame.extend(ipv4(64 - 14, 17));
    frame.extend([0x10, 0, 0x20, 0, 0, 64 - 34, 0, 0]);
    frame.resize(64, 0x5a);
    frame
}

/// TCP whose payload is to be cut.
fn segment(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ethernet(from, to);
    frame.extend(ipv4((SEGMENT_BYTES - 14) as u16, 6));
    frame.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let at = frame.len();
    frame.extend((at..SEGMENT_BYTES).map(|byte| (byte % 251) as u8));
    frame
}

fn segment_header() -> Header {
    Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCP4,
        header_len: 54,
        gso_size: MSS,
        csum_start: 34,
        csum_offset: 16,
        buffers: 0,
    }
}

fn ethernet(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    [&to[..], &from, &[8, 0]].concat()
}

fn ipv4(len: u16, protocol: u8) -> [u8; 20] {
    let [high, low] = len.to_be_bytes();
    let mut header =
        [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let [high, low] = (!(folded as u16)).to_be_bytes();
    header[10..12].copy_from_slice(&[high, low]);
    header
}
