//! Hosts that are linked: who they are, what becomes of the network between them, and of what they lend one another.
//!
//! A disk has its guest at one client at a time, which another one of them may take over, once it has begun anew. Not here:
//! what is in their files (`rack`), nor the network (`wire`).

use std::collections::BTreeSet;

use config::api::Call;
use config::spec::DiskSpec;
use random::Random;
use schedule::Nanos;

use super::host::Host;
use super::{Course, Life, MS};
use crate::rack::{self, Rack};
use crate::vmm::{Stage, Vmm};
use crate::wire::Weather;

/// Steps in which guests read what is there, when all is well again.
const STEPS_OF_PROOF: u64 = 1_000;
/// Longer than any request may be executed late: a minute and a lease, and an eighth of both.
const SILENCE_MS: u64 = 80_000;
/// Steps in each two seconds of that.
const STEPS_OF_SILENCE: u64 = 20;

/// How the hosts of a life are linked.
pub(super) struct Links {
    rack: Rack,
    /// Disks that their IOhost may have taken away, so that requests may have failed: by client and name.
    spoiled: BTreeSet<(u8, String)>,
    /// Disks that the IOhost's file has no more.
    removed: Vec<DiskSpec>,
    /// Deaths of the IOhost's daemons that its clients' guests are to know of.
    deaths: u32,
    /// Its power has failed.
    is_doubted: bool,
}

/// A third of lives has linked hosts; which is the first that is drawn.
pub(super) fn are_there(random: &mut Random) -> bool {
    random.one_in(3)
}

impl Links {
    /// Those of a life, if its hosts are linked.
    pub(super) fn of(course: &mut Course) -> Option<Links> {
        let rack = are_there(&mut course.random).then(|| Rack::new(&mut course.random))?;
        let (spoiled, removed) = (BTreeSet::new(), Vec::new());
        Some(Links { rack, spoiled, removed, deaths: 0, is_doubted: false })
    }

    /// Clients first, so that they go before what they have does.
    pub(super) fn hosts(&self, course: &mut Course) -> Result<Vec<Host>, String> {
        let mut hosts = Vec::new();
        for number in self.rack.clients().chain([self.rack.iohost]) {
            let mut host = Host::new(number, Some(&self.rack), course, |_, _, _| Ok(()))?;
            if number > 1 {
                host.away = self.rack.disks.iter().map(|number| rack::name_of(*number)).collect();
            }
            hosts.push(host);
        }
        let folder = hosts.last().map(|host| host.folder().to_path_buf()).unwrap_or_default();
        for host in &mut hosts {
            let image = |number: &u32| folder.join(format!("{}.img", rack::lent(*number)));
            let disks = self.rack.disks.iter();
            host.borrowed = disks.map(|number| (rack::name_of(*number), image(number))).collect();
        }
        Ok(hosts)
    }
}

impl Life {
    /// Something goes wrong with links, or with what goes by them.
    pub(super) fn trouble_links(&mut self) -> Result<(), String> {
        let Some(links) = &self.links else { return Ok(()) };
        let (now, rack) = (self.course.now().0, links.rack.clone());
        let random = &mut self.course.random;
        match random.below(2000) {
            0..6 => {
                let weather = weather(random);
                self.course.note("weather", [weather.lost, weather.doubled, weather.jitter_ns]);
                self.course.ground.wire.set_weather(weather);
            }
            6..12 => {
                let client = random.between(1, rack.iohost.into()) as u8;
                let peer = if client == rack.iohost { 1 } else { rack.iohost };
                let until_ns = now + random.of(&[1, 1, 10, 10, 100, 1000, 2500, 6000, 12_000]) * MS;
                let ways = random.of(&[[true, true], [true, true], [true, false], [false, true]]);
                self.course.note("cut", [client.into(), until_ns - now, 0]);
                for (from, to, is_cut) in [(client, peer, ways[0]), (peer, client, ways[1])] {
                    if is_cut {
                        self.course.ground.wire.cut(from, to, until_ns);
                    }
                }
            }
            12..14 => self.lend_otherwise(now),
            14..20 => self.move_guest(now)?,
            20 => self.iohost_loses_power()?,
            21..24 => self.client_vanishes(now)?,
            24..27 => self.pass_disk(now)?,
            27..31 if rack.is_sealed() => self.change_key()?,
            31..33 if rack.fail_after_s.is_some() => self.be_silent(now)?,
            _ => {}
        }
        self.expect_failures();
        Ok(())
    }

