//! A guest that is put away, and comes back from where it was kept.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testing::bed::Bed;
use testing::place::{Place, until};
use testing::vm::{Move, Vm, has_kvm};

use super::moving::{HOST, Moving, Traffic};
use super::site::{Site, other};

/// To a file; the daemon is another process when the guest comes out of it, and it waits to be told to go on. Once more
/// at the other daemon, where it does not wait unless its memory is to be looked at.
pub(super) fn saved(bed: &Bed, moving: &Moving, traffic: &Traffic<'_>) -> Result<()> {
    let (site, here) = (moving.site(), moving.side());
    save(moving)?;
    // Its memory is compared, and it shall not come back.
    moving.guest().vm().freeze()?;
    site.kill(here)?;
    site.start_again(here)?;
    comes_back(bed, moving, "restored", here, true)?;
    traffic.goes_on(bed, "restored-streams")?;
    save(moving)?;
    comes_back(bed, moving, "restored-elsewhere", other(here), !has_kvm())?;
    traffic.goes_on(bed, "restored-elsewhere-streams")
}

/// Out of the file, at that side's daemon.
fn comes_back(bed: &Bed, moving: &Moving, name: &str, side: usize, waits: bool) -> Result<()> {
    let vm = moving.next_vm(side, &format!("exec:cat {}", file(moving)), waits)?;
    vm.has_come()?;
    if waits {
        moving.remembers(bed, name, &vm)?;
    }
    vm.runs()?;
    moving.is_in(vm, side);
    Ok(())
}

fn file(moving: &Moving) -> String {
    moving.folder().join("saved").display().to_string()
}

fn save(moving: &Moving) -> Result<()> {
    let moved = Move::away(&moving.guest().vm(), &format!("exec:cat >{}", file(moving))).make()?;
    ensure!(moved.is_completed(), "it is not saved: {moved}");
    Ok(())
}

/// A snapshot of memory and devices (what `savevm` makes), and a copy of the image at that moment, when nobody has it; the
/// guest goes on. Then back to it, in another QEMU at the other daemon: there its connections are none any more.
pub(super) fn snapshot(bed: &Bed, moving: &Moving, traffic: &Traffic<'_>) -> Result<()> {
    let (site, guest) = (moving.site(), moving.guest());
    let state = moving.folder().join("state.qcow2");
    command(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&state).arg("64M"))?;
    let node = json!({
        "driver": "qcow2", "node-name": "state", "file": { "driver": "file", "filename": state },
    });
    guest.vm().qmp("blockdev-add", &node)?;
    guest.vm().qmp("stop", &json!({}))?;
    bed.check("stopped-nobody", site.nobody_has());
    job(bed, &guest.vm(), "snapshot-save")?;
    let kept = moving.folder().join("root.then");
    copy(site, &kept, false)?;
    guest.vm().goes_on()?;
    traffic.goes_on(bed, "goes-on-streams")?;
    moving.one_writer(bed, "goes-on-writer");
    guest.run("echo later >/mnt/later; sync")?;
    let (here, there) = (moving.side(), other(moving.side()));
    guest.vm().kill();
    // A daemon whose guest is gone lets go in a moment.
    site.await_locked(here, false)?;
    copy(site, &kept, true)?;
    let vm = moving.next_vm(there, "", true)?;
    vm.qmp("blockdev-add", &node)?;
    job(bed, &vm, "snapshot-load")?;
    vm.goes_on()?;
    moving.is_in(vm, there);
    bed.check("back-then", guest.asked("[ ! -e /mnt/later ]"));
    bed.check("back-network", guest.asked(&until(&format!("ping -c 1 -W 1 {HOST}"))));
    moving.one_writer(bed, "back-writer");
    Ok(())
}

/// The image, to a file or back from there.
fn copy(site: &Site, kept: &std::path::Path, back: bool) -> Result<()> {
    let (from, to) = if back { (kept, site.image()) } else { (site.image(), kept) };
    command(Command::new("cp").arg("--sparse=always").args([from, to]))
}

fn command(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} gave {status}");
    Ok(())
}

fn job(bed: &Bed, vm: &Vm, name: &str) -> Result<()> {
    let arguments: Value = json!({ "tag": "then", "vmstate": "state", "devices": ["state"] });
    vm.job(name, &arguments)?;
    bed.check(name, Ok(""));
    Ok(())
}
