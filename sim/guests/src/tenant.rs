//! A guest with a disk or a NIC, its VMM, and what its disk may hold: all of it that a simulation sees.

use std::os::fd::OwnedFd;

use device::features as bit;
use ledger::{Ledger, Order};
use random::Random;
use virtqueue::Format;

use crate::copying::Copying;
use crate::front_end::FrontEnd;
pub use crate::front_end::Sent;
use crate::guest::{Guest, GuestSpec};
use crate::lan::Lan;
use crate::shapes::{disk_spec, nic_spec};
use crate::trace::Trace;

/// A guest, its VMM, and what its disk may hold.
#[derive(Debug)]
pub struct Tenant {
    guest: Guest,
    front_end: FrontEnd,
    ledger: Ledger,
    is_hostile: bool,
    /// Sectors of its disk, as its VMM has read last.
    told: u64,
    /// Its memory, while that is copied.
    copying: Option<Copying>,
}

impl Tenant {
    /// One who uses so many sectors of its disk at most, all empty, and so many queues. With `is_kept` its bytes are there after
    /// a power cut.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        number: u32,
        (sectors, queues): (u64, u16),
        is_kept: bool,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Tenant, String> {
        let mut spec = disk_spec(number, random);
        spec.queues = spec.queues.min(queues);
        if spec.queues == 1 {
            spec.features &= !bit::BLK_MQ;
        }
        let mut tenant = Tenant::of(spec, sectors, random, trace)?;
        if is_kept {
            tenant.ledger = Ledger::new(sectors, Order::default()).with_cuts();
        }
        let is_through = spec.features & bit::BLK_FLUSH == 0
            || spec.write_through && spec.features & bit::BLK_CONFIG_WCE != 0;
        tenant.ledger.set_write_through(is_through);
        Ok(tenant)
    }

    /// One with a NIC of one pair of queues, which is in that VLAN.
    ///
    /// # Errors
    /// No memory.
    pub fn with_nic(
        number: u32,
        vlan: u16,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Tenant, String> {
        let spec = GuestSpec { vlan: Some(vlan), ..nic_spec(number, random) };
        Tenant::of(spec, 1, random, trace)
    }

    /// Its memory is copied from now on, while it changes: its VMM has writes to it logged.
    ///
    /// # Errors
    /// No memory for that.
    pub fn begin_copying(&mut self) -> Result<(), String> {
        self.front_end.set_logging(true)?;
        let log = self.front_end.log.as_ref().ok_or("there is no log")?;
        self.copying = Some(Copying::begin(&mut self.guest, log)?);
        Ok(())
    }

    /// What has changed is copied.
    pub fn copy(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.copy(&mut self.guest);
        }
    }

    /// All rings have stopped: the copy is its memory. Then it goes on here, and nothing is logged any more; or it `moves`,
    /// with where its rings stand, and what was in flight here is none of the next daemon's business.
    ///
    /// # Errors
    /// It is not.
    pub fn end_copying(&mut self, moves: bool) -> Result<(), String> {
        self.copy();
        if let Some(copying) = self.copying.take() {
            copying.compare(&self.guest)?;
        }
        if moves {
            self.front_end.leave_record();
            self.front_end.end_logging();
            return Ok(());
        }
        self.front_end.set_logging(false)?;
        self.front_end.start();
        Ok(())
    }

    /// Neither the guest nor its VMM keep any rule from here on.
    pub fn be_hostile(&mut self) {
        self.is_hostile = true;
    }

    /// Whether they do not.
    pub fn is_hostile(&self) -> bool {
        self.is_hostile
    }

    /// Something that no VMM would say; its record of what is in flight may be forged first.
    pub fn babble(&mut self, random: &mut Random) -> Vec<u8> {
        self.front_end.forge(random);
        crate::hostile::babble(self.guest.spec.queues, random)
    }

    /// The oldest frame that was sent and not taken by the device, as far as the guest knows.
    pub fn oldest_frame(&self) -> Option<u64> {
        self.guest.oldest_frame()
    }

    /// Whether its driver must start anew when another process has served it that was killed: a packed ring without a
    /// record does not show where it stands.
    pub fn loses_its_place(&self) -> bool {
        !self.guest.spec.is_recorded && self.guest.spec.ring.format == Format::Packed
    }

    /// Whether it must after its connection was lost, too: of a split ring a NIC asks the ring itself, and for a disk its VMM
    /// says what it knew.
    pub fn must_begin_anew(&self) -> bool {
        self.loses_its_place() || !self.guest.spec.is_recorded && self.guest.spec.vlan.is_none()
    }

    /// Another guest begins, whose VMM keeps no record of what is in flight, which is one request of each queue.
    ///
    /// # Errors
    /// No memory.
    pub fn begin_unrecorded(&mut self, random: &mut Random, trace: &Trace) -> Result<(), String> {
        self.guest.spec.is_recorded = false;
        self.begin(random, trace)
    }

    fn of(
        spec: GuestSpec,
        sectors: u64,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Tenant, String> {
        let guest = Guest::new(spec, 0, Random::new(random.next(), 1), trace)?;
        let front_end = FrontEnd::new(&guest);
        let ledger = Ledger::new(sectors, Order::default());
        Ok(Tenant { guest, front_end, ledger, is_hostile: false, told: 0, copying: None })
    }

    /// The guest takes what it was called for, and asks for a little more unless it is quiet. True when it did
    /// something.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn act(
        &mut self,
        now_ns: u64,
        lan: Option<&mut Lan>,
        random: &mut Random,
    ) -> Result<bool, String> {
        match (self.guest.spec.vlan, lan) {
            _ if self.is_hostile => {
                crate::hostile::act(&mut self.guest, random);
                // Or it would keep time from going on.
                Ok(false)
            }
            (None, _) => self.guest.act(now_ns, &mut self.ledger),
            (Some(_), Some(lan)) => self.guest.act_on_lan(now_ns, lan),
            (Some(_), None) => Ok(false),
        }
    }

