//! `disk`: the commands about disks, and how a disk is shown.

use std::fmt::Write as _;

use config::api::{ApiError, CountersView, DiskList, DiskState, DiskView, ErrorKind, FaultsView};
use config::routes::Method;
use config::spec::{DiskChange, DiskMove, DiskResize, Format};
use config::{Size, Target};

use crate::cli::{AddArgs, DiskCommand, PrintArgs, force_query};
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{self, Align, Limits, Room, Table, duration, known, latency, said};
use crate::{stage, trace, vmm};

/// `disk ...`
pub(crate) fn run(command: DiskCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        DiskCommand::Add(args) => add(args, client, output),
        DiskCommand::Ls => {
            let list: DiskList = client.ask(Method::Get, "/v1/disks")?;
            output.show(&list, |list| match list.disks.is_empty() {
                true => "no disks; make one with `sidecore disk add`\n".to_string(),
                false => table(&list.disks, output.room) + &crate::overview::of_disks(&list.disks),
            })
        }
        DiskCommand::Show { id, print } => {
            let disk: DiskView = client.ask(Method::Get, &path_of("disks", &id, ""))?;
            present(&disk, &print, output)
        }
        DiskCommand::Rm { id, force } => {
            let path = path_of("disks", &id, force_query(force));
            let disk: DiskView = client.ask(Method::Delete, &path)?;
            output.show(&disk, |disk| match disk.queues_attached {
                0 => format!("removed disk {}\n", disk.id),
                _ => format!(
                    "disk {} is removed as soon as it answers: {}\n",
                    disk.id,
                    disk.problem.as_deref().unwrap_or("requests are in flight")
                ),
            })
        }
        DiskCommand::Resize { id, size, force } => {
            let path = path_of("disks", &id, "/resize") + force_query(force);
            let disk: DiskView = client.send(Method::Post, &path, &DiskResize { size })?;
            output.show(&disk, |disk| {
                let size = known(disk.size_bytes.map(Size));
                format!("disk {} has {size} now{}\n", disk.id, first_of(disk))
                    + &crate::overview::of_disks(std::slice::from_ref(disk))
            })
        }
        DiskCommand::Clear { id } => {
            let disk: DiskView = client.ask(Method::Post, &path_of("disks", &id, "/clear"))?;
            output.show(&disk, |disk| format!("disk {} may flush again\n", disk.id))
        }
        DiskCommand::Accept { id } => {
            let disk: DiskView = client.ask(Method::Post, &path_of("disks", &id, "/accept"))?;
            output.show(&disk, accepted_text)
        }
        DiskCommand::Move { id, wish } => {
            let path = path_of("disks", &id, "/move");
            let disk: DiskView = client.send(Method::Post, &path, &wish)?;
            output.show(&disk, |disk| moved_text(&disk.id, &wish))
        }
        DiskCommand::Stage(command) => stage::run(command, client, output),
        DiskCommand::Trace(args) => trace::run(&args, client, output),
        DiskCommand::Set { id, change } => {
            let disk: DiskView = client.send(Method::Patch, &path_of("disks", &id, ""), &change)?;
            output.show(&disk, |disk| set_text(disk, &change))
        }
    }
}

/// Where queues are, after a wish.
fn moved_text(id: &str, wish: &DiskMove) -> String {
    match (wish.to, wish.queue) {
        (Target::Sidecore(to), Some(queue)) => {
            format!("queue {queue} of disk {id} is at sidecore {to} now\n")
        }
        (Target::Sidecore(to), None) => {
            format!("the queues of disk {id} are at sidecore {to} now\n")
        }
        (Target::Auto, Some(queue)) => {
            format!("queue {queue} of disk {id} is moved by the loads again\n")
        }
        (Target::Auto, None) => format!("the queues of disk {id} are moved by the loads again\n"),
    }
}

/// Who goes on with the image that is there. A disk that waits, and has no problem, has no guest: its operator may have
/// meant another daemon's.
fn accepted_text(disk: &DiskView) -> String {
    let has_nobody = disk.state == DiskState::Waiting && disk.problem.is_none();
    match has_nobody && disk.queues_attached == 0 {
        true => format!(
            "no guest is connected to disk {} here; the one that comes next goes on with the image that is there\n",
            disk.id
        ),
        false => format!("the guest of disk {} goes on with the image that is there\n", disk.id),
    }
}

