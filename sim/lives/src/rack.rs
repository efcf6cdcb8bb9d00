//! Hosts that are linked: what their files say of it, and what of one another.
//!
//! One host is the IOhost of all others. Of its disks those whose names begin with `x` are for them: each is a disk `r` of
//! the same number there, and a port `y` of its switch is a NIC `n` there. Not here: the rest of a file (`file`).

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use config::spec::{
    BackendKind, DiskSpec, LinkClientSpec, LinkRole, LinkSecurity, LinkSpec, NicSpec, Spoof,
    UplinkSpec,
};
use config::{Mac, Size, Spec};
use guests::mac;
use random::Random;
use remote::handshake::public_key;

use crate::file;
use crate::wire::address_of;

/// The one link of each.
const LINK: &str = "rack";
/// Of UDP.
const PORT: u16 = 7447;
/// Numbers of disks for others: of files, which outlive a daemon.
const NUMBERS: [u32; 4] = [2, 3, 5, 6];

/// How hosts are linked.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// The IOhost's number; those of its clients go from 1 up to it.
    pub(crate) iohost: u8,
    security: LinkSecurity,
    lease_s: u32,
    sidecores: u32,
    keeps: bool,
    /// Numbers of disks for others.
    pub(crate) disks: Vec<u32>,
    has_nic: bool,
    /// Seconds of silence after which requests of clients fail, if they do.
    pub(crate) fail_after_s: Option<u32>,
    /// How often the key of a host has changed.
    keys: BTreeMap<u8, u8>,
}

impl Rack {
    pub(crate) fn new(random: &mut Random) -> Rack {
        let is_sealed = random.one_in(3);
        let clients = if is_sealed { random.between(1, 2) as u8 } else { 1 };
        let count = random.between(1, 3) as usize;
        Rack {
            iohost: clients + 1,
            security: if is_sealed { LinkSecurity::Noise } else { LinkSecurity::None },
            lease_s: random.between(1, 3) as u32,
            sidecores: random.between(1, 3) as u32,
            keeps: !random.one_in(4),
            disks: NUMBERS[..count].to_vec(),
            has_nic: random.one_in(2),
            fail_after_s: random.one_in(4).then(|| random.between(1, 30) as u32),
            keys: BTreeMap::new(),
        }
    }

    /// Clients, by number.
    pub(crate) fn clients(&self) -> impl Iterator<Item = u8> + use<> {
        1..self.iohost
    }

    /// What the file of a host says of links, and of what comes or goes by them.
    ///
    /// # Errors
    /// Its key cannot be written.
    pub(crate) fn write(
        &self,
        host: u8,
        spec: &mut Spec,
        folder: &Path,
        random: &mut Random,
    ) -> Result<(), String> {
        self.write_key(host, folder)?;
        let key_file = folder.join("key").display().to_string();
        let key_file = self.is_sealed().then_some(key_file);
        let link = LinkSpec {
            id: LINK.into(),
            role: LinkRole::Client,
            udp: None,
            interface: None,
            via: None,
            iohosts: Vec::new(),
            mtu: random.of(&[1500, 1500, 9000, 700]),
            security: self.security,
            key_file,
            iohost_key: None,
            fail_after_s: None,
            keep: None,
            lease_s: None,
            sidecores: None,
            memory: None,
            client: Vec::new(),
        };
        match host == self.iohost {
            true => self.write_iohost(link, spec, folder, random),
            false => self.write_client(host, link, spec, random),
        }
        Ok(())
    }

    fn write_iohost(&self, link: LinkSpec, spec: &mut Spec, folder: &Path, random: &mut Random) {
        let disks = self.disks.iter().map(|number| file::disk(&lent(*number), folder, random));
        spec.disk.extend(disks);
        if let Some(switch) = spec.switch.first_mut().filter(|_| self.has_nic) {
            switch.uplink.extend(self.clients().map(port));
        }
        let client = self.clients().map(|host| self.client(host)).collect();
        spec.link.push(LinkSpec {
            role: LinkRole::Iohost,
            udp: Some(format!("{}:{PORT}", address_of(self.iohost))),
            lease_s: Some(self.lease_s),
            sidecores: Some(self.sidecores),
            client,
            ..link
        });
    }

    /// What an IOhost's file says of a client that may have everything.
    fn client(&self, host: u8) -> LinkClientSpec {
        LinkClientSpec {
            name: client_name(host),
            key: self.key_of(host),
            disks: self.disks.iter().map(|number| lent(*number)).collect(),
            nics: if self.has_nic { vec![format!("y{host}")] } else { Vec::new() },
        }
    }