    /// Whether it asks for nothing new.
    pub fn set_quiet(&mut self, quiet: bool) {
        self.guest.quiet = quiet;
    }

    /// Whether an I/O error is no surprise.
    pub fn set_may_fail(&mut self, may_fail: bool) {
        self.guest.may_fail = may_fail;
    }

    /// Its disk has lost what no flush has covered, and its operator has said that it is to go on.
    pub fn give_up(&mut self) {
        self.ledger.give_up();
    }

    /// Whoever kept copies of what no flush has covered is gone: it is lost when the power fails where its disk is. After
    /// that it may be lost at once (`is_doubted`), with what it was told of since.
    pub fn lose_copies(&mut self, is_doubted: bool) {
        self.ledger.lose_copies();
        if is_doubted {
            self.ledger.doubt();
        }
    }

    /// The power has failed where its disk is: what no flush has covered is there or is not.
    pub fn doubt(&mut self) {
        self.ledger.doubt();
    }

    /// The power has failed, and its disk holds these bytes.
    ///
    /// # Errors
    /// It may not.
    pub fn cut(&mut self, image: &[u8]) -> Result<(), String> {
        if self.is_hostile {
            return Ok(());
        }
        let sector = |sector: u64| &image[sector as usize * 512..(sector as usize + 1) * 512];
        self.ledger.cut(sector).map_err(|e| e.to_string())
    }

    /// Its disk holds these bytes, with nothing under way.
    ///
    /// # Errors
    /// It may not.
    pub fn judge(&mut self, image: &[u8]) -> Result<(), String> {
        if self.is_hostile {
            return Ok(());
        }
        let reading = self.ledger.read(0, self.ledger.sectors());
        self.ledger.found(reading, image).map_err(|e| e.to_string())
    }

    /// Sectors that it uses at most, however large its disk is.
    pub fn sectors(&self) -> u64 {
        self.ledger.sectors()
    }

    /// Bytes of its disk, as its VMM was told last.
    pub fn told_bytes(&self) -> u64 {
        self.told * 512
    }

    /// Its disk has so many sectors, and has lost what lay behind them.
    pub fn lose_behind(&mut self, sectors: u64) {
        self.ledger.end_at(sectors);
    }

    /// Requests that it waits for.
    pub fn waiting(&self) -> usize {
        self.guest.waiting()
    }

    /// Requests that ended.
    pub fn ended(&self) -> u64 {
        self.guest.ended
    }

    /// Its queues.
    pub fn queues(&self) -> u16 {
        self.guest.spec.queues
    }

    /// The VMM has a new connection, and tells all that it knows.
    pub fn connect(&mut self) {
        self.front_end.connect();
    }

    /// The VMM has none any more.
    pub fn hang_up(&mut self) {
        self.front_end.hang_up();
        // The log was this connection's.
        self.front_end.end_logging();
        self.copying = None;
    }

    /// The VMM stops all rings.
    pub fn stop(&mut self) {
        self.front_end.stop();
    }

    /// The VMM starts them where they stopped.
    pub fn start(&mut self) {
        self.front_end.start();
    }

    /// The guest is another one on the same disk, all rings empty: its VMM is to tell so.
    ///
    /// # Errors
    /// No ring.
    pub fn restart(&mut self) -> Result<(), String> {
        self.guest.reset(&mut self.ledger)?;
        self.front_end.restart();
        Ok(())
    }

    /// Another guest begins, with memory of its own, and another VMM that has no connection. The disk is as it was.
    ///
    /// # Errors
    /// No memory.
    pub fn begin_anew(&mut self, random: &mut Random, trace: &Trace) -> Result<(), String> {
        self.guest.spec.is_recorded = self.guest.spec.vlan.is_none();
        self.begin(random, trace)
    }

    fn begin(&mut self, random: &mut Random, trace: &Trace) -> Result<(), String> {
        self.guest.forget(&mut self.ledger);
        let Guest { spec, ended, quiet, .. } = self.guest;
        let guest = Guest::new(spec, 0, Random::new(random.next(), 2), trace)?;
        self.guest = Guest { ended, quiet, ..guest };
        self.front_end = FrontEnd::new(&self.guest);
        Ok(())
    }

    /// Whether the VMM has said all, and was answered.
    pub fn has_said_all(&self) -> bool {
        self.front_end.is_done()
    }

    /// What the VMM says next, once what it said before was answered.
    pub fn say(&mut self) -> Option<Sent> {
        self.front_end.say(&self.guest)
    }

    /// The VMM is answered, with one whole message.
    ///
    /// # Errors
    /// It is no answer, or a refusal.
    pub fn hear(&mut self, bytes: &[u8], fd: Option<OwnedFd>) -> Result<(), String> {
        let heard = self.front_end.hear(bytes, fd);
        if let Some(sectors) = self.front_end.sectors.take() {
            self.told = sectors;
            self.guest.resize(sectors, self.ledger.sectors());
        }
        // What it babbled is answered, too.
        if self.is_hostile { Ok(()) } else { heard }
    }
}
