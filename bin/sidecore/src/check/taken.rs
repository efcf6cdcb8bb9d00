//! What the file names and somebody has: images by their locks, taps, addresses of links.
//!
//! Nothing stays taken here. Not here: what is missing or wrong (`check`), and sockets of a folder (`beside`).

use std::net::SocketAddr;

use config::Plan;

use crate::failure::Failure;

/// That nobody has what the file names, but the daemon of that process, which may be the one of this file.
///
/// # Errors
/// What a start would say of the first that somebody has.
pub(super) fn is_free(plan: &Plan, but: Option<u32>) -> Result<(), Failure> {
    for disk in &plan.disks {
        manager::check::image_is_free(disk, but).map_err(|why| {
            let why = why.to_string();
            let (error, hint) = why.split_once("; ").unwrap_or((&why, ""));
            Failure::host(format!("{}: disk {:?}: {error}", disk.origin, disk.id), hint)
        })?;
    }
    for (who, host) in super::hosts(plan) {
        let Err(why) = manager::check::tap_is_free(host) else { continue };
        let tap = host.interface().unwrap_or_default();
        if !but.is_some_and(|pid| has_tap(pid, tap)) {
            let hint = held_by(pids().filter(|pid| has_tap(*pid, tap)).collect());
            return Err(Failure::host(format!("{who}: {why}"), hint));
        }
    }
    for link in &plan.links {
        let Err(why) = manager::check::link_address(link) else { continue };
        let holders = link.udp().map(holders).unwrap_or_default();
        if but.is_some_and(|pid| holders.contains(&pid)) {
            continue;
        }
        let error = format!("{}: link {:?}: {why}", link.origin, link.id);
        return Err(Failure::host(error, held_by(holders)));
    }
    Ok(())
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

/// Whether a descriptor of that process is of a tap of that name.
fn has_tap(pid: u32, tap: &str) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut told = open.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    told.any(|text| is_of_tap(&text, tap))
}

/// Whether the kernel says that of a descriptor.
fn is_of_tap(told: &str, tap: &str) -> bool {
    told.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == tap))
}

/// The processes that can be seen and have a UDP socket of that port.
fn holders(address: SocketAddr) -> Vec<u32> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<String> =
        tables.iter().flat_map(|table| sockets_of(table, address.port())).collect();
    let has = |pid: &u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
    };
    pids().filter(has).collect()
}

/// The sockets of a table of the kernel's that have that port, as links of descriptors name them.
fn sockets_of(table: &str, port: u16) -> impl Iterator<Item = String> {
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, own) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(own, 16) == Ok(port);
        is_it.then(|| fields.get(9).map(|number| format!("socket:[{number}]"))).flatten()
    })
}

/// A process for people. Its name is its own choice.
fn named(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim_end().escape_debug())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn who_has_a_port_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("its address");
        // Not alone: who was forked beside has it until its exec.
        assert!(holders(address).contains(&std::process::id()));
    }

    #[test]
    fn a_descriptor_of_a_tap_is_known_by_its_name() {
        let told = "pos:\t0\nflags:\t0104002\nmnt_id:\t24\nino:\t77\niff:\ttap1\n";
        assert!(is_of_tap(told, "tap1"));
        assert!(!is_of_tap(told, "tap11") && !is_of_tap(told, "tap") && !is_of_tap("", "tap1"));
    }

    #[test]
    fn a_line_of_the_table_is_read_as_the_kernel_writes_it() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                       43: 0100007F:1F3F 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 25291 2\n";
        assert_eq!(sockets_of(table, 7999).collect::<Vec<_>>(), ["socket:[25291]"]);
        assert_eq!(sockets_of(table, 7998).count(), 0);
    }
}
