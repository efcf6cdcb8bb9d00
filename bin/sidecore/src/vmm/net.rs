//! What gives a NIC to a guest.

use config::Size;
use config::api::NicView;
use config::spec::{MTU_DEFAULT, Mode, Redirect};

use super::{
    Paste, Vmm, check_path, libvirt_memory, other_user, qemu_memory, qemu_notes, qemu_socket,
    quote, unsealed, xml,
};
use crate::failure::Failure;

/// Entries of a NIC's rings to ask for: the most that QEMU has, where nothing is said 256. What comes in a
/// burst, of which a long frame alone may take 45, then finds buffers.
const NIC_RING: u16 = 1024;

/// What gives that NIC to a guest with so much memory, on a machine where guests have KVM or have not.
pub(crate) fn paste(
    vmm: Vmm,
    nic: &NicView,
    memory: Size,
    has_kvm: bool,
) -> Result<Paste, Failure> {
    match vmm {
        Vmm::Qemu => Ok(qemu(nic, memory, has_kvm)),
        Vmm::Libvirt => Ok(libvirt(nic, memory)),
        Vmm::CloudHypervisor => cloud_hypervisor(nic, memory),
    }
}

fn qemu(nic: &NicView, memory: Size, has_kvm: bool) -> Paste {
    let id = format!("sidecore-{}", nic.id);
    let mut queues = String::new();
    // QEMU serves CTRL_GUEST_OFFLOADS itself and tells no back-end: a guest that uses it, as for XDP,
    // would be given frames that it no longer takes.
    let mut device = format!(
        ",mac={},rx_queue_size={NIC_RING},tx_queue_size={NIC_RING},ctrl_guest_offloads=off",
        nic.mac
    );
    if nic.queue_pairs_max > 1 {
        queues = format!(",queues={}", nic.queue_pairs_max);
        device += ",mq=on";
    }
    match has_kvm {
        false => device += ",vectors=0",
        // One vector for each queue, one for the configuration, one for the control queue.
        true if nic.queue_pairs_max > 1 => {
            device += &format!(",vectors={}", 2 * nic.queue_pairs_max + 2)
        }
        true => {}
    }
    if nic.mtu != MTU_DEFAULT {
        device += &format!(",host_mtu={}", nic.mtu);
    }
    let mut lines = qemu_memory(memory.0.div_ceil(1 << 20));
    lines.push(qemu_socket(&id, nic.access.path(), nic.access.mode));
    lines.push(format!("-netdev vhost-user,id={id},chardev={id}{queues}"));
    lines.push(format!("-device virtio-net-pci,netdev={id}{device}"));
    let once = "a guest needs the first three lines once; each further nic adds the last three";
    let mut notes = qemu_notes(once, nic.access.mode);
    if !has_kvm {
        notes.push(
            "there is no KVM here, and QEMU 7.2 without it crashes when a guest masks an interrupt of \
             this NIC: hence `vectors=0`; with KVM take it out"
                .to_string(),
        );
    }
    if nic.guest_offloads {
        notes.push(
            "its guest cannot attach XDP (`ctrl_guest_offloads=off` makes Linux say so); for that, \
             make the NIC with --guest-offloads false (in the file: guest_offloads = false)"
                .to_string(),
        );
    }
    if nic.run_state.as_ref().is_some_and(|state| state.redirect != Redirect::Off) {
        let named = format!("`-name {},debug-threads=on`", nic.id);
        notes.push(format!(
            "`redirect` needs to know its vCPUs, which QEMU names with {named} (any name)"
        ));
    }
    Paste { text: lines.join(" \\\n") + "\n", notes }
}

