//! A device's guest: whether its driver is here, what its front-ends lack, and its image that comes and goes
//! with it.
//!
//! Not here: locks (`locks`), and who looks (`idle`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use backend::Disk;
use config::Plan;
use control::mode::Mode;
use tracing::{info, warn};
use vhost_user::{Message, Scope};

use super::Device;
use crate::devices::beginning::{Counted, Seen, Stage};
use crate::devices::queue::Queue;
use crate::disk::bonds::{Bonds, unkept};
use crate::disk::image::{Found, Image};
use crate::disk::stalls;
use crate::poll::Poll;
use crate::remote::availability::LogLine;

impl Device {
    /// Whether a guest's driver is at a ring of it, enabled or not, other than ring `but`.
    pub(crate) fn is_started(&self, but: Option<u32>) -> bool {
        let connection = self.runner.and_then(|id| self.connections.get(&id));
        let other = |index: &u16| but != Some(u32::from(*index));
        let mut rings = (0..self.facts.rings).filter(other);
        connection
            .is_some_and(|connection| rings.any(|index| connection.session.set_up(index).is_some()))
    }

    /// Whether the answer to a message of connection `id` waits until the disk has been let go: the message stops
    /// its last ring, and whoever reads the answer may start it elsewhere.
    pub(crate) fn parts_first(&mut self, id: u32, mode: Mode, now: Instant, poll: &Poll) -> bool {
        let connection = self.connections.get(&id).filter(|_| self.runner == Some(id));
        let held = connection.and_then(|connection| connection.held());
        let Some(Message::GetVringBase(state)) = held.map(|held| &held.message) else {
            return false;
        };
        let is_last = self.attached().is_empty() && !self.is_started(Some(state.queue));
        let Some(disk) = self.kind.disk_mut() else { return false };
        if disk.locks.parting().is_some() {
            return true;
        }
        // Another process may be about to take over: it is that one's to let go.
        let is_to_part = is_last && disk.locks.may_part();
        // Whoever is told that it has stopped may start the disk elsewhere: not while that cannot even begin.
        is_to_part
            && (mode.has_heir()
                || disk.let_go(self.number, now, poll)
                || disk.begins_at().is_some())
    }

    /// Keeps which image the guest of its disk is on, which comes to the socket that it has itself: it may be planned in a
    /// moment, or no more. `plan` says of which other disks nothing is forgotten for that.
    pub(crate) fn keep_image(&mut self, image: &Image, bonds: &mut Bonds, plan: &Plan) {
        // A client's guest comes to no socket here.
        let socket = (!self.is_exported()).then_some(self.facts.socket.as_str());
        let id = self.facts.id.as_str();
        let is_there = |other: &str| other == id || plan.disk(other).is_some();
        let why = bonds.keep(id, socket, image, is_there).err().map(|error| error.to_string());
        let is_news = match self.kind.disk_mut() {
            Some(parts) => parts.bond.kept(image, why.clone()),
            None => why.is_some(),
        };
        if let Some(why) = why.filter(|_| is_news) {
            warn!(disk = self.facts.id, "that its guest is on {image} {}", unkept(&why));
        }
    }

    /// The locks of its disk are here. Whether it has another size; nothing: they were not asked for.
    pub(crate) fn has_come(&mut self, disk: Arc<Disk>, bonds: &Bonds) -> Option<bool> {
        let parts = self.kind.disk_mut()?;
        if !parts.locks.come() {
            return None;
        }
        let grew = disk.size_bytes() != parts.disk.size_bytes();
        parts.was_empty |= disk.was_empty();
        disk.count_on_from(&parts.disk);
        parts.disk = disk;
        let found = Found::of(&parts.disk, &parts.plan, bonds.boot());
        parts.astray = None;
        if parts.bond.find(found) {
            // What its rings were served from is not what they would be served from now.
            self.queues.iter_mut().for_each(Queue::forget_guest);
        }
        Some(grew)
    }

    /// Its disk was let go, or could not be. Whether it is gone; nothing: it is not over yet.
    pub(crate) fn has_parted(&mut self) -> Option<bool> {
        let was_served = self.queues.iter().any(Queue::was_attached);
        let parts = self.kind.disk_mut()?;
        let kept = parts.locks.parting()?.outcome()?;
        let is_gone = kept.is_none();
        let _ = parts.locks.parted(!is_gone);
        match kept {
            Some(disk) => parts.disk = disk,
            // From here on it is no new disk, wherever its guest goes.
            None => parts.was_empty &= !was_served,
        }
        Some(is_gone)
    }