    /// The IOhost's file gives a client a disk, or takes it away; or it has a disk no more.
    fn lend_otherwise(&mut self, now: u64) {
        let (Some(links), Some(iohost)) = (&mut self.links, self.hosts.last_mut()) else { return };
        let random = &mut self.course.random;
        let number = random.of(&links.rack.disks);
        let (id, name) = (rack::lent(number), rack::name_of(number));
        let client = random.between(1, u64::from(links.rack.iohost) - 1) as u8;
        let goes = random.one_in(3);
        let mut file = iohost.file.borrow_mut();
        let spec = &mut file.spec;
        let clients = spec.link.iter_mut().flat_map(|link| &mut link.client);
        let mut clients: Vec<_> = clients.collect();
        if goes && let Some(at) = spec.disk.iter().position(|disk| disk.id == id) {
            links.removed.push(spec.disk.remove(at));
            clients.iter_mut().for_each(|client| client.disks.retain(|disk| *disk != id));
            links.spoiled.extend(links.rack.clients().map(|client| (client, name.clone())));
        } else if let Some(client_spec) = clients.get_mut(usize::from(client) - 1) {
            match client_spec.disks.iter().position(|disk| *disk == id) {
                Some(at) => drop(client_spec.disks.remove(at)),
                None if spec.disk.iter().all(|disk| disk.id != id) => {
                    let gone = links.removed.iter().position(|disk| disk.id == id);
                    spec.disk.extend(gone.map(|at| links.removed.remove(at)));
                    client_spec.disks.push(id.clone());
                }
                None => client_spec.disks.push(id.clone()),
            }
            links.spoiled.insert((client, name));
        }
        drop(file);
        self.course.note("lends", [number.into(), client.into(), goes.into()]);
        iohost.dirty.insert(id, now);
    }

    /// A guest ends at one client, and another one begins on its disk at another.
    fn move_guest(&mut self, now: u64) -> Result<(), String> {
        let Some(links) = &self.links else { return Ok(()) };
        let clients = u64::from(links.rack.iohost) - 1;
        let random = &mut self.course.random;
        let id = rack::name_of(random.of(&links.rack.disks));
        let to = random.below(clients) as usize;
        self.move_guest_to(&id, to, now)
    }

    /// The guest of that disk ends where it is, and another one begins at that client, if that plans the disk.
    fn move_guest_to(&mut self, id: &str, to: usize, now: u64) -> Result<(), String> {
        let (Some(links), id) = (&self.links, id.to_string()) else { return Ok(()) };
        let clients = usize::from(links.rack.iohost) - 1;
        let random = &mut self.course.random;
        let from = self.hosts[..clients].iter().position(|host| host.vmms.contains_key(&id));
        let Some(from) = from else { return Ok(()) };
        let is_there = self.hosts[to].plan().is_some_and(|plan| plan.disk(&id).is_some());
        if to == from || !is_there {
            return Ok(());
        }
        let until_ns = now + random.below(50) * MS;
        let mut random = Random::new(random.next(), 3);
        let Some(mut vmm) = self.hosts[from].vmms.remove(&id) else { return Ok(()) };
        vmm.hang_up(until_ns);
        vmm.begin_anew(&mut random)?;
        vmm.is_excused = false;
        // What another client has not flushed is not kept by that one.
        vmm.tenant.lose_copies(links.is_doubted);
        vmm.go_to(self.hosts[to].socket_of(&id));
        self.course.note("moves", [vmm.number.into(), from as u64, to as u64]);
        self.hosts[from].away.insert(id.clone());
        self.hosts[to].away.remove(&id);
        self.hosts[to].vmms.insert(id, vmm);
        Ok(())
    }

