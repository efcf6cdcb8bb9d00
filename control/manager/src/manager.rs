//! The control loop: one event at a time, then settle.
//!
//! After every turn the devices that were touched are compared with what could run, and the
//! difference is sent to the sidecores. Not here: messages (`front_ends`), operators (`calls`).

use std::time::{Duration, Instant};

use config::api::{ApiError, ErrorKind};
use control::drain::Drain;
use control::timers::Timers;
use sidecore::{Command, MoveId, QueueKey, Stay};
use tracing::warn;

use crate::api::{Calls, Listening};
use crate::calls::answer::answer_moved;
use crate::calls::{TAKEN_OVER, removal, resizing};
use crate::defects::{found, late};
use crate::devices::device::{Device, Due};
use crate::devices::kind::Kind;
use crate::devices::queue::{Owner, Place, Queue};
use crate::disk::{DiskParts, looks};
use crate::front_ends::FrontEnds;
use crate::front_ends::beginnings;
use crate::network::announce;
use crate::opening::open::open_shut;
use crate::opening::shut::Shut;
use crate::poll::Token;
use crate::reload::Reloading;
use crate::remote::Remote;
use crate::remote::around::Around;
use crate::rooms::{Rooms, Timer};
use crate::sidecores::balance::Relief;
use crate::upgrade::predecessor::HandedOver;
use crate::upgrade::succession::Succession;

mod asked;
mod sidecores;
mod upgrading;

/// Calls of the API that are answered before others are heard: each may look at thousands of disks.
const CALLS_PER_TURN: u32 = 2;
/// How soon a full inbox is tried again.
pub(crate) const INBOX_INTERVAL: Duration = Duration::from_millis(1);

/// The loop, and what is under way.
pub(crate) struct Manager {
    pub(crate) rooms: Rooms,
    /// A reload that waits until what it removes is gone.
    pub(crate) reloading: Reloading,
    /// Another process is to take over, or this one has.
    pub(crate) succession: Succession,
    /// Whether queues and ports are with the sidecores, or another process is told where they are.
    pub(crate) drain: Drain,
    /// The API's listening sockets, for a successor.
    pub(crate) listening: Listening,
    pub(crate) calls: Calls,
    pub(crate) stop_by: Option<Instant>,
}

/// How the loop ended.
pub(crate) enum End {
    Stopped,
    /// Another process serves: nothing may be closed, for it is shared.
    HandedOver(Box<HandedOver>),
}

impl Manager {
    pub(crate) fn turn_until_stopped(&mut self) -> End {
        loop {
            self.rooms.turn.tick();
            let events = self.rooms.poll.wait(self.wait_time());
            if let Some(end) = self.turn(events) {
                return end;
            }
        }
    }

    /// One turn: what was heard, what is due, and what follows from it.
    pub(crate) fn turn(&mut self, events: Vec<(Token, bool)>) -> Option<End> {
        self.rooms.openers.begin_turn();
        for (token, gone) in events {
            self.rooms.turn.tick();
            match token {
                Token::Listener(number) => {
                    // Nobody else would know of whoever connects, nor of what he says.
                    self.commit();
                    self.front_ends().accept(number);
                }
                Token::Connection(number, id) => {
                    self.commit();
                    self.front_ends().serve(number, id, gone);
                }
                Token::Unsynced(number) => self.rooms.note_unsynced(number),
                Token::Parted(number) => self.has_parted(number),
                Token::Core(core) => self.hear_core(core as usize),
                Token::Calls => self.hear_calls(),
                Token::Stop => self.begin_stop(),
                Token::Reload => self.reload_on_signal(),
                Token::Heir => self.hear_heir(),
                Token::Greeter => self.hear_greeter(),
                Token::Synced(number) => {
                    self.links(|remote, around| remote.has_synced(number, around))
                }
                Token::Qmp(id) => self.rooms.hear_vmm(id),
                Token::Guard => self.commit(),
                Token::Launcher(at) => self.hear_launcher(at as usize),
                Token::Openers => self.hear_openers(),
                Token::Folder => self.rooms.folder.hear(),
            }
        }
        self.rooms.turn.tick();
        self.due();
        self.go_on();
        self.go_on_reloading();
        self.rooms.open_ports(self.mode());
        self.drop_unwanted();
        self.rooms.cores.flush();
        if let Some(handed_over) = self.go_on_upgrading() {
            return Some(End::HandedOver(Box::new(handed_over)));
        }
        if let Some(by) = self.stop_by {
            let queues = self.rooms.devices.values().any(|device| !device.attached().is_empty());
            let drained = !queues && !self.rooms.network.is_attached();
            // An IOhost that is told has its disks free for the next one at once.
            let is_told = !self.rooms.remote.is_giving_back() || self.rooms.turn.now() >= by;
            if drained && is_told {
                self.close_all();
                self.rooms.cores.end_all();
                return Some(End::Stopped);
            }
            if !drained && self.rooms.turn.now() >= by {
                warn!("what is in flight does not end; stopping without it");
                self.close_all();
                // A sidecore that waits for a dead disk would wait for ever; the end of the
                // process takes it along.
                return Some(End::Stopped);
            }
        }
        None
    }

