//! The IOhost's end of a link, for one event: which client is at which of its shards, and who hears of what.
//!
//! Not here: disks (`lends`) and NICs (`lent_nics`) for other machines. Called by `remote`.

use std::time::{Duration, Instant};

use backend::link::Address;
use config::plan::{LinkClientPlan, LinkPlan};
use remote::handshake::{Established, Greeted, PublicKey};
use remote::iohost::{HostEvent, shard_of};
use schedule::Use;
use sidecore::{FromHost, Greeting, ToHost};
use tracing::{info, warn};

use super::around::Around;
use super::clients::{Place, who};
use super::export::Export;
use super::greeter::{Greeter, Task};
use super::ledger::Ledger;
use super::link::Line;
use super::serving::Serving;
use super::strangers::Reason;
use crate::defects::{found, late};

/// An IOhost's link, with what it reaches.
pub(super) struct Host<'a, 'b> {
    pub(super) line: &'a mut Line,
    pub(super) serving: &'a mut Serving,
    pub(super) ledger: &'a mut Ledger,
    pub(super) greeter: &'a Greeter,
    pub(super) around: &'a mut Around<'b>,
}

impl Host<'_, '_> {
    /// Says something to one shard, if it is open.
    pub(super) fn tell_shard(&mut self, shard: usize, told: ToHost) {
        self.line.tell_shard(shard, told, self.around.turn, self.around.cores);
    }

    /// Says something to all shards but one.
    pub(super) fn tell_shards(&mut self, but: Option<usize>, told: impl Fn() -> ToHost) {
        self.line.tell_shards(but, told, self.around.turn, self.around.cores);
    }

    /// Whether a line about it may be written: peers can cause many.
    pub(super) fn may_log(&mut self) -> bool {
        self.line.may_log(self.around.turn.now())
    }

    /// What a shard says.
    pub(super) fn hear(&mut self, shard: usize, said: FromHost) {
        match said {
            FromHost::Hello(greeting) => {
                self.greeter.ask(Task::Greet(self.line.key(), greeting));
            }
            FromHost::Unreadable(from) => self.hello_is_refused(from, Reason::Unreadable),
            FromHost::Spent(memory) => drop(memory),
            FromHost::Reserved { before, greeting } => self.hello_is_assigned(before, greeting),
            FromHost::PulledOut { export, nic } => self.is_pulled_out(export, nic),
            FromHost::Clients(event) => self.hear_clients(shard, event),
        }
    }

    /// What a shard says of its clients.
    fn hear_clients(&mut self, shard: usize, event: HostEvent) {
        match event {
            HostEvent::Open { export, slots, slot_bytes, session, generation, is_new } => {
                let (wanted, size) = ((generation, is_new), (slots, slot_bytes));
                let bytes = usize::from(slots) * slot_bytes as usize;
                match self.serving.judge(export, (shard, session), bytes) {
                    Err(told) => self.tell_shard(shard, told),
                    Ok(before) if self.is_nic(export) => {
                        self.lend_nic(shard, (export, generation), size, before);
                    }
                    Ok(before) => self.lend_disk(shard, export, wanted, size, before),
                }
            }
            HostEvent::LetGo { export, .. } if self.is_nic(export) => self.let_go_of_nic(export),
            HostEvent::LetGo { export, is_released } => self.let_go_of(export, is_released),
            HostEvent::SessionBegan { session, client } => self.note_client(session, Some(client)),
            HostEvent::SessionEnded { session } => self.note_client(session, None),
        }
    }

    fn is_nic(&self, export: u16) -> bool {
        self.serving.export(export).is_some_and(|one| one.nic().is_some())
    }

    /// A device is open at a shard: the others hear of that.
    pub(super) fn is_at(&mut self, shard: usize, (export, generation): (u16, u64)) {
        let one = self.serving.export_mut(export);
        found!(self.around.turn.defects, one, "export of that number").raise(generation);
        let told = || ToHost::Elsewhere { export, generation, is_answer: false };
        self.tell_shards(Some(shard), told);
    }

    /// A device was let go of: its shard, and then the others, hear of that.
    pub(super) fn is_nowhere(&mut self, export: u16, is_synced: bool) {
        let defects = &mut self.around.turn.defects;
        let one = found!(defects, self.serving.export_mut(export), "export of that number");
        let shard = found!(defects, one.is_nowhere(), "shard where a device is let go of");
        self.tell_shard(shard, ToHost::LetGo { export, is_synced });
        self.tell_shards(Some(shard), || ToHost::ComesFree { export });
    }
}

/// Clients that come and go.
impl Host<'_, '_> {
    /// A client has a session, or has it no more.
    fn note_client(&mut self, session: u32, came: Option<PublicKey>) {
        let mut all = self.line.plan().clients().iter();
        let client = came.map(|key| {
            let found = all.find(|client| client.key.is_none_or(|known| known == key));
            found.map(|client| client.name.clone()).unwrap_or_default()
        });
        self.serving.note_session(session, client.as_deref(), self.times());
        if self.may_log() {
            let link = self.line.id();
            match client {
                Some(client) => info!(link, session, client, "a session began"),
                None => info!(link, session, "a session ended"),
            }
        }
    }

