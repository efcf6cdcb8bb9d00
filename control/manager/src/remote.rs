//! Links of this daemon from control's side: their sockets and keys, and what their sidecores say of them.
//!
//! Each link has an end here, for the time of one event with what it reaches: a client's (`client`) uses disks and NICs of
//! other machines, an IOhost's (`host`) lends its own. Handshakes are in `greeter`. Not here: the protocol (`remote`), nor a
//! link's work (`backend::link`, `sidecore::link`). Called by `by_links`.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use backend::link::{LinkKey, LinkShards};
use config::api::{Answer, LinkList};
use config::plan::LinkPlan;
use control::mode::Mode;
use remote::iohost::HostEvent;
use sidecore::{FromClient, FromHost, Link, ToClient};
use tracing::info;

use crate::defects::{found, late};
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::opening::shut::ShutDevices;
use crate::poll::Token;
use crate::sidecores::Cores;

pub(crate) mod around;
pub(crate) mod availability;
mod by_device;
mod client;
mod clients;
mod disks;
pub(crate) mod error;
mod export;
mod features;
mod generations;
mod greeter;
pub(crate) mod handing;
mod host;
mod keys;
mod later;
mod ledger;
mod lends;
mod lent_nics;
mod link;
mod nics;
pub(crate) mod parts;
pub(crate) mod party;
mod ports;
mod serving;
pub(crate) mod sockets;
mod standings;
mod status;
mod strangers;
mod using;
mod waits;
pub(crate) mod words;

use around::Around;
use client::Client;
use error::{HandingError, InheritError, LinkError};
use export::Export;
use greeter::{Greeter, Word};
use handing::{Inherited, InheritedShard};
use host::Host;
pub use keys::read as read_key;
use later::Later;
pub(crate) use later::Said;
use ledger::Ledger;
use link::{End, OneLink};
use words::{KnownWords, ShardWords};

/// All links, and the thread that shakes hands for them.
pub(crate) struct Remote {
    /// By key.
    links: Vec<OneLink>,
    greeter: Option<Greeter>,
    ledger: Ledger,
    /// What shards have said, and is heard when an upgrade is over.
    later: Later,
    /// What each link of a predecessor begins with.
    inherited: BTreeMap<LinkKey, Inherited>,
}

/// A link's end, with what it reaches.
enum Side<'a, 'b> {
    Client(Client<'a, 'b>),
    Host(Host<'a, 'b>),
}

impl Remote {
    /// Without links.
    pub(crate) fn new(state_dir: &str) -> Remote {
        let ledger = Ledger::in_folder(state_dir);
        let (links, greeter) = (Vec::new(), None);
        Remote { links, greeter, ledger, later: Later::default(), inherited: BTreeMap::new() }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn link(&mut self, key: LinkKey) -> Option<&mut OneLink> {
        self.links.get_mut(usize::from(key.0))
    }

    fn key_of(&self, id: &str) -> Option<LinkKey> {
        self.links.iter().map(|link| &link.line).find(|line| line.id() == id).map(|line| line.key())
    }

    fn keys(&self) -> impl Iterator<Item = LinkKey> + use<> {
        (0..self.links.len()).map(|at| LinkKey(at as u16))
    }

    /// The end of a link.
    fn side<'s, 'b>(
        &'s mut self,
        key: LinkKey,
        around: &'s mut Around<'b>,
    ) -> Option<Side<'s, 'b>> {
        let defects = &mut around.turn.defects;
        let greeter = found!(defects, &self.greeter, "thread for handshakes of links");
        let link = self.links.get_mut(usize::from(key.0));
        let OneLink { line, end } = found!(defects, link, "link of that number");
        let ledger = &mut self.ledger;
        Some(match end {
            End::Client(using, ports) => {
                Side::Client(Client { line, using, ports, ledger, greeter, around })
            }
            End::Iohost(serving) => Side::Host(Host { line, serving, ledger, greeter, around }),
        })
    }

    /// A client's end.
    fn client<'s, 'b>(
        &'s mut self,
        key: LinkKey,
        around: &'s mut Around<'b>,
    ) -> Option<Client<'s, 'b>> {
        match self.side(key, around)? {
            Side::Client(client) => Some(client),
            Side::Host(host) => {
                host.around.turn.defects.note("client's end of that link");
                None
            }
        }
    }

    /// An IOhost's end.
    fn host<'s, 'b>(
        &'s mut self,
        key: LinkKey,
        around: &'s mut Around<'b>,
    ) -> Option<Host<'s, 'b>> {
        match self.side(key, around)? {
            Side::Host(host) => Some(host),
            Side::Client(client) => {
                client.around.turn.defects.note("IOhost's end of that link");
                None
            }
        }
    }

    /// Whether disks were given back to an IOhost that is there, and has not let go of them yet.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.links.iter().any(|link| matches!(&link.end, End::Client(it, _) if it.is_giving_back()))
    }

