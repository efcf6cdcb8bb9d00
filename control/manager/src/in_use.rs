//! Which devices guests have: nothing is taken from a guest unawares.
//!
//! A guest has a device while a front-end says that it drives it, or while a client of a link has it. What takes such
//! a device away is refused unless its operator insists (`force`). Called by a reload and for operators.

use config::api::{ApiError, ErrorKind};
use control::reload::Guest;

use crate::devices::Devices;
use crate::devices::device::Device;
use crate::insist::INSIST;
use crate::remote::Remote;

/// Who has devices: front-ends here, and clients of links.
#[derive(Clone, Copy)]
pub(crate) struct InUse<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) remote: &'a Remote,
}

impl InUse<'_> {
    /// Whether a guest has the device of that name, here or at a client of a link.
    pub(crate) fn has_guest(&self, id: &str) -> bool {
        let number = self.devices.number_of(id);
        let device = number.and_then(|number| self.devices.get(number));
        device.is_some_and(Device::is_driven)
            || number.is_some_and(|number| self.remote.is_clients(number))
    }

    /// Whether the guest of a disk waits for its image, so that it loses nothing when the disk is opened anew.
    pub(crate) fn waits_for_its_image(&self, id: &str) -> bool {
        let disk = self.devices.number_of(id).and_then(|number| self.devices.disk(number));
        disk.is_some_and(|disk| disk.bond.refused().is_some())
    }

    /// Who has the device of that name.
    pub(crate) fn guest(&self, id: &str) -> Guest {
        match (self.has_guest(id), self.waits_for_its_image(id)) {
            (false, _) => Guest::Nobody,
            (true, true) => Guest::Waits,
            (true, false) => Guest::Uses,
        }
    }

    /// Refuses to take a device from its guest, unless the operator insists.
    pub(crate) fn check_unused(&self, what: &str, id: &str, force: bool) -> Result<(), ApiError> {
        if force || !self.has_guest(id) {
            return Ok(());
        }
        let error = format!("a guest uses {what} {id:?}");
        let hint = format!(
            "stop that guest or take the device from it first; {INSIST} removes it under the guest"
        );
        Err(ApiError::new(ErrorKind::Conflict, error, hint))
    }
}
