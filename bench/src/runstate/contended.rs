//! A guest of four vCPUs that share their processor, and what it takes to reach it, with redirection and without
//! (docs/decisions/0016-runstate.md).
//!
//! All four are on one processor, each kept busy by the guest, with busy threads of the host if they are asked for; the
//! sidecore has another one, since on its own it would never see a vCPU run: it has taken the processor from it to
//! look. Rounds take turns: `redirect` is changed by a reload.
//! Three things are as they would be on KVM with a server for many (0016 says what each hides): QEMU's mutexes spin
//! before they sleep (guest/spin.c, preloaded, where KVM is not), the server has a worker for each vCPU
//! (guest/reuseport.c, preloaded to sockperf in the guest), and pings go at moments of no pattern.
//! vCPUs and busy threads are in a group of their own, whose weight keeps what else the machine does out of the figures
//! as far as that goes; who asks, the sidecore, and QEMU's own thread, by which calls go without KVM, have real-time
//! priority.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, pause};
use testing::image::Tree;
use testing::load::Random;
use testing::namespace::Namespace;
use testing::place::{Place, end_of};
use testing::report::Row;
use testing::scratch::Scratch;
use testing::server::Who;
use testing::vm::{Boot, Kernel, NicOptions, Vm, has_kvm};

use super::Options;
use crate::guests::{Rounds, built, megabits, need_root, say};

/// A group of cgroups v1.
const GROUP: &str = "/sys/fs/cgroup/cpu/sidecore-runstate";
const NIC: &str = "steered";
const GUEST: &str = "10.9.0.1";
const HOST: &str = "10.9.0.100";
/// Fewest answers that percentiles are of.
const ANSWERS_MIN: usize = 20;
/// Until a daemon that was told of another rule goes by it.
const SETTLES: Duration = Duration::from_millis(500);
/// In the order of the rows.
const BOTH: [Who; 2] = [Who::Sidecore, Who::SidecoreWithout];
const PING: [&str; 3] = ["ping.p50_us", "ping.p99_us", "ping.max_us"];
const RR: [&str; 3] = ["rr.p50_us", "rr.p99_us", "rr.max_us"];
const TCP: [&str; 2] = ["tcp.mbps", "tcp.retransmits"];

/// The guest, and who reaches it. Ended in this order.
struct World {
    _burners: Vec<Burner>,
    guest: Vm,
    _group: Group,
    daemon: Daemon,
    host: Namespace,
    _folder: Scratch,
}

/// Five rounds, or two shorter ones.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    need_root("runstate", "loads a program into the kernel and makes a namespace")?;
    let processors = std::thread::available_parallelism()?.get();
    ensure!(processors >= 2, "./x bench runstate needs two processors");
    let [count, seconds] = if options.quick { [2, 3] } else { [5, 5] };
    let mut world = World::start(options.burners)?;
    let mut random = Random(now_ns());
    let mut rounds = Rounds::default();
    let mut turns = [Who::SidecoreWithout, Who::Sidecore];
    for round in 1..=count {
        for who in turns {
            world.turn(who)?;
            of_times(&mut rounds, who, PING, world.ping(seconds, &mut random)?)?;
            of_times(&mut rounds, who, RR, world.ask(seconds)?)?;
            let (rate, end) = megabits(&world.host, &format!("-t {seconds} -c {GUEST}"))?;
            rounds.add(TCP[0], who, rate);
            let again = end["sum_sent"]["retransmits"].as_f64();
            rounds.add(TCP[1], who, again.with_context(|| format!("no retransmits in {end}"))?);
        }
        // Who is first changes.
        turns.reverse();
        say(&format!("runstate: round {round} of {count}"));
    }
    let told = world.daemon.says(&format!("nic show {NIC}"))?;
    told.lines().filter(|line| line.starts_with("redirect")).for_each(say);
    // Two turns without are no comparison.
    let shown = world.daemon.ask(&format!("nic show {NIC}"))?;
    let redirected = shown["run_state"]["redirected"].as_u64().unwrap_or(0);
    ensure!(redirected > 0, "nothing was redirected, so these figures compare nothing: {told}");
    world.daemon.stop()?;
    let times = PING.into_iter().chain(RR).map(|what| (what, "us"));
    let all: Vec<_> = times.chain([(TCP[0], "Mbit/s"), (TCP[1], "count")]).collect();
    Ok(rounds.rows("runstate.contended", BOTH, &all))
}