    /// Sessions of other machines that links of IOhosts have.
    pub(crate) fn sessions(&self) -> usize {
        self.links.iter().filter_map(OneLink::serving).map(|it| it.clients().len()).sum()
    }

    /// When a socket is tried again, or a device asked for.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.links.iter().filter_map(OneLink::due_at).min()
    }

    /// For operators.
    pub(crate) fn show(
        &self,
        devices: (&Devices, &ShutDevices),
        now: Instant,
        has_port: impl Fn(u32) -> bool,
    ) -> Answer {
        let links = self.links.iter().map(|link| link.view(devices, now, &has_port));
        Answer::Links(LinkList { links: links.collect() })
    }
}

/// Links that begin and end.
impl Remote {
    /// Takes the links of the plan in, with their keys; their sockets are opened then, or as soon as they can be.
    ///
    /// # Errors
    /// A key cannot be read, or no thread is left: an operator has to act first.
    pub(crate) fn begin_links(
        &mut self,
        plans: &[LinkPlan],
        around: &mut Around<'_>,
    ) -> Result<(), LinkError> {
        let mut parties = BTreeMap::new();
        for (at, plan) in plans.iter().enumerate() {
            let key = LinkKey(at as u16);
            let cores = around.cores.places_fixed(OneLink::shards_of(plan));
            cores.iter().for_each(|core| around.cores.take_load(*core, 1));
            let made = OneLink::new(key, plan, cores, around.turn.now());
            let wrong = |source| LinkError::Key { id: plan.id.clone(), source };
            let (link, party) = made.map_err(wrong)?;
            parties.insert(key, party);
            self.links.push(link);
        }
        if parties.is_empty() {
            return Ok(());
        }
        let greeter = Greeter::start(parties).map_err(LinkError::Thread)?;
        around.poll.add(&greeter, Token::Greeter).map_err(LinkError::Watch)?;
        self.greeter = Some(greeter);
        Ok(())
    }

    /// Opens what is not open and due, and asks for what is due.
    pub(crate) fn open_links(&mut self, around: &mut Around<'_>) {
        for key in self.keys() {
            match self.side(key, around) {
                Some(Side::Client(mut client)) => client.tell_of_silence(),
                Some(Side::Host(mut host)) => host.tell_of_twins(),
                None => {}
            }
        }
        let now = around.turn.now();
        for key in self.keys() {
            let link = found!(around.turn.defects, self.link(key), "link of that number");
            if link.line.is_due(now) {
                match link.line.open_sockets() {
                    Ok(opened) => self.link_is_open(key, opened, around),
                    Err(error) => link.line.shut(error.to_string(), now),
                }
            } else if let Some(Side::Client(mut client)) = self.side(key, around) {
                client.ask_again();
            }
        }
    }

    fn link_is_open(&mut self, key: LinkKey, opened: LinkShards, around: &mut Around<'_>) {
        self.later.forget(key);
        let link = found!(around.turn.defects, self.link(key), "link of that number");
        link.open(opened, around.turn, around.cores);
        let shards: Vec<usize> = link.line.cores().collect();
        info!(link = link.line.id(), sidecores = ?shards, sockets = ?link.line.sockets(), "open");
        match self.side(key, around) {
            Some(Side::Client(mut client)) => client.ask_again(),
            Some(Side::Host(mut host)) => {
                host.export_disks();
                host.export_nics();
            }
            None => {}
        }
    }

    /// A sidecore gave a link back, which it could not take.
    pub(crate) fn link_is_refused(&mut self, key: LinkKey, around: &mut Around<'_>) {
        let link = found!(around.turn.defects, self.link(key), "link of that number");
        link.line.is_refused(around.turn.now(), around.cores);
    }
}

/// What is heard of links.
impl Remote {
    /// What a client's link says, at that sidecore.
    pub(crate) fn hear_client(
        &mut self,
        core: usize,
        (key, said): (LinkKey, FromClient),
        around: &mut Around<'_>,
    ) {
        if self.shard_of(core, key).is_none() {
            return late("shard of a link");
        }
        if let Some(mut client) = self.client(key, around) {
            client.hear(said);
        }
    }