    /// A hello was read: its client has a shard, or gets one, and that has a number for the session.
    pub(super) fn assign_client(&mut self, greeting: Greeting, greeted: Box<Greeted>) {
        let sidecores = &self.around.cores;
        let place = |core: usize| Place {
            is_parked: sidecores.state(core) == Use::Parked,
            load: sidecores.load(core),
        };
        let places: Vec<Place> = self.line.cores().map(place).collect();
        let client = *greeted.peer();
        let who = who(client, greeting.from);
        let shard = match self.serving.assign(who, &places, self.times()) {
            Ok(shard) => shard,
            Err(why) => {
                self.serving.strangers.count(Reason::Crowded);
                return self.note_refused(greeting.from, (Reason::Crowded, Some(why.to_string())));
            }
        };
        let core = self.line.core(shard);
        let core = found!(self.around.turn.defects, core, "sidecore of a shard");
        self.around.cores.wake(core);
        if shard == shard_of(greeting.number) {
            return self.greeter.ask(Task::Answer(self.line.key(), greeting, greeted));
        }
        self.serving.assigned.keep(greeting.number, greeted);
        self.tell_shard(shard, ToHost::Reserve { greeting, client });
    }

    /// A shard has a number for a hello that another one has heard.
    fn hello_is_assigned(&mut self, before: u32, greeting: Greeting) {
        // Others were read since, and there is no room for all.
        let Some(greeted) = self.serving.assigned.take(before) else { return late("hello") };
        self.greeter.ask(Task::Answer(self.line.key(), greeting, greeted));
    }

    /// A hello has an answer, which its shard is to send.
    pub(super) fn hello_is_answered(
        &mut self,
        greeting: Greeting,
        made: Box<Established>,
        answer: Vec<u8>,
    ) {
        let number = greeting.number;
        let from = greeting.from;
        self.serving.assigned.answered(who(made.peer, from), number, from);
        self.tell_shard(shard_of(number), ToHost::Answer { greeting, made, answer });
    }

    /// A hello was refused.
    pub(super) fn hello_is_refused(&mut self, from: Address, reason: Reason) {
        self.note_refused(from, (reason, None));
    }

    fn note_refused(&mut self, from: Address, why: (Reason, Option<String>)) {
        let told = self.serving.strangers.note(from, why, self.around.turn.now());
        if let Some(told) = told {
            warn!(link = self.line.id(), "{told}");
        }
    }

    /// Says in the log which clients are two machines, when it is time to look.
    pub(super) fn tell_of_twins(&mut self) {
        let times = self.times();
        if self.serving.takes_look(times.0) {
            for told in self.serving.twins(times) {
                warn!(link = self.line.id(), "{told}");
            }
        }
    }

    fn times(&self) -> (Instant, Duration) {
        (self.around.turn.now(), self.line.patience())
    }
}

/// A reload gives a link other clients, or some of them other disks and NICs, while all others go on. What no client may
/// have any more is taken from who has it: drained, made stable, let go, and only then removed or opened anew.
impl Host<'_, '_> {
    /// No client may have it any more. Whether one has it.
    pub(super) fn remove(&mut self, export: u16) -> bool {
        let one = self.serving.export_mut(export);
        let is_had = found!(self.around.turn.defects, one, "export of that number").remove();
        self.tell_shards(None, || ToHost::Remove { export });
        is_had
    }

    /// Its plan has other clients.
    pub(super) fn set_clients(&mut self, plan: LinkPlan) {
        let keys: Vec<PublicKey> = plan.clients().iter().filter_map(|client| client.key).collect();
        self.greeter.tell(Task::Clients(self.line.key(), keys));
        self.serving.strangers.forget();
        let exports = (0..).zip(self.serving.exports()).filter(|(_, one)| !one.is_removed());
        let its = |one: &Export| -> Vec<LinkClientPlan> {
            let may_have = |client: &&LinkClientPlan| match one.nic() {
                Some(nic) => client.nics.iter().any(|name| name == nic),
                None => client.disks.iter().any(|name| name == one.name()),
            };
            plan.clients().iter().filter(may_have).cloned().collect()
        };
        let exports: Vec<(u16, Vec<LinkClientPlan>)> =
            exports.map(|(number, one)| (number, its(one))).collect();
        self.line.set_plan(plan);
        for (export, its) in exports {
            // Nobody named would be everybody.
            if its.is_empty() {
                self.remove(export);
                continue;
            }
            let clients: Vec<PublicKey> = its.iter().filter_map(|client| client.key).collect();
            let told = || ToHost::SetClients { export, clients: clients.clone() };
            self.tell_shards(None, told);
        }
        self.export_nics();
    }
}
