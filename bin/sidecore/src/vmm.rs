//! What gives a disk or a NIC to a guest, in the words of each VMM.
//!
//! All need the guest's memory shared, for the daemon reads and writes it in place. The memory must
//! also be sealed against shrinking, which QEMU's memfd is; see `allow_unsealed_memory`.

use config::Size;
use config::api::DiskView;
use config::spec::{Mode, SocketRights};

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

mod net;

pub(crate) use net::paste as paste_nic;

/// The VMMs whose words we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Vmm {
    /// Arguments of qemu-system-*.
    Qemu,
    /// Parts of a domain's XML.
    Libvirt,
    /// Arguments of cloud-hypervisor.
    CloudHypervisor,
}

/// Entries of a disk's rings to ask for: as many requests of one queue as its back-end keeps. QEMU and
/// Cloud Hypervisor have 128 where nothing is said.
const DISK_RING: u16 = 256;

/// What to paste, and what to know about it.
pub(crate) struct Paste {
    /// The text, with a newline at its end.
    pub(crate) text: String,
    /// Remarks; not part of what is pasted.
    pub(crate) notes: Vec<String>,
}

impl Paste {
    /// Prints it; as JSON, beside what it is for.
    pub(crate) fn print<T: Serialize>(
        self,
        kind: &str,
        device: &T,
        output: &Output,
    ) -> Result<(), Failure> {
        if output.json {
            let value =
                serde_json::json!({ kind: device, "print": self.text, "notes": self.notes });
            return output.show(&value, |value| value.to_string());
        }
        output.text(&self.text)?;
        for note in self.notes {
            output.note(&format!("note: {note}"));
        }
        Ok(())
    }
}

/// What gives that disk to a guest with so much memory.
pub(crate) fn paste(vmm: Vmm, disk: &DiskView, memory: Size) -> Result<Paste, Failure> {
    match vmm {
        Vmm::Qemu => Ok(qemu(disk, memory)),
        Vmm::Libvirt => libvirt(disk, memory),
        Vmm::CloudHypervisor => cloud_hypervisor(disk, memory),
    }
}

fn qemu(disk: &DiskView, memory: Size) -> Paste {
    let mib = memory.0.div_ceil(1 << 20);
    let id = format!("sidecore-{}", disk.id);
    let mut lines = qemu_memory(mib);
    lines.push(qemu_socket(&id, disk.access.path(), disk.access.mode));
    let queues = disk.queues_max;
    lines.push(format!(
        "-device vhost-user-blk-pci,chardev={id},num-queues={queues},queue-size={DISK_RING}"
    ));
    let once = "a guest needs the first three lines once; each further disk adds the last two";
    Paste { text: lines.join(" \\\n") + "\n", notes: qemu_notes(once, disk.access.mode) }
}

/// The guest's memory, which the daemon is to reach.
fn qemu_memory(mib: u64) -> Vec<String> {
    vec![
        format!("-m {mib}M"),
        format!("-object memory-backend-memfd,id=sidecore-memory,size={mib}M,share=on"),
        "-machine memory-backend=sidecore-memory".to_string(),
    ]
}

fn qemu_socket(id: &str, socket: &str, mode: Mode) -> String {
    let role = match mode {
        // Without it, a guest would lose its device for good when the daemon is started again.
        Mode::Listen => ",reconnect=1",
        // The VMM waits for the daemon in this mode.
        Mode::Connect => ",server=on",
    };
    // A comma in a value is written twice.
    let path = socket.replace(',', ",,");
    format!("-chardev {}", quote(&format!("socket,id={id},path={path}{role}")))
}

fn qemu_notes(once: &str, mode: Mode) -> Vec<String> {
    let mut notes = vec![once.to_string()];
    if mode == Mode::Listen {
        notes.push(
            "a QEMU that no longer knows `reconnect=1` (deprecated in 9.2) takes \
             `reconnect-ms=1000`"
                .to_string(),
        );
    }
    notes
}