    /// What is due without an event, and when.
    fn timers(&self) -> Timers<Timer, Instant> {
        let mut timers = self.rooms.timers(self.mode());
        timers.set(Timer::Turn, self.stop_by);
        timers.set(Timer::Turn, self.reloading.due_at());
        timers.set(Timer::Succession, self.succession.due_at(self.rooms.turn.now()));
        timers
    }

    /// Until the next thing that is due without an event.
    pub(crate) fn wait_time(&self) -> Option<Duration> {
        let now = self.rooms.turn.now();
        if self.rooms.turn.has_touched() && !self.mode().is_frozen() {
            return Some(Duration::ZERO);
        }
        let until = self.timers().next().map(|due| due.saturating_duration_since(now));
        match self.rooms.cores.is_backed_up() {
            true => Some(until.unwrap_or(INBOX_INTERVAL).min(INBOX_INTERVAL)),
            false => until,
        }
    }

    /// A disk was let go, or could not be.
    fn has_parted(&mut self, number: u32) {
        let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
        let Some(is_gone) = device.has_parted() else { return late("parting") };
        let connections: Vec<u32> = device.connections().keys().copied().collect();
        for connection in connections {
            self.front_ends().come_back(number, connection);
        }
        if !is_gone {
            // It is here again, and is looked at.
            self.rooms.watch.wake();
        }
        self.rooms.turn.touch(number);
        self.links(|remote, around| remote.export_has_parted(number, is_gone, around));
        self.rooms.shut.retry_all(self.rooms.turn.now());
    }

    /// Has links do something, and then does what they want of others.
    pub(crate) fn links<T>(&mut self, act: impl FnOnce(&mut Remote, &mut Around<'_>) -> T) -> T {
        let mode = self.mode();
        self.rooms.have_links(mode, act)
    }

    /// All front-ends.
    pub(crate) fn front_ends(&mut self) -> FrontEnds<'_> {
        let mode = self.mode();
        self.rooms.front_ends(mode)
    }

    /// Something is at its new sidecore, or (with a reason) still at the old one.
    fn move_is_over(&mut self, id: MoveId, why: Option<Stay>) {
        if let Some((nic, why)) = self.rooms.move_is_over(id, why) {
            self.rooms.travel().end(id, nic, why);
        }
    }

    /// Looks at the loads, if that is due, and has move what is to.
    fn balance(&mut self, now: Instant) {
        let is_due = self.rooms.cores.look_at().is_some_and(|due| due <= now);
        // Nobody is to be on the way when another process takes over.
        if !is_due || !self.mode().may_move() {
            return;
        }
        for Relief { device, queue, to } in self.rooms.look_at_loads() {
            match queue {
                Some(queue) => self.rooms.relieve(QueueKey { device, queue }, to),
                None => self.rooms.travel().relieve(device, to),
            }
        }
    }

    /// Brings every device that was touched to where its sessions and plan want it.
    pub(crate) fn settle(&mut self) {
        while !self.mode().is_frozen()
            && let Some(number) = self.rooms.turn.next_touched()
        {
            // The one before may have waited for its image.
            self.rooms.turn.tick();
            self.settle_device(number);
        }
        self.rooms.moves.end_called_off(&mut self.rooms.turn);
        answer_moved(&mut self.rooms);
    }

