//! Machines that have their disks and NICs from one another, each a network namespace: IOhosts, and a network behind
//! their switches.
//!
//! All of them are one machine in truth: what another boot of an IOhost does to a guest is not shown here
//! (docs/remote.md).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use testing::daemon::{Config, Daemon, await_that};
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic;

use crate::link_site::key;

/// Where IOhosts listen.
pub const PORT: u16 = 7447;
/// The address of somebody in the network behind the switches.
pub const LAN: &str = "10.78.0.1";
/// The address of a guest there.
pub const GUEST: &str = "10.78.0.2";

/// The network that IOhosts' switches are on, a bridge of a namespace, and somebody who answers there.
///
/// # Errors
/// The system's.
pub fn lan() -> Result<Namespace> {
    let lan = Namespace::new("lan")?;
    lan.bridge("lan", &[])?;
    lan.add_address(&format!("{LAN}/24"), "lan")?;
    traffic::serve(&lan)?;
    Ok(lan)
}

/// An IOhost: a daemon in a namespace of its own, with a way into the network.
#[derive(Debug)]
pub struct IoHost {
    name: &'static str,
    file: String,
    daemon: Option<Daemon>,
    /// Last: it ends what runs there.
    place: Namespace,
}

impl IoHost {
    /// One that is not started: `file` is its configuration behind `[daemon]`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(name: &'static str, lan: &Namespace, file: String) -> Result<IoHost> {
        let place = Namespace::new(name)?;
        let port = format!("lan-{name}");
        place.pair("lan0", lan, &port)?;
        lan.ip(&format!("link set {port} master lan"))?;
        Ok(IoHost { name, file, daemon: None, place })
    }

    /// Joins it to another machine: `10.77.NETWORK.1` is the IOhost there, and `.2` the other one.
    ///
    /// # Errors
    /// The system's.
    pub fn join(&self, other: &Namespace, network: u8) -> Result<()> {
        let (here, there) = (format!("to-{}", self.name), format!("to-{network}"));
        other.pair(&here, &self.place, &there)?;
        other.add_address(&format!("{}/24", address(network, 2)), &here)?;
        self.place.add_address(&format!("{}/24", address(network, 1)), &there)
    }

    /// Starts its daemon, for the first time or once more.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(&mut self) -> Result<()> {
        match &mut self.daemon {
            Some(daemon) => daemon.start_again(),
            None => {
                let (name, through) = (format!("iohost-{}", self.name), self.place.through());
                self.daemon = Some(on_any(&name, &self.file).through(&through).start()?);
                Ok(())
            }
        }
        .with_context(|| format!("IOhost {}", self.name))
    }

    /// Ends its daemon in order, and starts it with another configuration.
    ///
    /// # Errors
    /// It does not end, or not start.
    pub fn start_anew(&mut self, file: &str) -> Result<()> {
        let daemon = self.daemon_mut()?;
        daemon.stop()?;
        daemon.configure(file)?;
        self.start()
    }

    /// Gives its daemon another configuration while it runs.
    ///
    /// # Errors
    /// The daemon does not take it.
    pub fn reload(&self, file: &str) -> Result<()> {
        let daemon = self.daemon()?;
        daemon.configure(file)?;
        daemon.says("reload").map(drop)
    }

    /// Ends its daemon as a crash does.
    ///
    /// # Errors
    /// It was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon_mut()?.kill()
    }

    /// Ends its daemon in order.
    ///
    /// # Errors
    /// It does not end so.
    pub fn stop(&mut self) -> Result<()> {
        self.daemon_mut()?.stop()
    }

    /// Its daemon.
    ///
    /// # Errors
    /// It was never started.
    pub fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().with_context(|| format!("IOhost {} was not started", self.name))
    }

    fn daemon_mut(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().with_context(|| format!("IOhost {} was not started", self.name))
    }

    /// Its namespace.
    pub fn place(&self) -> &Namespace {
        &self.place
    }

    /// How many requests its disk `db` has had since its daemon was started.
    ///
    /// # Errors
    /// It does not answer.
    pub fn requests(&self) -> Result<u64> {
        let counters = self.daemon()?.shown("db", "counters")?;
        counters["requests"].as_u64().with_context(|| format!("no count in {counters}"))
    }

    /// Waits until its disk has had more requests than `count`.
    ///
    /// # Errors
    /// It has not in time; what its daemon said last.
    pub fn await_requests(&self, count: u64) -> Result<()> {
        let name = self.name;
        // A daemon that has just started may not know its disk yet.
        let has = || Ok(self.requests().is_ok_and(|requests| requests > count));
        await_that(&format!("requests at IOhost {name}"), has)
            .with_context(|| self.daemon().map(Daemon::last_words).unwrap_or_default())
    }
}

