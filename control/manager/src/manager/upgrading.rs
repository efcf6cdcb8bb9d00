//! Upgrades, as far as they concern devices: what is given, taken back, or taken over, and in which order.
//!
//! Not here: what both sides say to each other, and when (`upgrade`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use backend::net::HostOpenError;
use config::Size;
use config::api::{ApiError, Call, ErrorKind, TakenFileView};
use control::mode::Mode;
use sidecore::nanos_of;
use tracing::{info, warn};

use super::Manager;
use crate::api::{self, Entrance, Reply};
use crate::calls::{STOPPING, resizing};
use crate::clock::machine_ns;
use crate::defects::{found, late};
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::devices::unrecorded::Unrecorded;
use crate::disk::DiskParts;
use crate::network::announce::has_stayed;
use crate::network::uplink::Uplink;
use crate::poll::Token;
use crate::reload;
use crate::remote::Remote;
#[cfg(test)]
use crate::remote::handing::InheritedShard;
use crate::rights::Rights;
use crate::rights::given;
use crate::rooms::Rooms;
use crate::upgrade::error::{HeirError, ProbationError, ShardError, TakeBackError, UpgradeError};
use crate::upgrade::estate::DeviceEstate;
use crate::upgrade::guard::{self, Probation, Reach};
use crate::upgrade::heir::Heir;
use crate::upgrade::launcher::{Launcher, Said};
use crate::upgrade::links::{LinkEstate, SavedShards, links_of};
use crate::upgrade::pause::Moments;
use crate::upgrade::predecessor::{HandedOver, Next, Upgrade, refused, what_must_end};
use crate::upgrade::succession::{GivenUp, Succession};
use crate::upgrade::wire::{FromHeir, WITH_GUARD};

/// The predecessor's side.
impl Manager {
    /// What is to become of this process: rooms are told it with what they settle.
    pub(crate) fn mode(&self) -> Mode {
        match self.succession.upgrade() {
            _ if self.drain.is_frozen() => Mode::Frozen,
            _ if self.stop_by.is_some() => Mode::Stopping,
            _ if self.rooms.estate.is_some() => Mode::Inheriting,
            Some(upgrade) => upgrade.mode(),
            None if self.succession.probation().is_some() => Mode::OnProbation,
            None => Mode::Serving,
        }
    }

    /// Has an heir started; with `force` also where guests lose requests that wait.
    pub(crate) fn begin_upgrade(&mut self, reply: Reply, force: bool) {
        self.tell_of_dead_heir();
        let asked = self.may_upgrade(force).and_then(|taken| Ok((self.ask_launcher()?, taken)));
        match asked {
            Ok((upgrade, taken)) => {
                let TakenFileView { file, changes, put_into_force, .. } = &taken;
                if !(changes.is_empty() && put_into_force.is_empty()) {
                    info!(?changes, ?put_into_force, "a new process is to take over with {file}");
                }
                self.succession = Succession::Upgrading(upgrade.of(reply, taken, force));
            }
            Err(error) => {
                warn!("no upgrade: {}", error.in_a_line());
                reply.answer_logged(Err(error));
            }
        }
    }

    fn ask_launcher(&self) -> Result<Upgrade, ApiError> {
        let launcher = self.rooms.options.launcher.as_ref();
        Upgrade::ask(launcher, self.rooms.turn.now()).map_err(|why| refused(&why))
    }

    /// What is different in the file, if an heir may have it.
    fn may_upgrade(&mut self, force: bool) -> Result<TakenFileView, ApiError> {
        let busy = |what: &str| ApiError::new(ErrorKind::Busy, what, "try again in a moment");
        if self.succession.upgrade().is_some() {
            return Err(busy("an upgrade is under way already"));
        }
        if self.mode().is_stopping() {
            return Err(busy(STOPPING));
        }
        let taken = reload::check_file(&mut self.rooms, force)?;
        if !force && let Some(waiting) = Unrecorded::of(self.rooms.devices.values()) {
            return Err(refused(&waiting.into()));
        }
        self.rooms.keep().map_err(|error| refused(&UpgradeError::Keep(error)))?;
        Ok(taken)
    }