    pub(crate) fn settle_device(&mut self, number: u32) {
        // One that was touched and removed in the same turn.
        let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
        if device.is_held_back() {
            if !device.detach_all(&mut self.rooms.turn, &mut self.rooms.cores) {
                let mode = self.mode();
                let undone = removal::all_are_back(number, &mut self.rooms, mode);
                undone.into_iter().for_each(|undone| self.reloading.note(undone));
            }
            return;
        }
        if device.is_off() {
            return self.front_ends().keep_off(number);
        }
        if device.wants_to_listen() {
            device.listen_again(&self.rooms.poll, &mut self.rooms.turn);
        }
        let now = self.rooms.turn.now();
        announce::note_arrival(device, now);
        self.links(|remote, around| {
            remote.follow_remote(number, around);
            remote.follow_nic(number, around);
        });
        let (is_clients, mode) = (self.rooms.remote.is_clients(number), self.mode());
        for index in 0..self.rooms.locks().follow(number, is_clients, mode) {
            self.attach_if_ready(number, index);
        }
        let late = self.rooms.devices.disk_mut(number).and_then(DiskParts::take_late_size);
        if let Some(size) = late {
            let undone = resizing::to_plan(number, size, &mut self.rooms);
            undone.into_iter().for_each(|undone| self.reloading.note(undone));
        }
        // Not before the locks are known to be here.
        self.links(|remote, around| remote.settle_export(number, around));
        self.announce_arrival(number);
        self.front_ends().release_ready(number);
        self.rooms.restage(number, self.mode());
    }

    fn announce_arrival(&mut self, number: u32) {
        let is_frozen = self.mode().is_frozen();
        let Rooms { turn, devices, cores, .. } = &mut self.rooms;
        let device = devices.get_mut(number);
        let device = found!(turn.defects, device, "device whose guest may be announced");
        announce::announce_arrival(device, is_frozen, turn, cores);
    }

    pub(crate) fn attach_if_ready(&mut self, number: u32, index: u16) {
        let may_be_taken_back = self.mode().may_be_taken_back();
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose queue is to start");
        if may_be_taken_back && !device.queue(index).is_some_and(Queue::is_inherited) {
            // Whoever takes it back would begin where its front-end said; it starts when this process has committed.
            return;
        }
        if device.nic().is_some_and(|nic| nic.travels() || nic.at().is_none()) {
            // Where it is to start is known when the NIC has arrived, or its switch has a port for it.
            return;
        }
        let remote = device.disk().and_then(|disk| disk.remote.as_ref());
        if remote.is_some_and(|remote| self.rooms.remote.is_on_its_way(remote.link())) {
            // Its sidecore would refuse it; it starts when its link does.
            return;
        }
        match device.make_queue(index, self.rooms.turn.now(), &mut self.rooms.turn.defects) {
            Ok(Some((connection, served))) => {
                let is_nic = device.nic().is_some();
                let home = match device.kind() {
                    Kind::Nic(nic) => Some(nic.home()),
                    // With its link.
                    Kind::Disk(disk) => disk.remote.as_ref().map(|remote| Some(remote.core())),
                };
                self.rooms.devices.keep_begun(number, &mut self.rooms.bonds, &self.rooms.plan);
                let was_at =
                    self.rooms.devices.queue_mut(number, index).and_then(Queue::take_again);
                let was_by_hand = was_at.is_some_and(|(_, by_hand)| by_hand);
                let place = match home {
                    Some(home) => home.map(|home| (home, was_by_hand)),
                    None => self.rooms.place_again(number, was_at),
                };
                let (core, by_hand) =
                    found!(self.rooms.turn.defects, place, "sidecore for a queue that starts");
                let place = Place { core, owner: Owner::Connection(connection), by_hand };
                let queue = self.rooms.devices.queue_mut(number, index);
                if !queue.is_some_and(|queue| queue.attach(place)) {
                    return self.rooms.turn.defects.note("idle queue to start");
                }
                if !is_nic {
                    self.rooms.cores.take_load(core, 1);
                }
                self.rooms.cores.send(core, Command::Attach(served));
            }
            Ok(None) => {}
            Err(error) => {
                let is_said = device.disk_mut().is_some_and(|disk| disk.bond.is_refused_again());
                if !is_said && device.may_log(self.rooms.turn.now()) {
                    warn!(device = device.facts().id, queue = index, "cannot be served: {error}");
                }
                if device.is_held_back() {
                    self.rooms.turn.touch(number);
                }
                self.rooms.devices.keep_begun(number, &mut self.rooms.bonds, &self.rooms.plan);
            }
        }
    }

    /// Does what is due without an event.
    fn due(&mut self) {
        let now = self.rooms.turn.now();
        for timer in self.timers().due(now) {
            let Rooms { state, plan, devices, beginnings, .. } = &mut self.rooms;
            match timer {
                Timer::Succession => self.succession_is_due(now),
                Timer::Lock => state.lock_when_due(&plan.daemon.api, now),
                Timer::Knock => self.rooms.cores.knock(now),
                Timer::Loads => self.balance(now),
                Timer::Macs => self.rooms.switch_calls().answer_overdue(),
                Timer::Beginnings => {
                    if beginnings.take(now) {
                        beginnings::look(devices, now);
                    }
                }
                Timer::Devices => self.devices_are_due(now),
                Timer::Turn => {}
            }
        }
    }