/// What a disk has after a change. What the change took away is said, too.
fn set_text(disk: &DiskView, change: &DiskChange) -> String {
    let target = disk.service.latency_target_us.map(|us| format!("latency target {us} us"));
    let wait = disk.service.moderate_us.map(|us| format!("calls may wait {us} us"));
    let limit = limit(disk).map(|limit| format!("at most {limit}"));
    let group = disk.service.group.as_ref().map(|group| format!("in group {group}"));
    let limits = change.limit_iops.is_some() || change.limit_bytes.is_some();
    let on_full = change.on_full.map(|on| format!("on_full {on}"));
    let on_error = change.on_error.map(|on| format!("on_error {on}"));
    let more = [
        said(target, change.latency_target_us.is_some(), "no latency target"),
        said(wait, change.moderate_us.is_some(), "calls do not wait"),
        said(limit, limits, "no limit of its own"),
        said(group, change.group.is_some(), "in no group"),
        said(on_full, false, ""),
        said(on_error, false, ""),
        said(table::for_whom(&disk.access.rights(), change.sets_rights()), false, ""),
    ];
    let more: String = more.into_iter().flatten().collect();
    let (id, share) = (&disk.id, disk.service.share);
    format!("disk {id} has share {share} and policy {} now{more}\n", disk.service.policy_in_words())
}

/// Its own limit, in words.
fn limit(disk: &DiskView) -> Option<String> {
    let (limit, burst_ms) = (disk.service.rates()?, disk.service.limit_burst_ms?);
    Some(format!("{limit}, bursts of {burst_ms} ms"))
}

fn add(args: AddArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let mut spec = args.disk;
    spec.path = spec.path.map(absolute).transpose()?;
    spec.socket = spec.socket.map(absolute).transpose()?;
    let path = "/v1/disks".to_string() + force_query(args.force);
    let disk: DiskView = client.send(Method::Post, &path, &spec)?;
    match args.print.print {
        Some(_) => present(&disk, &args.print, output),
        None => output.show(&disk, added),
    }
}

/// What an operator reads of a disk that was added: also that it is not served yet, and why.
fn added(disk: &DiskView) -> String {
    let (id, backend, size) = (&disk.id, &disk.backend, known(disk.size_bytes.map(Size)));
    let socket = known(disk.access.socket.as_ref());
    match &disk.problem {
        Some(problem) => format!("added disk {id}, and it is not served yet: {problem}\n"),
        None if disk.was_empty => format!(
            "added disk {id}: {backend} {size}, socket {socket}; its image was missing or empty, so the disk is empty\n"
        ),
        None => {
            format!("added disk {id}: {backend} {size}{}, socket {socket}\n", first_of(disk))
        }
    }
}

/// That its image goes on behind its end, if it does.
fn first_of(disk: &DiskView) -> String {
    let image =
        disk.image_bytes.map(|bytes| format!(" (the first of the {} of its image)", Size(bytes)));
    image.unwrap_or_default()
}

/// A path as the daemon understands it, which has another working folder than this command.
pub(crate) fn absolute(path: String) -> Result<String, Failure> {
    let whole = std::path::absolute(&path).map_err(|error| {
        Failure::usage(format!("{path:?} is not a path: {error}"), "write the whole path")
    })?;
    whole.into_os_string().into_string().map_err(|whole| {
        Failure::usage(format!("{whole:?} is not UTF-8"), "use a path whose name is UTF-8")
    })
}

/// One disk, or what gives it to a guest.
pub(crate) fn present(disk: &DiskView, args: &PrintArgs, output: &Output) -> Result<(), Failure> {
    match args.print {
        Some(_) if disk.access.socket.is_none() => {
            let error = format!("disk {:?} has no socket here: clients of a link have it", disk.id);
            let hint = "`sidecore remote status` says who; a VM here needs a disk of its own";
            Err(Failure::Refused(ApiError::new(ErrorKind::Refused, error, hint)))
        }
        Some(vmm) => vmm::paste(vmm, disk, args.memory)?.print("disk", disk, output),
        None => output.show(disk, |disk| disk_text(disk, output.room)),
    }
}

/// What goes first of a list where there is too little room.
const GO: [&str; 11] = [
    "DECLARED", "SOCKET", "LIMIT", "PLACED", "BACKEND", "GROUP", "REQUESTS", "P99", "QUEUES",
    "ERRORS", "SIZE",
];

