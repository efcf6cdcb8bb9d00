//! One daemon, two disks, one switch, two guests that work at the same time; in the middle of it the daemon is killed
//! with -9 and started again, and neither guest notices.
//!
//! Both disks are files, one of them in memory: a RAM disk (`backend = "memory"`) ends with its daemon. The host is a
//! network namespace, so that nothing of the real one is touched; without root there is none, and the guests have only
//! each other.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::bed::Bed;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::load::Random;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::scratch::Scratch;
use testing::traffic::{self, Lines, Load};
use testing::vm::{Boot, NicOptions, Vm, has_kvm};

use super::table;

/// Where files in memory are.
pub const MEMORY: &str = "/dev/shm";
const HOST: &str = "10.9.0.100";
const VM1: &str = "10.9.0.1";
const VM2: &str = "10.9.0.2";
const MACS: [&str; 2] = ["52:54:00:51:00:01", "52:54:00:51:00:02"];

/// Shows it.
///
/// # Errors
/// Something does not start, or what the rest needs failed.
pub fn show(bed: &Bed) -> Result<()> {
    let memory = Scratch::new(Path::new(MEMORY), "demo")?;
    let is_root = rustix::process::geteuid().is_root();
    let host = if is_root { Some(Namespace::new("host")?) } else { None };
    let mut daemon = start(bed, memory.path(), host.as_ref())?;
    let accelerator = if has_kvm() { "kvm" } else { "tcg" };
    bed.say(format!("booting two guests, each with a disk and a NIC of it ({accelerator})"));
    let boot = |name: &str, mac: &str| {
        Boot::new(name)
            .disk(daemon.socket(&format!("{name}-root")), "num-queues=2")
            .nic(daemon.socket(&format!("{name}-net")), &NicOptions::new(mac))
    };
    let vm1 = Vm::start(bed.folder(), boot("vm1", MACS[0]))?;
    let vm2 = Vm::start(bed.folder(), boot("vm2", MACS[1]))?;
    for (vm, address) in [(&vm1, VM1), (&vm2, VM2)] {
        vm.ready()?;
        vm.run(&format!("ip addr add {address}/24 dev eth0; ip link set eth0 up"))?;
    }
    traffic::serve(&vm2)?;
    network(bed, &vm1, &vm2, host.as_ref());
    work(bed, &mut daemon, [&vm1, &vm2], host.as_ref())?;
    for (vm, prefix) in [(vm1, "vm1 "), (vm2, "vm2 ")] {
        vm.begin("end")?;
        vm.off_by_itself(bed, prefix)?;
    }
    bed.say("both guests are off");
    let (counters, ports) = (counters(&daemon)?, ports(&daemon)?);
    bed.say(format!(
        "what the second daemon has counted:\n\n{}\n\n{}",
        table(&counters),
        table(&ports)
    ));
    daemon.stop()
}

/// The daemon, and an address of the host's.
fn start(bed: &Bed, memory: &Path, host: Option<&Namespace>) -> Result<Daemon> {
    let in_memory = memory.join("vm1-root.img");
    let mut file = String::new();
    for (id, path) in
        [("vm1-root", in_memory.as_path()), ("vm2-root", Path::new("images/vm2-root.img"))]
    {
        let path = path.display();
        file +=
            &format!("[[disk]]\nid = \"{id}\"\npath = \"{path}\"\nsize = \"256M\"\nqueues = 2\n");
    }
    file += "[[switch]]\nid = \"lan\"\n";
    if host.is_some() {
        file += "[[switch.uplink]]\ntap = \"lan0\"\n";
    }
    for (id, mac) in [("vm1-net", MACS[0]), ("vm2-net", MACS[1])] {
        file += &format!("[[nic]]\nid = \"{id}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n");
    }
    bed.say(
        "starting the daemon: vm1-root is a file in memory, vm2-root one on disk; switch lan has both guests",
    );
    let config = Daemon::with("demo", &file).cpus("auto");
    let Some(host) = host else {
        bed.say("without root there is no uplink to a host");
        return config.start();
    };
    let daemon = config.through(&host.through()).start()?;
    host.add_address(&format!("{HOST}/24"), "lan0")?;
    traffic::serve(host)?;
    bed.say(format!("its uplink lan0 has {HOST} in a namespace that stands for the host"));
    Ok(daemon)
}

/// The network alone.
fn network(bed: &Bed, vm1: &Vm, vm2: &Vm, host: Option<&Namespace>) {
    let ping = |from: &Vm, to: &str| from.asked(&format!("ping -q -c 5 -i 0.1 -W 60 {to}"));
    bed.check("ping vm1 to vm2", ping(vm1, VM2));
    bed.check("iperf3 vm1 to vm2", traffic::tcp(vm1, VM2));
    bed.check("iperf3 vm2 to vm1", traffic::tcp(vm1, &format!("{VM2} -R")));
    if host.is_some() {
        bed.check("ping vm2 to host", ping(vm2, HOST));
        bed.check("iperf3 vm2 to host", traffic::tcp(vm2, HOST));
        bed.check("iperf3 host to vm2", traffic::tcp(vm2, &format!("{HOST} -R")));
    }
}