    /// The launcher that was asked starts none: the next one is asked.
    fn ask_next_launcher(&mut self) {
        let upgrade = self.succession.take_upgrade();
        let upgrade = found!(self.rooms.turn.defects, upgrade, "upgrade that asked a launcher");
        let launcher = self.rooms.options.launcher.as_ref();
        match upgrade.ask_another(launcher, self.rooms.turn.now()) {
            Ok(upgrade) => self.succession = Succession::Upgrading(upgrade),
            Err(why) => {
                warn!("no upgrade: {why}");
                self.go_on_alone();
            }
        }
    }

    /// What waited for an heir goes on here: disks whose locks were not asked for meanwhile, front-ends, links.
    fn go_on_alone(&mut self) {
        let mode = self.mode();
        self.rooms.hear_links_later(mode);
        // What was held for queues that are home now would wait for ever.
        self.front_ends().release_all();
        self.rooms.turn.touch_all(self.rooms.devices.keys().copied());
    }

    /// A launcher said something, or has ended.
    pub(crate) fn hear_launcher(&mut self, at: usize) {
        let launcher = self.rooms.options.launcher.as_ref();
        let launcher = found!(self.rooms.turn.defects, launcher, "launcher that is polled");
        let said = launcher.heard(at);
        if matches!(said, Said::Ended) {
            warn!(
                "a launcher has ended: with the last one there is no upgrade, until the daemon is started again"
            );
            if let Some(end) = launcher.ends().nth(at) {
                self.rooms.poll.remove(end);
            }
        }
        self.tell_how_heir_ended(self.rooms.turn.now());
        let upgrade = self.succession.upgrade_mut().filter(|upgrade| upgrade.asks(at));
        let Some(upgrade) = upgrade else { return late("upgrade that asked this launcher") };
        match said {
            Said::Nothing => {}
            Said::Started(pid) => {
                let started = upgrade.start(pid, &self.rooms.poll, self.rooms.turn.now());
                self.give_up_upgrade_if(started);
            }
            Said::Refused(why) => self.give_up_upgrade(&UpgradeError::Launcher(why)),
            Said::Ended => self.ask_next_launcher(),
        }
    }

    /// The heir said something, or has ended.
    pub(crate) fn hear_heir(&mut self) {
        let Some(upgrade) = self.succession.upgrade_mut() else { return late("upgrade") };
        let heard = upgrade.hear(self.rooms.turn.now());
        self.give_up_upgrade_if(heard);
    }

    /// Goes on when nothing else is under way. Whoever has all, when this process is to end without touching
    /// anything.
    pub(crate) fn go_on_upgrading(&mut self) -> Option<HandedOver> {
        let now = self.rooms.turn.now();
        match self.succession.upgrade_mut()?.next(now) {
            Ok(Next::Tell) => {}
            Ok(Next::Wait) => return None,
            Ok(Next::AskAnother) => {
                self.ask_next_launcher();
                return None;
            }
            Err(why) => {
                self.give_up_upgrade(&why);
                return None;
            }
        }
        let reload = self.reloading.is_asked();
        let under_way =
            reload.then(|| "a reload".to_string()).or_else(|| what_must_end(&self.rooms));
        if let Some(what) = under_way {
            if self.succession.upgrade().is_some_and(|upgrade| upgrade.is_due(now)) {
                self.give_up_upgrade(&UpgradeError::Busy(what));
            }
            return None;
        }
        self.close_ill_connections();
        let mut upgrade = self.succession.take_upgrade()?;
        match self.bequeath(&mut upgrade) {
            Ok(()) => {
                let given = upgrade.handed_over(&self.rooms.poll);
                Some(found!(self.rooms.turn.defects, given, "process that took over"))
            }
            Err(why) => {
                self.give_up(upgrade, &why);
                None
            }
        }
    }

