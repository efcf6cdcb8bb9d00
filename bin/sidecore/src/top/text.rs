//! What `top` shows: tables with a bar for each core, and a letter for each vCPU.

use std::fmt::Write as _;

use config::api::VcpuState;

use super::rates::{CoreRates, DiskRates, NicRates, Rates};
use crate::table::{Align, Room, Table, latency};

/// Cells of the bar of a core that is always busy.
const BAR: usize = 20;
/// vCPUs that are shown of one guest.
const VCPUS_MAX: usize = 32;
/// What goes first where there is too little room.
const CORES_GO: [&str; 9] =
    ["PASSES/S", "SLEEPS/S", "KICKS/S", "", "CPU", "REQUESTS/S", "QUEUES", "POLL", "STATE"];
const DISKS_GO: [&str; 10] = [
    "HELD/S",
    "FLUSHES/S",
    "P50",
    "FLIGHT",
    "BYTES READ",
    "WRITTEN",
    "ERRORS/S",
    "P99",
    "WRITES/S",
    "READS/S",
];
const NICS_GO: [&str; 7] =
    ["REDIRECTED/S", "BYTES TAKEN", "DELIVERED", "VCPUS", "DROPPED/S", "DELIVERED/S", "TAKEN/S"];
const LEGEND: &str = "vCPUs: R runs, w waits for a core, s sleeps, ? unknown\n";

/// As much as a screen of so many lines has room for: the first cores, of disks and NICs those that do
/// most, and at least one of each.
pub(super) fn screen(rates: &Rates, lines: usize, room: Room) -> String {
    let cores = rates.sidecores.len().min(lines.saturating_sub(3) / 3).max(1);
    // Two of a head and one of the cores' names, and of each other table a blank, the names, and who is left out.
    let tables = [rates.disks.len(), rates.nics.len()].iter().filter(|count| **count > 0).count();
    let problems = rates.problems().count().min(lines / 4);
    let more = usize::from(rates.sidecores.len() > cores);
    let legend = usize::from(rates.nics.iter().any(|nic| !nic.vcpus.is_empty()));
    let taken = 3 + cores + more + 3 * tables + legend + problems + 2 * usize::from(problems > 0);
    let left = lines.saturating_sub(taken);
    let half = if tables == 2 { left / 2 } else { left };
    let nics = rates.nics.len().min(half.max(left.saturating_sub(rates.disks.len()))).max(1);
    let disks =
        rates.disks.len().min(left.saturating_sub(if tables == 2 { nics } else { 0 })).max(1);
    let text = shown(rates, [cores, disks, nics, problems], room);
    text.lines().take(lines).map(|line| cut(line, room)).collect()
}

/// The last screen below a line that says why there is no newer one.
pub(super) fn away(head: &str, last: &str, room: Room) -> String {
    cut(&crate::table::plain(head), room) + last
}

fn cut(line: &str, room: Room) -> String {
    room.cut(line) + "\n"
}

/// All there is.
pub(super) fn whole(rates: &Rates, room: Room) -> String {
    shown(rates, [usize::MAX; 4], room)
}

fn shown(rates: &Rates, most: [usize; 4], room: Room) -> String {
    let [cores, disks, nics, problems] = most;
    let mut text = format!(
        "{}  {}, {}, {}; in the last {:.1} s\n\n",
        time_of_day(rates.at),
        count(rates.sidecores.len(), "sidecore"),
        count(rates.disks.len(), "disk"),
        count(rates.nics.len(), "NIC"),
        rates.seconds
    );
    text += &cores_text(&rates.sidecores, cores).lines(room);
    text += &more(rates.sidecores.len(), cores, "sidecore");
    if !rates.disks.is_empty() {
        let _ = write!(text, "\n{}", disks_text(&rates.disks, disks).lines(room));
        text += &more(rates.disks.len(), disks, "disk");
    }
    if !rates.nics.is_empty() {
        let _ = write!(text, "\n{}", nics_text(&rates.nics, nics).lines(room));
        text += &more(rates.nics.len(), nics, "NIC");
        if rates.nics.iter().any(|nic| !nic.vcpus.is_empty()) {
            text += LEGEND;
        }
    }
    let there = rates.problems().count();
    for (nth, (id, problem)) in rates.problems().take(problems).enumerate() {
        let blank = if nth == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{id}: {}", crate::table::plain(problem));
    }
    text + &more(there, problems, "problem")
}

impl Rates {
    /// What guests wait for, and what is wrong.
    fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let disks = self.disks.iter().map(|disk| (&disk.id, &disk.problem));
        let nics = self.nics.iter().map(|nic| (&nic.id, &nic.problem));
        disks.chain(nics).filter_map(|(id, problem)| Some((id.as_str(), problem.as_deref()?)))
    }
}

