//! Disks that two hosts have on a file system that both mount: a guest moves from one to the other while it runs, with its
//! memory and with what its rings have told.
//!
//! Its VMM has its memory copied (`vmm`), and has its rings stopped; then another VMM goes on at the other host, while the
//! first one is there for a moment more, or is gone.

use std::fs::File;
use std::path::Path;

use config::api::Call;
use config::spec::DiskSpec;
use random::Random;

use super::host::Host;
use super::{Course, Life, MS};
use crate::file::{self, is_shared};
use crate::vmm::Stage;

/// Numbers of such disks.
const NUMBERS: [u32; 3] = [2, 3, 6];

/// Two hosts, the first of which has all guests of what both have.
pub(super) fn hosts(course: &mut Course) -> Result<Vec<Host>, String> {
    let count = course.random.between(1, 3) as usize;
    let mut first = Host::new(1, None, course, |spec, folder, random| {
        spec.disk.truncate(1);
        spec.disk.extend(NUMBERS[..count].iter().map(|number| shared(*number, folder, random)));
        spec.disk.iter().filter(|disk| is_shared(&disk.id)).try_for_each(make_image)
    })?;
    let disks: Vec<DiskSpec> = first.file.borrow().spec.disk.clone();
    let disks = disks.into_iter().filter(|disk| is_shared(&disk.id));
    let mut second = Host::new(2, None, course, |spec, _, _| {
        spec.disk.truncate(1);
        spec.disk.extend(disks);
        Ok(())
    })?;
    second.away = NUMBERS.map(|number| format!("g{number}")).into();
    first.away.clear();
    Ok(vec![first, second])
}

/// One whose image is there already, and says how large it is.
fn shared(number: u32, folder: &Path, random: &mut Random) -> DiskSpec {
    let disk = file::disk(&format!("g{number}"), folder, random);
    DiskSpec { size: None, migratable: true, ..disk }
}

fn make_image(disk: &DiskSpec) -> Result<(), String> {
    let path = disk.path.as_deref().unwrap_or_default();
    let made = File::create(path).and_then(|file| file.set_len(file::SECTORS * 512));
    made.map_err(|e| e.to_string())
}

impl Life {
    /// Guests that have left one host go on at the other; and what an operator has cleared is lost for all.
    pub(super) fn carry_over(&mut self) {
        let has_left = |host: &Host| host.vmms.values().any(|vmm| vmm.stage == Stage::Left);
        if !self.hosts.iter().any(|host| !host.cleared.is_empty() || has_left(host)) {
            return;
        }
        for from in 0..self.hosts.len() {
            for id in std::mem::take(&mut self.hosts[from].cleared) {
                let all = self.hosts.iter_mut().enumerate();
                let known = all.filter(|(host, _)| *host == from || is_shared(&id));
                let vmms = known.filter_map(|(_, host)| host.vmms.get_mut(&id));
                vmms.for_each(|vmm| vmm.tenant.give_up());
            }
            let mut vmms = self.hosts[from].vmms.extract_if(.., |_, vmm| vmm.stage == Stage::Left);
            let Some((id, mut vmm)) = vmms.next() else { continue };
            drop(vmms);
            let to = (from + 1) % self.hosts.len();
            let until_ns = self.course.now().0 + self.course.random.of(&[0, 1, 20]) * MS;
            vmm.go_to(self.hosts[to].socket_of(&id));
            vmm.arrive(self.course.random.one_in(2), until_ns);
            self.course.note("migrated", [vmm.number.into(), from as u64, to as u64]);
            self.hosts[from].away.insert(id.clone());
            self.hosts[to].away.remove(&id);
            self.hosts[to].vmms.insert(id, vmm);
        }
    }
}

impl Life {
    /// A daemon that was killed may have known of a sync that failed, for which it kept an image from whoever has its guest
    /// now; who has it then does not know.
    pub(super) fn note_killed(&mut self) {
        let machinery = std::sync::Arc::clone(&self.course.machinery);
        for at in 0..self.hosts.len() {
            let deaths = self.hosts[at].deaths;
            if std::mem::replace(&mut self.hosts[at].deaths_told, deaths) == deaths {
                continue;
            }
            let others = self.hosts.iter_mut().enumerate().filter(|(other, _)| *other != at);
            let vmms = others.flat_map(|(_, host)| &mut host.vmms);
            let shared = vmms.filter(|(id, _)| is_shared(id));
            shared.for_each(|(_, vmm)| vmm.lose_iohost(&machinery));
        }
    }
}

impl Host {
    /// Operators know of what was lost, and give the images free.
    pub(super) fn clear_shared(&mut self, now_ns: u64) {
        for id in self.disks().into_iter().filter(|id| is_shared(id)) {
            self.ask(Call::ClearDisk { id }, now_ns);
        }
    }
}
