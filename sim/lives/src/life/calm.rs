//! The end of what goes wrong: from here on all comes to an end, in so many steps.

use config::api::{Call, ErrorKind};
use config::spec::Carrier;
use schedule::Nanos;

use super::host::Host;
use super::{Life, MS};
use crate::vmm::Vmm;

/// Steps in which what must come does.
const STEPS_AFTER_MAX: u64 = 120_000;
/// The same where hosts are linked: one may wait for the lease of another, and looks every few milliseconds whether its
/// heir can be told.
const STEPS_AFTER_MAX_LINKED: u64 = 240_000;
/// Steps in which half a second passes where little happens.
const STEPS_OF_WAITING: u64 = 5_000;
/// How often a file is read that a slow file system keeps from being read.
const RELOADS_MAX: u32 = 40;
/// How often an upgrade is tried: a file may be slow to read.
const UPGRADES_MAX: u32 = 5;
/// How often it is looked whether disks are as they are to be.
const LOOKS_MAX: u32 = 20;
/// What is said of an image that another disk has, or a process that was killed and waits for a disk.
const IN_USE: &str = "is in use: ";
/// What is said of an image that a slow file system still opens, also when all else was done.
const IS_SLOW: &str = "its file system has not answered yet";

/// Whether what a reload says of an image is over in a while.
fn passes(error: &str) -> bool {
    [IN_USE, IS_SLOW].iter().any(|text| error.contains(text))
}