/// Microseconds become the median, the 99th percentile and the longest.
fn of_times(
    rounds: &mut Rounds,
    who: Who,
    names: [&'static str; 3],
    mut all: Vec<f64>,
) -> Result<()> {
    ensure!(all.len() >= ANSWERS_MIN, "too few answers to {}: {}", names[0], all.len());
    all.sort_by(f64::total_cmp);
    for (name, part) in names.into_iter().zip([0.5, 0.99, 1.0]) {
        let place = (part * all.len() as f64).ceil() as usize;
        rounds.add(name, who, all[place.max(1) - 1]);
    }
    Ok(())
}

fn devices(who: Who) -> String {
    let rule = if who == Who::Sidecore { "always" } else { "off" };
    format!(
        "[[nic]]\nid = \"{NIC}\"\nmac = \"52:54:00:51:00:01\"\ntap = \"{NIC}\"\nqueues = 4\nredirect = \"{rule}\"\n"
    )
}

impl World {
    fn start(burners: usize) -> Result<World> {
        Namespace::sweep();
        let folder = Scratch::new(&std::env::temp_dir(), "contended")?;
        let host = Namespace::new("host")?;
        // Said at the start, or the daemon does not load its program.
        let daemon = Daemon::with("contended-daemon", &devices(Who::Sidecore))
            .sidecores("cpus = \"1\"")
            .through(&host.through())
            .start()?;
        // The sidecore is there at once; what is measured is the guest.
        for (thread, name) in threads(daemon.pid())? {
            if name.starts_with("sidecore-") {
                run("chrt", &format!("-f -p 10 {thread}"))?;
            }
        }
        host.ip(&format!("link set {NIC} up"))?;
        host.add_address(&format!("{HOST}/24"), NIC)?;
        let guest = start_guest(folder.path(), &daemon)?;
        let group = Group::new()?;
        for (thread, name) in threads(guest.pid())? {
            if name.starts_with("CPU ") {
                run("taskset", &format!("-p -c 0 {thread}"))?;
                group.take(thread)?;
            } else {
                // Without KVM a call goes through a thread of QEMU's, which is not what is measured.
                run("chrt", &format!("-f -p 9 {thread}"))?;
                run("taskset", &format!("-p -c 1 {thread}"))?;
            }
        }
        let burners = (0..burners).map(|_| Burner::start(&group)).collect::<Result<_>>()?;
        Ok(World { _burners: burners, guest, _group: group, daemon, host, _folder: folder })
    }

    /// With redirection or without, from here on.
    fn turn(&self, who: Who) -> Result<()> {
        self.daemon.configure(&devices(who))?;
        self.daemon.says("reload")?;
        pause(SETTLES);
        // Until the daemon knows how long an answer takes; in both turns, so that they are the same.
        self.host.run(&format!("ping -q -i 0.02 -c 50 -W 2 {GUEST}"))?;
        Ok(())
    }

    /// One at a time, at moments of no pattern: those of `ping -i` fall in with the slices of the vCPUs.
    ///
    /// All of it on the sidecore's processor: a program that starts on the other one disturbs a slice there. Of one
    /// that is lost it is known that it took two seconds or more.
    fn ping(&self, seconds: u64, random: &mut Random) -> Result<Vec<f64>> {
        let moment = |_| format!("0.{:03}", 10 + random.below(20));
        let moments: Vec<String> = (0..seconds * 60).map(moment).collect();
        let said = self.host.run(&format!(
            "taskset -p -c 1 $$ >/dev/null; chrt -f -p 8 $$; for moment in {}; do
                ping -c 1 -W 2 {GUEST} || echo 'time=2000 ms'; sleep $moment; done",
            moments.join(" ")
        ))?;
        let of_line =
            |line: &str| line.split_once("time=")?.1.split(' ').next()?.parse::<f64>().ok();
        Ok(said.lines().filter_map(of_line).map(|ms| ms * 1000.0).collect())
    }

    /// Times of sockperf's questions.
    fn ask(&self, seconds: u64) -> Result<Vec<f64>> {
        let said = self.host.run(&format!(
            "rm -f rr.csv; taskset -c 1 chrt -f 8 sockperf ping-pong -i {GUEST} -t {seconds} --full-rtt \
             --full-log rr.csv >rr.said 2>&1 || cat rr.said; cat rr.csv"
        ))?;
        let of_line = |line: &str| {
            let fields: Vec<&str> = line.split(", ").collect();
            let [number, _, _, took] = fields[..] else { return None };
            number.parse::<u64>().ok().and_then(|_| took.trim().parse().ok())
        };
        let times: Vec<f64> = said.lines().filter_map(of_line).collect();
        if times.len() < ANSWERS_MIN {
            let server = self.guest.run("tail -n 3 /tmp/sockperf").unwrap_or_default();
            say(&format!("sockperf: {}; its server: {}", end_of(&said), end_of(&server)));
        }
        Ok(times)
    }
}

/// Boots it, with a server on each vCPU, and what keeps that busy.
fn start_guest(folder: &Path, daemon: &Daemon) -> Result<Vm> {
    let mut nic = NicOptions::new("52:54:00:51:00:01");
    nic.queues = 4;
    let mut boot = Boot::new(NIC).parallel().cpus("4").kernel(with_preload(folder)?);
    let spin = folder.join("spin.so");
    if !has_kvm() {
        // An emulated guest has an interrupt for each queue only with a newer QEMU than Debian 12's, which `./x` has
        // unpacked. What Debian links to seabios is by whole names.
        nic.properties = "vectors=10".to_owned();
        let root = built("qemu-newer/root/usr")?;
        let place = |what: &str| root.join(what).display().to_string();
        boot = boot.program(&place("bin/qemu-system-x86_64"));
        boot = boot.qemu(["-L", &place("share/qemu"), "-L", &place("share/seabios")]);
        preload("spin", &spin)?;
        boot = boot.through(&["env", &format!("LD_PRELOAD={}", spin.display())]);
    }
    let guest = Vm::boot(folder, boot.nic(daemon.socket(NIC), &nic))?;
    if !has_kvm() {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", guest.pid()))?;
        ensure!(maps.contains("spin.so"), "QEMU has not loaded {}", spin.display());
    }
    guest.run(&format!(
        "ip link set eth0 up; ethtool -L eth0 combined 4; ip addr add {GUEST}/24 dev eth0; ping -q -c 1 -W 5 {HOST}"
    ))?;
    // A worker on each vCPU, which has what its vCPU receives, as servers for many are made; the n-th is the n-th's.
    guest.run(&format!(
        "for n in 0 1 2 3; do
            LD_PRELOAD=/lib/reuseport.so taskset -c $n sockperf server -i {GUEST} >>/tmp/sockperf 2>&1 &
            until [ \"$(grep -c :2B67 /proc/net/udp)\" -gt $n ]; do sleep 0.1; done
        done
        iperf3 -s -D >/dev/null 2>&1
        for n in 0 1 2 3; do taskset -c $n sh -c 'while :; do :; done' & renice -n 19 -p $! >/dev/null; done"
    ))?;
    Ok(guest)
}

/// The guest's image, with what its servers are started with.
fn with_preload(folder: &Path) -> Result<Kernel> {
    let Kernel { vmlinuz, initramfs } = Kernel::stock();
    let mut tree = Tree::new(&folder.join("tree"), &built("guest/kernel")?)?;
    let library = folder.join("reuseport.so");
    preload("reuseport", &library)?;
    tree.file(&library, "lib/reuseport.so")?;
    let image = folder.join("initramfs.cpio");
    tree.pack_after(&initramfs, &image)?;
    Ok(Kernel { vmlinuz, initramfs: image })
}

/// Compiles a library of this crate's folder `guest`.
fn preload(name: &str, to: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest").join(format!("{name}.c"));
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([to, &source])
        .arg("-ldl")
        .status()
        .context("starting cc (Debian: apt-get install gcc libc6-dev)")?;
    ensure!(status.success(), "{} does not compile", source.display());
    Ok(())
}

/// The threads of a process, and their names.
fn threads(pid: u32) -> Result<Vec<(String, String)>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let name = std::fs::read_to_string(task.path().join("comm"))?;
        threads.push((task.file_name().to_string_lossy().into_owned(), name.trim().to_owned()));
    }
    Ok(threads)
}

