//! `doctor`: what this host offers and lacks, and what the daemon that runs on it has given up.

use std::fmt::Write as _;

use config::api::{
    BoundView, BoundsView, ConfinementView, DaemonView, DefectView, DiskList, LinkList, LinkView,
    NicList, PortKind, PortView, StateView, SwitchList, SwitchView, VersionView,
};
use config::routes::Method;
use host::doctor::{Check, State, examine_this_host};
use serde::Serialize;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Room;
use crate::version::{COMMIT, TOLD, VERSION};

mod faults;
mod heir;
pub(crate) mod reach;
mod ready;

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
}

/// With the name of a VMM's user, also whether that user reaches each device's socket.
pub(crate) fn run(client: &Client, vmm: Option<&str>, output: &Output) -> Result<(), Failure> {
    let mut checks = examine_this_host();
    let version = client.ask(Method::Get, "/v1/version");
    let unasked = match &version {
        // Whatever else it is asked for takes as long.
        Err(Failure::Silent { error, hint }) => Some(silent(error.clone(), hint)),
        Err(Failure::Unreachable { error, hint }) if vmm.is_none() => {
            Some(unreachable(error.clone(), hint))
        }
        _ => None,
    };
    if let Some(unasked) = unasked {
        checks.extend([program(None), unasked]);
        return output.show(&Report { checks }, |report| text(&report.checks, output.room));
    }
    checks.push(program(version.ok().as_ref()));
    checks.extend(of_the_daemon(client));
    checks.extend(ready::checks(client));
    checks.extend(reach::checks(client, vmm)?);
    output.show(&Report { checks }, |report| text(&report.checks, output.room))
}

/// Which program this is, and whether the daemon that runs is the same.
fn program(daemon: Option<&VersionView>) -> Check {
    let found = format!("sidecore {TOLD}");
    match daemon {
        Some(daemon) if daemon.version != VERSION || daemon.commit.as_deref() != COMMIT => {
            let commit = daemon.commit.as_ref().map(|commit| format!(" ({commit})"));
            let found = format!(
                "{found}; the daemon that runs is {}{}",
                daemon.version,
                commit.unwrap_or_default()
            );
            let means = "what this program says of itself need not hold for that daemon";
            check("program", State::Warn, found, means, "`sidecore upgrade`")
        }
        Some(_) => check("program", State::Ok, found, "the daemon that runs is the same", ""),
        None => check("program", State::Ok, found, "no daemon can be asked which one it is", ""),
    }
}

/// A daemon that is there and does not answer.
fn silent(error: String, hint: &str) -> Check {
    let means = "nothing of it is known; disks and NICs whose sidecores stand still as well do nothing for their guests";
    check("daemon", State::Warn, error, means, hint)
}

/// No daemon, or one that this user may not ask: with why, and where.
fn unreachable(found: String, todo: &str) -> Check {
    let means = "what it gives up, its devices, what it keeps, and whether it can be upgraded is not looked at";
    check("daemon", State::Warn, found, means, todo)
}

/// What the daemon says of itself.
fn of_the_daemon(client: &Client) -> Vec<Check> {
    let asked: Result<DaemonView, Failure> = client.ask(Method::Get, "/v1/daemon");
    match asked {
        Ok(view) => {
            let mut checks = vec![
                confinement(&view, client.shares_numbers(view.pid)),
                bounds(&view.bounds),
                state(&view.state),
                defects(&view.defects),
                told(&DEVICES, &devices(client)),
            ];
            checks.extend(faults::check(client));
            for (kind, hindered) in [(&SWITCHES, switches(client)), (&LINKS, links(client))] {
                let has_none = hindered.as_ref().is_ok_and(|hindered| hindered.all == 0);
                checks.extend((!has_none).then(|| told(kind, &hindered)));
            }
            checks
        }
        Err(Failure::Unreachable { error, hint }) => vec![unreachable(error, &hint)],
        Err(other) => {
            let (means, todo) = ("what it has given up is not known", "use one version of both");
            vec![check("confinement", State::Warn, other.text(), means, todo)]
        }
    }
}

fn check(name: &'static str, state: State, found: String, means: &str, todo: &str) -> Check {
    Check { name, state, found, means: means.to_string(), todo: todo.to_string() }
}

/// Things of one kind with a problem, in words. How many there are in all.
struct Hindered {
    all: usize,
    some: Vec<String>,
    /// What others meet, where none has a problem.
    besides: Vec<String>,
}

