//! The commands that ask about everything: disks and NICs together, sidecores, the file.

use std::fmt::Write as _;
use std::time::Duration;

use config::api::{
    ApiError, DiskList, DiskView, ErrorKind, LinkList, LinkView, NicList, NicView, SidecoreList,
    SidecoreView, UpgradeView,
};
use config::routes::Method;
use serde::Serialize;

use crate::cli::ShowArgs;
use crate::client::{Client, path_of};
use crate::disk;
use crate::failure::Failure;
use crate::nic;
use crate::output::Output;
use crate::table::{Align, Room, Table, duration, known, latency};

/// What `ls` prints.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    disks: DiskList,
    #[serde(flatten)]
    nics: NicList,
}

/// `ls`
pub(crate) fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let disks: DiskList = client.ask(Method::Get, "/v1/disks")?;
    let nics: NicList = client.ask(Method::Get, "/v1/nics")?;
    output.show(&Listed { disks, nics }, |Listed { disks, nics }| {
        let (disks, nics) = (&disks.disks[..], &nics.nics[..]);
        if disks.is_empty() && nics.is_empty() {
            let make = "make one with `sidecore disk add` or `sidecore nic add`";
            return format!("no disks and no nics; {make}\n");
        }
        let tables = [
            (disks.is_empty(), disk::table(disks, output.room)),
            (nics.is_empty(), nic::table(nics, output.room)),
        ];
        let shown = tables.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, text)| text);
        let disks = disks.iter().map(|disk| (&*disk.id, disk.problem.as_deref()));
        let nics = nics.iter().map(|nic| (&*nic.id, nic.problem.as_deref()));
        shown.collect::<Vec<_>>().join("\n") + &problems(disks.chain(nics))
    })
}

/// What is said below a table of disks.
pub(crate) fn of_disks(disks: &[DiskView]) -> String {
    problems(disks.iter().map(|disk| (&*disk.id, disk.problem.as_deref())))
}

/// What is said below a table of NICs.
pub(crate) fn of_nics(nics: &[NicView]) -> String {
    problems(nics.iter().map(|nic| (&*nic.id, nic.problem.as_deref())))
}