/// Disks, a line each.
pub(crate) fn table(disks: &[DiskView], room: Room) -> String {
    let limits = Limits::of(disks.iter().map(|disk| disk.service.is_limited()));
    let mut columns = vec![
        ("ID", Align::Left),
        ("STATE", Align::Left),
        ("BACKEND", Align::Left),
        ("SIZE", Align::Right),
        ("QUEUES", Align::Right),
        ("REQUESTS", Align::Right),
        ("ERRORS", Align::Right),
        ("P99", Align::Right),
    ];
    let has_hand = disks.iter().any(|disk| disk.queues_by_hand > 0);
    columns.extend(has_hand.then_some(("PLACED", Align::Left)));
    columns.extend(limits.columns());
    columns.extend([("DECLARED", Align::Left), ("SOCKET", Align::Left)]);
    let mut table = Table::new(&columns, &GO);
    for disk in disks {
        let mut row = vec![
            disk.id.clone(),
            disk.state.word().to_string(),
            disk.backend.to_string(),
            known(disk.size_bytes.map(Size)),
            format!("{}/{}", disk.queues_attached, disk.queues_max),
            disk.counters.requests.to_string(),
            disk.counters.errors.to_string(),
            latency(disk.counters.latency_p99_ns),
        ];
        row.extend(has_hand.then(|| placed(disk)));
        row.extend(limits.cells(disk.service.group.as_ref(), disk.service.rates()));
        row.extend([disk.declared.clone(), known(disk.access.socket.as_ref())]);
        table.row(row);
    }
    table.text(room)
}

/// Who decides where its queues are.
fn placed(disk: &DiskView) -> String {
    match (disk.queues_by_hand, disk.queues_attached) {
        (0, _) => "auto".to_string(),
        (by_hand, attached) if by_hand >= attached => "hand".to_string(),
        (by_hand, attached) => format!("hand {by_hand}/{attached}"),
    }
}

/// A disk by its name, and what else nobody who looks at it may overlook.
fn named(disk: &DiskView) -> String {
    match stage::fault_of(&disk.stages) {
        Some(fault) => format!("{}, with the stage `fault`: {fault}", disk.id),
        None => disk.id.clone(),
    }
}

fn disk_text(disk: &DiskView, room: Room) -> String {
    let mut facts: Vec<(&str, String)> = vec![
        ("id", named(disk)),
        ("declared", disk.declared.clone()),
        ("state", disk.state.word().to_string()),
    ];
    facts.extend(disk.problem.clone().map(|problem| ("problem", problem)));
    facts.push(match &disk.access.socket {
        None => {
            ("served to", "clients of a link: `sidecore remote status` says who has it".to_string())
        }
        Some(socket) => ("socket", table::socket(socket, disk.access.mode, &disk.access.rights())),
    });
    facts.push(("backend", disk.backend.to_string()));
    facts.extend(made_of(disk));
    let size =
        disk.size_bytes.map(|bytes| format!("{} ({bytes} bytes){}", Size(bytes), first_of(disk)));
    let block = disk.block_size_bytes.map(|bytes| format!("{bytes} bytes"));
    let access = if disk.readonly { "read only" } else { "read and write" };
    facts.extend([
        ("size", known(size)),
        ("block size", known(block)),
        ("access", access.to_string()),
        ("serial", table::named(&disk.serial)),
        ("queues", format!("{} of {} attached", disk.queues_attached, disk.queues_max)),
    ]);
    if disk.queues_by_hand > 0 {
        let DiskView { id, queues_by_hand: count, .. } = disk;
        let text =
            format!("{count} stay by hand; `sidecore disk move {id} --to auto` lets them go");
        facts.push(("placed", text));
    }
    facts.extend(stage::in_words(&disk.stages).map(|stages| ("stages", stages)));
    facts.extend(served(disk));
    if disk.allow_user_folder {
        facts.push(("image's folder", "may be another user's, who owns the image".to_string()));
    }
    if disk.allow_unsealed_memory {
        facts.push(("memory", "may be unsealed".to_string()));
    }
    if disk.migratable {
        let held = match disk.locked {
            Some(true) => "yes; the image is locked by this daemon",
            _ if disk.problem.is_some() => "yes; the image is not locked by this daemon",
            _ => "yes; not locked here, so another daemon may lock the image",
        };
        facts.push(("migratable", held.to_string()));
    }
    facts.extend(faults(disk));
    let mut text = table::facts(&facts, room);
    text.push('\n');
    text.push_str(&queues_text(disk, room));
    text
}

/// How its queues are served.
fn served(disk: &DiskView) -> Vec<(&'static str, String)> {
    let service = &disk.service;
    let mut facts =
        vec![("share", service.share.to_string()), ("policy", service.policy_in_words())];
    facts.extend(service.latency_target_us.map(|target_us| {
        ("target", format!("{target_us} us, missed by {} requests", disk.counters.missed))
    }));
    facts.extend(service.moderate_us.map(|us| ("calls", format!("may wait {us} us for others"))));
    facts.extend(limit(disk).map(|limit| ("limit", limit)));
    facts.extend(service.group.clone().map(|group| ("group", group)));
    facts.extend(table::held(&disk.counters.held, service.is_limited()).map(|held| ("held", held)));
    facts
}

