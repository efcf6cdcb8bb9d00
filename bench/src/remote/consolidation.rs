//! Two client hosts, one busy and one idle: an IOhost with a sidecore for each host (`own`), beside one that both share
//! (`shared`), with half as many sidecores (`half`) or as many (`same`). vRIO's figures 15 and 16: 0.92 and 1.82 times.
//!
//! Two cores have both the sidecores and the clients. So each core has a thread of clients with half of each host's
//! guests, in all configurations alike: what clients take is even, and the configurations differ in where sidecores
//! work. Were all clients on core 1, the second sidecore of `shared` would find a full core there. Neither end polls,
//! clients by `poll` and sidecores by `policy = "notify"`: who waits leaves the core to the others, and CPU time is work.
//!
//! `bound` is what that leaves to be gained: the work of own's busiest core, in parts of the busiest core's if the same
//! work lay as in `shared` (`half`: all sidecores' on core 0; `same`: half of everything on each). With I and C of CPU
//! at the IOhost and at the clients for a request, `same` has (I + C/2) / ((I + C)/2) at most: 2 where clients take
//! nothing, 1.5 where they take as much. It supposes that a request takes as much CPU as with own IOhosts; where it takes
//! less (probably since a full core has more frames for each call and each wake), `ratio` may be more.
//!
//! `far` is what the IOhosts' CPU alone says, as if clients had other machines, as in the paper: for a request that of
//! own's busiest sidecore, in parts of that of the busiest one that is shared.
//!
//! A guest is a client of its own, as in the paper, so that a busy host has several shards; clients of one daemon would
//! have one. Shards are given by the number of clients, so guests come in pairs, two of one host and two of the other:
//! one at a time, all of the busy host could be at one shard. What is sealed are the link's frames. Called by `remote`.

mod guests;

use std::path::Path;
use std::thread::scope;

use anyhow::{Context, Result, bail, ensure};
use remote::client::AttachSpec;
use rustix::event::poll;
use testing::clock::now_ns;
use testing::report::Row;
use testing::server::{CpuTime, Server};

use guests::{DEPTH, Ended, Guest, Times, time_to, work};

use super::flood::get;
use super::iohost::{Site, SiteSpec};
use super::{BLOCK_BYTES, Options, Peer};
use crate::bed::{DRIVER_CORE, SERVER_CORE};

/// Of each host, half of them on each core: so many are on a core.
const GUESTS: usize = 4;
const DISK_BYTES: u64 = 16 << 20;
/// Blocks of a request.
const SIZES: [(u32, &str); 2] = [(1, "4k"), (16, "64k")];
const SLOT_BYTES: u32 = 16 * BLOCK_BYTES as u32;
const HOSTS: [&str; 2] = ["busy", "idle"];
const BUSY: usize = 0;
/// A sidecore sleeps when it has nothing, and none is parked: a shard on a parked one is given last.
const SIDECORES: &str = "policy = \"notify\"\n";

/// An IOhost.
struct Serving {
    server: Server,
    cores: &'static str,
}

/// IOhosts, and the guests of each core's thread.
struct Layout {
    iohosts: Vec<Serving>,
    guests: [Vec<Guest>; 2],
}

/// One round. CPU time in parts of a core's, by core; of a request in nanoseconds.
struct Seen {
    iops: f64,
    requests: f64,
    idle_ns: Vec<u64>,
    /// Part of the frames to IOhosts.
    lost: f64,
    iohost_ns: [f64; 2],
    client_ns: [f64; 2],
    elapsed_ns: f64,
    /// Of a core, by IOhosts that were not measured.
    rest: f64,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for peer in options.peers() {
        if matches!(peer, Peer::Sidecore | Peer::Sealed) {
            for (word, cores) in [("half", "0"), ("same", "0,1")] {
                let name = format!("remote.mtu{}.consolidation.{word}", options.mtu);
                let of_one = compare(options, peer, &name, cores);
                rows.extend(of_one.with_context(|| format!("{name} of {}", peer.who().word()))?);
            }
        }
    }
    Ok(rows)
}

/// Own ones and the shared one, which has these cores, in turns: one begins a round and the other the next.
fn compare(options: &Options, peer: Peer, name: &str, cores: &'static str) -> Result<Vec<Row>> {
    let mut layouts =
        [Layout::start(options, peer, &["0", "1"])?, Layout::start(options, peer, &[cores])?];
    let mut rows = Vec::new();
    for (count, size) in SIZES {
        let mut seen: [Vec<Seen>; 2] = Default::default();
        for round in 0..options.rounds {
            for at in [round % 2, 1 - round % 2] {
                let (first, last) = layouts.split_at_mut(1);
                let (one, other) = match at {
                    0 => (&mut first[0], &last[0]),
                    _ => (&mut last[0], &first[0]),
                };
                seen[at].push(one.round(other, count, options.times_ms())?);
            }
        }
        rows.extend(judge(&format!("{name}.{size}"), peer, &seen, cores));
    }
    Ok(rows)
}