/// The problem of each device that has one.
fn problems<'a>(devices: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    let some = devices.into_iter().filter_map(|(id, problem)| Some((id, problem?)));
    let lines: String = some.map(|(id, problem)| format!("{id}: {problem}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// `show`: names are distinct over disks and NICs.
pub(crate) fn show(args: &ShowArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let is_missing = |failure: &Failure| matches!(failure, Failure::Refused(error) if error.kind == ErrorKind::NotFound);
    match client.ask::<DiskView>(Method::Get, &path_of("disks", &args.id, "")) {
        Ok(disk) => return disk::present(&disk, &args.print, output),
        Err(failure) if is_missing(&failure) => {}
        Err(failure) => return Err(failure),
    }
    match client.ask::<NicView>(Method::Get, &path_of("nics", &args.id, "")) {
        Ok(nic) => nic::present(&nic, &args.print, output),
        Err(failure) if is_missing(&failure) => {
            let error = format!("there is no disk and no nic {:?}", args.id);
            let hint = "`sidecore ls` lists what there is";
            Err(Failure::Refused(ApiError::new(ErrorKind::NotFound, error, hint)))
        }
        Err(failure) => Err(failure),
    }
}

/// How long the share of busy time is looked at.
const BUSY_TIME: Duration = Duration::from_millis(250);

/// `sidecores`
pub(crate) fn sidecores(client: &Client, output: &Output) -> Result<(), Failure> {
    let first: SidecoreList = client.ask(Method::Get, "/v1/sidecores")?;
    if output.json {
        return output.show(&first, |_| String::new());
    }
    pause(BUSY_TIME);
    let list: SidecoreList = client.ask(Method::Get, "/v1/sidecores")?;
    output.show(&list, |list| sidecores_text(&first, list, output.room))
}

#[expect(clippy::disallowed_methods, reason = "time must pass between two looks at a counter")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// From that percentage on it is shown: less is what every thread has on a host that does something else, too.
const LOST_SHOWN: u32 = 5;

/// What goes first where there is too little room.
const GO: [&str; 15] = [
    "PAUSE",
    "STAYED",
    "OUT",
    "IN",
    "SLEEPS",
    "ASLEEP",
    "AVOIDED",
    "KICKS",
    "IO ERRORS",
    "NODE",
    "REQUESTS",
    "CPU",
    "QUEUES",
    "LOST",
    "POLL",
];

fn sidecores_text(before: &SidecoreList, now: &SidecoreList, room: Room) -> String {
    let columns = [
        "SIDECORE",
        "CPU",
        "STATE",
        "BUSY",
        "POLL",
        "QUEUES",
        "REQUESTS",
        "KICKS",
        "AVOIDED",
        "SLEEPS",
        "ASLEEP",
        "IN",
        "OUT",
        "STAYED",
        "PAUSE",
        "IO ERRORS",
    ];
    let align = |name| if name == "STATE" { Align::Left } else { Align::Right };
    let mut columns = columns.map(|name| (name, align(name))).to_vec();
    let has_nodes = now.sidecores.iter().any(|core| core.node.is_some());
    if has_nodes {
        columns.push(("NODE", Align::Right));
    }
    let has_lost = now.sidecores.iter().any(|core| core.lost_percent >= Some(LOST_SHOWN));
    if has_lost {
        columns.push(("LOST", Align::Right));
    }
    let mut table = Table::new(&columns, &GO);
    for core in &now.sidecores {
        let earlier = before.sidecores.iter().find(|earlier| earlier.index == core.index);
        let mut row = vec![
            core.index.to_string(),
            core.cpu.map_or("any".to_string(), |cpu| cpu.to_string()),
            core.state.word().to_string(),
            part(earlier, core, |core| core.busy_ns),
            part(earlier, core, |core| core.idle_ns),
            core.queues.to_string(),
            core.requests.to_string(),
            core.kicks.to_string(),
            core.kicks_avoided.to_string(),
            core.sleeps.to_string(),
            duration(core.asleep_ns),
            core.moves_in.to_string(),
            core.moves_out.to_string(),
            core.moves_stayed.to_string(),
            latency(core.move_pause_p99_ns),
            core.io_errors.to_string(),
        ];
        if has_nodes {
            row.push(known(core.node));
        }
        if has_lost {
            row.push(known(core.lost_percent.map(|percent| format!("{percent}%"))));
        }
        table.row(row);
    }
    let lost = "\nLOST: others had its cpu; keep them off it (`nic show` says which guests do)\n";
    table.text(room) + if has_lost { lost } else { "" }
}

/// A part of the time between two looks, in percent, or `-` where there was only one. Sleep is counted when
/// it ends, so the time between the looks is taken for all that is neither busy nor idle.
fn part(
    before: Option<&SidecoreView>,
    now: &SidecoreView,
    what: fn(&SidecoreView) -> u64,
) -> String {
    let spent = |of: fn(&SidecoreView) -> u64| of(now).checked_sub(of(before?));
    let percent = || {
        let awake = spent(|core| core.busy_ns)?.saturating_add(spent(|core| core.idle_ns)?);
        let all = awake.max(BUSY_TIME.as_nanos() as u64);
        Some(format!("{}%", spent(what)?.saturating_mul(100) / all))
    };
    known(percent())
}

/// `upgrade`
pub(crate) fn upgrade(client: &Client, force: bool, output: &Output) -> Result<(), Failure> {
    // One of an earlier version knows no parameter.
    let path = if force { "/v1/upgrade?force=true" } else { "/v1/upgrade" };
    let done: UpgradeView = client.ask(Method::Post, path)?;
    if !output.json {
        output.show(&done, upgrade_text)?;
    }
    // What is in force may still be tried again and again.
    let links = client.ask::<LinkList>(Method::Get, "/v1/links");
    let links_not_open = links.ok().map(|list| not_open(&list));
    match &links_not_open {
        None => output.note("whether links are open could not be asked: `sidecore remote status`"),
        Some(links) if !output.json => links.iter().for_each(|link| output.note(&link.text())),
        Some(_) => {}
    }
    match output.json {
        true => output.show(&Upgraded { done, links_not_open }, |all| upgrade_text(&all.done)),
        false => Ok(()),
    }
}

/// What programs are told of an upgrade.
#[derive(Serialize)]
struct Upgraded {
    #[serde(flatten)]
    done: UpgradeView,
    /// Nothing: that could not be asked.
    links_not_open: Option<Vec<LinkNotOpen>>,
}

/// A link without a socket.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct LinkNotOpen {
    id: String,
    problem: String,
}

impl LinkNotOpen {
    fn text(&self) -> String {
        let LinkNotOpen { id, problem } = self;
        format!("link {id}: {problem}; `sidecore remote status` says whether it is open since")
    }
}

/// The links without a socket.
fn not_open(list: &LinkList) -> Vec<LinkNotOpen> {
    let shut = list.links.iter().filter(|link| link.sockets.is_empty());
    let told =
        |link: &LinkView| Some(LinkNotOpen { id: link.id.clone(), problem: link.problem.clone()? });
    shut.filter_map(told).collect()
}

fn upgrade_text(done: &UpgradeView) -> String {
    let mut text = format!("process {} serves now, version {}\n", done.pid, done.version);
    if let Some(pause) = done.pause {
        let ms = |ns: u64| ns as f64 / 1e6;
        let of =
            if pause.queues == 1 { "1 queue".into() } else { format!("{} queues", pause.queues) };
        let _ = writeln!(
            text,
            "{of} stood still for {:.1} ms at most: {:.1} until all were back, {:.1} until they were \
             handed over, {:.1} until they were served",
            ms(pause.max_ns),
            ms(pause.drained_ns),
            ms(pause.handed_ns),
            ms(pause.started_ns),
        );
    }
    if done.launchers_late > 0 {
        // There are two of them: with both there is no upgrade.
        text.push_str(
            "it took 5 s longer, since a launcher of the process before did not answer, as when it is stopped; it ended \
             with that process\n",
        );
    }
    if done.sessions_anew > 0 {
        let clients = match done.sessions_anew {
            1 => "the client of 1 session begins".to_string(),
            count => format!("the clients of {count} sessions begin"),
        };
        let _ = writeln!(
            text,
            "{clients} another one with it, and their guests wait until then: `sidecore remote status`"
        );
    }
    if let Some(taken) = &done.configuration {
        text.push_str(&crate::reload::taken_text(taken));
    }
    text
}

#[cfg(test)]
mod tests {
    use config::api::{PauseView, SidecoreState, TakenFileView};

    use super::*;

    #[test]
    fn links_without_a_socket_are_told_with_what_is_wrong() {
        let link = |id: &str, sockets: &[&str], problem: Option<&str>| -> LinkView {
            serde_json::from_value(serde_json::json!({
                "id": id, "declared": "f:1", "role": "iohost", "security": "none", "addresses": [],
                "sockets": sockets, "problem": problem, "sessions": 0, "frames_in": 0, "frames_out": 0,
                "frames_dropped": 0, "handshakes": 0, "mismatches": 0, "violations": 0, "leases_over": 0,
                "disks": [],
            }))
            .expect("a view")
        };
        let links = vec![
            link("open", &["udp"], Some("a stranger")),
            link("fresh", &[], None),
            link("shut", &[], Some("cannot open")),
        ];
        let told = "link shut: cannot open; `sidecore remote status` says whether it is open since";
        let found = not_open(&LinkList { links });
        assert_eq!(found.iter().map(LinkNotOpen::text).collect::<Vec<_>>(), [told]);
        let done = UpgradeView { pid: 7, version: "1.2.3".to_string(), ..UpgradeView::default() };
        let told = serde_json::to_value(Upgraded { done, links_not_open: Some(found) }).unwrap();
        assert_eq!((&told["pid"], &told["version"]), (&7.into(), &"1.2.3".into()));
        let shut = serde_json::json!([{ "id": "shut", "problem": "cannot open" }]);
        assert_eq!(told["links_not_open"], shut);
    }

    #[test]
    fn an_upgrade_tells_how_long_queues_stood_still() {
        let (pid, version) = (7, "1.2.3".to_string());
        let mut done = UpgradeView { pid, version, ..UpgradeView::default() };
        assert_eq!(upgrade_text(&done), "process 7 serves now, version 1.2.3\n");
        let (drained_ns, handed_ns, started_ns) = (1_000_000, 500_000, 260_000);
        let (p50_ns, max_ns) = (1_700_000, drained_ns + handed_ns + started_ns);
        let pause = PauseView { queues: 4, p50_ns, max_ns, drained_ns, handed_ns, started_ns };
        done.pause = Some(pause);
        let expected = "process 7 serves now, version 1.2.3\n4 queues stood still for 1.8 ms at most: \
                        1.0 until all were back, 0.5 until they were handed over, 0.3 until they were served\n";
        assert_eq!(upgrade_text(&done), expected);
        done.pause = None;
        let file = "/f.toml".to_string();
        let taken = |changes: &[&str], fields: &[&str]| {
            let [changes, put_into_force] =
                [changes, fields].map(|all| all.iter().map(ToString::to_string).collect());
            TakenFileView { file: file.clone(), changes, put_into_force, not_compared: None }
        };
        let told = |configuration: TakenFileView| {
            let text =
                upgrade_text(&UpgradeView { configuration: Some(configuration), ..done.clone() });
            text.lines().skip(1).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(told(taken(&[], &[])), "/f.toml: nothing changed");
        let words = "set disk a: limit_iops 9 becomes no limit";
        assert_eq!(
            told(taken(&[words], &["sidecores.max", "link rack"])),
            format!(
                "{words}\nsidecores.max is different, and in force now\nlink rack is different, and in force now"
            )
        );
        let not_compared = Some("`new` is not a field".to_string());
        assert_eq!(
            told(TakenFileView { not_compared, ..taken(&[], &[]) }),
            "/f.toml: in force; what is different is not told, since the process before it does not know all of it \
             (`new` is not a field)"
        );
        done.launchers_late = 1;
        let expected = "process 7 serves now, version 1.2.3\nit took 5 s longer, since a launcher of the process before did \
                        not answer, as when it is stopped; it ended with that process\n";
        assert_eq!(upgrade_text(&done), expected);
        done.launchers_late = 0;
        // Of an IOhost.
        (done.pause, done.sessions_anew) = (None, 2);
        let expected = "process 7 serves now, version 1.2.3\nthe clients of 2 sessions begin another one with it, and \
                        their guests wait until then: `sidecore remote status`\n";
        assert_eq!(upgrade_text(&done), expected);
    }

    #[test]
    fn a_sidecore_is_shown_in_a_line_and_busy_as_of_late() {
        let before = SidecoreView {
            cpu: Some(4),
            busy_ns: 5_000_000,
            idle_ns: 95_000_000,
            asleep_ns: 3_000_000_000,
            sleeps: 1,
            interruptions: 0,
            ..SidecoreView::default()
        };
        let now = SidecoreView {
            queues: 12,
            busy_ns: 80_000_000,
            idle_ns: 105_000_000,
            asleep_ns: 3_165_000_000,
            requests: 1_000,
            kicks: 10,
            kicks_avoided: 990,
            moves_in: 3,
            moves_out: 2,
            moves_stayed: 1,
            move_pause_p99_ns: Some(41_983),
            ..before.clone()
        };
        let state = SidecoreState::Parked;
        let asleep = SidecoreView { index: 1, state, ..SidecoreView::default() };
        let list = |core| SidecoreList { sidecores: vec![core, asleep.clone()] };
        assert_eq!(
            sidecores_text(&list(before), &list(now), Room::Whole),
            "\
SIDECORE  CPU  STATE   BUSY  POLL  QUEUES  REQUESTS  KICKS  AVOIDED  SLEEPS  ASLEEP  IN  OUT  STAYED    PAUSE  IO ERRORS
       0    4  in use   30%    4%      12      1000     10      990       1   3.2 s   3    2       1  42.0 us          0
       1  any  parked    0%    0%       0         0      0        0       0    0 ns   0    0       0        -          0
"
        );
        let of_node = |node| SidecoreView { node, ..SidecoreView::default() };
        let both = SidecoreList { sidecores: vec![of_node(Some(1)), of_node(Some(0))] };
        let text = sidecores_text(&both, &both, Room::Whole);
        let last = |line: &str| line.split(' ').next_back().map(str::to_string);
        let column: Vec<String> = text.lines().filter_map(last).collect();
        assert_eq!(column, ["NODE", "1", "0"]);
    }

    #[test]
    fn what_others_took_of_a_cpu_is_shown_where_it_is_much_and_known() {
        let lost = |lost_percent| SidecoreView { lost_percent, ..SidecoreView::default() };
        let shown = |all: [Option<u32>; 2]| {
            let all = SidecoreList { sidecores: all.map(lost).to_vec() };
            let text = sidecores_text(&all, &all, Room::Whole);
            let last = |line: &str| line.split(' ').next_back().map(str::to_string);
            text.lines().take(3).filter_map(last).collect::<Vec<_>>()
        };
        assert_eq!(shown([Some(7), None]), ["LOST", "7%", "-"]);
        assert_eq!(shown([Some(4), None])[0], "ERRORS");
    }
}