    fn bequeath(&mut self, upgrade: &mut Upgrade) -> Result<(), UpgradeError> {
        let began = self.rooms.turn.tick();
        if !self.drain.freeze() {
            self.rooms.turn.defects.note("queues that are out, before an upgrade");
        }
        // More may wait than when the operator asked: an heir takes its time to start.
        match Unrecorded::of(self.rooms.devices.values()) {
            Some(waiting) if !upgrade.insists() => return Err(waiting.into()),
            Some(waiting) => waiting.say_they_end(),
            None => {}
        }
        // Of an upgrade that was given up.
        let queues = self.rooms.devices.values_mut().flat_map(|device| device.queues_mut());
        queues.for_each(Queue::forget_asked);
        upgrade.tell(&self.rooms, &self.listening, began)?;
        let ready = self.rooms.turn.tick();
        self.bring_all_home(nanos_of(upgrade.drained_by(ready)))?;
        let shards = self.save_shards()?;
        let drained = self.rooms.turn.tick();
        upgrade.flip(&self.rooms, &shards, drained)?;
        self.let_go_of_hosts();
        upgrade.give(self.rooms.remote.sessions())?;
        let after = self.rooms.turn.tick() - began;
        let (ready, drained) = (ready - began, drained - ready);
        info!(?ready, ?drained, ?after, "handed over");
        Ok(())
    }

    /// Has other machines, and interfaces, meet another process.
    fn let_go_of_hosts(&mut self) {
        // Of some interfaces there can be only one socket.
        self.rooms.network.uplinks_mut().for_each(Uplink::close_all_but_taps);
        self.rooms.remote.say_farewell();
    }

    /// Writes down what is known of all shards, which are here and at rest.
    fn save_shards(&mut self) -> Result<SavedShards, ShardError> {
        let Rooms { remote, devices, .. } = &mut self.rooms;
        remote.rest_shards();
        let mut shards = SavedShards::default();
        for (key, id, shard, link) in remote.home() {
            shards.save((id, shard, link), remote.save_shard((key, shard, link), devices)?)?;
        }
        Ok(shards)
    }

    /// A front-end that took back what it had lent would only keep the new process from mapping it.
    fn close_ill_connections(&mut self) {
        let ill = |device: &Device| {
            let ill = device.connections().iter().filter(|(_, connection)| {
                connection.front_end.loss().is_some() || !connection.front_end.kept.is_whole()
            });
            ill.map(|(id, _)| (device.number(), *id)).collect::<Vec<_>>()
        };
        let ill: Vec<(u32, u32)> = self.rooms.devices.values().flat_map(ill).collect();
        for (number, id) in ill {
            self.front_ends().close(number, id, "it took away memory that it had lent");
        }
    }

    fn give_up_upgrade_if(&mut self, gone_on: Result<(), UpgradeError>) {
        if let Err(why) = gone_on {
            self.give_up_upgrade(&why);
        }
    }

    /// Ends the new process, if there is one, and goes on serving.
    pub(crate) fn give_up_upgrade(&mut self, why: &UpgradeError) {
        // A stop gives up whatever there may be.
        if let Some(upgrade) = self.succession.take_upgrade() {
            self.give_up(upgrade, why);
        }
    }

    fn give_up(&mut self, upgrade: Upgrade, why: &UpgradeError) {
        let reply = upgrade.give_up(&self.rooms.poll);
        if self.drain.is_frozen() {
            self.send_all_out();
        }
        self.go_on_alone();
        if matches!(why, UpgradeError::Ended) {
            let now = self.rooms.turn.tick();
            self.succession = Succession::GivenUp(GivenUp::of(reply, now));
            return self.tell_how_heir_ended(now);
        }
        say_given_up(why, reply);
    }

    /// Tells of an upgrade whose heir has ended, if its launcher has said how, or has not until `now`.
    fn tell_how_heir_ended(&mut self, now: Instant) {
        // Of one that ends at once it may be said before it is said that it was started.
        if !matches!(self.succession, Succession::GivenUp(_)) {
            return;
        }
        let how = self.rooms.options.launcher.as_ref().and_then(Launcher::how_ended);
        if let Some(reply) = self.succession.take_given_up(how.is_some(), now) {
            say_given_up(&how.map_or(UpgradeError::Ended, UpgradeError::EndedSo), reply);
        }
    }

    /// The same, whatever is known by now.
    pub(crate) fn tell_of_dead_heir(&mut self) {
        if let Some(reply) = self.succession.take_given_up(true, self.rooms.turn.now()) {
            say_given_up(&UpgradeError::Ended, reply);
        }
    }

