//! What the file names and somebody has: images by their locks, taps, addresses of links.
//!
//! Nothing stays taken here. Not here: what is missing or wrong (`check`), and sockets of a folder (`beside`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use config::{Plan, Source};
use manager::check::CheckError;

use super::beside::Has;
use crate::failure::Failure;

/// What whoever serves an image says of one that may be free in a moment.
const TRIED_AGAIN: &str = "it is tried again";

/// That nobody has what the file names, but the daemon of that process, which may be the one of this file and says that it
/// has that; nothing, where it says nothing.
///
/// # Errors
/// What a start would say of the first that somebody has.
pub(super) fn is_free(plan: &Plan, but: Option<u32>, has: Option<&Has>) -> Result<(), Failure> {
    for disk in &plan.disks {
        let Source::File { path, .. } = &disk.source else { continue };
        let may_have = has.is_none_or(|has| has.has_image(Path::new(path)));
        manager::check::image_is_free(disk, but, may_have).map_err(|why| {
            let why = why.to_string();
            let (error, hint) = why.split_once("; ").unwrap_or((&why, ""));
            let what = super::at(&disk.origin, "disk", &disk.id);
            // A check tries nothing again.
            let hint = match hint {
                TRIED_AGAIN => {
                    "a start tries it again until it is free; see who has it (`lslocks`, as root)"
                }
                hint => hint,
            };
            Failure::host(format!("{what}: {error}"), hint)
        })?;
    }
    for (who, host) in super::hosts(plan) {
        let Err(why) = manager::check::tap_is_free(host) else { continue };
        let tap = host.interface().unwrap_or_default();
        let holders: Vec<u32> = pids().filter(|pid| has_tap(*pid, tap)).collect();
        let may_have = has.is_none_or(|has| has.interfaces.contains(tap));
        if !but.is_some_and(|pid| is_of(pid, &holders, may_have && !shows(pid))) {
            return Err(Failure::host(format!("{who}: {why}"), held_by(holders)));
        }
    }
    for link in &plan.links {
        let Err(why) = manager::check::link_address(link) else { continue };
        let error = format!("{}: link {:?}: {why}", link.origin, link.id);
        let (CheckError::AddressTaken(_), Some(address)) = (&why, link.udp()) else {
            // Nobody's fault: the words have the remedy.
            return Err(Failure::host(error, "correct this link"));
        };
        let holders: Vec<Vec<u32>> = sockets_at(address).iter().map(|it| having(it)).collect();
        let may_have = has.is_none_or(|has| has.addresses.iter().any(|its| meets(*its, address)));
        let is_of = |pid| holders.iter().all(|of| is_of(pid, of, may_have && !shows(pid)));
        if holders.is_empty() || !but.is_some_and(is_of) {
            let mut all = holders.concat();
            all.sort_unstable();
            all.dedup();
            return Err(Failure::host(error, held_by(all)));
        }
    }
    Ok(())
}

/// Whether nobody can have one address beside the other.
fn meets(one: SocketAddr, other: SocketAddr) -> bool {
    let [one_ip, other_ip] = [one, other].map(|address| address.ip().to_canonical());
    let is_any = one_ip.is_unspecified() || other_ip.is_unspecified();
    one.port() == other.port() && (is_any || one_ip == other_ip)
}

/// Whether the daemon has what those processes are seen to have. A daemon with rights that this process lacks does not
/// show what it has. What nobody is seen to have is its own there, if it says that it has such a thing (`may_hide`).
fn is_of(daemon: u32, holders: &[u32], may_hide: bool) -> bool {
    holders.contains(&daemon) || (holders.is_empty() && may_hide)
}

/// Whether this process may see what that one has open.
fn shows(pid: u32) -> bool {
    // The same right: `proc_ns_readlink` and `proc_fd_access_allowed` of the kernel.
    network_of(&pid.to_string()).is_some()
}

/// Who is to be asked to let go.
fn held_by(holders: Vec<u32>) -> String {
    let who: Vec<String> = holders.into_iter().map(named).collect();
    match who.is_empty() {
        true => "who has it is seen by root alone, and in its own container".to_string(),
        false => format!("it is held by {}", who.join(", ")),
    }
}

/// Every process that can be seen.
fn pids() -> impl Iterator<Item = u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a descriptor of that process is of this network namespace's tap of that name.
fn has_tap(pid: u32, tap: &str) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut told = open.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    is_here(pid) && told.any(|text| is_of_tap(&text, tap))
}

/// Whether that process can be seen to be in this network namespace: another one may have a tap of the same name.
fn is_here(pid: u32) -> bool {
    network_of("self").is_some_and(|own| network_of(&pid.to_string()) == Some(own))
}

/// The network namespace of a process that may be looked into.
fn network_of(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Whether the kernel says that of a descriptor.
fn is_of_tap(told: &str, tap: &str) -> bool {
    told.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == tap))
}

/// The UDP sockets of this network namespace which have an address that nobody can have beside that one, as links of
/// descriptors name them.
fn sockets_at(address: SocketAddr) -> Vec<String> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    colliding(&tables.concat(), address)
}

/// The processes that can be seen and have that socket.
fn having(socket: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| link.as_os_str() == socket)
    };
    pids().filter(has).collect()
}