    /// Settles, tries again what is not open, and goes on with a reload that waits for either.
    pub(crate) fn go_on_reloading(&mut self) {
        self.settle();
        let mode = self.mode();
        // An heir that dies before it has committed leaves nothing that only its file has.
        if !mode.is_stopping() && !mode.may_be_taken_back() {
            // What goes has given back by now what these need.
            open_shut(&mut self.rooms, mode);
            self.settle();
        }
        self.reloading.go_on(&mut self.rooms, mode);
    }

    /// Goes on with what may have been waited for, whatever that was.
    fn go_on(&mut self) {
        if self.stop_by.is_none() {
            let mode = self.mode();
            self.rooms.open_ports(mode);
            self.links(Remote::open_links);
        }
        self.go_on_with_calls();
        let Rooms { turn, devices, openers, watch, failures, bonds, plan, .. } = &mut self.rooms;
        watch.look(turn, devices, openers);
        if failures.take(turn.now()) {
            looks::look(devices, turn.now(), (bonds, plan));
        }
        let told = self.rooms.look_at_guests();
        let Rooms { devices, cores, .. } = &mut self.rooms;
        let told = told.into_iter().filter_map(|nic| devices.get(nic)?.nic());
        told.for_each(|nic| nic.say_port(cores));
        let mode = self.mode();
        self.rooms.keep_images(mode);
    }

    /// Asks for locks, connects, accepts again, ends front-ends that fell silent in the middle of a message.
    fn devices_are_due(&mut self, now: Instant) {
        self.rooms.locks().touch_due();
        let mode = self.mode();
        let due = |device: &&Device| device.due_at(mode).is_some_and(|at| at <= now);
        let due: Vec<u32> =
            self.rooms.devices.values().filter(due).map(|device| device.number()).collect();
        for number in due {
            self.front_ends().close_overdue(number, now);
            self.announce_arrival(number);
            self.rooms.restage(number, self.mode());
            let Some(device) = self.rooms.devices.get_mut(number) else {
                self.rooms.turn.defects.note("device that something was due for");
                continue;
            };
            match device.take_due(now) {
                Some(Due::Accept | Due::Listen) => {
                    device.listen_again(&self.rooms.poll, &mut self.rooms.turn)
                }
                Some(Due::Connect) => {
                    if let Some(socket) = self.front_ends().call(number) {
                        // As of whoever connects.
                        self.commit();
                        self.front_ends().add_called(number, socket);
                    }
                }
                None => {}
            }
        }
    }

    /// Whoever asks while another process takes over is to ask that one.
    pub(crate) fn answer_all_busy(&mut self) {
        while let Some(request) = self.calls.take() {
            request.answer(Err(ApiError::new(ErrorKind::Busy, TAKEN_OVER, "ask again")));
        }
        // And whoever comes later, or waits: a call that nobody is to answer any more is answered so.
        self.calls.close();
        self.rooms.waiting.clear();
        self.rooms.folder.take_all();
        self.rooms.moves.answer_nobody();
        self.rooms.network.answer_nobody();
        self.reloading.forget();
    }

    /// Threads that open and close images have something to say.
    fn hear_openers(&mut self) {
        self.rooms.openers.hear();
        for number in self.rooms.openers.closed() {
            removal::image_is_closed(number, &mut self.rooms);
        }
        let answered = self.rooms.openers.answered();
        self.rooms.shut.hurry(&answered, self.rooms.turn.now());
        self.rooms.devices.hurry(&answered, self.rooms.turn.now());
    }

    /// Lets go what was being opened and nobody waits for any more: a thread that is not asked would keep the locks of
    /// its image from whoever needs them.
    fn drop_unwanted(&mut self) {
        let Rooms { shut, devices, openers, waiting, .. } = &mut self.rooms;
        openers.keep_only(|id| {
            shut.named(id).is_some_and(Shut::is_waiting)
                || devices.asks_for_image(id)
                || waiting.adds(id)
        });
    }

    fn hear_calls(&mut self) {
        for _ in 0..CALLS_PER_TURN {
            let Some(request) = self.calls.take() else { return };
            self.rooms.turn.tick();
            self.answer(request);
        }
        // Front-ends are heard in between.
        self.calls.wake();
    }
}

#[cfg(test)]
mod tests;