    /// Serves again what another process had for a moment, which has ended, as far as that may have gone. No other end of
    /// a link has heard that process, which commits before: its shards are what they were here.
    pub(crate) fn take_back(&mut self, why: &ProbationError, reach: Reach) {
        warn!("the new process took over, and {why}: its devices are taken back");
        self.rooms.turn.tick();
        self.rooms.state.note_holder(&self.rooms.plan.daemon.api);
        let numbers: Vec<u32> = self.rooms.devices.keys().copied().collect();
        for number in &numbers {
            let Some(device) = self.rooms.devices.get_mut(*number) else { continue };
            if guard::fence(device) {
                self.rooms.hear_unsynced(*number);
                self.rooms.locks().take(*number);
            }
            let device = self.rooms.devices.get_mut(*number);
            device.into_iter().for_each(|device| guard::find_rings(device, reach));
        }
        self.send_all_out();
        self.go_on_alone();
        info!("serving again");
    }

    /// Operators are heard again after another process has had the API's socket.
    pub(crate) fn open_door_again(&mut self) -> Result<Entrance, TakeBackError> {
        let api = self.listening.api.try_clone().map_err(TakeBackError::Api)?;
        let read = self.listening.read.as_ref().map(OwnedFd::try_clone).transpose();
        let read = read.map_err(TakeBackError::Api)?;
        let daemon = &self.rooms.plan.daemon;
        // They listen already: nobody's rights are asked for.
        let rights = Rights::own();
        let place = |path, socket| api::Place { path, rights: &rights, inherited: Some(socket) };
        let read = daemon.api_read.as_deref().map(Path::new).zip(read);
        let read = read.map(|(path, socket)| place(path, socket));
        let opened = api::open(place(Path::new(&daemon.api), api), read);
        let (entrance, calls) = opened.map_err(|(_, error)| TakeBackError::Api(error))?;
        self.rooms.poll.remove(self.calls.wake_fd());
        self.rooms.poll.add(calls.wake_fd(), Token::Calls).map_err(TakeBackError::Api)?;
        self.calls = calls;
        let is_ungiven = self.listening.is_ungiven;
        self.listening = entrance.listening().map_err(TakeBackError::Api)?;
        self.listening.is_ungiven = is_ungiven;
        self.listening.claim();
        Ok(entrance)
    }
}

/// Nobody takes over.
fn say_given_up(why: &UpgradeError, reply: Option<Reply>) {
    warn!("the upgrade is given up: {why}");
    if let Some(reply) = reply {
        reply.answer_logged(Err(refused(why)));
    }
}

#[cfg(test)]
impl Manager {
    /// Hands all over to a process that ends before it has committed.
    pub(crate) fn hand_over_in_vain(&mut self) {
        assert!(self.drain.freeze(), "all is out");
        let until = self.rooms.turn.tick() + std::time::Duration::from_secs(10);
        self.bring_all_home(nanos_of(until)).expect("all comes home");
        self.save_shards().expect("links are at rest");
        self.let_go_of_hosts();
        self.take_back(&ProbationError::Ended, Reach::Served);
    }

    /// Goes on with a link as another process does, of which its predecessor has `said` that.
    pub(crate) fn go_on_with_link(&mut self, id: &str, said: impl FnOnce(&mut Rooms, LinkEstate)) {
        assert!(self.drain.freeze(), "all is out");
        let until = self.rooms.turn.tick() + std::time::Duration::from_secs(10);
        self.bring_all_home(nanos_of(until)).expect("all comes home");
        let Rooms { remote, devices, .. } = &mut self.rooms;
        let of_it = |(_, link, ..): &(_, &str, _, &_)| *link == id;
        let (key, _, shard, link) = remote.home().find(of_it).expect("a link that is here");
        let (words, bytes) = remote.save_shard((key, shard, link), devices).expect("at rest");
        let socket = match link {
            sidecore::Link::Client(made) => made.socket(),
            sidecore::Link::Host(made) => made.socket(),
        };
        let sockets = vec![socket.handed().try_clone_to_owned().expect("a descriptor")];
        let parts = vec![InheritedShard { shard, words, bytes }];
        said(&mut self.rooms, LinkEstate { id: id.to_string(), sockets, parts });
        self.links(Remote::open_inherited_links);
        self.send_all_out();
    }
}