    /// What an IOhost's link says, at the shard of that sidecore.
    pub(crate) fn hear_host(
        &mut self,
        (core, key, said): Said,
        mode: Mode,
        around: &mut Around<'_>,
    ) {
        let said = match said {
            FromHost::Clients(event) if self.is_for_later((core, key), &event, mode) => {
                return self.later.keep((core, key), event, &mut around.turn.defects);
            }
            said => said,
        };
        // None: one that was refused, and was opened again with fewer.
        let Some(shard) = self.shard_of(core, key) else { return late("shard of a link") };
        if let Some(mut host) = self.host(key, around) {
            host.hear(shard, said);
        }
    }

    fn shard_of(&self, core: usize, key: LinkKey) -> Option<usize> {
        self.links.get(usize::from(key.0))?.line.shard_of(core)
    }

    /// What a client wants would begin what another process is told has ended, or what that one would wait for the end of.
    fn is_for_later(&self, at: (usize, LinkKey), event: &HostEvent, mode: Mode) -> bool {
        match event {
            HostEvent::Open { .. } => mode.heir_waits(),
            // One that is removed is gone for an heir.
            HostEvent::LetGo { export, .. } => {
                let link = self.links.get(usize::from(at.1.0));
                let export = link.and_then(|link| link.serving()?.export(*export));
                let is_removed = export.is_some_and(Export::is_removed);
                mode.is_frozen() || (mode.heir_waits() && !is_removed)
            }
            // No session goes over.
            HostEvent::SessionBegan { .. } | HostEvent::SessionEnded { .. } => {
                self.later.is_behind(at, event)
            }
        }
    }

    /// What the greeter has to say, to be heard now.
    pub(crate) fn take_words(&mut self, around: &mut Around<'_>) -> Vec<Word> {
        let Some(greeter) = &self.greeter else {
            around.turn.defects.note("thread for handshakes of links");
            return Vec::new();
        };
        greeter.hear();
        std::iter::from_fn(|| greeter.word()).collect()
    }

    /// Hears what the greeter said.
    pub(crate) fn hear_words(&mut self, words: Vec<Word>, around: &mut Around<'_>) {
        for word in words {
            match word {
                Word::Hello(key, hello) => {
                    let client = self.client(key, around);
                    client.into_iter().for_each(|mut it| it.tell(ToClient::Hello(hello.clone())));
                }
                Word::Client(key, peer, made) => {
                    if let Some(mut client) = self.client(key, around) {
                        client.establish(peer, made);
                    }
                }
                Word::Read(key, greeting, greeted) => {
                    if let Some(mut host) = self.host(key, around) {
                        host.assign_client(greeting, greeted);
                    }
                }
                Word::Refused(key, from, why) => {
                    if let Some(mut host) = self.host(key, around) {
                        host.hello_is_refused(from, why);
                    }
                }
                Word::NoParty(expected) => around.turn.defects.note(expected),
                Word::Iohost(key, greeting, made, answer) => {
                    if let Some(mut host) = self.host(key, around) {
                        host.hello_is_answered(greeting, made, answer);
                    }
                }
            }
        }
    }

    /// Has it known who is silent. To be asked before anybody is told.
    pub(crate) fn note_heard(&mut self, around: &mut Around<'_>) {
        for key in self.keys() {
            if let Some(Side::Client(mut client)) = self.side(key, around) {
                client.note_heard();
            }
        }
    }
}

/// Links on their way from one process to another.
impl Remote {
    /// What a predecessor has heard of disks is known here, before they are opened.
    pub(crate) fn know_as_before(
        &mut self,
        run: Option<u64>,
        known: &BTreeMap<String, Vec<KnownWords>>,
    ) {
        run.into_iter().for_each(|run| self.ledger.go_on_with(run));
        for link in &mut self.links {
            let words = known.get(link.line.id());
            if let (Some(words), Some(using)) = (words, link.using()) {
                words.iter().for_each(|words| using.know_as_before(words));
            }
        }
    }

    /// The run of the daemon that RAM disks are of.
    pub(crate) fn run(&self) -> u64 {
        self.ledger.run()
    }