/// Of the wall clock, in UTC, since seconds of 1970 are.
fn time_of_day(at: f64) -> String {
    let seconds = at as u64 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What is left out is said.
fn more(there: usize, shown: usize, what: &str) -> String {
    match there.saturating_sub(shown) {
        0 => String::new(),
        more => format!("and {} more that are not shown\n", count(more, what)),
    }
}

fn cores_text(cores: &[CoreRates], most: usize) -> Table {
    let columns = [
        ("SIDECORE", Align::Right),
        ("CPU", Align::Right),
        ("STATE", Align::Left),
        ("BUSY", Align::Right),
        ("", Align::Left),
        ("POLL", Align::Right),
        ("QUEUES", Align::Right),
        ("PASSES/S", Align::Right),
        ("REQUESTS/S", Align::Right),
        ("KICKS/S", Align::Right),
        ("SLEEPS/S", Align::Right),
    ];
    let mut table = Table::new(&columns, &CORES_GO);
    for core in cores.iter().take(most) {
        table.row(vec![
            core.index.to_string(),
            core.cpu.map_or("any".to_string(), |cpu| cpu.to_string()),
            core.state.word().to_string(),
            percent(core.busy_percent),
            bar(core.busy_percent),
            percent(core.poll_percent),
            core.queues.to_string(),
            rate(core.passes_per_s),
            rate(core.requests_per_s),
            rate(core.kicks_per_s),
            rate(core.sleeps_per_s),
        ]);
    }
    table
}

fn disks_text(disks: &[DiskRates], most: usize) -> Table {
    let columns = [
        ("DISK", Align::Left),
        ("STATE", Align::Left),
        ("READS/S", Align::Right),
        ("WRITES/S", Align::Right),
        ("FLUSHES/S", Align::Right),
        ("BYTES READ", Align::Right),
        ("WRITTEN", Align::Right),
        ("FLIGHT", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("HELD/S", Align::Right),
        ("ERRORS/S", Align::Right),
    ];
    let mut table = Table::new(&columns, &DISKS_GO);
    for disk in disks.iter().take(most) {
        table.row(vec![
            disk.id.clone(),
            disk.state.to_string(),
            rate(disk.reads_per_s),
            rate(disk.writes_per_s),
            rate(disk.flushes_per_s),
            bytes(disk.read_bytes_per_s),
            bytes(disk.written_bytes_per_s),
            disk.in_flight.to_string(),
            latency(disk.latency_p50_ns),
            latency(disk.latency_p99_ns),
            rate(disk.held_per_s),
            rate(disk.errors_per_s),
        ]);
    }
    table
}

fn nics_text(nics: &[NicRates], most: usize) -> Table {
    let mut columns = vec![
        ("NIC", Align::Left),
        ("STATE", Align::Left),
        ("TAKEN/S", Align::Right),
        ("DELIVERED/S", Align::Right),
        ("BYTES TAKEN", Align::Right),
        ("DELIVERED", Align::Right),
        ("DROPPED/S", Align::Right),
    ];
    let follows = nics.iter().any(|nic| nic.redirected_per_s.is_some());
    if follows {
        columns.push(("REDIRECTED/S", Align::Right));
        columns.push(("VCPUS", Align::Left));
    }
    let mut table = Table::new(&columns, &NICS_GO);
    for nic in nics.iter().take(most) {
        let mut row = vec![
            nic.id.clone(),
            nic.state.to_string(),
            rate(nic.taken_per_s),
            rate(nic.delivered_per_s),
            bytes(nic.taken_bytes_per_s),
            bytes(nic.delivered_bytes_per_s),
            rate(nic.dropped_per_s),
        ];
        if follows {
            row.push(rate(nic.redirected_per_s));
            row.push(vcpus(&nic.vcpus));
        }
        table.row(row);
    }
    table
}

/// A letter for each.
fn vcpus(states: &[VcpuState]) -> String {
    let letter = |state: &VcpuState| match state {
        VcpuState::Unknown => '?',
        VcpuState::Runs => 'R',
        VcpuState::Waits => 'w',
        VcpuState::Sleeps => 's',
    };
    match states.len() {
        0 => "-".to_string(),
        more if more > VCPUS_MAX => {
            states.iter().take(VCPUS_MAX).map(letter).chain("..".chars()).collect()
        }
        _ => states.iter().map(letter).collect(),
    }
}

fn bar(percent: Option<f64>) -> String {
    let full =
        percent.map_or(0, |percent| (percent * BAR as f64 / 100.0).round() as usize).min(BAR);
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

fn percent(percent: Option<f64>) -> String {
    percent.map_or("-".to_string(), |percent| format!("{percent:.0}%"))
}

/// A rate in three or four digits, such as `12.3k`.
fn rate(rate: Option<f64>) -> String {
    let Some(rate) = rate else { return "-".to_string() };
    for (unit, scale) in [("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if rate >= 10.0 * scale || (rate >= scale && unit != "k") {
            return format!("{:.1}{unit}", rate / scale);
        }
    }
    format!("{rate:.0}")
}

/// Bytes a second, in powers of 1,000, as networks and disks are sold.
fn bytes(rate: Option<f64>) -> String {
    let Some(rate) = rate else { return "-".to_string() };
    for (unit, scale) in [("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)] {
        if rate >= scale {
            return format!("{:.1} {unit}", rate / scale);
        }
    }
    format!("{rate:.0} B/s")
}

#[cfg(test)]
mod tests {
    use config::api::SidecoreState;

    use super::*;

    fn nic(id: &str, taken: f64, vcpus: Vec<VcpuState>) -> NicRates {
        NicRates {
            id: id.to_string(),
            state: "connected",
            problem: (id == "n1").then(|| "no way out".to_string()),
            taken_per_s: Some(taken),
            delivered_per_s: Some(12_345.6),
            taken_bytes_per_s: Some(999.4),
            delivered_bytes_per_s: Some(18_000_000.0),
            dropped_per_s: None,
            redirected_per_s: (!vcpus.is_empty()).then_some(7.0),
            avoided_us_per_s: None,
            vcpus,
        }
    }

    fn disk(id: &str) -> DiskRates {
        DiskRates {
            id: id.to_string(),
            state: "running",
            problem: None,
            reads_per_s: Some(1.0),
            writes_per_s: None,
            flushes_per_s: None,
            read_bytes_per_s: None,
            written_bytes_per_s: None,
            errors_per_s: None,
            held_per_s: None,
            in_flight: 0,
            latency_p50_ns: None,
            latency_p99_ns: None,
        }
    }

    #[test]
    fn two_tables_share_a_screen_and_a_daemon_that_is_away_is_told_above_them() {
        for (disks, nics, lines) in
            [(1, 1, 12), (100, 1, 24), (1, 100, 24), (100, 100, 24), (100, 100, 12)]
        {
            let nics = (0..nics).map(|at| nic(&format!("n{at}"), 1.0, Vec::new()));
            let mut rates = rates(nics.collect());
            rates.disks = (0..disks).map(|at| disk(&format!("d{at}"))).collect();
            let text = screen(&rates, lines, Room::Columns(80));
            assert!(text.lines().count() <= lines, "{text}");
            for first in ["d0 ", "n0 "] {
                assert!(text.lines().any(|line| line.starts_with(first)), "{lines} lines:\n{text}");
            }
            let away = away("for 3 s now\u{1b}[2J", &text, Room::Columns(12));
            assert!(away.starts_with("for 3 s now…\n"), "{away:?}");
            assert!(away.lines().count() <= lines + 1);
        }
    }

    fn rates(nics: Vec<NicRates>) -> Rates {
        let core = CoreRates {
            index: 0,
            cpu: Some(4),
            state: SidecoreState::InUse,
            queues: 12,
            busy_percent: Some(61.0),
            poll_percent: None,
            passes_per_s: Some(1_234_567.0),
            requests_per_s: Some(9_999.0),
            kicks_per_s: Some(0.0),
            sleeps_per_s: Some(3.0),
        };
        Rates { at: 45_296.0, seconds: 1.0, sidecores: vec![core], disks: Vec::new(), nics }
    }

    #[test]
    fn a_core_has_a_bar_and_a_vcpu_a_letter() {
        use VcpuState::{Runs, Sleeps, Unknown, Waits};
        let text =
            whole(&rates(vec![nic("n0", 5.0, vec![Runs, Waits, Sleeps, Unknown])]), Room::Whole);
        let expected = "\
12:34:56 UTC  1 sidecore, 0 disks, 1 NIC; in the last 1.0 s

SIDECORE  CPU  STATE   BUSY                          POLL  QUEUES  PASSES/S  REQUESTS/S  KICKS/S  SLEEPS/S
       0    4  in use   61%  [############........]     -      12      1.2M        9999        0         3

NIC  STATE      TAKEN/S  DELIVERED/S  BYTES TAKEN  DELIVERED  DROPPED/S  REDIRECTED/S  VCPUS
n0   connected        5        12.3k      999 B/s  18.0 MB/s          -             7  Rws?
vCPUs: R runs, w waits for a core, s sleeps, ? unknown
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_screen_is_never_longer_or_wider_than_it_is() {
        for there in [0, 1, 10, 100] {
            for lines in [12, 24, 50] {
                let nics = (0..there).map(|at| nic(&format!("n{at}"), 1.0, vec![VcpuState::Runs]));
                let rates = rates(nics.collect());
                let text = screen(&rates, lines, Room::Columns(60));
                assert!(text.lines().count() <= lines, "{there} in {lines}:\n{text}");
                assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
                let is_row = |line: &&str| line.starts_with('n') && !line.contains(": ");
                let rows = text.lines().filter(is_row).count();
                assert_eq!(
                    rows == there,
                    !text.contains("NICs more") && !text.contains("NIC more"),
                    "{there} in {lines}:\n{text}"
                );
                assert_eq!(rows > 0, there > 0, "at least one of {there} in {lines}:\n{text}");
                // Whoever waits is told of, however little it does.
                assert_eq!(
                    text.contains("n1: no way out"),
                    there > 1,
                    "{there} in {lines}:\n{text}"
                );
            }
        }
    }
}