fn libvirt(disk: &DiskView, memory: Size) -> Result<Paste, Failure> {
    if disk.access.mode == Mode::Connect {
        return Err(wrong_mode(disk, "libvirt"));
    }
    let text = format!(
        "{}<!-- below <devices>; the target is to be free in the domain -->\n\
         <disk type='vhostuser' device='disk'>\n  \
           <driver name='qemu' type='raw' queues='{}' queue_size='{DISK_RING}'/>\n  \
           <source type='unix' path='{}'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  \
           </source>\n  \
           <target dev='vda' bus='virtio'/>\n\
         </disk>\n",
        libvirt_memory(memory),
        disk.queues_max,
        xml(disk.access.path()),
    );
    Ok(Paste {
        text,
        notes: vec![other_user(("disk", &disk.id), &disk.declared, &disk.access.rights())],
    })
}

/// libvirt's QEMU is another user than the daemon.
fn other_user((kind, id): (&str, &str), declared: &str, rights: &SocketRights) -> String {
    let how = match declared {
        "api" => format!("`sidecore {kind} set {id} --socket-owner libvirt-qemu`"),
        place => format!("write it at {place}, then `sidecore reload`"),
    };
    match rights.in_words() {
        Some(words) => format!(
            "libvirt runs QEMU as another user (`libvirt-qemu` with Debian, `qemu` with Fedora), and the socket is \
             for {words}: `sidecore doctor --vmm libvirt-qemu` says whether it is reached"
        ),
        None => format!(
            "libvirt runs QEMU as another user, who may not open this socket yet: `socket_owner = \
             \"libvirt-qemu\"` of the {kind} lets it ({how}; with \
             Fedora the user is `qemu`); `sidecore doctor --vmm libvirt-qemu` says whether it is reached"
        ),
    }
}

fn libvirt_memory(memory: Size) -> String {
    let kib = memory.0.div_ceil(1 << 10);
    format!(
        "<!-- below <domain> -->\n\
         <memory unit='KiB'>{kib}</memory>\n\
         <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n"
    )
}

fn cloud_hypervisor(disk: &DiskView, memory: Size) -> Result<Paste, Failure> {
    if disk.access.mode == Mode::Connect {
        return Err(wrong_mode(disk, "cloud-hypervisor"));
    }
    check_path(disk.access.path(), "disk")?;
    let mib = memory.0.div_ceil(1 << 20);
    let queues = disk.queues_max;
    let value = quote(&format!(
        "vhost_user=on,socket={},num_queues={queues},queue_size={DISK_RING}",
        disk.access.path()
    ));
    let text = format!("--memory size={mib}M,shared=on \\\n--disk {value}\n");
    let mut notes = vec![format!("the guest needs at least {queues} vCPUs (--cpus boot={queues})")];
    notes.extend(unsealed(disk.allow_unsealed_memory, "disk"));
    Ok(Paste { text, notes })
}

/// cloud-hypervisor's values have no way to quote these.
fn check_path(socket: &str, kind: &str) -> Result<(), Failure> {
    if !socket.contains([',', '"', '[', ']']) {
        return Ok(());
    }
    let hint = format!("give the {kind} another socket with --socket");
    let error = format!("cloud-hypervisor cannot be given the path {socket:?}");
    Err(Failure::usage(error, hint))
}

fn unsealed(allowed: bool, kind: &str) -> Option<String> {
    let note = format!(
        "as the {kind} is now, its guest will be refused: cloud-hypervisor does not seal the \
         guest's memory; make the {kind} with --allow-unsealed-memory (in the file: \
         allow_unsealed_memory = true)"
    );
    (!allowed).then_some(note)
}

fn wrong_mode(disk: &DiskView, vmm: &str) -> Failure {
    Failure::usage(
        format!("{vmm} can only connect, and disk {:?} has mode \"connect\"", disk.id),
        "give the disk mode \"listen\"",
    )
}

/// A word of a shell's command line.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/=,.:_-+@%".contains(c);
    match word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The value of an XML attribute between single quotes.
fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

#[cfg(test)]
pub(crate) mod tests {
    use config::api::AccessView;