fn judge(name: &str, peer: Peer, seen: &[Vec<Seen>; 2], cores: &str) -> Vec<Row> {
    let row = |what: &str, unit, values: &[f64]| {
        Row::new(format!("{name}.{what}"), peer.who(), unit, values)
    };
    let mut rows = Vec::new();
    for (word, seen) in ["own", "shared"].into_iter().zip(seen) {
        let mut add = |what: &str, unit, value: &dyn Fn(&Seen) -> f64| {
            let values: Vec<f64> = seen.iter().map(value).collect();
            rows.push(row(&format!("{word}.{what}"), unit, &values));
        };
        add("busy_iops", "1/s", &|one| one.iops);
        add("idle_p50_ns", "ns", &|one| one.idle_quantile(0.5));
        add("idle_p99_ns", "ns", &|one| one.idle_quantile(0.99));
        add("iohost_ns_per_op", "ns", &|one| sum(one.iohost_ns) / one.requests);
        add("client_ns_per_op", "ns", &|one| sum(one.client_ns) / one.requests);
        add("lost", "", &|one| one.lost);
        add("core0", "", &|one| one.cores()[0] / one.elapsed_ns);
        add("core1", "", &|one| one.cores()[1] / one.elapsed_ns);
    }
    let pairs = || seen[0].iter().zip(&seen[1]);
    let ratios: Vec<f64> = pairs().map(|(own, shared)| shared.iops / own.iops).collect();
    let bounds: Vec<f64> = seen[0].iter().map(|own| own.bound(cores)).collect();
    let busiest = |one: &Seen| most(one.iohost_ns).max(1.0) / one.requests;
    let fars: Vec<f64> = pairs().map(|(own, shared)| busiest(own) / busiest(shared)).collect();
    let rests: Vec<f64> = seen.iter().flatten().map(|one| one.rest).collect();
    let (ratio, bound) = (row("ratio", "", &ratios), row("bound", "", &bounds));
    let far = row("far", "", &fars);
    eprintln!(
        "bench: {name}: {}: {:.2} times as many requests with a shared IOhost; clients on both cores leave {:.2}, by own's \
         CPU of a request; {:.2} by the IOhosts' CPU alone",
        peer.who().word(),
        ratio.value,
        bound.value,
        far.value,
    );
    rows.extend([ratio, bound, far, row("rest", "", &rests)]);
    rows
}

fn sum([zero, one]: [f64; 2]) -> f64 {
    zero + one
}

fn most([zero, one]: [f64; 2]) -> f64 {
    zero.max(one)
}

impl Seen {
    /// CPU time of each core.
    fn cores(&self) -> [f64; 2] {
        [0, 1].map(|core| self.iohost_ns[core] + self.client_ns[core])
    }

    /// What could be gained at most if the work of this lay as with a shared IOhost on these cores.
    fn bound(&self, cores: &str) -> f64 {
        let all = sum(self.iohost_ns);
        let shared = match cores {
            "0" => [all + self.client_ns[0], self.client_ns[1]],
            _ => [sum(self.cores()) / 2.0; 2],
        };
        most(self.cores()) / most(shared).max(1.0)
    }

    fn idle_quantile(&self, part: f64) -> f64 {
        let at = (self.idle_ns.len() as f64 * part).ceil() as usize;
        self.idle_ns.get(at.saturating_sub(1)).map_or(0.0, |ns| *ns as f64)
    }
}