    /// The IOhost's file has a disk for one client no more, and for another one, whose guest begins at once or later.
    fn pass_disk(&mut self, now: u64) -> Result<(), String> {
        let (Some(links), Some(iohost)) = (&mut self.links, self.hosts.last_mut()) else {
            return Ok(());
        };
        let random = &mut self.course.random;
        let number = random.of(&links.rack.disks);
        let (id, name) = (rack::lent(number), rack::name_of(number));
        let to = random.between(1, u64::from(links.rack.iohost) - 1) as u8;
        let mut file = iohost.file.borrow_mut();
        if file.spec.disk.iter().all(|disk| disk.id != id) {
            return Ok(());
        }
        for client in file.spec.link.iter_mut().flat_map(|link| &mut link.client) {
            client.disks.retain(|disk| *disk != id);
            if client.name == rack::client_name(to) {
                client.disks.push(id.clone());
            }
        }
        drop(file);
        links.spoiled.extend(links.rack.clients().map(|client| (client, name.clone())));
        self.course.note("passes", [number.into(), to.into(), 0]);
        iohost.dirty.insert(id, now);
        if self.course.random.one_in(2) {
            iohost.ask(Call::Reload { force: true }, now);
        }
        match self.course.random.one_in(2) {
            true => self.move_guest_to(&name, usize::from(to) - 1, now),
            false => Ok(()),
        }
    }

    /// A client's machine dies with its guests, while its IOhost goes on, and is back after a while. Its disks may be
    /// another one's meanwhile, whose guests begin when its lease is over.
    fn client_vanishes(&mut self, now: u64) -> Result<(), String> {
        let Some(links) = &self.links else { return Ok(()) };
        let (clients, is_doubted) = (u64::from(links.rack.iohost) - 1, links.is_doubted);
        let disks = links.rack.disks.clone();
        let at = self.course.random.below(clients) as usize;
        self.course.note("vanishes", [at as u64, 0, 0]);
        let host = &mut self.hosts[at];
        for pid in host.pids() {
            host.kill(pid, &mut self.course);
        }
        self.course.machinery.cut_in(host.folder());
        host.lose_power(|vmm| !rack::is_borrowed(&vmm.id), &mut self.course)?;
        host.restart_ns = now + self.course.random.of(&[1, 100, 2500, 10_000]) * MS;
        // What it had not flushed it kept for that its IOhost lost its power.
        let borrowers = host.vmms.values_mut().filter(|vmm| rack::is_borrowed(&vmm.id));
        borrowers.for_each(|vmm| vmm.tenant.lose_copies(is_doubted));
        let to = self.course.random.below(clients) as usize;
        disks.into_iter().try_for_each(|it| self.move_guest_to(&rack::name_of(it), to, now))
    }

    /// A host has another key: the files of the others say so, and it has it itself when it starts anew.
    fn change_key(&mut self) -> Result<(), String> {
        let Some(links) = &mut self.links else { return Ok(()) };
        let number = self.course.random.between(1, links.rack.iohost.into()) as u8;
        self.course.note("key", [number.into(), 0, 0]);
        for host in &mut self.hosts {
            if host.number == number {
                links.rack.change_key(number, host.folder())?;
            }
        }
        for host in &mut self.hosts {
            links.rack.write_key_of(number, &mut host.file.borrow_mut().spec);
            // Of an IOhost's key its clients' files say what they begin with.
            host.is_stale |= host.number == number || number == links.rack.iohost;
        }
        let clients = links.rack.clients().filter(|it| [*it, links.rack.iohost].contains(&number));
        for client in clients {
            let disks = links.rack.disks.iter().map(|number| (client, rack::name_of(*number)));
            links.spoiled.extend(disks);
        }
        Ok(())
    }

