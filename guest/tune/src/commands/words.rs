//! What commands say to people.

use serde_json::Value;
use tuning::change::{End, Outcome};
use tuning::check::{Finding, State};
use tuning::guest::Guest;
use tuning::trial::{Trial, Verdict, median};

/// Columns of a line at most.
const COLUMNS: usize = 98;

/// `check`: what there is, and what is not as it should be, by what can be done.
pub(super) fn findings(guest: &Guest, findings: &[Finding]) -> String {
    let count =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "kernel {}, {}, {}, {}\n",
        guest.kernel,
        count(guest.vcpus.len(), "vCPU"),
        count(guest.disks.len(), "virtio disk"),
        count(guest.nics.len(), "virtio NIC")
    );
    for obstacle in &guest.obstacles {
        text += &wrapped(&format!("nothing can be changed here: {obstacle}"), "  ");
    }
    let parts = [
        (State::Settable, "not as it should be: `apply` sets it"),
        (State::ByName, "depends on the load: `try`, or `apply --rule NAME`"),
        (State::Elsewhere, "not as it should be, and not this guest's to set"),
        (State::Left, "left alone"),
        (State::Unknown, "not understood"),
    ];
    for (state, head) in parts {
        let of_part: Vec<&Finding> = findings.iter().filter(|it| it.state == state).collect();
        if !of_part.is_empty() {
            text += &format!("\n{head}\n");
        }
        let mut said = "";
        for finding in of_part {
            text += &format!("  {}\n", line(finding));
            if finding.say != said {
                text += &wrapped(&finding.say, "      ");
            }
            said = &finding.say;
        }
    }
    let mut good: Vec<&str> =
        findings.iter().filter(|it| it.state == State::Good).map(|it| it.rule).collect();
    good.dedup();
    good.retain(|rule| findings.iter().all(|it| it.rule != *rule || it.state == State::Good));
    if !good.is_empty() {
        text += &wrapped(&format!("as it should be: {}", good.join(", ")), "\n");
    }
    text
}

fn line(finding: &Finding) -> String {
    let is = finding.is.as_deref().unwrap_or("?");
    let wish = finding.wish.as_ref().map_or(String::new(), |wish| format!(", wished {wish}"));
    format!("{}: {} is {is}{wish}", finding.rule, finding.place)
}

/// `apply`, `undo`: what became of each setting.
pub(super) fn outcomes(outcomes: &[Outcome], nothing: &str) -> String {
    if outcomes.is_empty() {
        return format!("{nothing}\n");
    }
    outcomes.iter().map(|outcome| outcome_line(outcome) + "\n").collect()
}

fn outcome_line(outcome: &Outcome) -> String {
    let Outcome { rule, place, old, new, end, say } = outcome;
    let what = match end {
        End::Applied => format!("{new} (was {old})"),
        End::Came => format!("{new} (was {old}), with another setting"),
        End::Failed => format!("could not be set: {say}"),
        End::TakenBack => format!("{old} again: {say}"),
        End::Restored => format!("{old} again (was {new})"),
        End::AsBefore => format!("{old}, as it was"),
        End::Gone | End::Others => say.clone(),
    };
    // What is said of a success is of settings beside it.
    let more = matches!(end, End::Restored | End::AsBefore) && !say.is_empty();
    let more = if more { format!("; {say}") } else { String::new() };
    format!("{rule}: {place}: {what}{more}")
}

/// `try`: what was measured, and what was kept.
pub(super) fn trials(trials: &[Trial]) -> String {
    if trials.is_empty() {
        return "there is nothing to try: each rule is as wished, or has nothing to set here\n"
            .to_owned();
    }
    let mut text = String::new();
    for trial in trials {
        let verdict = match (trial.verdict, trial.kept) {
            (Verdict::Better, true) => "better beyond the spread: kept",
            (Verdict::Better, false) => "better, and could not be set again",
            (Verdict::Worse, _) => "worse: put back",
            (Verdict::Alike, _) => "no difference beyond the spread: put back",
            (Verdict::Unusable, _) => "not measured: put back",
        };
        let range = |samples: &[f64]| {
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            format!("{:.0} ({least:.0} to {most:.0})", median(samples))
        };
        let measured = match trial.a.is_empty() || trial.b.is_empty() {
            true => String::new(),
            false => format!("{} a second without, {} with; ", range(&trial.a), range(&trial.b)),
        };
        text += &format!("{}: {measured}{verdict}\n", trial.rule);
        let bad = trial.outcomes.iter().filter(|outcome| !outcome.end.is_good());
        text += &bad.map(|outcome| format!("  {}\n", outcome_line(outcome))).collect::<String>();
    }
    text
}

/// `ls`: what was changed.
pub(super) fn listed(changes: &[Value]) -> String {
    if changes.is_empty() {
        return "nothing was changed since the guest started\n".to_owned();
    }
    let word = |change: &Value, key: &str| change[key].as_str().unwrap_or("?").to_owned();
    let line = |change: &Value| {
        let [rule, place, old, new] = ["rule", "place", "old", "new"].map(|key| word(change, key));
        let is = word(change, "is");
        let now = if is == new { String::new() } else { format!("; now {is}") };
        format!("{rule}: {place}: {new} (was {old}){now}\n")
    };
    changes.iter().map(line).collect()
}

/// A text in lines, each with this before it.
fn wrapped(text: &str, before: &str) -> String {
    let (mut lines, mut line) = (String::new(), before.to_owned());
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > COLUMNS && line.trim() != "" {
            lines += &format!("{line}\n");
            line = before.to_owned();
        }
        if line.trim() != "" {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}