impl Life {
    /// From here on all goes well.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.course.note("calm", [0; 3]);
        self.course.is_calm.set(true);
        self.course.machinery.calm_all();
        for host in &mut self.hosts {
            host.break_state(false, &self.course)?;
            host.dies_unheard = false;
            host.latecomer = None;
            // Their images are free, and nobody asks for them again.
            host.dooms.values_mut().for_each(|at| *at = self.course.now().0);
            self.course.ground.interfaces.restore(host.number);
            for vmm in host.vmms.values_mut() {
                vmm.tenant.set_quiet(true);
                if vmm.tenant.is_hostile() {
                    vmm.hang_up(u64::MAX);
                }
            }
        }
        self.calm_links();
        self.until("somebody serves", |host| !host.daemons.is_empty())?;
        self.until_answered()?;
        for host in 0..self.hosts.len() {
            self.reload_for_good(host)?;
        }
        for host in &mut self.hosts {
            for id in host.nics() {
                host.ask(Call::SetCarrier { id, carrier: Carrier::Up }, self.course.now().0);
            }
        }
        self.until("front-ends have said all", |host| host.is_each(Vmm::has_said_all))?;
        self.accept_all()?;
        if self.links.is_some() {
            // Before what proves links: whoever asks for nothing for a lease has nothing.
            self.prove_frames()?;
        }
        self.prove_links()?;
        let now = self.course.now().0;
        self.hosts.iter_mut().for_each(|host| host.clear_shared(now));
        self.until("guests are served, and operators are answered", Host::is_content)?;
        (0..self.hosts.len()).try_for_each(|host| self.upgrade_for_good(host))?;
        self.until("guests are served after an upgrade", Host::is_content)?;
        self.prove_frames()?;
        // Links are up again.
        self.have_borrowers_ask()?;
        self.until("guests are served when all is proved", Host::is_content)?;
        for _ in 0..LOOKS_MAX {
            for host in &mut self.hosts {
                host.ask(Call::ListDisks, self.course.now().0);
                host.ask(Call::ListLinks, self.course.now().0);
            }
            self.until_answered()?;
            // A guest that asks for nothing may wait for its image, which was another process's a moment ago, or for a link
            // that has just begun again.
            if self.hosts.iter().all(|host| host.judge_shown().is_ok())
                && self.judge_links().is_ok()
            {
                break;
            }
            self.live_on()?;
        }
        Ok(())
    }

    /// A disk may be smaller than it was for its guest, which waits for somebody to say that it is to go on so. A file
    /// system may be slow.
    fn accept_all(&mut self) -> Result<(), String> {
        for host in &mut self.hosts {
            host.unaccepted = host.disks().into_iter().collect();
        }
        for _ in 0..RELOADS_MAX {
            for host in &mut self.hosts {
                for id in std::mem::take(&mut host.unaccepted) {
                    host.ask(Call::AcceptDisk { id }, self.course.now().0);
                }
            }
            self.until_answered()?;
            if self.hosts.iter().all(|host| host.unaccepted.is_empty()) {
                return Ok(());
            }
            self.live_on()?;
        }
        Err("a file system does not answer, whatever operators accept".to_owned())
    }

    /// Lives on for half a second: nobody's links end for want of a turn.
    fn live_on(&mut self) -> Result<(), String> {
        let until = Nanos(self.course.now().0 + 500 * MS);
        for _ in 0..STEPS_OF_WAITING {
            if self.course.now() >= until {
                return Ok(());
            }
            self.step()?;
        }
        self.course.stage.pass_until(until);
        Ok(())
    }

    pub(super) fn until_answered(&mut self) -> Result<(), String> {
        self.until("operators are answered", |host| host.operator.waiting() == 0)
    }

    /// Reads the file until that is done: a file system may be slow.
    pub(super) fn reload_for_good(&mut self, host: usize) -> Result<(), String> {
        for _ in 0..RELOADS_MAX {
            self.until("somebody serves", |host| !host.daemons.is_empty())?;
            self.hosts[host].reloaded = None;
            self.hosts[host].ask(Call::Reload { force: true }, self.course.now().0);
            self.until_answered()?;
            match &self.hosts[host].reloaded {
                Some(Ok(view)) if view.not_open.iter().all(|it| it.retried) => return Ok(()),
                // A disk that was taken from clients is there until what they wrote is stable.
                Some(Err(why)) if why.kind != ErrorKind::Busy && !passes(&why.error) => {
                    return Err(format!("the file is not read: {}", why.error));
                }
                // Whoever was asked may have ended.
                _ => self.live_on()?,
            }
        }
        Err(format!("the file is not read: {:?}", self.hosts[host].reloaded))
    }

    /// Has another process take over, which nothing keeps from that any more.
    fn upgrade_for_good(&mut self, host: usize) -> Result<(), String> {
        for _ in 0..UPGRADES_MAX {
            self.hosts[host].upgraded = None;
            self.hosts[host].upgrade(&self.course);
            self.until_answered()?;
            match &self.hosts[host].upgraded {
                Some(Ok(())) => return Ok(()),
                // Whoever has lost its launchers goes on without.
                Some(Err(why)) if why.error.contains("launcher") => return Ok(()),
                _ => {}
            }
        }
        Err(format!("it is not replaced: {:?}", self.hosts[host].upgraded))
    }

    /// Has operators shown what there is, for whoever reads the log of a life in which something never came.
    fn tell_views(&mut self) {
        if !tracing::enabled!(tracing::Level::TRACE) {
            return;
        }
        let calls = [Call::ListDisks, Call::ListNics, Call::ListLinks, Call::ListSidecores];
        for host in &mut self.hosts {
            host.tells_views = true;
            for call in calls.clone() {
                host.ask(call, self.course.now().0);
            }
        }
        for _ in 0..STEPS_OF_WAITING {
            if let Err(why) = self.step() {
                tracing::trace!("views: {why}");
                return;
            }
        }
    }

    /// Lives on until it is so of all hosts.
    pub(super) fn until(
        &mut self,
        what: &str,
        is_so: impl Fn(&Host) -> bool,
    ) -> Result<(), String> {
        let most = if self.links.is_some() { STEPS_AFTER_MAX_LINKED } else { STEPS_AFTER_MAX };
        for step in 1..=most {
            if self.hosts.iter().all(&is_so) {
                return Ok(());
            }
            self.step()?;
            if step % STEPS_OF_WAITING == 0 {
                // Who is busy keeps time from going on, for which others wait.
                let until = Nanos(self.course.now().0 + 500 * MS);
                self.course.stage.pass_until(until);
            }
        }
        let lacks: Vec<String> = self.hosts.iter().map(Host::lacks).collect();
        self.tell_views();
        Err(format!("it never comes that {what}: {lacks:?}"))
    }
}

impl Host {
    /// Who waits.
    fn lacks(&self) -> String {
        let lacks = |vmm: &Vmm| {
            (!vmm.is_content())
                .then(|| format!("{} {:?} waits for {}", vmm.id, vmm.stage, vmm.tenant.waiting()))
        };
        let lacks: Vec<String> = self.vmms.values().filter_map(lacks).collect();
        format!("{lacks:?}, {} calls", self.operator.waiting())
    }
}
