//! The commands that ask a running daemon.

use std::fmt::Write as _;

use config::Size;
use config::api::{CountersView, DiskList, DiskView, FaultsView, ReloadView, SidecoreList};
use config::routes::Method;
use config::spec::DiskResize;

use crate::cli::{AddArgs, DiskCommand, PrintArgs, ShowArgs};
use crate::client::{Client, disk_path};
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{Align, Table, duration, latency};
use crate::vmm;

/// `disk ...`
pub(crate) fn run(command: DiskCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        DiskCommand::Add(args) => add(args, client, output),
        DiskCommand::Rm { id } => {
            let disk: DiskView = client.ask(Method::Delete, &disk_path(&id, ""))?;
            output.show(&disk, |disk| match disk.queues_attached {
                0 => format!("removed disk {}\n", disk.id),
                _ => format!(
                    "disk {} is removed as soon as it answers: {}\n",
                    disk.id,
                    disk.problem.as_deref().unwrap_or("requests are in flight")
                ),
            })
        }
        DiskCommand::Resize { id, size } => {
            let path = disk_path(&id, "/resize");
            let disk: DiskView = client.send(Method::Post, &path, &DiskResize { size })?;
            output
                .show(&disk, |disk| format!("disk {} has {} now\n", disk.id, Size(disk.size_bytes)))
        }
        DiskCommand::Clear { id } => {
            let disk: DiskView = client.ask(Method::Post, &disk_path(&id, "/clear"))?;
            output.show(&disk, |disk| format!("disk {} may flush again\n", disk.id))
        }
        DiskCommand::Set { id, change } => {
            let disk: DiskView = client.send(Method::Patch, &disk_path(&id, ""), &change)?;
            output.show(&disk, |disk| {
                format!(
                    "disk {} has share {} and policy {} now\n",
                    disk.id, disk.share, disk.policy
                )
            })
        }
    }
}

/// `ls`
pub(crate) fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list: DiskList = client.ask(Method::Get, "/v1/disks")?;
    output.show(&list, |list| {
        if list.disks.is_empty() {
            return "no disks; make one with `sidecore disk add`\n".to_string();
        }
        let mut table = Table::new(&[
            ("ID", Align::Left),
            ("STATE", Align::Left),
            ("BACKEND", Align::Left),
            ("SIZE", Align::Right),
            ("QUEUES", Align::Right),
            ("REQUESTS", Align::Right),
            ("ERRORS", Align::Right),
            ("P99", Align::Right),
            ("DECLARED", Align::Left),
            ("SOCKET", Align::Left),
        ]);
        for disk in &list.disks {
            table.row(vec![
                disk.id.clone(),
                disk.state.word().to_string(),
                disk.backend.to_string(),
                Size(disk.size_bytes).to_string(),
                format!("{}/{}", disk.queues_attached, disk.queues_max),
                disk.counters.requests.to_string(),
                disk.counters.errors.to_string(),
                latency(disk.counters.latency_p99_ns),
                disk.declared.clone(),
                disk.socket.clone(),
            ]);
        }
        table.text() + &problems_text(&list.disks)
    })
}