fn run(program: &str, words: &str) -> Result<()> {
    let mut command = Command::new(program);
    let command = command.args(words.split(' ')).stdout(Stdio::null());
    let status = command.status().with_context(|| format!("starting {program}"))?;
    ensure!(status.success(), "`{program} {words}`: {status}");
    Ok(())
}

/// The group of threads that have the other processor for themselves; it goes when they are gone.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Group> {
        let group = Group(PathBuf::from(GROUP));
        std::fs::create_dir_all(&group.0)?;
        std::fs::write(group.0.join("cpu.shares"), "200000")
            .context("no cgroup v1 of `cpu`, whose weights this needs")?;
        Ok(group)
    }

    fn take(&self, thread: impl std::fmt::Display) -> Result<()> {
        Ok(std::fs::write(self.0.join("tasks"), thread.to_string())?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A busy thread of the host, on the vCPUs' processor.
struct Burner(Child);

impl Burner {
    fn start(group: &Group) -> Result<Burner> {
        let words =
            ["--pdeathsig", "KILL", "taskset", "-c", "0", "sh", "-c", "while :; do :; done"];
        let burner = Burner(Command::new("setpriv").args(words).spawn()?);
        group.take(burner.0.id())?;
        Ok(burner)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_three_numbers_and_too_few_are_refused() -> Result<()> {
        let mut rounds = Rounds::default();
        assert!(of_times(&mut rounds, Who::Sidecore, RR, vec![1.0; ANSWERS_MIN - 1]).is_err());
        of_times(&mut rounds, Who::Sidecore, RR, (1..=200).rev().map(f64::from).collect())?;
        let rows = rounds.rows("x", [Who::Sidecore; 2], &RR.map(|what| (what, "us")));
        let values: Vec<f64> = rows.iter().step_by(2).map(|row| row.value).collect();
        assert_eq!(values, [100.0, 198.0, 200.0]);
        assert_eq!(rows[0].name, "x.rr.p50_us");
        Ok(())
    }
}