/// The heir's side.
impl Manager {
    /// Takes the front-ends of devices that another process serves.
    ///
    /// # Errors
    /// What cannot be served here.
    pub(crate) fn adopt(&mut self) -> Result<(), HeirError> {
        let Some(mut adopting) = self.rooms.adopting() else { return Ok(()) };
        adopting.refuse_if_taken_from_guest()?;
        adopting.adopt()
    }

    /// Hears the next of where all stands. Whether that is all, and rings are there.
    ///
    /// # Errors
    /// What makes no sense, or that the predecessor goes on.
    pub(crate) fn hear_rings(&mut self, heir: &mut Heir) -> Result<bool, HeirError> {
        let Some(mut adopting) = self.rooms.adopting() else { return Ok(true) };
        let is_all = heir.hear_rings(adopting.estate)?;
        if is_all {
            adopting.place_rings();
        }
        Ok(is_all)
    }

    /// Takes what uplinks have counted, and the queues of taps.
    ///
    /// # Errors
    /// Which tap, and why.
    pub(crate) fn inherit_uplinks(&mut self) -> Result<(), HostOpenError> {
        let Rooms { estate, network, turn, .. } = &mut self.rooms;
        let defects = &mut turn.defects;
        estate.as_mut().map_or(Ok(()), |estate| estate.pass_uplinks_on(network, defects))
    }

    /// Makes of all shards what links begin with.
    ///
    /// # Errors
    /// What makes no sense.
    pub(crate) fn inherit_links(&mut self) -> Result<(), ShardError> {
        let shards = self.rooms.estate.as_mut().map(|estate| std::mem::take(&mut estate.shards));
        for LinkEstate { id, sockets, parts } in links_of(shards.unwrap_or_default())? {
            let inherited = self.rooms.remote.inherit_link(&id, sockets, parts);
            inherited.map_err(|source| ShardError::Inherit { link: id, source })?;
        }
        Ok(())
    }

    /// Waits until the predecessor has let go, or has ended.
    ///
    /// # Errors
    /// The predecessor goes on.
    pub(crate) fn hear_leave(&mut self, heir: &mut Heir) -> Result<(), HeirError> {
        self.rooms.estate.as_mut().map_or(Ok(()), |estate| heir.hear_leave(estate))
    }

    /// The predecessor has let go: all begins, and it is told how long that took.
    pub(crate) fn take_over(&mut self, heir: Heir) {
        let left = self.rooms.turn.tick();
        self.rooms.network.take_over(left);
        self.rooms.state.note_holder(&self.rooms.plan.daemon.api);
        self.rooms.bounds.be_lenient(false);
        self.note_what_changed();
        self.links(Remote::open_inherited_links);
        self.send_all_out();
        let mode = self.mode();
        self.rooms.open_ports(mode);
        self.rooms.cores.flush();
        let moments = self.rooms.estate.as_mut().map(|estate| std::mem::take(&mut estate.moments));
        let moments = Moments { left_ns: machine_ns(left), ..moments.unwrap_or_default() };
        let is_measured = !moments.asked.is_empty() && self.catch_up();
        let pause = is_measured.then(|| moments.measured(&self.rooms.devices)).flatten();
        // Who has ended meanwhile has no operator who would ask.
        let _ = heir.say(&FromHeir::Serving { pause });
        self.be_watched(heir);
        self.hear_early();
        let estate = self.rooms.estate.take();
        let estate = found!(self.rooms.turn.defects, estate, "estate of a predecessor");
        if estate.devices.values().any(DeviceEstate::is_left) {
            // They are gone for good.
            self.commit();
        }
        for (id, device) in estate.devices.into_iter().filter(|(_, device)| device.is_left()) {
            info!(
                device = id,
                "the configuration has it no more, as another, or at a link: what is left of it goes"
            );
            device.remove_socket();
        }
        let connections = self.rooms.devices.iter();
        let all = connections
            .flat_map(|(number, device)| device.connections().keys().map(|id| (*number, *id)));
        for (number, id) in all.collect::<Vec<_>>() {
            self.front_ends().watch(number, id);
        }
    }