    use super::*;

    pub(crate) fn disk() -> DiskView {
        serde_json::from_value(serde_json::json!({
            "id": "vm1", "declared": "api", "state": "waiting", "socket": "/run/s/vm1.sock",
            "mode": "listen", "backend": "null", "size_bytes": 512, "block_size_bytes": 512,
            "readonly": false, "serial": "vm1", "queues_max": 4, "queues_attached": 0,
            "share": 100, "policy": "adaptive", "allow_unsealed_memory": false,
            "counters": config::api::CountersView::default(),
        }))
        .unwrap()
    }

    fn at(socket: &str, mode: Mode) -> DiskView {
        let access = AccessView { socket: Some(socket.to_string()), mode, ..disk().access };
        DiskView { access, ..disk() }
    }

    #[test]
    fn who_may_open_the_socket_is_changed_where_the_device_is_declared() {
        let note = |declared: &str| {
            let disk = DiskView { declared: declared.to_string(), ..disk() };
            paste(Vmm::Libvirt, &disk, Size(1 << 30)).map(|paste| paste.notes.concat()).unwrap()
        };
        let by_command = "`sidecore disk set vm1 --socket-owner libvirt-qemu`";
        assert!(note("api").contains(by_command));
        let of_file = note("/etc/s.toml:6");
        assert!(of_file.contains("write it at /etc/s.toml:6, then `sidecore reload`"), "{of_file}");
        assert!(!of_file.contains("disk set"), "{of_file}");
    }

    fn text(vmm: Vmm, disk: &DiskView) -> String {
        paste(vmm, disk, Size(1 << 30)).map(|paste| paste.text).unwrap()
    }

    #[test]
    fn qemu_gets_its_arguments() {
        assert_eq!(
            text(Vmm::Qemu, &disk()),
            "-m 1024M \\\n\
             -object memory-backend-memfd,id=sidecore-memory,size=1024M,share=on \\\n\
             -machine memory-backend=sidecore-memory \\\n\
             -chardev socket,id=sidecore-vm1,path=/run/s/vm1.sock,reconnect=1 \\\n\
             -device vhost-user-blk-pci,chardev=sidecore-vm1,num-queues=4,queue-size=256\n"
        );
        let odd = at("/a, b's", Mode::Connect);
        assert!(
            text(Vmm::Qemu, &odd)
                .contains("-chardev 'socket,id=sidecore-vm1,path=/a,, b'\\''s,server=on' \\\n")
        );
    }

    #[test]
    fn libvirt_gets_its_xml() {
        let text = text(Vmm::Libvirt, &at("/a'<&>", Mode::Listen));
        assert!(text.contains("<source type='unix' path='/a&apos;&lt;&amp;&gt;'>"), "{text}");
        assert!(
            text.contains("<driver name='qemu' type='raw' queues='4' queue_size='256'/>"),
            "{text}"
        );
        assert!(text.contains("<memory unit='KiB'>1048576</memory>"), "{text}");
        assert!(text.contains("  <source type='memfd'/>\n  <access mode='shared'/>\n"), "{text}");
    }

    #[test]
    fn cloud_hypervisor_gets_its_arguments_and_a_warning() {
        let paste = paste(Vmm::CloudHypervisor, &disk(), Size(1 << 30)).ok().unwrap();
        assert_eq!(
            paste.text,
            "--memory size=1024M,shared=on \\\n\
             --disk vhost_user=on,socket=/run/s/vm1.sock,num_queues=4,queue_size=256\n"
        );
        assert!(paste.notes.iter().any(|note| note.contains("--allow-unsealed-memory")));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let connect = at("/run/s/vm1.sock", Mode::Connect);
        for vmm in [Vmm::Libvirt, Vmm::CloudHypervisor] {
            assert!(paste(vmm, &connect, Size(1 << 30)).is_err());
        }
        let odd = at("/a,b", Mode::Listen);
        assert!(paste(Vmm::CloudHypervisor, &odd, Size(1 << 30)).is_err());
    }
}