fn libvirt(nic: &NicView, memory: Size) -> Paste {
    let (role, end) = match nic.access.mode {
        Mode::Listen => {
            ("client", ">\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n".to_string())
        }
        Mode::Connect => ("server", "/>\n".to_string()),
    };
    let mut text = format!(
        "{}<!-- below <devices> -->\n\
         <interface type='vhostuser'>\n  \
           <mac address='{}'/>\n  \
           <source type='unix' path='{}' mode='{role}'{end}  \
           <model type='virtio'/>\n",
        libvirt_memory(memory),
        nic.mac,
        xml(nic.access.path()),
    );
    if nic.mtu != MTU_DEFAULT {
        text += &format!("  <mtu size='{}'/>\n", nic.mtu);
    }
    let queues = match nic.queue_pairs_max {
        1 => String::new(),
        pairs => format!(" queues='{pairs}'"),
    };
    text += &format!(
        "  <driver{queues} rx_queue_size='{NIC_RING}' tx_queue_size='{NIC_RING}'/>\n</interface>\n"
    );
    let mut notes = vec![other_user(("nic", &nic.id), &nic.declared, &nic.access.rights())];
    if nic.guest_offloads {
        notes.push(
            "a guest that attaches XDP loses TCP, for libvirt cannot switch QEMU's \
             `ctrl_guest_offloads` off; for such a guest make the NIC with --guest-offloads false (in \
             the file: guest_offloads = false)"
                .to_string(),
        );
    }
    Paste { text, notes }
}

fn cloud_hypervisor(nic: &NicView, memory: Size) -> Result<Paste, Failure> {
    check_path(nic.access.path(), "nic")?;
    let mib = memory.0.div_ceil(1 << 20);
    let pairs = nic.queue_pairs_max;
    // It counts rings, not pairs.
    let mut value = format!(
        "vhost_user=true,socket={},mac={},num_queues={},queue_size={NIC_RING}",
        nic.access.path(),
        nic.mac,
        2 * pairs
    );
    if nic.access.mode == Mode::Connect {
        value += ",vhost_mode=server";
    }
    if nic.mtu != MTU_DEFAULT {
        value += &format!(",mtu={}", nic.mtu);
    }
    let text = format!("--memory size={mib}M,shared=on \\\n--net {}\n", quote(&value));
    let mut notes = Vec::new();
    if pairs > 1 {
        notes.push(format!("the guest needs at least {pairs} vCPUs (--cpus boot={pairs})"));
    }
    notes.extend(unsealed(nic.allow_unsealed_memory, "nic"));
    Ok(Paste { text, notes })
}

#[cfg(test)]
mod tests {
    use config::api::AccessView;

    use super::*;

    fn nic() -> NicView {
        serde_json::from_value(serde_json::json!({
            "id": "vm1-net", "declared": "api", "state": "waiting", "link": "up",
            "mac": "52:54:00:12:34:56", "switch": "lan", "macs_max": 1024, "mtu": 1500,
            "socket": "/run/s/vm1-net.sock", "mode": "listen", "queue_pairs_max": 1,
            "queues_attached": 0, "share": 100, "policy": "adaptive",
            "allow_unsealed_memory": false, "counters": config::api::PortCountersView::default(),
        }))
        .unwrap()
    }

    fn text(vmm: Vmm, nic: &NicView) -> String {
        paste(vmm, nic, Size(1 << 30), true).map(|paste| paste.text).unwrap()
    }

    fn at(socket: &str) -> NicView {
        NicView { access: AccessView { socket: Some(socket.to_string()), ..nic().access }, ..nic() }
    }

    fn large() -> NicView {
        let access = AccessView { mode: Mode::Connect, ..nic().access };
        NicView { queue_pairs_max: 4, mtu: 9000, access, ..nic() }
    }