fn devices(client: &Client) -> Result<Hindered, Failure> {
    let DiskList { disks } = client.ask(Method::Get, "/v1/disks")?;
    let NicList { nics } = client.ask(Method::Get, "/v1/nics")?;
    let all = disks.len() + nics.len();
    let disks = disks.into_iter().map(|disk| (disk.id, disk.state.word(), disk.problem));
    let nics = nics.into_iter().map(|nic| (nic.id, nic.state.word(), nic.problem));
    let one = |(id, state, problem): (String, &str, Option<String>)| {
        Some(format!("{id} is {state}: {}", problem?))
    };
    let some = disks.chain(nics).filter_map(one);
    Ok(Hindered { all, some: some.collect(), besides: Vec::new() })
}

/// What switches have besides NICs, which are devices.
fn switches(client: &Client) -> Result<Hindered, Failure> {
    let SwitchList { switches } = client.ask(Method::Get, "/v1/switches")?;
    let problem = |switch: &SwitchView| {
        let mut uplinks = switch.ports.iter().filter(|port| port.kind != PortKind::Nic);
        let of_port = |port: &PortView| Some(format!("{}: {}", port.name, port.problem.as_ref()?));
        switch.problem.clone().or_else(|| uplinks.find_map(of_port))
    };
    let some = switches.iter().filter_map(|it| Some(format!("{}: {}", it.id, problem(it)?)));
    Ok(Hindered { all: switches.len(), some: some.collect(), besides: Vec::new() })
}

fn links(client: &Client) -> Result<Hindered, Failure> {
    let LinkList { links } = client.ask(Method::Get, "/v1/links")?;
    let all = links.len();
    let refused = |link: &LinkView| {
        let told = |refusal| format!("{}: {}", link.id, crate::link::refusal_text(refusal));
        link.refusals.iter().map(told).collect::<Vec<_>>()
    };
    let besides = links.iter().flat_map(refused).collect();
    let some = links.into_iter().filter_map(|it| Some(format!("{}: {}", it.id, it.problem?)));
    Ok(Hindered { all, some: some.collect(), besides })
}

/// A kind of things that are looked at for problems.
struct Kind {
    name: &'static str,
    /// What it means that none has one.
    fine: &'static str,
    todo: &'static str,
}

const DEVICES: Kind = Kind {
    name: "devices",
    fine: "no disk and no nic has a problem",
    todo: "`sidecore ls`, `sidecore show ID`",
};
const SWITCHES: Kind = Kind {
    name: "switches",
    fine: "no switch and no uplink has a problem",
    todo: "`sidecore switch ls`, `sidecore switch show ID`",
};
const LINKS: Kind = Kind {
    name: "links",
    fine: "no link to another machine has a problem",
    todo: "`sidecore remote status`",
};

/// So many of them are told of.
const HINDERED_MAX: usize = 4;

/// Which of a kind do not do what they are there for.
fn told(kind: &Kind, hindered: &Result<Hindered, Failure>) -> Check {
    let Kind { name, fine, todo } = kind;
    let Hindered { all, some, besides } = match hindered {
        Ok(hindered) => hindered,
        Err(why) => {
            return check(
                name,
                State::Warn,
                why.text(),
                "what is wrong with them is not known",
                todo,
            );
        }
    };
    if some.is_empty() {
        let found = format!("{all} of {all} without a problem");
        if besides.is_empty() {
            return check(name, State::Ok, found, fine, "");
        }
        let means = shorten(besides).collect::<Vec<_>>().join("\n");
        return check(name, State::Warn, format!("{found}, but others were refused"), &means, todo);
    }
    let told: Vec<String> = shorten(some).collect();
    let found = format!("{} of {all} with a problem", some.len());
    check(name, State::Warn, found, &told.join("\n"), todo)
}

/// The first of them, and how many more there are.
fn shorten(all: &[String]) -> impl Iterator<Item = String> {
    let more = all.len().saturating_sub(HINDERED_MAX);
    let more = (more > 0).then(|| format!("and {more} more"));
    all.iter().take(HINDERED_MAX).cloned().chain(more)
}

/// What devices are promised of what the daemon may have.
fn bounds(bounds: &BoundsView) -> Check {
    let part = |bound: &BoundView, unit: u64, what: &str| {
        let taken = (bound.own + bound.promised + bound.extra) / unit;
        match bound.limit {
            Some(limit) => format!("{taken} of {} {what}", limit / unit),
            None => format!("{taken} {what} (no limit)"),
        }
    };
    let devices = match bounds.devices {
        1 => "1 device".to_string(),
        count => format!("{count} devices"),
    };
    let found = format!(
        "{devices} and the daemon may take {}, {}, {}",
        part(&bounds.descriptors, 1, "descriptors"),
        part(&bounds.mappings, 1, "mappings"),
        part(&bounds.memory_bytes, 1 << 20, "MiB"),
    );
    let is_tight = |bound: &BoundView| {
        bound.limit.is_some_and(|limit| bound.own + bound.promised + bound.extra > limit / 10 * 9)
    };
    let memory = &bounds.memory_bytes;
    let memory_bytes = memory.own + memory.promised + memory.extra;
    if let Some(host) = bounds.host_memory_bytes.filter(|host| memory_bytes > *host) {
        let means = format!(
            "this host has {} MiB, swap included: memory disks that are written full take more, and then the kernel \
             ends processes, guests or the daemon",
            host >> 20
        );
        let todo = "make memory disks smaller; with MemoryMax in the unit one that does not fit is refused";
        return check("bounds", State::Warn, found, &means, todo);
    }
    let all = [&bounds.descriptors, &bounds.mappings, &bounds.memory_bytes];
    if all.into_iter().any(is_tight) {
        let todo =
            "raise LimitNOFILE in the unit, `sysctl vm.max_map_count`, or the limit of memory";
        return check("bounds", State::Warn, found, "the next device may be refused", todo);
    }
    check("bounds", State::Ok, found, "each device can have what it is promised at any time", "")
}