/// The address of a machine in the network between an IOhost and another machine.
pub fn address(network: u8, machine: u8) -> String {
    format!("10.77.{network}.{machine}")
}

/// A daemon of a VM host, in its namespace.
///
/// # Errors
/// It does not start.
pub fn vm_host(name: &str, place: &Namespace, file: &str) -> Result<Daemon> {
    on_any(name, file).through(&place.through()).start()
}

/// Waits for a device's socket: a remote disk has one when its IOhost has said what it is.
///
/// # Errors
/// It is not there in time; what the daemon said last.
pub fn await_socket(daemon: &Daemon, id: &str) -> Result<PathBuf> {
    let socket = daemon.socket(id);
    await_that(&format!("the socket of {id}"), || Ok(socket.exists()))
        .with_context(|| daemon.last_words())?;
    Ok(socket)
}

const SIDECORES: &str = "cpus = \"auto\"";

fn on_any(name: &str, file: &str) -> Config {
    Daemon::with(name, file).sidecores(SIDECORES)
}

/// Keys of machines, made when they are asked for.
#[derive(Debug)]
pub struct Keys(PathBuf);

impl Keys {
    /// In that folder.
    pub fn new(folder: &Path) -> Keys {
        Keys(folder.to_path_buf())
    }

    /// The public half of a machine's key.
    ///
    /// # Errors
    /// What the program says.
    pub fn public(&self, machine: &str) -> Result<String> {
        Ok(key(&self.0, &format!("{machine}.key"))?.1)
    }

    /// The file with a machine's private half.
    ///
    /// # Errors
    /// As [`Keys::public`].
    pub fn file(&self, machine: &str) -> Result<String> {
        Ok(key(&self.0, &format!("{machine}.key"))?.0.display().to_string())
    }
}

/// The lines of an IOhost's link, and of those who may come by it; `more` are lines of the link.
///
/// # Errors
/// As [`Keys::public`].
pub fn link_at_iohost(keys: &Keys, more: &str) -> Result<String> {
    let key = keys.file("iohost")?;
    Ok(format!(
        "[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \"0.0.0.0:{PORT}\"\nkey_file = \"{key}\"\n{more}"
    ))
}

/// The lines of one who may come: machine `name` with these disks and NICs, in quotes.
///
/// # Errors
/// As [`Keys::public`].
pub fn client_of_link(keys: &Keys, name: &str, disks: &str, nics: &str) -> Result<String> {
    let key = keys.public(name)?;
    Ok(format!(
        "[[link.client]]\nname = \"{name}\"\nkey = \"{key}\"\ndisks = [{disks}]\nnics = [{nics}]\n"
    ))
}

/// The lines of a VM host's link to IOhosts at these addresses.
///
/// # Errors
/// As [`Keys::public`].
pub fn link_at_client(keys: &Keys, machine: &str, iohosts: &[String]) -> Result<String> {
    let (public, key) = (keys.public("iohost")?, keys.file(machine)?);
    // A list of strings is written in TOML as in Rust.
    Ok(format!(
        "[[link]]\nid = \"rack\"\nrole = \"client\"\niohosts = {iohosts:?}\niohost_key = \"{public}\"\n\
         key_file = \"{key}\"\n"
    ))
}

/// The lines of an IOhost's switch: its way into the network, and the port of a NIC.
pub fn switch(nic: &str, of_port: &str) -> String {
    format!(
        "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ninterface = \"lan0\"\n[[switch.uplink]]\nremote = \"{nic}\"\n\
         {of_port}"
    )
}

/// Waits until a guest at the network's other end answers.
///
/// # Errors
/// It does not.
pub fn ping(from: &dyn Place) -> Result<&'static str> {
    from.comes_to(&format!("ping -q -c 1 -W 1 {LAN} >/dev/null"))
}

/// Sends the longest that goes in one piece of 1500 bytes, which a link of 1500 carries in two.
///
/// # Errors
/// Nobody answers.
pub fn ping_of_1500(from: &dyn Place) -> Result<&'static str> {
    from.asked(&format!("ping -q -c 3 -i 0.2 -W 60 -s 1472 -M do {LAN}"))
}

/// What `remote status` shows of the link.
///
/// # Errors
/// The daemon does not answer.
pub fn link_of(daemon: &Daemon) -> Result<Value> {
    let status = daemon.ask("remote status")?;
    let link = status["links"].get(0).cloned();
    link.with_context(|| format!("no link in {status}"))
}