/// The sockets of tables of the kernel's whose address goes with no other socket at that one.
fn colliding(tables: &str, address: SocketAddr) -> Vec<String> {
    let at_port = tables.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(port, 16) == Ok(address.port());
        is_it.then_some((ip_of(ip)?, format!("socket:[{}]", fields.get(9)?)))
    });
    let wanted = address.ip().to_canonical();
    let meets = |(ip, _): &(IpAddr, String)| {
        *ip == wanted || ip.is_unspecified() || wanted.is_unspecified()
    };
    let (alike, others): (Vec<_>, Vec<_>) =
        at_port.filter(meets).partition(|(ip, _)| ip.is_ipv4() == wanted.is_ipv4());
    // One of version 6 may have those of version 4, too; the table does not say it. It has none where somebody else has
    // one.
    let found = if alike.is_empty() { others } else { alike };
    found.into_iter().map(|(_, socket)| socket).collect()
}

/// An address as the kernel's tables have it: words of this machine's order, whose bytes are the network's.
fn ip_of(text: &str) -> Option<IpAddr> {
    let word =
        |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

/// A process for people. Its name is its own choice.
fn named(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim_end().escape_debug())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::UdpSocket;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_has_a_port_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("its address");
        // Not alone: who was forked beside has it until its exec.
        let sockets = sockets_at(address);
        assert!(sockets.iter().any(|it| having(it).contains(&std::process::id())), "{sockets:?}");
    }

    #[test]
    fn a_process_of_another_network_namespace_is_elsewhere() {
        assert!(is_here(std::process::id()));
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo there; read end"]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("unshare is there");
        let mut said = [0; 6];
        let is_there = child.stdout.take().expect("a pipe").read_exact(&mut said).is_ok();
        let was_here = is_here(child.id());
        drop(child.stdin.take());
        let _ = child.wait();
        if !is_there {
            let why = b"skipped: a network namespace takes root\n";
            return std::io::stderr().write_all(why).expect("written");
        }
        assert!(!was_here);
    }

    #[test]
    fn what_nobody_is_seen_to_have_is_a_daemons_that_cannot_be_seen() {
        let (daemon, other) = (7, 8);
        assert!(is_of(daemon, &[other, daemon], false));
        assert!(is_of(daemon, &[], true));
        assert!(!is_of(daemon, &[], false), "it would be seen, or says that it has none");
        assert!(!is_of(daemon, &[other], true), "somebody else has it");
        assert!(shows(std::process::id()) && !shows(u32::MAX));
    }

    #[test]
    fn an_address_is_a_daemons_that_has_one_which_goes_with_no_other() {
        let meets = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|it| it.parse().expect("an address"));
            meets(one, other)
        };
        assert!(meets("127.0.0.1:7", "127.0.0.1:7") && meets("0.0.0.0:7", "127.0.0.1:7"));
        assert!(meets("127.0.0.1:7", "[::]:7") && meets("[::ffff:127.0.0.1]:7", "127.0.0.1:7"));
        assert!(!meets("127.0.0.1:7", "127.0.0.1:8") && !meets("127.0.0.2:7", "127.0.0.1:7"));
    }

    #[test]
    fn a_descriptor_of_a_tap_is_known_by_its_name() {
        let told = "pos:\t0\nflags:\t0104002\nmnt_id:\t24\nino:\t77\niff:\ttap1\n";
        assert!(is_of_tap(told, "tap1"));
        assert!(!is_of_tap(told, "tap11") && !is_of_tap(told, "tap") && !is_of_tap("", "tap1"));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_port_of_another_address_is_in_nobodys_way() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |ip: &str, number: u32| {
            format!(
                "43: {ip}:1F3F 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 {number} 2\n"
            )
        };
        let found = |lines: &[(&str, u32)], wanted: &str| {
            let lines: String = lines.iter().map(|(ip, number)| line(ip, *number)).collect();
            let found = colliding(&[head, &lines].concat(), wanted.parse().expect("an address"));
            let number = |it: &String| it["socket:[".len()..it.len() - 1].parse().ok();
            found.iter().filter_map(number).collect::<Vec<u32>>()
        };
        let (one, two, any) = ("0100007F", "0200007F", "00000000");
        let (mapped, any_6) =
            ("0000000000000000FFFF00000200007F", "00000000000000000000000000000000");
        let both = [(one, 1), (two, 2)];
        assert_eq!(found(&both, "127.0.0.2:7999"), [2]);
        assert_eq!(found(&both, "0.0.0.0:7999"), [1, 2]);
        assert_eq!(found(&both, "127.0.0.2:7998"), [0; 0]);
        assert_eq!(found(&both, "[::1]:7999"), [0; 0]);
        assert_eq!(found(&[(any, 3)], "127.0.0.2:7999"), [3]);
        assert_eq!(found(&[(one, 1), (mapped, 4)], "127.0.0.2:7999"), [4]);
        // Of version 6 alone, since another process has one of version 4.
        assert_eq!(found(&[(one, 1), (any_6, 5)], "127.0.0.1:7999"), [1]);
        assert_eq!(found(&[(any_6, 5)], "127.0.0.1:7999"), [5]);
        assert_eq!(found(&[("01", 6)], "127.0.0.1:7999"), [0; 0]);
    }
}