/// Its image, or where that is.
fn made_of(disk: &DiskView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(disk.path.clone().map(|path| ("path", path)));
    if let (Some(link), Some(name)) = (&disk.link, &disk.remote) {
        facts.push(("link", format!("{link}, {name} there")));
    }
    facts.extend(disk.cache.map(|cache| {
        let served = disk.served_as.as_deref().and_then(|words| words.strip_prefix("file, "));
        ("cache", served.map_or(cache.to_string(), |served| format!("{cache} ({served})")))
    }));
    facts.extend(disk.format.map(|Format::Raw| ("format", "raw, as was said".to_string())));
    facts
}

/// What becomes of requests that fail, and what waits.
fn failing(disk: &DiskView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(disk.on_full.map(|on| ("when full", on.to_string())));
    facts.extend(disk.on_error.map(|on| ("on errors", on.to_string())));
    let CountersView { waiting_full, waiting_failed, stalls, .. } = disk.counters;
    if stalls > 0 {
        let text = format!(
            "{waiting_full} for space, {waiting_failed} for the medium; {stalls} until now"
        );
        facts.push(("waiting", text));
    }
    facts
}

/// What went wrong at the disk, and how often its data was made stable.
fn faults(disk: &DiskView) -> Vec<(&'static str, String)> {
    let mut facts = failing(disk);
    let FaultsView { eio, enospc, short, other, syncs } = disk.faults;
    let faults = [("I/O errors", eio), ("no space", enospc), ("short", short), ("other", other)];
    let faults: Vec<String> = faults
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    if !faults.is_empty() {
        facts.push(("faults", faults.join(", ")));
    }
    if disk.refusals > 0 {
        let text = format!("{} of a guest that was on another image", disk.refusals);
        facts.push(("refusals", text));
    }
    if syncs > 0 {
        facts.push(("syncs", syncs.to_string()));
    }
    facts
}

/// What goes first of its queues.
const QUEUES_GO: [&str; 14] = [
    "HELD", "PLACED", "CALLS", "KICKS", "RING", "FLUSHES", "P50", "FLIGHT", "ERRORS", "WRITES",
    "READS", "P99", "CORE", "REQUESTS",
];

fn queues_text(disk: &DiskView, room: Room) -> String {
    let columns = [
        "QUEUE", "CORE", "BUSY", "RING", "REQUESTS", "READS", "WRITES", "FLUSHES", "ERRORS",
        "KICKS", "CALLS", "FLIGHT", "P50", "P99",
    ];
    let mut columns = columns.to_vec();
    let has_hand = disk.queues_by_hand > 0;
    columns.extend(has_hand.then_some("PLACED"));
    let shows_held = disk.service.is_limited() || disk.counters.held.held > 0;
    columns.extend(shows_held.then_some("HELD"));
    let columns: Vec<_> = columns.into_iter().map(|name| (name, Align::Right)).collect();
    let mut table = Table::new(&columns, &QUEUES_GO);
    let cells = |[name, core, ring, placed]: [String; 4], busy: u32, counters: &CountersView| {
        let mut cells = vec![
            name,
            core,
            format!("{busy}%"),
            ring,
            counters.requests.to_string(),
            counters.reads.to_string(),
            counters.writes.to_string(),
            counters.flushes.to_string(),
            counters.errors.to_string(),
            counters.kicks.to_string(),
            counters.calls.to_string(),
            counters.in_flight.to_string(),
            latency(counters.latency_p50_ns),
            latency(counters.latency_p99_ns),
        ];
        cells.extend(has_hand.then_some(placed));
        cells.extend(shows_held.then(|| duration(counters.held.held_ns)));
        cells
    };
    for queue in &disk.queues {
        let core = queue.sidecore.map_or("-".to_string(), |core| core.to_string());
        let ring = format!("{} {}", queue.size, queue.format);
        let placed = if queue.by_hand { "hand" } else { "auto" }.to_string();
        let name = queue.index.to_string();
        table.row(cells([name, core, ring, placed], queue.busy_percent, &queue.counters));
    }
    let all = ["all", "", "", ""].map(str::to_string);
    let busy = disk.queues.iter().map(|queue| queue.busy_percent).sum();
    table.row(cells(all, busy, &disk.counters));
    let mut text = table.text(room);
    for queue in &disk.queues {
        if let Some(violation) = &queue.violation {
            let _ = writeln!(text, "queue {} failed: {violation}", queue.index);
        }
    }
    text
}

#[cfg(test)]
mod tests;
