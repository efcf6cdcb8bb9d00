//! How far a run can be believed: told above everything else.

use super::Conditions;
use super::groups::Experiment;

/// Above it, counts are those of a machine that was held up: slower guests take more interrupts of timers.
const DISTURBED_PERCENT: f64 = 20.0;

/// In sentences, what weighs most first.
pub(super) fn notes(conditions: &Conditions, experiments: &[Experiment]) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(disturbed(conditions));
    if conditions.emulated {
        notes.push(
            "KVM ran on an emulated machine. Counts are KVM's own. Its time is not time: what takes time is shown only \
             as a ratio within this run, against the configuration that the column names; where vCPUs' time went and \
             servers' cpu % are parts of one time of that machine. It has no posted interrupts."
                .to_string(),
        );
    }
    if let Some(percent) = conditions.waited.filter(|percent| *percent <= DISTURBED_PERCENT) {
        notes.push(format!(
            "{} (above {DISTURBED_PERCENT:.0}% a run is disturbed).",
            waited(percent)
        ));
    }
    if conditions.retried > 0 {
        notes.push(format!(
            "A machine or a configuration hung or failed, and was started once more: {} of them.",
            conditions.retried
        ));
    }
    notes.extend(without_spread(experiments));
    notes
}

/// Which loads had one turn.
fn without_spread(experiments: &[Experiment]) -> Option<String> {
    let loads = || experiments.iter().flat_map(|experiment| &experiment.loads);
    let alone: Vec<&str> =
        loads().filter(|load| load.is_of_one_turn()).map(|load| load.name.as_str()).collect();
    let whose = match alone.len() {
        0 => return None,
        some if some == loads().count() => String::new(),
        _ => format!(" of {}", alone.join(", ")),
    };
    Some(format!("One turn{whose}: no spread is known."))
}

/// If it was.
pub(super) fn disturbed(conditions: &Conditions) -> Option<String> {
    let percent = conditions.waited.filter(|percent| *percent > DISTURBED_PERCENT)?;
    Some(format!(
        "THIS RUN WAS DISTURBED. {}; above {DISTURBED_PERCENT:.0}% counts an operation rise. Run it again while the host \
         does nothing else.",
        waited(percent)
    ))
}

fn waited(percent: f64) -> String {
    format!(
        "The emulated machine's CPUs waited {percent:.1}% of the time in which they had work for a CPU of the host"
    )
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::measured};
    use super::*;

    fn of(waited: Option<f64>, retried: u32) -> Vec<String> {
        notes(&Conditions { emulated: true, waited, retried }, &experiments(&measured()))
    }

    #[test]
    fn a_disturbed_run_says_so_first() {
        let disturbed = of(Some(20.1), 0);
        assert!(disturbed[0].starts_with("THIS RUN WAS DISTURBED. "), "{disturbed:?}");
        assert!(disturbed[0].contains("waited 20.1% of the time"), "{disturbed:?}");
        assert_eq!(disturbed.len(), 2);
        let quiet = of(Some(20.0), 0);
        assert!(quiet[0].starts_with("KVM ran on an emulated machine."), "{quiet:?}");
        assert!(quiet[1].contains("waited 20.0% of the time"), "{quiet:?}");
    }

    #[test]
    fn what_was_started_again_is_counted() {
        assert_eq!(of(None, 0).len(), 1);
        assert!(of(None, 2)[1].ends_with("was started once more: 2 of them."));
    }

    #[test]
    fn numbers_of_one_turn_say_so() {
        let mut rows = measured();
        for row in &mut rows {
            row.turns = 1;
        }
        let conditions = Conditions { emulated: false, waited: None, retried: 0 };
        let said = notes(&conditions, &experiments(&rows));
        assert_eq!(said, ["One turn: no spread is known."]);
        rows[0].turns = 3;
        let said = notes(&conditions, &experiments(&rows));
        assert_eq!(said, ["One turn of net.udp_rr: no spread is known."]);
        assert!(notes(&conditions, &experiments(&measured())).is_empty());
    }
}