/// Network and disks while the daemon is killed.
fn work(bed: &Bed, daemon: &mut Daemon, vms: [&Vm; 2], host: Option<&Namespace>) -> Result<()> {
    let [vm1, vm2] = vms;
    let mut lines = Lines::new();
    lines.open(vm1, vm2, VM2)?;
    lines.open(vm2, vm1, VM1)?;
    if let Some(host) = host {
        lines.open(vm1, host, HOST)?;
        lines.open(host, vm2, VM2)?;
    }
    let load = Load::start(vm1, VM2)?;
    for vm in vms {
        vm.run(
            "{ arg_size=40m arg_until=/tmp/enough sh /scripts/together.sh >/tmp/together 2>&1; touch /tmp/together-over; } &",
        )?;
    }
    let both = await_that("both guests to come to fio", || {
        ensure!(!vms.into_iter().any(has_verified), "one was done before the other one had begun");
        Ok(vms.into_iter().all(|vm| vm.has_said("fio")))
    });
    ensure!(bed.check("both-at-once", both.map(|()| "")), "the rest was not done");
    bed.say(
        "both have made ext4 on it and run fio --verify, now at the same time; TCP goes both ways",
    );
    let killed = kill_in_the_middle(bed, daemon, vms);
    ensure!(bed.check("killed -9 and back, both served", killed), "the rest was not done");
    for vm in vms {
        vm.run("touch /tmp/enough")?;
    }
    bed.say("the guests go on to the end of fio");
    bed.check("TCP connections live on", lines.go_on());
    bed.check("iperf3 both ways lives on", load.end());
    for vm in vms {
        bed.check(&format!("{} is done", vm.name()), vm.comes_to("[ -e /tmp/together-over ]"));
    }
    for (check, result) in lines.end() {
        bed.check(&check, result);
    }
    Ok(())
}

fn has_verified(vm: &Vm) -> bool {
    vm.results().iter().any(|line| line.starts_with("RESULT fio-verify"))
}

/// The daemon goes at some moment of both guests' load, and another takes its place. QEMU looks for it once a second.
fn kill_in_the_middle(bed: &Bed, daemon: &mut Daemon, vms: [&Vm; 2]) -> Result<String> {
    pause(Duration::from_millis(100 + Random(now_ns()).below(900)));
    ensure!(
        !vms.into_iter().any(has_verified),
        "a guest was done with fio before the daemon was killed"
    );
    bed.say(format!("kill -9 {}: the daemon is gone", daemon.pid()));
    daemon.kill()?;
    let start = now_ns();
    let since_ms = || (now_ns() - start) / 1_000_000;
    daemon.start_again()?;
    let listening_ms = since_ms();
    for id in ["vm1-root", "vm2-root"] {
        await_that(&format!("the second daemon to serve {id}"), || {
            let counters = daemon.shown(id, "counters");
            Ok(counters.is_ok_and(|counters| counters["requests"].as_u64() > Some(0)))
        })?;
    }
    bed.say(format!(
        "pid {} listens after {listening_ms} ms, and serves both guests after {} ms (QEMU looks once a second)",
        daemon.pid(),
        since_ms(),
    ));
    Ok(format!("after {} ms", since_ms()))
}

/// What the daemon counted, a line a queue.
fn counters(daemon: &Daemon) -> Result<String> {
    let mut text = format!(
        "{:10} {:>5} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9}\n",
        "disk",
        "queue",
        "requests",
        "reads",
        "writes",
        "flushes",
        "MiB",
        "kicks",
        "calls",
        "p50_us",
        "p99_us"
    );
    for id in ["vm1-root", "vm2-root"] {
        let queues = daemon.shown(id, "queues")?;
        for queue in queues.as_array().context("a disk without queues")? {
            let count = |name: &str| queue["counters"][name].as_u64().unwrap_or(0);
            let us = |name: &str| count(name) as f64 / 1000.0;
            text += &format!(
                "{id:10} {:>5} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9.1} {:>9.1}\n",
                queue["index"].as_u64().unwrap_or(0),
                count("requests"),
                count("reads"),
                count("writes"),
                count("flushes"),
                (count("read_bytes") + count("written_bytes")) >> 20,
                count("kicks"),
                count("calls"),
                us("latency_p50_ns"),
                us("latency_p99_ns"),
            );
        }
    }
    Ok(text)
}

/// What the switch counted, a line a port, and the addresses that it knows there.
fn ports(daemon: &Daemon) -> Result<String> {
    let mut text = format!(
        "{:10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}  addresses\n",
        "port", "in", "MiB", "out", "MiB", "dropped", "slow"
    );
    let shown = daemon.ask("switch show lan")?;
    let list = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    for port in list("ports") {
        let name = port["name"].as_str().unwrap_or_default();
        let count = |name: &str| port["counters"][name].as_u64().unwrap_or(0);
        let mib = |name: &str| count(name) as f64 / f64::from(1 << 20);
        let own =
            |mac: &Value| (mac["port"] == name).then(|| mac["mac"].as_str().map(String::from))?;
        let macs: Vec<String> = list("macs").iter().filter_map(own).collect();
        text += &format!(
            "{name:10} {:>9} {:>9.1} {:>9} {:>9.1} {:>8} {:>8}  {}\n",
            count("taken_frames"),
            mib("taken_bytes"),
            count("delivered_frames"),
            mib("delivered_bytes"),
            count("dropped_frames"),
            count("slow_frames"),
            macs.join(" "),
        );
    }
    Ok(text)
}
