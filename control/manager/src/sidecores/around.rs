//! Devices and the sidecores that have their queues: what those reach who move and plug in.

use crate::devices::Devices;
use crate::sidecores::Cores;
use crate::turn::Turn;

/// They, in one turn.
pub(crate) struct Around<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) cores: &'a mut Cores,
}