    /// Clients do not hear their IOhost for so long that their requests fail.
    fn be_silent(&mut self, now: u64) -> Result<(), String> {
        let Some(links) = &mut self.links else { return Ok(()) };
        let is_busy = |host: &Host| host.operator.waiting() > 0 || !host.newcomers.is_empty();
        if self.hosts.iter().any(is_busy) {
            return Ok(());
        }
        for client in links.rack.clients() {
            let disks = links.rack.disks.iter().map(|number| (client, rack::name_of(*number)));
            links.spoiled.extend(disks);
            self.course.ground.wire.cut(links.rack.iohost, client, now + SILENCE_MS * MS);
        }
        self.course.note("silent", [0; 3]);
        self.expect_failures();
        for _ in 0..SILENCE_MS / 2_000 {
            let until = Nanos(self.course.now().0 + 2_000 * MS);
            self.course.stage.pass_until(until);
            (0..STEPS_OF_SILENCE).try_for_each(|_| self.step())?;
        }
        Ok(())
    }

    /// Whoever has a disk of an IOhost finds that it has another boot, and what was not flushed is lost.
    pub(super) fn lose_power_of_links(&mut self) {
        let Some(links) = &mut self.links else { return };
        for client in links.rack.clients() {
            let disks = links.rack.disks.iter().map(|number| (client, rack::name_of(*number)));
            links.spoiled.extend(disks);
        }
    }

    /// The power of the IOhost fails, and its clients go on.
    fn iohost_loses_power(&mut self) -> Result<(), String> {
        let Some(iohost) = self.hosts.last_mut() else { return Ok(()) };
        self.course.note("power of an IOhost", [0; 3]);
        for pid in iohost.pids() {
            iohost.kill(pid, &mut self.course);
        }
        self.course.machinery.cut_in(iohost.folder());
        iohost.lose_power(|_| true, &mut self.course)?;
        self.lose_power_of_links();
        self.set_borrowers(|vmm| vmm.tenant.doubt());
        if let Some(links) = &mut self.links {
            links.is_doubted = true;
        }
        Ok(())
    }

    /// An IOhost that was killed may have known of a sync that failed, which its successor does not.
    pub(super) fn note_deaths(&mut self) {
        let (Some(links), Some(iohost)) = (&mut self.links, self.hosts.last()) else { return };
        let deaths = iohost.deaths;
        if std::mem::replace(&mut links.deaths, deaths) == deaths {
            return;
        }
        let machinery = std::sync::Arc::clone(&self.course.machinery);
        self.set_borrowers(|vmm| vmm.lose_iohost(&machinery));
    }

    /// Whoever may have lost a disk is not surprised.
    fn expect_failures(&mut self) {
        let Some(links) = &self.links else { return };
        for (client, id) in &links.spoiled {
            let host = self.hosts.iter_mut().find(|host| host.number == *client);
            if let Some(vmm) = host.and_then(|host| host.vmms.get_mut(id)) {
                vmm.tenant.set_may_fail(true);
            }
        }
    }

    /// The network is well, clients may have everything, and all have the keys that their files say.
    pub(super) fn calm_links(&mut self) {
        for host in self.hosts.iter_mut().filter(|host| host.is_stale) {
            for pid in host.pids() {
                host.kill(pid, &mut self.course);
            }
        }
        let (Some(links), Some(iohost)) = (&mut self.links, self.hosts.last_mut()) else { return };
        self.course.ground.wire.calm_down();
        let mut file = iohost.file.borrow_mut();
        file.spec.disk.append(&mut links.removed);
        for client in file.spec.link.iter_mut().flat_map(|link| &mut link.client) {
            client.disks = links.rack.disks.iter().map(|number| rack::lent(*number)).collect();
        }
    }