    fn write_client(&self, host: u8, link: LinkSpec, spec: &mut Spec, random: &mut Random) {
        spec.link.push(LinkSpec {
            iohosts: vec![format!("{}:{PORT}", address_of(self.iohost))],
            iohost_key: self.key_of(self.iohost),
            fail_after_s: self.fail_after_s,
            keep: (!self.keeps).then_some(Size(0)),
            ..link
        });
        spec.disk.extend(self.disks.iter().map(|number| borrowed(*number, random)));
        if self.has_nic {
            spec.nic.push(nic(host));
        }
    }

    /// Whether its hosts have keys.
    pub(crate) fn is_sealed(&self) -> bool {
        self.security == LinkSecurity::Noise
    }

    /// A host has another key from its next start on.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn change_key(&mut self, host: u8, folder: &Path) -> Result<(), String> {
        *self.keys.entry(host).or_default() += 1;
        self.write_key(host, folder)
    }

    fn write_key(&self, host: u8, folder: &Path) -> Result<(), String> {
        let file = folder.join("key");
        std::fs::write(&file, format!("{}\n", hex(&self.private_key(host))))
            .and_then(|()| std::fs::set_permissions(&file, Permissions::from_mode(0o600)))
            .map_err(|e| e.to_string())
    }

    /// What the file of one host says of another's key.
    pub(crate) fn write_key_of(&self, host: u8, spec: &mut Spec) {
        let key = self.key_of(host);
        for link in &mut spec.link {
            if host == self.iohost && link.role == LinkRole::Client {
                link.iohost_key.clone_from(&key);
            }
            let name = client_name(host);
            let clients = link.client.iter_mut().filter(|client| client.name == name);
            clients.for_each(|client| client.key.clone_from(&key));
        }
    }

    fn key_of(&self, host: u8) -> Option<String> {
        let public = public_key(&self.private_key(host)).ok()?;
        self.is_sealed().then(|| hex(&public))
    }

    fn private_key(&self, host: u8) -> [u8; 32] {
        let mut key = [host; 32];
        key[0] = self.keys.get(&host).copied().unwrap_or(0);
        key
    }
}

/// A client's name at its IOhost.
pub(crate) fn client_name(host: u8) -> String {
    format!("c{host}")
}

/// A disk's name at its IOhost.
pub(crate) fn lent(number: u32) -> String {
    format!("x{number}")
}

/// Whether a disk has a name that is lent to other hosts: it has no socket, and no guest here.
pub(crate) fn is_lent(id: &str) -> bool {
    id.starts_with('x')
}

/// A disk's name at a client.
pub(crate) fn name_of(number: u32) -> String {
    format!("r{number}")
}

/// Whether a device has a name that comes from another host.
pub(crate) fn is_borrowed(id: &str) -> bool {
    id.starts_with('r') || id.starts_with("nr")
}

/// The NIC of a client that is a port of its IOhost's first switch.
fn nic(host: u8) -> NicSpec {
    let id = format!("nr{host}");
    let mac = Some(Mac(mac(file::station(&id).into())));
    let (by_link, remote) = (Some(LINK.into()), Some(format!("y{host}")));
    NicSpec { by_link, remote, mac, mtu: file::MTU, ..NicSpec::new(&id) }
}

/// The name of the NIC whose port has that name at the IOhost.
pub(crate) fn nic_of(port: &str) -> String {
    format!("nr{}", port.trim_start_matches('y'))
}

/// That port.
fn port(host: u8) -> UplinkSpec {
    let NicSpec { remote, mac, .. } = nic(host);
    UplinkSpec { remote, mac, spoof: Some(Spoof::Deny), ..UplinkSpec::default() }
}

/// A disk of the IOhost's.
fn borrowed(number: u32, random: &mut Random) -> DiskSpec {
    let id = name_of(number);
    DiskSpec {
        backend: Some(BackendKind::Remote),
        link: Some(LINK.into()),
        remote: Some(lent(number)),
        queues: file::queues(&id),
        share: random.between(1, 1000) as u32,
        ..DiskSpec::new(&id)
    }
}

/// Shards of the links of a file, where there are so many sidecores.
pub(crate) fn shards(spec: &Spec, cores: usize) -> usize {
    let of = |link: &LinkSpec| match link.role {
        LinkRole::Client => 1,
        LinkRole::Iohost => link.sidecores.map_or(cores, |most| cores.min(most as usize)),
    };
    spec.link.iter().map(of).sum()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