    /// Does what the predecessor knew of when it let go, and could not tell before.
    fn note_what_changed(&mut self) {
        let told = self.rooms.estate.as_mut().map(|estate| {
            estate.doomed.clear();
            (std::mem::take(&mut estate.gone), std::mem::take(&mut estate.sync_failed))
        });
        let (gone, sync_failed) = told.unwrap_or_default();
        for number in gone {
            let runner = self.rooms.devices.get(number).and_then(|device| device.runner());
            if let Some(id) = runner {
                self.front_ends().close(number, id, "it was gone when another process took over");
            }
        }
        self.rooms.devices.values_mut().for_each(has_stayed);
        self.rooms.shut.retry_all(self.rooms.turn.now());
        for id in &sync_failed {
            let Some(number) = self.rooms.devices.number_of(id) else { continue };
            self.rooms.devices.disk_mut(number).into_iter().for_each(DiskParts::assume_lost);
            self.rooms.note_unsynced(number);
        }
    }

    /// Hears handshakes of links. What another machine is told is known to no other process.
    pub(crate) fn hear_greeter(&mut self) {
        let words = self.links(Remote::take_words);
        if words.iter().any(|word| word.is_of_peer()) {
            self.commit();
        }
        self.links(|remote, around| remote.hear_words(words, around));
    }

    /// Does what front-ends have asked the predecessor for.
    fn hear_early(&mut self) {
        let early = |device: &Device| {
            let connections =
                device.connections().iter().filter(|(_, connection)| connection.frames.has_early());
            connections.map(|(id, _)| (device.number(), *id)).collect::<Vec<_>>()
        };
        let early: Vec<(u32, u32)> = self.rooms.devices.values().flat_map(early).collect();
        if !early.is_empty() {
            // What they say is known to no other process.
            self.commit();
        }
        for (number, id) in early {
            self.front_ends().serve(number, id, false);
        }
    }

    /// A size that the file has anew since, or names no more: then the image's own is what a start gives.
    fn resize_as_planned(&mut self) {
        let changed = |device: &Device| {
            let disk = device.disk()?;
            let own = disk.disk.image_bytes().filter(|own| *own > disk.disk.size_bytes());
            let wanted = disk.plan.source.size_bytes().or(own)?;
            (wanted != disk.disk.size_bytes()).then_some((device.number(), wanted))
        };
        let changed: Vec<(u32, u64)> = self.rooms.devices.values().filter_map(changed).collect();
        for (number, size) in changed {
            let disk = self.rooms.devices.disk_mut(number);
            if disk.is_some_and(|disk| disk.resize_late(Size(size))) {
                continue;
            }
            let undone = resizing::to_plan(number, Size(size), &mut self.rooms);
            undone.into_iter().for_each(|undone| self.reloading.note(undone));
        }
    }

    /// This process serves, and its predecessor, if it can, watches it for a while.
    fn be_watched(&mut self, heir: Heir) {
        let format = self.rooms.estate.as_ref().map_or(0, |estate| estate.format);
        if format < WITH_GUARD {
            return self.has_committed();
        }
        let probation = Probation::begin(heir, &self.rooms.poll, self.rooms.turn.tick());
        self.succession = Succession::OnProbation(probation);
    }

    /// Lets the predecessor go, or tells of an heir that has ended, if its time has come.
    pub(crate) fn succession_is_due(&mut self, now: Instant) {
        self.tell_how_heir_ended(now);
        if self.succession.probation().is_some_and(|probation| probation.due_at() <= now) {
            self.commit();
        }
    }

    /// Before that call is answered.
    pub(crate) fn commit_before(&mut self, call: &Call) {
        if call.change().is_some() {
            self.commit();
        }
    }

    /// Lets the predecessor go: from now on it could not take anything back.
    pub(crate) fn commit(&mut self) {
        // It is let go, or there was none.
        let Some(probation) = self.succession.take_probation() else { return };
        probation.end(&self.rooms.poll);
        self.has_committed();
    }

    /// Does what a predecessor could not have taken back.
    fn has_committed(&mut self) {
        (self.rooms.options.committed)();
        // Not before: it looks into folders of users, who may make whoever looks there wait.
        given::keep_all(&mut self.listening, &mut self.rooms);
        self.resize_as_planned();
        self.rooms.shut.retry_all(self.rooms.turn.now());
        // Rings that were not served, and images that were elsewhere.
        self.rooms.turn.touch_all(self.rooms.devices.keys().copied());
    }
}