/// Whether the daemon can keep what is to outlive it.
fn state(StateView { folder, problem, unkept }: &StateView) -> Check {
    let mut found = match problem {
        Some(why) => format!("nothing can be kept in {folder}: {why}"),
        None => folder.clone(),
    };
    if problem.is_none() && unkept.is_empty() {
        let means = "devices made by command, and which image each guest is on, outlive a restart";
        return check("state", State::Ok, found, means, "");
    }
    if !unkept.is_empty() {
        let _ = write!(found, "; not kept: which image the guests of {} are on", unkept.join(", "));
    }
    let means = "devices made by command are refused; after a restart a guest could be served from another image than \
                 its own";
    let todo = "make room there, or give the folder to the daemon's user; what could not be kept is tried again each \
                second, and before that leave `path` and images as they are";
    check("state", State::Warn, found, means, todo)
}

/// What the daemon's control counted on and did not find.
fn defects(defects: &[DefectView]) -> Check {
    if defects.is_empty() {
        let means = "the daemon has found all that it counted on since it was started";
        return check("defects", State::Ok, "none".to_string(), means, "");
    }
    let one = |DefectView { at, expected, count }: &DefectView| {
        format!("{count} times no {expected} ({at})")
    };
    let found = defects.iter().map(one).collect::<Vec<_>>().join("; ");
    let means = "a fault of the daemon's own: what it lacked this for was left undone, and a device may stand still";
    check("defects", State::Warn, found, means, "report it with the log; a restart begins anew")
}

/// What the daemon has given up, as it says itself and as the kernel knows its threads.
fn confinement(view: &DaemonView, is_here: bool) -> Check {
    let check = |state, found, means, todo| check("confinement", state, found, means, todo);
    let ConfinementView { mode, capabilities, files, rings } = &view.confinement;
    // Its number is somebody else's in another container.
    let threads = if is_here { Threads::of(view.pid) } else { Threads::default() };
    let mut found = format!("process {}: {threads}", view.pid);
    let kept = if capabilities.is_empty() { "none".into() } else { capabilities.join(" ") };
    let may_open = match files.as_str() {
        "off" => "any (no image_folders)",
        "on" => "those of image_folders and its own",
        other => other,
    };
    found += &format!("; rights left: {kept}; files: {may_open}");
    if !rings {
        found += "; io_urings not restricted";
    }
    match mode.as_str() {
        "off" => check(
            State::Warn,
            format!("process {}: not confined", view.pid),
            "whatever takes the daemon over has all of its rights",
            "start it without SIDECORE_CONFINE=off; if it fails then, report the system call that its log \
             and the kernel's name",
        ),
        _ if files == "missing" => check(
            State::Warn,
            found,
            "image_folders is kept by the daemon's own checks alone",
            "see landlock",
        ),
        _ if threads.slowed > 0 => check(
            State::Warn,
            format!("{found}; speculative store bypass is off in {} threads", threads.slowed),
            "their loads wait for earlier stores, which no filter of the daemon's needs",
            "use a kernel of 5.16 or newer, or boot with `spec_store_bypass_disable=prctl`",
        ),
        _ => check(State::Ok, found, "the daemon has given up what it does not need", ""),
    }
}

/// What the kernel says of a process's threads.
#[derive(Default)]
struct Threads {
    all: usize,
    filtered: usize,
    without_new_privileges: usize,
    /// Kernels before 5.16 do that to whoever has a filter.
    slowed: usize,
}

impl Threads {
    fn of(pid: u32) -> Threads {
        let mut threads = Threads::default();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
            let has = |line: &str| status.lines().any(|it| it == line);
            threads.all += 1;
            threads.filtered += usize::from(has("Seccomp:\t2"));
            threads.without_new_privileges += usize::from(has("NoNewPrivs:\t1"));
            threads.slowed += usize::from(has("Speculation_Store_Bypass:\tthread force mitigated"));
        }
        threads
    }
}

