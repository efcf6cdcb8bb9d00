//! `doctor`: what this host offers and lacks, and what the daemon that runs on it has given up.

use std::fmt::Write as _;

use config::api::{
    BoundView, BoundsView, ConfinementView, DaemonView, DefectView, DiskList, NicList, StateView,
    VersionView,
};
use config::routes::Method;
use host::doctor::{Check, State, examine_this_host};
use serde::Serialize;

use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Room;
use crate::version::{COMMIT, TOLD, VERSION};

pub(crate) mod reach;
mod ready;

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
}

/// With the name of a VMM's user, also whether that user reaches each device's socket.
pub(crate) fn run(client: &Client, vmm: Option<&str>, output: &Output) -> Result<(), Failure> {
    let mut checks = examine_this_host();
    checks.push(program(client.ask(Method::Get, "/v1/version").ok().as_ref()));
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

/// What the daemon says of itself.
fn of_the_daemon(client: &Client) -> Vec<Check> {
    let asked: Result<DaemonView, Failure> = client.ask(Method::Get, "/v1/daemon");
    match asked {
        Ok(view) => vec![
            confinement(&view),
            bounds(&view.bounds),
            state(&view.state),
            defects(&view.defects),
            devices(&hindered(client)),
        ],
        Err(Failure::Unreachable { .. }) => {
            let means =
                "what a daemon gives up, and what devices take of it, is known when it runs";
            vec![check("confinement", State::Ok, "no daemon can be asked".to_string(), means, "")]
        }
        Err(other) => {
            let (means, todo) = ("what it has given up is not known", "use one version of both");
            vec![check("confinement", State::Warn, other.text(), means, todo)]
        }
    }
}

fn check(name: &'static str, state: State, found: String, means: &str, todo: &str) -> Check {
    Check { name, state, found, means: means.to_string(), todo: todo.to_string() }
}

/// Disks and NICs with a problem: name, state and problem of each, as `ls` has them. How many there are in all.
struct Hindered {
    all: usize,
    some: Vec<(String, &'static str, String)>,
}

fn hindered(client: &Client) -> Result<Hindered, Failure> {
    let DiskList { disks } = client.ask(Method::Get, "/v1/disks")?;
    let NicList { nics } = client.ask(Method::Get, "/v1/nics")?;
    let all = disks.len() + nics.len();
    let disks = disks.into_iter().map(|disk| (disk.id, disk.state.word(), disk.problem));
    let nics = nics.into_iter().map(|nic| (nic.id, nic.state.word(), nic.problem));
    let some = disks.chain(nics).filter_map(|(id, state, problem)| Some((id, state, problem?)));
    Ok(Hindered { all, some: some.collect() })
}

/// So many of them are told of.
const HINDERED_MAX: usize = 4;

/// Which devices do not do what they are there for.
fn devices(hindered: &Result<Hindered, Failure>) -> Check {
    let Hindered { all, some } = match hindered {
        Ok(hindered) => hindered,
        Err(why) => {
            let means = "what is wrong with its devices is not known";
            return check("devices", State::Warn, why.text(), means, "`sidecore ls`");
        }
    };
    if some.is_empty() {
        let means = "no disk and no nic has a problem";
        return check("devices", State::Ok, format!("{all} of {all} without a problem"), means, "");
    }
    let one = |(id, state, problem): &(String, &str, String)| format!("{id} is {state}: {problem}");
    let mut told: Vec<String> = some.iter().take(HINDERED_MAX).map(one).collect();
    if some.len() > HINDERED_MAX {
        told.push(format!("and {} more", some.len() - HINDERED_MAX));
    }
    let found = format!("{} of {all} with a problem", some.len());
    check("devices", State::Warn, found, &told.join("; "), "`sidecore ls`, `sidecore show ID`")
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
fn confinement(view: &DaemonView) -> Check {
    let check = |state, found, means, todo| check("confinement", state, found, means, todo);
    let ConfinementView { mode, capabilities, files, rings } = &view.confinement;
    let threads = Threads::of(view.pid);
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
struct Threads {
    all: usize,
    filtered: usize,
    without_new_privileges: usize,
    /// Kernels before 5.16 do that to whoever has a filter.
    slowed: usize,
}

impl Threads {
    fn of(pid: u32) -> Threads {
        let mut threads = Threads { all: 0, filtered: 0, without_new_privileges: 0, slowed: 0 };
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
    fn devices_with_a_problem_are_told_of_as_they_are_listed() {
        let none = devices(&Ok(Hindered { all: 3, some: Vec::new() }));
        assert_eq!((none.state, none.found.as_str()), (State::Ok, "3 of 3 without a problem"));
        let one =
            |id: usize| (format!("d{id}"), "failed", "its IOhost has given it up".to_string());
        let told = devices(&Ok(Hindered { all: 9, some: vec![one(1)] }));
        assert_eq!((told.state, told.found.as_str()), (State::Warn, "1 of 9 with a problem"));
        assert_eq!(told.means, "d1 is failed: its IOhost has given it up");
        let told = devices(&Ok(Hindered { all: 9, some: (0..6).map(one).collect() }));
        assert!(told.means.ends_with("up; and 2 more"), "{}", told.means);
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