    /// What IOhosts have told of disks, by link.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&str, Vec<KnownWords>)> {
        self.links.iter().filter_map(|link| match &link.end {
            End::Client(using, _) => Some((link.line.id(), using.known_words())),
            End::Iohost(_) => None,
        })
    }

    /// A disk that is being let go of, which another process could not go on with: its name.
    pub(crate) fn lets_go(&self) -> Option<&str> {
        self.links.iter().filter_map(OneLink::serving).find_map(|serving| serving.lets_go())
    }

    /// Asks sidecores for all links that they have.
    pub(crate) fn ask_for_links(&mut self, cores: &mut Cores) {
        self.links.iter_mut().for_each(|link| link.line.ask_for_shards(cores));
    }

    /// A sidecore gave a shard of a link back.
    pub(crate) fn link_is_home(
        &mut self,
        (core, key, link): (usize, LinkKey, Link),
        mode: Mode,
        around: &mut Around<'_>,
    ) {
        let its = found!(around.turn.defects, self.link(key), "link of that number");
        if !its.line.is_home(core, link) {
            return late("shard of a link");
        }
        if !mode.is_frozen() {
            // It was late for an upgrade that was given up.
            self.send_links_out(around.cores);
            // And so are the queues that go by it.
            let goes_by = |device: &&Device| {
                let remote = device.disk().and_then(|disk| disk.remote.as_ref());
                remote.is_some_and(|remote| remote.link() == key)
            };
            let late = around.devices.values().filter(goes_by).map(|device| device.number());
            around.turn.touch_all(late);
        }
    }

    /// Whether all shards that were asked for are here.
    pub(crate) fn are_home(&self) -> bool {
        self.links.iter().all(|link| link.line.are_home())
    }

    /// Whether no sidecore has a client's link, which was asked for.
    pub(crate) fn is_on_its_way(&self, key: LinkKey) -> bool {
        self.links.get(usize::from(key.0)).is_some_and(|link| link.line.is_away(0))
    }

    /// Gives sidecores the links that are here, as they are.
    pub(crate) fn send_links_out(&mut self, cores: &mut Cores) {
        self.links.iter_mut().for_each(|link| link.line.send_out(cores));
    }

    /// What links have said meanwhile, to be heard now.
    pub(crate) fn take_later(&mut self) -> Vec<Said> {
        self.later.take()
    }

    /// Takes what ended out of the rings of shards that are here.
    pub(crate) fn rest_shards(&mut self) {
        for link in self.links.iter_mut().flat_map(|link| link.line.home_mut()) {
            if let Link::Host(link) = link {
                link.come_to_rest();
            }
        }
    }

    /// The clients of shards that are here begin other sessions, with whoever has the address then.
    pub(crate) fn say_farewell(&mut self) {
        for link in self.links.iter_mut().flat_map(|link| link.line.home_mut()) {
            if let Link::Host(link) = link {
                link.farewell();
            }
        }
    }

    /// The shards that are here, with what their links are called.
    pub(crate) fn home(&self) -> impl Iterator<Item = (LinkKey, &str, usize, &Link)> {
        let lines = self.links.iter().map(|link| &link.line);
        lines.flat_map(|line| line.home().map(|(shard, link)| (line.key(), line.id(), shard, link)))
    }

    /// What is known of a shard, and the bytes behind that.
    ///
    /// # Errors
    /// It cannot go over now.
    pub(crate) fn save_shard(
        &self,
        (key, shard, made): (LinkKey, usize, &Link),
        devices: &Devices,
    ) -> Result<(ShardWords, Vec<u8>), HandingError> {
        let link = self.links.get(usize::from(key.0)).ok_or(HandingError::NoLink)?;
        link.save_shard(shard, made, devices)
    }

    /// Makes of a link's shards what it begins with. A link that this process has not is left out.
    ///
    /// # Errors
    /// What makes no sense.
    pub(crate) fn inherit_link(
        &mut self,
        id: &str,
        sockets: Vec<OwnedFd>,
        parts: Vec<InheritedShard>,
    ) -> Result<(), InheritError> {
        let Some(key) = self.key_of(id) else { return Ok(()) };
        let Some(link) = self.link(key) else { return Ok(()) };
        if let Some(inherited) = link.inherit(sockets, parts)? {
            self.inherited.insert(key, inherited);
        }
        Ok(())
    }

    /// Begins with what was inherited, now that nobody else has it; what was not is opened.
    pub(crate) fn open_inherited_links(&mut self, around: &mut Around<'_>) {
        for (key, Inherited { sockets, client, lent }) in std::mem::take(&mut self.inherited) {
            match client {
                Some(inherited) => {
                    if let Some(mut client) = self.client(key, around) {
                        client.go_on(inherited);
                    }
                }
                None => {
                    self.link_is_open(key, sockets, around);
                    if let Some(mut host) = self.host(key, around) {
                        host.go_on(lent);
                    }
                }
            }
        }
        self.open_links(around);
    }
}

#[cfg(test)]
mod tests;