    /// Guests that may have lost their disks begin anew; and all read what is there.
    pub(super) fn prove_links(&mut self) -> Result<(), String> {
        let Some(links) = &mut self.links else { return Ok(()) };
        let spoiled = std::mem::take(&mut links.spoiled);
        for host in &mut self.hosts {
            for (id, vmm) in &mut host.vmms {
                if spoiled.iter().any(|(_, spoiled)| spoiled == id) && vmm.stage == Stage::There {
                    vmm.tenant.stop();
                    vmm.stage = Stage::Resetting;
                }
            }
        }
        self.until("guests have begun anew", |host| host.is_each(Vmm::has_said_all))?;
        // That an IOhost has lost data its client hears with the next session, and says only then that there is something
        // to clear.
        self.have_borrowers_ask()?;
        self.until("guests are answered", Host::is_content)?;
        for host in &mut self.hosts {
            for id in host.disks().into_iter().filter(|id| rack::is_borrowed(id)) {
                host.ask(Call::ClearDisk { id }, self.course.now().0);
            }
        }
        self.until_answered()?;
        self.set_borrowers(|vmm| vmm.tenant.set_may_fail(false));
        self.have_borrowers_ask()
    }

    /// Guests of other hosts' disks ask for something for a while.
    pub(super) fn have_borrowers_ask(&mut self) -> Result<(), String> {
        self.set_borrowers(|vmm| vmm.tenant.set_quiet(false));
        for _ in 0..STEPS_OF_PROOF {
            self.step()?;
        }
        self.set_borrowers(|vmm| vmm.tenant.set_quiet(true));
        Ok(())
    }

    /// An IOhost shows whose each disk is, and clients show what they have as it is.
    pub(super) fn judge_links(&self) -> Result<(), String> {
        let (Some(links), Some(iohost)) = (&self.links, self.hosts.last()) else { return Ok(()) };
        for number in &links.rack.disks {
            let (id, name) = (rack::lent(*number), rack::name_of(*number));
            let has = |host: &&Host| host.disks().contains(&name) && host.has_guest(&name);
            let client = self.hosts.iter().find(has);
            let whose = client.map(|host| format!("c{}", host.number));
            let shown = iohost.links.iter().flat_map(|link| &link.disks).find(|it| it.id == id);
            if shown.is_none_or(|shown| shown.client != whose) {
                return Err(format!("{id} is shown as {shown:?}, and is to be {whose:?}'s"));
            }
            let size = |host: &Host, id: &str| {
                host.shown.iter().find(|view| view.id == id).map(|view| view.size_bytes)
            };
            let there = size(iohost, &id);
            if let Some(here) = client.map(|host| size(host, &name)).filter(|here| *here != there) {
                return Err(format!("{id} has {there:?} bytes, and {name} has {here:?}"));
            }
        }
        Ok(())
    }

    /// When nothing is lent any more nobody has anything.
    pub(super) fn judge_unlinked(&self) -> Result<(), String> {
        let links = self.hosts.iter().flat_map(|host| &host.links);
        match links.flat_map(|link| &link.disks).find(|disk| disk.in_use || disk.client.is_some()) {
            Some(disk) => Err(format!("nothing is lent, and there is {disk:?}")),
            None => Ok(()),
        }
    }

    fn set_borrowers(&mut self, mut set: impl FnMut(&mut Vmm)) {
        let vmms = self.hosts.iter_mut().flat_map(|host| host.vmms.values_mut());
        vmms.filter(|vmm| rack::is_borrowed(&vmm.id)).for_each(&mut set);
    }
}

impl Course {
    /// What has arrived by now is there, and that host has its turn.
    pub(super) fn be_at(&self, host: u8) {
        let Nanos(now) = self.now();
        self.ground.wire.set_now(now);
        self.ground.be_at(host);
    }
}

/// Mostly fair, sometimes very bad.
fn weather(random: &mut Random) -> Weather {
    Weather {
        lost: random.of(&[0, 0, 0, 0, 10, 50, 200, 500]),
        doubled: random.of(&[0, 0, 10, 50, 300]),
        jitter_ns: random.of(&[0, 1_000, 1_000, 20_000, 100_000, MS, 20 * MS]),
    }
}