/// What is wrong, a line a disk, below the table.
fn problems_text(disks: &[DiskView]) -> String {
    let line = |disk: &DiskView| Some(format!("{}: {}\n", disk.id, disk.problem.as_ref()?));
    let lines: String = disks.iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// `show`
pub(crate) fn show(args: &ShowArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let disk: DiskView = client.ask(Method::Get, &disk_path(&args.id, ""))?;
    match args.print.print {
        Some(_) => print(&disk, &args.print, output),
        None => output.show(&disk, disk_text),
    }
}

/// `sidecores`
pub(crate) fn sidecores(client: &Client, output: &Output) -> Result<(), Failure> {
    let list: SidecoreList = client.ask(Method::Get, "/v1/sidecores")?;
    output.show(&list, |list| {
        let columns = [
            "SIDECORE",
            "CPU",
            "QUEUES",
            "PASSES",
            "BUSY",
            "IDLE",
            "ASLEEP",
            "SLEEPS",
            "KICKS",
            "IO ERRORS",
        ];
        let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
        for core in &list.sidecores {
            table.row(vec![
                core.index.to_string(),
                core.cpu.map_or("any".to_string(), |cpu| cpu.to_string()),
                core.queues.to_string(),
                core.passes.to_string(),
                duration(core.busy_ns),
                duration(core.idle_ns),
                duration(core.asleep_ns),
                core.sleeps.to_string(),
                core.kicks.to_string(),
                core.io_errors.to_string(),
            ]);
        }
        table.text()
    })
}

/// `reload`
pub(crate) fn reload(client: &Client, output: &Output) -> Result<(), Failure> {
    let done: ReloadView = client.ask(Method::Post, "/v1/reload")?;
    output.show(&done, |done| {
        let mut text = match done.changes.is_empty() {
            true => format!("{}: nothing changed\n", done.file),
            false => done.changes.iter().map(|change| format!("{change}\n")).collect(),
        };
        for name in &done.restart_needed {
            let _ = writeln!(text, "{name} is different: restart the daemon to put it into force");
        }
        text
    })
}

fn add(args: AddArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let mut spec = args.disk;
    spec.path = spec.path.map(absolute).transpose()?;
    spec.socket = spec.socket.map(absolute).transpose()?;
    let disk: DiskView = client.send(Method::Post, "/v1/disks", &spec)?;
    match args.print.print {
        Some(_) => print(&disk, &args.print, output),
        None => output.show(&disk, |disk| {
            format!(
                "added disk {}: {} {}, socket {}\n",
                disk.id,
                disk.backend,
                Size(disk.size_bytes),
                disk.socket
            )
        }),
    }
}

/// A path as the daemon understands it, which has another working folder than this command.
fn absolute(path: String) -> Result<String, Failure> {
    let whole = std::path::absolute(&path).map_err(|error| {
        Failure::usage(format!("{path:?} is not a path: {error}"), "write the whole path")
    })?;
    whole.into_os_string().into_string().map_err(|whole| {
        Failure::usage(format!("{whole:?} is not UTF-8"), "use a path whose name is UTF-8")
    })
}

fn print(disk: &DiskView, args: &PrintArgs, output: &Output) -> Result<(), Failure> {
    let Some(vmm) = args.print else { return Ok(()) };
    let paste = vmm::paste(vmm, disk, args.memory)?;
    if output.json {
        let value = serde_json::json!({ "disk": disk, "print": paste.text, "notes": paste.notes });
        return output.show(&value, |value| value.to_string());
    }
    output.text(&paste.text)?;
    for note in paste.notes {
        output.note(&format!("note: {note}"));
    }
    Ok(())
}

fn disk_text(disk: &DiskView) -> String {
    let mut facts: Vec<(&str, String)> = vec![
        ("id", disk.id.clone()),
        ("declared", disk.declared.clone()),
        ("state", disk.state.word().to_string()),
    ];
    facts.extend(disk.problem.clone().map(|problem| ("problem", problem)));
    facts.push(("socket", format!("{} ({})", disk.socket, disk.mode)));
    facts.push(("backend", disk.backend.to_string()));
    facts.extend(disk.path.clone().map(|path| ("path", path)));
    facts.extend(disk.cache.map(|cache| {
        let served = disk.served_as.as_deref().and_then(|words| words.strip_prefix("file, "));
        ("cache", served.map_or(cache.to_string(), |served| format!("{cache} ({served})")))
    }));
    let size = format!("{} ({} bytes)", Size(disk.size_bytes), disk.size_bytes);
    let (share, policy) = (disk.share, disk.policy);
    let access = if disk.readonly { "read only" } else { "read and write" };
    facts.extend([
        ("size", size),
        ("block size", format!("{} bytes", disk.block_size_bytes)),
        ("access", access.to_string()),
        ("serial", disk.serial.clone()),
        ("queues", format!("{} of {} attached", disk.queues_attached, disk.queues_max)),
        ("share", share.to_string()),
        ("policy", policy.to_string()),
    ]);
    if disk.allow_unsealed_memory {
        facts.push(("memory", "may be unsealed".to_string()));
    }
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
    if syncs > 0 {
        facts.push(("syncs", syncs.to_string()));
    }
    let mut text = String::new();
    for (name, fact) in facts {
        let fact: String = fact.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(text, "{name:<10}  {fact}");
    }
    text.push('\n');
    text.push_str(&queues_text(disk));
    text
}

fn queues_text(disk: &DiskView) -> String {
    let columns = [
        "QUEUE", "CORE", "RING", "REQUESTS", "READS", "WRITES", "FLUSHES", "ERRORS", "KICKS",
        "CALLS", "FLIGHT", "P50", "P99",
    ];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    let cells = |name: String, core: String, ring: String, counters: &CountersView| {
        vec![
            name,
            core,
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
        ]
    };
    for queue in &disk.queues {
        let core = queue.sidecore.map_or("-".to_string(), |core| core.to_string());
        let ring = format!("{} {}", queue.size, queue.format);
        table.row(cells(queue.index.to_string(), core, ring, &queue.counters));
    }
    table.row(cells("all".to_string(), String::new(), String::new(), &disk.counters));
    let mut text = table.text();
    for queue in &disk.queues {
        if let Some(violation) = &queue.violation {
            let _ = writeln!(text, "queue {} failed: {violation}", queue.index);
        }
    }
    text
}