    #[test]
    fn qemu_gets_its_arguments() {
        assert_eq!(
            text(Vmm::Qemu, &nic()),
            "-m 1024M \\\n\
             -object memory-backend-memfd,id=sidecore-memory,size=1024M,share=on \\\n\
             -machine memory-backend=sidecore-memory \\\n\
             -chardev socket,id=sidecore-vm1-net,path=/run/s/vm1-net.sock,reconnect=1 \\\n\
             -netdev vhost-user,id=sidecore-vm1-net,chardev=sidecore-vm1-net \\\n\
             -device virtio-net-pci,netdev=sidecore-vm1-net,mac=52:54:00:12:34:56,\
             rx_queue_size=1024,tx_queue_size=1024,ctrl_guest_offloads=off\n"
        );
        assert!(text(Vmm::Qemu, &large()).ends_with(
            "path=/run/s/vm1-net.sock,server=on \\\n\
                 -netdev vhost-user,id=sidecore-vm1-net,chardev=sidecore-vm1-net,queues=4 \\\n\
                 -device virtio-net-pci,netdev=sidecore-vm1-net,mac=52:54:00:12:34:56,\
                 rx_queue_size=1024,tx_queue_size=1024,ctrl_guest_offloads=off,mq=on,vectors=10,\
                 host_mtu=9000\n"
        ));
    }

    #[test]
    fn qemu_without_kvm_gets_no_vectors_and_hears_why() {
        for nic in [nic(), large()] {
            let paste = paste(Vmm::Qemu, &nic, Size(1 << 30), false).ok().unwrap();
            assert_eq!(paste.text.matches("vectors=").count(), 1, "{}", paste.text);
            assert!(paste.text.contains(",vectors=0"), "{}", paste.text);
            assert!(paste.notes.iter().any(|note| note.contains("`vectors=0`")));
        }
    }

    #[test]
    fn whoever_may_attach_xdp_hears_what_that_takes() {
        let says = |nic: &NicView, vmm| {
            let paste = paste(vmm, nic, Size(1 << 30), true).ok().unwrap();
            paste.notes.iter().any(|note| note.contains("--guest-offloads false"))
        };
        for vmm in [Vmm::Qemu, Vmm::Libvirt] {
            assert!(says(&nic(), vmm));
            assert!(!says(&NicView { guest_offloads: false, ..nic() }, vmm));
        }
    }

    #[test]
    fn libvirt_gets_its_xml() {
        let odd = at("/a'<&>");
        assert_eq!(
            text(Vmm::Libvirt, &odd),
            "<!-- below <domain> -->\n\
             <memory unit='KiB'>1048576</memory>\n\
             <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n\
             </memoryBacking>\n\
             <!-- below <devices> -->\n\
             <interface type='vhostuser'>\n  <mac address='52:54:00:12:34:56'/>\n  \
             <source type='unix' path='/a&apos;&lt;&amp;&gt;' mode='client'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  </source>\n  <model type='virtio'/>\n  \
             <driver rx_queue_size='1024' tx_queue_size='1024'/>\n</interface>\n"
        );
        assert!(text(Vmm::Libvirt, &large()).ends_with(
            "<source type='unix' path='/run/s/vm1-net.sock' mode='server'/>\n  \
             <model type='virtio'/>\n  <mtu size='9000'/>\n  \
             <driver queues='4' rx_queue_size='1024' tx_queue_size='1024'/>\n</interface>\n"
        ));
    }

    #[test]
    fn cloud_hypervisor_gets_its_arguments_and_a_warning() {
        let paste = paste(Vmm::CloudHypervisor, &nic(), Size(1 << 30), true).ok().unwrap();
        assert_eq!(
            paste.text,
            "--memory size=1024M,shared=on \\\n--net vhost_user=true,socket=/run/s/vm1-net.sock,\
             mac=52:54:00:12:34:56,num_queues=2,queue_size=1024\n"
        );
        assert!(paste.notes.iter().any(|note| note.contains("make the nic with")));
        assert!(
            text(Vmm::CloudHypervisor, &large())
                .ends_with("num_queues=8,queue_size=1024,vhost_mode=server,mtu=9000\n")
        );
        let odd = at("/a,b");
        assert!(super::paste(Vmm::CloudHypervisor, &odd, Size(1 << 30), true).is_err());
    }
}