impl std::fmt::Display for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Threads { all, filtered, without_new_privileges, .. } = self;
        match all {
            0 => f.write_str("its threads cannot be seen from here"),
            _ => write!(
                f,
                "of {all} threads {filtered} filtered, {without_new_privileges} without new privileges"
            ),
        }
    }
}

fn text(checks: &[Check], room: Room) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let behind = width + "missing".len() + 4;
    let blank = " ".repeat(behind);
    let mut text = String::new();
    for Check { name, state, found, means, todo } in checks {
        let state = match state {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        };
        let _ = writeln!(text, "{state:<7}  {name:<width$}  {}", room.wrapped(found, behind));
        // Of several things that have something each has a line.
        for line in means.lines() {
            let _ = writeln!(text, "{blank}{}", room.wrapped(line, behind));
        }
        if !todo.is_empty() {
            let _ = writeln!(text, "{blank}-> {}", room.wrapped(todo, behind + 3));
        }
    }
    let open = checks.iter().filter(|check| check.state != State::Ok).count();
    let _ = match open {
        0 => writeln!(text, "\nnothing to do"),
        _ => writeln!(text, "\n{open} of {} could be better", checks.len()),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defects_are_told_with_their_places() {
        assert_eq!(defects(&[]).state, State::Ok);
        let one = DefectView { at: "moves.rs:9".into(), expected: "queue".into(), count: 2 };
        let told = defects(&[one]);
        assert_eq!(
            (told.state, told.found.as_str()),
            (State::Warn, "2 times no queue (moves.rs:9)")
        );
    }

    #[test]
    fn what_has_a_problem_is_told_of_as_it_is_listed() {
        let devices = |hindered: Hindered| told(&DEVICES, &Ok(hindered));
        let none = devices(Hindered { all: 3, some: Vec::new(), besides: Vec::new() });
        assert_eq!((none.state, none.found.as_str()), (State::Ok, "3 of 3 without a problem"));
        let one = |id: usize| format!("d{id} is failed: its IOhost has given it up");
        let some = devices(Hindered { all: 9, some: vec![one(1)], besides: Vec::new() });
        assert_eq!((some.state, some.found.as_str()), (State::Warn, "1 of 9 with a problem"));
        assert_eq!(some.means, "d1 is failed: its IOhost has given it up");
        let many =
            devices(Hindered { all: 9, some: (0..6).map(one).collect(), besides: Vec::new() });
        assert!(many.means.ends_with("up\nand 2 more"), "{}", many.means);
        let shut = "rack: cannot open a link".to_string();
        let link = told(&LINKS, &Ok(Hindered { all: 1, some: vec![shut], besides: Vec::new() }));
        assert_eq!(link.means, "rack: cannot open a link");
        assert_eq!((link.name, link.todo.as_str()), ("links", "`sidecore remote status`"));
        let besides = vec!["rack: 9 hellos refused: a stranger".to_string()];
        let link = told(&LINKS, &Ok(Hindered { all: 1, some: Vec::new(), besides }));
        assert_eq!((link.state, link.todo.as_str()), (State::Warn, "`sidecore remote status`"));
        assert_eq!(link.found, "1 of 1 without a problem, but others were refused");
        assert_eq!(link.means, "rack: 9 hellos refused: a stranger");
    }

    #[test]
    fn memory_that_the_host_has_not_is_no_promise() {
        let memory = BoundView { own: 32 << 20, promised: 30 << 30, extra: 0, limit: None };
        let view = |host: Option<u64>| BoundsView {
            devices: 1,
            memory_bytes: memory.clone(),
            host_memory_bytes: host,
            ..BoundsView::default()
        };
        let told = bounds(&view(Some(24 << 30)));
        assert_eq!(told.state, State::Warn);
        assert!(told.means.starts_with("this host has 24576 MiB, swap included"), "{}", told.means);
        assert!(told.found.ends_with("30752 MiB (no limit)"), "{}", told.found);
        assert_eq!(bounds(&view(Some(64 << 30))).state, State::Ok);
        assert_eq!(bounds(&view(None)).state, State::Ok);
    }

    #[test]
    fn a_daemon_of_another_commit_is_told() {
        let view = |commit: Option<&str>| VersionView {
            version: VERSION.into(),
            commit: commit.map(str::to_string),
            ..VersionView::default()
        };
        let same = program(Some(&view(COMMIT)));
        assert_eq!((same.state, same.found.as_str()), (State::Ok, &*format!("sidecore {TOLD}")));
        let other = program(Some(&view(Some("0123456789ab-dirty"))));
        assert_eq!(other.state, State::Warn);
        assert_eq!(
            other.found,
            format!("sidecore {TOLD}; the daemon that runs is {VERSION} (0123456789ab-dirty)")
        );
        assert_eq!(other.todo, "`sidecore upgrade`");
        assert_eq!(program(None).state, State::Ok);
    }
}