    /// Whether a ring could start but for the locks of its disk.
    pub(crate) fn wants_to_start(&self) -> bool {
        let Some(id) = self.runner else { return false };
        let connection = self.connections.get(&id).filter(|connection| connection.held().is_none());
        let mut rings = 0..self.facts.rings;
        connection
            .is_some_and(|connection| rings.any(|index| connection.session.ready(index).is_some()))
            || self.starts_first(id).is_some()
    }

    /// What the rings have counted in which a guest puts requests: of a NIC those that transmit, since
    /// buffers for frames may wait for ever.
    pub(crate) fn counted(&self) -> Counted {
        let is_nic = self.kind.nic().is_some();
        let rings = self.queues.iter().skip(usize::from(is_nic));
        let rings = rings.step_by(1 + usize::from(is_nic)).map(|queue| queue.counters().snapshot());
        rings.fold(Counted::default(), |sum, one| Counted {
            kicks: sum.kicks + one.kicks,
            requests: sum.requests + one.requests + one.in_flight,
        })
    }

    /// At which stage before its first request its front-end stays, in words.
    pub(crate) fn beginning(&self) -> Option<String> {
        let told = self.connections.values().find_map(|connection| connection.beginning());
        told.map(|stage| stage.words(&self.facts.id))
    }

    /// Looks at each of its front-ends; what is to be told.
    pub(crate) fn look_at_front_ends(&mut self, now: Instant) -> Option<Stage> {
        let counted = self.counted();
        // Another one runs it, and these only ask; or why a ring does not run is known.
        let has_problem = self.queues.iter().any(|it| it.problem().is_some())
            || self.kind.disk().is_some_and(|disk| disk.hindered(now).is_some());
        let runner = self.runner;
        let is_held = self.is_held_back() || has_problem;
        let is_nic = self.kind.nic().is_some();
        let asks = |ring: &&u16| !is_nic || !ring.is_multiple_of(2);
        let attached: BTreeMap<u32, u64> = self
            .connections
            .keys()
            .map(|id| (*id, self.attached_in(*id, Scope::All)))
            .filter(|(_, rings)| !rings.is_empty())
            .map(|(id, rings)| (id, rings.iter().filter(asks).count().max(1) as u64))
            .collect();
        let rings = self.facts.rings;
        let mut told = None;
        for (id, connection) in &mut self.connections {
            if !connection.is_beginning() || runner.is_some_and(|runner| runner != *id) || is_held {
                continue;
            }
            let seen = Seen {
                has_owner: connection.session.has_owner(),
                has_memory: connection.session.has_memory(),
                rings: attached.get(id).copied().unwrap_or(0),
                was_used: connection.is_running(rings),
                counted,
            };
            told = connection.look(seen, now).or(told);
        }
        told
    }

    /// Whether one of its front-ends has not come to a request.
    pub(crate) fn is_beginning(&self) -> bool {
        self.connections.values().any(|connection| connection.is_beginning())
    }

    /// Says what requests of another machine's disk do, if the log has not.
    pub(crate) fn say_remote(&mut self, now: Instant) {
        let remote = self.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
        let news = remote.and_then(|remote| remote.take_news(now));
        let Some(news) = news.filter(|_| self.may_log(now)) else { return };
        let id = &self.facts.id;
        match news {
            LogLine::Warn(why) => warn!(disk = id, "{why}"),
            LogLine::Info(good) => info!(disk = id, "{good}"),
        }
    }

    /// A queue of it has begun to wait, or has ceased to, or is back.
    pub(crate) fn say_stalls(&mut self, now: Instant) {
        let is_unrecorded = self.waiting_unrecorded() > 0;
        let Some(disk) = self.kind.disk_mut() else { return };
        let faults = disk.disk.faults();
        let queues = (&*self.queues, is_unrecorded);
        let news = stalls::look(&mut disk.stall_said, queues, (&disk.plan, faults));
        let Some(stalls::News { is_over, is_bad, words }) = news else { return };
        if is_bad && is_over {
            // Those that this line tells of.
            disk.failures.were_told(faults, now);
        }
        if !self.may_log(now) {
            return;
        }
        let id = &self.facts.id;
        match is_bad {
            true => warn!(disk = id, "{words}"),
            false => info!(disk = id, "{words}"),
        }
    }
}