impl Layout {
    /// One IOhost on these cores for both hosts, or one for each host.
    fn start(options: &Options, peer: Peer, cores: &[&'static str]) -> Result<Layout> {
        let binary = options.binary()?;
        let (mut iohosts, mut sites) = (Vec::new(), Vec::new());
        let hosts: Vec<&[&str]> = HOSTS.chunks(HOSTS.len() / cores.len()).collect();
        for (at, (cores, hosts)) in cores.iter().zip(hosts).enumerate() {
            // Each has a port of its own, since all live at once.
            let number = (20 * hosts.len() + 10 * at) as u16;
            let disks: Vec<String> = hosts.iter().flat_map(|host| disks_of(host)).collect();
            let over = peer.over(options, 300 + number);
            let sidecores = format!("min = {}\n{SIDECORES}", cores.split(',').count());
            let spec = SiteSpec {
                over,
                mtu: options.mtu,
                cores,
                sidecores: &sidecores,
                disks: (&disks, DISK_BYTES),
                devices: "",
            };
            let site = Site::with(&binary, &format!("consolidation-{number}"), &spec)?;
            let mut server = site.serve(peer.who(), &options.inside)?;
            sites.push((site, server.wait_for("api")?));
            iohosts.push(Serving { server, cores });
        }
        let mut guests: [Vec<Guest>; 2] = Default::default();
        for (core, guests) in guests.iter_mut().enumerate() {
            for (host, word) in HOSTS.iter().enumerate() {
                for one in core * GUESTS / 2..(core + 1) * GUESTS / 2 {
                    let (at, client) =
                        if sites.len() == 1 { (0, host * GUESTS + one) } else { (host, one) };
                    let device = remote::device_of(&disks_of(word)[one]);
                    let (slots, slot_bytes) = (DEPTH, SLOT_BYTES);
                    let spec = AttachSpec { device, slots, slot_bytes, keep_bytes: 0 };
                    let far = sites[at].0.connect_as(client, spec);
                    let far = far.with_context(|| iohosts[at].server.last_words())?;
                    guests.push(Guest::new(far, host, client as u64)?);
                }
            }
        }
        for ((_, api), cores) in sites.iter().zip(cores) {
            let hosts = HOSTS.len() / sites.len();
            ensure_even(api, cores.split(',').count(), hosts, peer == Peer::Sealed)?;
        }
        Ok(Layout { iohosts, guests })
    }

    /// Both threads, and what IOhosts took meanwhile, also those of the other one.
    fn round(
        &mut self,
        other: &Layout,
        count: u32,
        [warm_ms, measured_ms]: [u64; 2],
    ) -> Result<Seen> {
        let from = now_ns() + warm_ms * 1_000_000;
        let times = Times { from, to: from + measured_ms * 1_000_000, count };
        let Layout { iohosts, guests } = self;
        let ([zero, one], [before, after]) = scope(|scope| -> Result<_> {
            let cores = [SERVER_CORE, DRIVER_CORE];
            let [zero, one] = guests.each_mut();
            let threads = [(zero, cores[0]), (one, cores[1])]
                .map(|(guests, core)| scope.spawn(move || work(guests, core, times)));
            let mut samples = [[[0; 2]; 2]; 2];
            for (sample, at) in samples.iter_mut().zip([times.from, times.to]) {
                while now_ns() < at {
                    poll(&mut [], Some(&time_to(at)))?;
                }
                *sample = [cpu_ns(iohosts)?, cpu_ns(&other.iohosts)?];
            }
            Ok((threads.map(|one| one.join().unwrap_or_else(|_| bail!("it panicked"))), samples))
        })?;
        let ended = [zero?, one?];
        let took = |of: usize| {
            [0, 1].map(|core: usize| after[of][core].saturating_sub(before[of][core]) as f64)
        };
        let elapsed_ns = (times.to - times.from) as f64;
        let total = |of: fn(&Ended) -> u64| ended.iter().map(of).sum::<u64>() as f64;
        let mut idle_ns: Vec<u64> = ended.iter().flat_map(|one| one.idle_ns.clone()).collect();
        idle_ns.sort_unstable();
        let busy = total(|one| one.busy);
        // Others may have the machine: a round in which nothing ended is one, too.
        Ok(Seen {
            iops: busy.max(1.0) * 1e9 / elapsed_ns,
            requests: (busy + idle_ns.len() as f64).max(1.0),
            idle_ns,
            lost: total(|one| one.lost) / total(|one| one.sent).max(1.0),
            iohost_ns: took(0),
            client_ns: ended.each_ref().map(|one| one.cpu_ns as f64),
            elapsed_ns,
            rest: sum(took(1)) / elapsed_ns,
        })
    }
}

/// CPU time so far on each core. Of two sidecores the second has core 1; what control takes counts with core 0.
fn cpu_ns(iohosts: &[Serving]) -> Result<[u64; 2]> {
    let mut sums = [0; 2];
    for Serving { server, cores, .. } in iohosts {
        let all = server.cpu()?.used_ns;
        let second = match *cores {
            "0" => 0,
            "1" => all,
            _ => CpuTime::of_threads(server.pid(), "sidecore-1")?.used_ns,
        };
        sums[0] += all.saturating_sub(second);
        sums[1] += second;
    }
    Ok(sums)
}

fn disks_of(host: &str) -> Vec<String> {
    (0..GUESTS).map(|one| format!("{host}{one}")).collect()
}

/// As many guests at each sidecore; of the busy host, too, where there are keys, and so names of clients.
fn ensure_even(api: &Path, sidecores: usize, hosts: usize, has_names: bool) -> Result<()> {
    let links = get(api, "/v1/links")?;
    let ways = links["links"][0]["ways"].as_array().context("no ways")?;
    let mut wanted = vec![("", hosts * GUESTS)];
    if has_names && hosts == HOSTS.len() {
        wanted.push((HOSTS[BUSY], GUESTS));
    }
    for (host, guests) in wanted {
        let is_its = |way: &&serde_json::Value| {
            way["peer"].as_str().is_some_and(|peer| peer.starts_with(host))
        };
        let at =
            |core: usize| ways.iter().filter(is_its).filter(|way| way["sidecore"] == core).count();
        let is_even = (0..sidecores).all(|core| at(core) * sidecores == guests);
        ensure!(is_even, "guests are not even: {links}");
    }
    Ok(())
}
