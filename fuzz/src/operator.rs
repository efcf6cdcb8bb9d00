//! Texts that an operator, a client of the API or a damaged disk may give: the configuration file,
//! bodies of the API, the saved state.
//!
//! What must hold: nothing panics; a refusal says something; a plan that is accepted keeps the
//! bounds, and does not differ from itself; what is written as saved state is read back.

use config::plan::{HostCpus, load};
use config::routes::ROUTES;
use config::spec::DISKS_MAX;
use config::{Plan, diff, saved};

/// Makes one input happen: the first byte says what it is.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let host = HostCpus { online: vec![0, 1, 2, 3], auto: vec![1, 2], auto_count: 1 };
    match kind % 4 {
        0 | 1 => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            // Two files, as before and after a reload.
            let (first, second) = text.split_once("\u{1}").unwrap_or((text, ""));
            let running = plan(first, &host, None);
            if let Some(running) = &running {
                assert!(diff(running, running).changes.is_empty(), "a plan differs from itself");
                if let Some(wanted) = plan(second, &host, Some(running)) {
                    let changes = diff(running, &wanted).changes;
                    assert!(changes.iter().all(|change| !change.to_string().is_empty()));
                }
            }
        }
        2 => {
            let (route, body) = rest.split_first().unwrap_or((&0, &[]));
            let route = &ROUTES[usize::from(*route) % ROUTES.len()];
            let base = plan("", &host, None);
            match route.operation.call("id", body) {
                Ok(config::api::Call::AddDisk(spec)) => {
                    if let Some(base) = base
                        && let Ok(disk) = base.disk_from_api(&spec)
                    {
                        check_disk(&disk);
                    }
                }
                Ok(_) => {}
                Err(refusal) => assert!(!refusal.error.is_empty()),
            }
        }
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            match saved::read(text) {
                Ok(disks) => {
                    assert!(disks.len() <= DISKS_MAX);
                    let again = saved::read(&saved::write(&disks));
                    assert_eq!(again.as_ref(), Ok(&disks), "saved and read are different");
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

fn plan(text: &str, host: &HostCpus, running: Option<&Plan>) -> Option<Plan> {
    match load(text, "sidecore.toml", "/etc/sidecore", host, running) {
        Ok(plan) => {
            assert!(!plan.sidecores.cpus.is_empty());
            assert!(plan.sidecores.cpus.iter().all(|cpu| host.online.contains(cpu)));
            assert!(plan.disks.len() <= DISKS_MAX);
            let mut ids: Vec<&str> = plan.disks.iter().map(|disk| disk.id.as_str()).collect();
            ids.sort_unstable();
            assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "two disks of one name");
            plan.disks.iter().for_each(check_disk);
            Some(plan)
        }
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            None
        }
    }
}

fn check_disk(disk: &config::DiskPlan) {
    assert!(disk.queues >= 1 && disk.queues <= 64, "{} queues", disk.queues);
    assert!(disk.socket.starts_with('/') && disk.socket.len() <= 107);
    assert!(!disk.id.contains('/') && !disk.id.is_empty());
    assert!(disk.share >= 1);
    if let Some(bytes) = disk.source.size_bytes() {
        assert!(bytes >= 512 && bytes % 512 == 0, "{bytes} bytes");
    }
}
