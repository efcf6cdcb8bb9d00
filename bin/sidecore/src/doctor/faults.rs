//! Disks whose requests are made to fail, or to take longer: what was put there for a test outlives it, also a restart.

use config::api::{DiskList, DiskView};
use config::routes::Method;
use host::doctor::{Check, State};

use super::shorten;
use crate::client::Client;
use crate::stage;

/// Which disks have such a stage; nothing, where none has. A daemon that does not say which disks it has is told of
/// beside.
pub(super) fn check(client: &Client) -> Option<Check> {
    let DiskList { disks } = client.ask(Method::Get, "/v1/disks").ok()?;
    of_disks(&disks)
}

fn of_disks(disks: &[DiskView]) -> Option<Check> {
    let fault = |disk: &DiskView| Some(format!("{}: {}", disk.id, stage::fault_of(&disk.stages)?));
    let faults: Vec<String> = disks.iter().filter_map(fault).collect();
    if faults.is_empty() {
        return None;
    }
    let found = format!(
        "{} of {} disks have the stage `fault`, which is for tests",
        faults.len(),
        disks.len()
    );
    let means = shorten(&faults).collect::<Vec<_>>().join("\n");
    let todo = "`sidecore disk stage rm ID fault` when the tests are over; one of the file is taken out of that, then \
                `sidecore reload`";
    Some(super::check("faults", State::Warn, found, &means, todo))
}

#[cfg(test)]
mod tests {
    use config::api::{StageView, StagedBy};
    use config::spec::StageKind;

    use super::*;

    #[test]
    fn a_disk_whose_requests_are_made_to_fail_is_told_of() {
        let plain = crate::vmm::tests::disk();
        let with = |id: &str, kind| DiskView {
            id: id.to_string(),
            stages: vec![StageView {
                errors_per_million: Some(100),
                ops: Some("read".to_string()),
                ..StageView::new(kind, StagedBy::Command)
            }],
            ..plain.clone()
        };
        assert_eq!(of_disks(&[]), None);
        assert_eq!(of_disks(&[plain.clone(), with("a", StageKind::Trace)]), None);
        let told = of_disks(&[plain.clone(), with("b", StageKind::Fault)]).expect("a check");
        assert_eq!((told.name, told.state), ("faults", State::Warn));
        assert_eq!(told.found, "1 of 2 disks have the stage `fault`, which is for tests");
        assert_eq!(told.means, "b: 100 errors a million, of read");
        assert!(told.todo.starts_with("`sidecore disk stage rm ID fault`"), "{}", told.todo);
        let many: Vec<DiskView> =
            (0..6).map(|n| with(&format!("d{n}"), StageKind::Fault)).collect();
        let told = of_disks(&many).expect("a check");
        assert!(told.means.ends_with("\nand 2 more"), "{}", told.means);
    }
}
