//! Devices that come and go while a guest runs, in the PCIe ports of [`super::Boot::slots`].

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::Vm;

/// QEMU's refusal of a chardev whose device its RCU thread has not freed yet.
const BUSY: &str = "is busy";

impl Vm {
    /// Plugs a disk of that socket into a port; the device is `id`. `properties` are those of
    /// vhost-user-blk-pci; without `num-queues` it has one queue.
    ///
    /// # Errors
    /// QEMU refuses it.
    pub fn plug_disk(
        &self,
        id: &str,
        socket: &Path,
        slot: usize,
        properties: serde_json::Value,
    ) -> Result<()> {
        let chardev = format!("c-{id}");
        self.add_chardev(&chardev, socket)?;
        let mut device = json!({
            "driver": "vhost-user-blk-pci", "id": id, "chardev": chardev, "bus": format!("slot{slot}"), "num-queues": 1,
        });
        if let (Some(device), Some(more)) = (device.as_object_mut(), properties.as_object()) {
            device.extend(more.clone());
        }
        self.qmp("device_add", &device).map(drop)
    }

    fn add_chardev(&self, chardev: &str, socket: &Path) -> Result<()> {
        let address = json!({ "type": "unix", "data": { "path": socket } });
        let data = json!({ "addr": address, "server": false, "reconnect": 1 });
        let arguments = json!({ "id": chardev, "backend": { "type": "socket", "data": data } });
        self.qmp("chardev-add", &arguments).map(drop)
    }

    /// Pulls a plugged disk out, and waits until the guest has let go of it.
    ///
    /// # Errors
    /// QEMU refuses it, or the guest does not let go in 90 s.
    pub fn unplug(&self, id: &str) -> Result<()> {
        let mut monitor = self.monitor()?;
        monitor.forget();
        monitor.ask("device_del", &json!({ "id": id }))?;
        monitor.await_event("DEVICE_DELETED", |data| data["device"] == id)?;
        let chardev = json!({ "id": format!("c-{id}") });
        monitor.ask_until("chardev-remove", &chardev, BUSY).map(drop)
    }
}
