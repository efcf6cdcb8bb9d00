//! What an operator decides of a guest whose image is another one: that it goes on with it, or that its own is opened.

use backend::Astray;
use config::api::{Answer, ApiError, ErrorKind};
use config::{Change, Plan};
use tracing::info;

use crate::defects::found;
use crate::device::Device;
use crate::manager::Manager;
use crate::opening::not_open::NotOpen;

/// What the path of a disk names now.
enum Named {
    /// What is open, or it has no path.
    Open,
    /// Another image.
    Another,
    /// None.
    Nothing,
    /// Nobody knows.
    Unknown(NotOpen),
}

impl Manager {
    /// An operator has the guest of a disk go on with the image that is there.
    pub(crate) fn accept_image(&mut self, id: &str) -> Result<Answer, ApiError> {
        let number =
            self.rooms.devices.number_of(id).ok_or_else(|| match self.rooms.plan.disk(id) {
                Some(_) => {
                    let error = format!("disk {id:?} is not open");
                    ApiError::new(ErrorKind::Refused, error, "`sidecore show` says why")
                }
                None => self.rooms.plan.no_such_disk(id),
            })?;
        let parts = self.rooms.devices.disk(number).ok_or_else(|| ApiError::no_such_disk(id))?;
        if parts.bond.is_served() && !parts.was_empty {
            let error = format!("the guest of disk {id:?} is on the image that is there");
            return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to accept"));
        }
        self.may_accept(id, number)?;
        let parts =
            self.rooms.devices.disk_mut(number).ok_or_else(|| ApiError::no_such_disk(id))?;
        parts.was_empty = false;
        if let Some(image) = parts.bond.accept() {
            self.rooms.devices.keep_image(id, &image, &mut self.rooms.bonds, &self.rooms.plan);
            info!(disk = id, "accepted: its guest goes on with {image}");
        }
        self.links(|remote, around| remote.accept_remote(number, around));
        self.judge_again(number);
        self.settle();
        self.show(id, true)
    }

    /// An image that its path does not name is lost with the daemon.
    fn may_accept(&mut self, id: &str, number: u32) -> Result<(), ApiError> {
        let refused = |error, hint| Err(ApiError::new(ErrorKind::Refused, error, hint));
        match self.named(number) {
            Named::Open => Ok(()),
            Named::Another => refused(
                format!("what the path of disk {id:?} names now is not the image that is open"),
                "`sidecore reload` opens it; what was open may have no name any more, and be lost with the daemon",
            ),
            Named::Nothing => refused(
                format!(
                    "the path of disk {id:?} names nothing now: what is open may have no name any more"
                ),
                "put the image of its guest there, and `sidecore reload` opens it; what is open would be lost with \
                 the daemon",
            ),
            Named::Unknown(why @ NotOpen::Late(_)) => {
                let hint = "try again when its file system answers";
                Err(ApiError::new(ErrorKind::Busy, why.to_string(), hint))
            }
            Named::Unknown(why) => {
                refused(why.to_string(), "correct that first: the image could not be opened again")
            }
        }
    }

    /// The rings of a disk whose guest waits are judged once more.
    pub(crate) fn judge_again(&mut self, number: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose rings are judged again");
        for queue in &mut device.queues {
            queue.try_again();
        }
        self.rooms.turn.touch(number);
    }

    /// What the path of disk `number` names now.
    fn named(&mut self, number: u32) -> Named {
        let Some(parts) = self.rooms.devices.disk(number) else {
            self.rooms.turn.defects.note("disk whose path is looked at");
            return Named::Open;
        };
        let (plan, open) = (parts.plan.clone(), parts.file);
        if plan.source.path().is_none() || open.is_none() {
            return Named::Open;
        }
        match self.rooms.openers.check(&plan, &self.rooms.bonds) {
            Ok(lies) if lies.file() == open => Named::Open,
            Ok(lies) if lies.file().is_some() => Named::Another,
            Ok(_) => Named::Nothing,
            Err(why) => Named::Unknown(why),
        }
    }

    /// Disks whose guests wait for their image, or that nobody has, and whose paths name another one by now than is open:
    /// a reload opens them anew, which takes nothing from a guest.
    pub(crate) fn opened_anew(&mut self, wanted: &Plan) -> Vec<Change> {
        let waits = |device: &&Device| {
            let disk = device.kind.disk().filter(|_| !device.is_going());
            disk.is_some_and(|disk| disk.bond.refused().is_some())
        };
        let anew =
            self.rooms.devices.values().filter(|device| waits(device) || self.is_left(device));
        self.reopenings(anew.map(|device| device.number).collect(), wanted)
    }

    /// Whether nobody has a disk whose path names another image than is open.
    pub(crate) fn is_left(&self, device: &Device) -> bool {
        let disk =
            device.kind.disk().filter(|_| !device.is_going() && device.connections.is_empty());
        let is_astray = disk.is_some_and(|disk| disk.astray == Some(Astray::Replaced));
        is_astray && !self.rooms.remote.is_clients(device.number)
    }

    /// What opens those of `numbers` anew whose paths name another image.
    pub(crate) fn reopenings(&mut self, numbers: Vec<u32>, wanted: &Plan) -> Vec<Change> {
        let mut changes = Vec::new();
        for number in numbers {
            let device = self.rooms.devices.get(number);
            let id = found!(self.rooms.turn.defects, device, "disk to open anew").facts.id.clone();
            let Some(plan) = wanted.disk(&id).cloned() else { continue };
            // What cannot be looked at is told when it is opened.
            if let Named::Another = self.named(number) {
                changes.push(Change::Remove { id });
                changes.push(Change::Add(Box::new(plan)));
            }
        }
        changes
    }
}
