//! The commands that ask about everything: disks and NICs together, sidecores, the file.

use std::fmt::Write as _;

use config::api::{
    ApiError, DiskList, DiskView, ErrorKind, NicList, NicView, ReloadView, SidecoreList,
};
use config::routes::Method;
use serde::Serialize;

use crate::cli::ShowArgs;
use crate::client::{Client, path_of};
use crate::disk;
use crate::failure::Failure;
use crate::nic;
use crate::output::Output;
use crate::table::{Align, Table, duration};

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
        let tables = [(disks.is_empty(), disk::table(disks)), (nics.is_empty(), nic::table(nics))];
        let shown = tables.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, text)| text);
        let mut text = shown.collect::<Vec<_>>().join("\n");
        let disks = disks.iter().map(|disk| (&disk.id, disk.problem.as_ref()));
        let nics = nics.iter().map(|nic| (&nic.id, nic.problem.as_ref()));
        let problems = disks.chain(nics).filter_map(|(id, problem)| Some((id, problem?)));
        for (nth, (id, problem)) in problems.enumerate() {
            let blank = if nth == 0 { "\n" } else { "" };
            let _ = writeln!(text, "{blank}{id}: {problem}");
        }
        text
    })
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
