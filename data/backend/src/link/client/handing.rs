//! A client's link that goes over to another process: its disks, without its session.
//!
//! NICs do not go: the other process asks for them anew, and what is under way of them is lost, as on any wire. Not what
//! an attachment is made of (`remote::client`). Called by control, which has the link while no sidecore does.

use remote::client::{AttachSpec, Client, ClientSpec, Over, Standing};
use remote::saved::{BadSaved, Reader, Writer};
use remote::wire::Verifier;

use super::{Address, AttachedDisk, ClientLink, LinkSocket, State};

/// Of what [`ClientLink::save`] makes.
const VERSION: u16 = 1;
/// How a disk goes over: had or asked for; to be asked for in the next session; over for good.
const HAD: u8 = 0;
const ASKED_FOR: u8 = 1;
const OVER: u8 = 2;
/// How often an IOhost is told that a session is over: one frame may be lost.
const FAREWELLS: u32 = 3;

impl ClientLink {
    /// What another process is to know of it, all its queues being elsewhere. `None`: something is under way all the
    /// same, of a guest that is gone or of a machine that has lost writes; it ends by itself.
    pub fn save(&self) -> Option<Vec<u8>> {
        if self.in_flight > 0 || !self.ready.is_empty() {
            return None;
        }
        let mut bytes = Vec::new();
        let mut out = Writer(&mut bytes);
        out.u16(VERSION);
        self.client.save(&mut out);
        out.u16(self.greeting.target() as u16);
        let disks =
            (0..).zip(&self.disks).filter_map(|(disk, attached)| Some((disk, attached.as_ref()?)));
        let goes = |(disk, attached): &(u16, &AttachedDisk)| {
            !self.nics.has(*disk)
                && matches!(attached.state, State::Wanted | State::Silent | State::Over)
        };
        let goes: Vec<(u16, &AttachedDisk)> = disks.filter(goes).collect();
        out.u16(goes.len() as u16);
        for (disk, attached) in goes {
            let had = attached.attachment.filter(|_| attached.state == State::Wanted);
            out.u16(disk);
            out.u8(match (had, attached.state) {
                (Some(_), _) => HAD,
                (None, State::Over) => OVER,
                (None, _) => ASKED_FOR,
            });
            save_disk(&mut out, attached);
            let is_saved = had.is_none_or(|one| self.client.save_attachment(one, &mut out));
            if !attached.is_idle() || !is_saved {
                return None;
            }
        }
        Some(bytes)
    }

    /// One that goes on with what [`ClientLink::save`] has made, by the same numbers of disks. Their requests wait until
    /// it has a session.
    ///
    /// # Errors
    /// It is nothing of the kind.
    pub fn take_over(
        socket: LinkSocket,
        iohosts: Vec<Address>,
        spec: ClientSpec,
        saved: &[u8],
    ) -> Result<ClientLink, BadSaved> {
        let mut saved = Reader(saved);
        if saved.u16()? != VERSION {
            return Err(BadSaved::Field);
        }
        let mut link = ClientLink::new(socket, iohosts, spec);
        link.client = Client::take_over(spec, &mut saved)?;
        link.greeting.begin_with(saved.u16()?.into());
        for _ in 0..saved.u16()? {
            let (disk, how) = (saved.u16()?, saved.u8()?);
            if disk >= remote::ATTACHMENTS_MAX || link.has(disk) {
                return Err(BadSaved::Field);
            }
            let (spec, standing) = take_disk(&mut saved)?;
            let mut attached = match how {
                HAD => AttachedDisk::new(spec, State::Wanted),
                ASKED_FOR => AttachedDisk::new(spec, State::Silent),
                OVER => AttachedDisk::new(spec, State::Over),
                _ => return Err(BadSaved::Field),
            };
            attached.standing = standing;
            attached.is_over = how != HAD;
            if how == HAD {
                attached.attachment = Some(link.client.take_over_attachment(&mut saved)?);
            }
            let at = usize::from(disk);
            if link.disks.len() <= at {
                link.disks.resize_with(at + 1, || None);
            }
            link.ready.reserve(usize::from(spec.slots));
            if let Some(place) = link.disks.get_mut(at) {
                *place = Some(attached);
            }
        }
        saved.end()?;
        Ok(link)
    }

    /// The numbers of its disks.
    pub fn disks(&self) -> impl Iterator<Item = u16> {
        (0..).zip(&self.disks).filter(|(_, attached)| attached.is_some()).map(|(disk, _)| disk)
    }

    /// The device that a disk of that number is at its IOhost.
    pub fn device(&self, disk: u16) -> Option<u64> {
        Some(self.disks.get(usize::from(disk))?.as_ref()?.spec.device)
    }

    /// Why requests of a disk of that number fail, if they do: until an IOhost is heard ([`Over::Silent`]), or for good,
    /// which of a disk that was taken over is all that is known ([`Over::Released`]).
    pub fn over(&self, disk: u16) -> Option<Over> {
        match self.disks.get(usize::from(disk))?.as_ref()?.state {
            State::Silent => Some(Over::Silent),
            State::Over => Some(Over::Released),
            State::Wanted | State::Looked | State::Leaving => None,
        }
    }

    /// Tells its IOhost that its session is over, if it has one, so that nobody there waits for the end of its lease.
    pub fn farewell(&mut self) {
        let Some(peer) = self.greeting.peer() else { return };
        for _ in 0..FAREWELLS {
            let client = &mut self.client;
            self.socket.send(|place| client.farewell(place).map(|len| (len, peer)));
        }
        self.socket.flush();
    }
}

fn save_disk(out: &mut Writer<'_>, attached: &AttachedDisk) {
    let AttachSpec { device, slots, slot_bytes, keep_bytes } = attached.spec;
    out.u64(device);
    out.u16(slots);
    out.u32(slot_bytes);
    out.u32(keep_bytes);
    out.flag(attached.standing.is_some());
    let none = Standing { verifier: None, is_unflushed: false, is_lost: false, image: 0 };
    // Which image its guest is on is told by whoever takes it over: it outlives both processes.
    let Standing { verifier, is_unflushed, is_lost, image: _ } = attached.standing.unwrap_or(none);
    let Verifier { boot, contents } = verifier.unwrap_or_default();
    out.flag(verifier.is_some());
    out.u64(boot);
    out.u64(contents);
    out.flag(is_unflushed);
    out.flag(is_lost);
}

fn take_disk(saved: &mut Reader<'_>) -> Result<(AttachSpec, Option<Standing>), BadSaved> {
    let (device, slots, slot_bytes, keep_bytes) =
        (saved.u64()?, saved.u16()?, saved.u32()?, saved.u32()?);
    if !(1..=remote::SLOTS_MAX).contains(&slots) {
        return Err(BadSaved::Field);
    }
    let is_some = saved.flag()?;
    let is_known = saved.flag()?;
    let verifier = Verifier { boot: saved.u64()?, contents: saved.u64()? };
    let verifier = is_known.then_some(verifier);
    let (is_unflushed, is_lost, image) = (saved.flag()?, saved.flag()?, 0);
    let standing = Standing { verifier, is_unflushed, is_lost, image };
    let spec = AttachSpec { device, slots, slot_bytes, keep_bytes };
    Ok((spec, is_some.then_some(standing)))
}
