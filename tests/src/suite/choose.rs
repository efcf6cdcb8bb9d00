//! Which cases the words of the command line ask for.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::suite::{Case, Group};

/// A case that was asked for.
#[derive(Clone, Debug)]
pub struct Chosen {
    group: &'static Group,
    case: &'static Case,
    checks: Vec<String>,
    left_out: Option<String>,
}

impl Chosen {
    /// Its group.
    pub fn group(&self) -> &'static Group {
        self.group
    }

    /// The case.
    pub fn case(&self) -> &'static Case {
        self.case
    }

    /// The checks of it that were asked for; none for all.
    pub fn checks(&self) -> &[String] {
        &self.checks
    }

    /// Why it is not run all the same; nothing if it is.
    pub fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// `GROUP/CASE`, or the group alone where the case is all of it.
    pub fn name(&self) -> String {
        match self.case.name {
            "" => self.group.name.to_owned(),
            name => format!("{}/{name}", self.group.name),
        }
    }
}

/// Chooses of `groups` what `words` ask for, each `GROUP`, `GROUP/CASE` or `GROUP/CASE/CHECK`; without words all
/// groups but those that are run by name. A case is in the answer once, in the order of the table.
///
/// # Errors
/// A word names nothing; what there is, is in the message.
pub fn choose(groups: &'static [Group], words: &[String], all: bool) -> Result<Vec<Chosen>> {
    // By the places of group and case: the checks, and whether the case was named.
    let mut asked: BTreeMap<(usize, usize), (Vec<String>, bool)> = BTreeMap::new();
    for word in words {
        let (name, rest) = word.split_once('/').unwrap_or((word, ""));
        let Some(at) = groups.iter().position(|group| group.name == name) else {
            let names: Vec<&str> = groups.iter().map(|group| group.name).collect();
            bail!("there is no group {name}; there are: {}", names.join(", "));
        };
        for (case, checks) in cases_of(&groups[at], rest)? {
            let (of_case, is_named) = asked.entry((at, case)).or_default();
            of_case.extend(checks);
            *is_named |= !rest.is_empty();
        }
    }
    if words.is_empty() {
        let by_default = groups.iter().enumerate().filter(|(_, group)| all || !group.by_name);
        asked.extend(by_default.flat_map(|(at, group)| {
            (0..group.cases.len()).map(move |case| ((at, case), (Vec::new(), false)))
        }));
    }
    let chosen = asked.into_iter().map(|((group, case), (checks, is_named))| {
        let (group, case) = (&groups[group], &groups[group].cases[case]);
        let mut chosen = Chosen { group, case, checks, left_out: None };
        let missing = || case.needs.iter().find_map(|need| need.missing());
        chosen.left_out = match case.only_all {
            Some(why) if !all && !is_named => {
                Some(format!("{why}: ./x test --all, or ./x test {}", chosen.name()))
            }
            _ => missing(),
        };
        chosen
    });
    Ok(chosen.collect())
}

/// The places of the cases that `rest` of a word names in a group, each with the checks that are asked for.
fn cases_of(group: &'static Group, rest: &str) -> Result<Vec<(usize, Vec<String>)>> {
    let all = group.cases.iter().enumerate();
    if rest.is_empty() {
        return Ok(all.map(|(at, _)| (at, Vec::new())).collect());
    }
    let found = all.filter_map(|(at, case)| {
        // What is one case has checks alone.
        let checks = match case.name {
            "" => Some(rest),
            name if name == rest => Some(""),
            _ if case.parts.contains(&rest) => Some(rest),
            name => rest.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')),
        }?;
        let checks = (!checks.is_empty()).then(|| checks.to_owned());
        Some((at, checks.into_iter().collect()))
    });
    let found: Vec<(usize, Vec<String>)> = found.collect();
    if found.is_empty() {
        let parts = |case: &'static Case| std::iter::once(&case.name).chain(case.parts);
        let names: Vec<&str> = group.cases.iter().flat_map(parts).copied().collect();
        bail!("the group {} has no case {rest}; it has: {}", group.name, names.join(", "));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::cases::GROUPS;
    use testing::bed::Need;

    static TABLE: &[Group] = &[
        Group::new(
            "disk",
            "disks",
            &[
                Case::shell("fio"),
                Case::shell("fio-memory"),
                Case::shell("long").only_all("takes minutes"),
                Case::shell("rare").needs(&[Need::Program("no-such-program-here")]),
            ],
        ),
        Group::new("whole", "one case", &[Case::shell("")]),
        Group::new("by-name", "hours", &[Case::shell("a")]).only_by_name(),
    ];

    /// Each case with its checks, and why it is left out.
    fn chosen(words: &[&str], all: bool) -> Result<Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let said = |chosen: &Chosen| {
            let checks: String = chosen.checks().iter().map(|check| format!(" +{check}")).collect();
            let why = chosen.left_out().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{}{checks}{why}", chosen.name())
        };
        Ok(choose(TABLE, &words, all)?.iter().map(said).collect())
    }

    #[test]
    fn without_words_all_but_what_has_to_be_named_is_run() {
        let long = "disk/long (takes minutes: ./x test --all, or ./x test disk/long)";
        let rare = "disk/rare (no-such-program-here is not installed)";
        assert_eq!(
            chosen(&[], false).unwrap(),
            ["disk/fio", "disk/fio-memory", long, rare, "whole"]
        );
        assert_eq!(
            chosen(&[], true).unwrap(),
            ["disk/fio", "disk/fio-memory", "disk/long", rare, "whole", "by-name/a"]
        );
    }

    #[test]
    fn words_choose_groups_cases_and_checks_once_each() {
        assert_eq!(chosen(&["by-name"], false).unwrap(), ["by-name/a"]);
        assert_eq!(chosen(&["disk/long", "disk/fio"], false).unwrap(), ["disk/fio", "disk/long"]);
        let words = ["whole/start", "disk/fio/verify", "disk/fio", "disk/fio/trim", "whole/stop"];
        assert_eq!(
            chosen(&words, false).unwrap(),
            ["disk/fio +verify +trim", "whole +start +stop"]
        );
    }

    #[test]
    fn a_word_that_names_nothing_says_what_there_is() {
        let said = |word| chosen(&[word], false).unwrap_err().to_string();
        assert_eq!(said("disc"), "there is no group disc; there are: disk, whole, by-name");
        assert_eq!(
            said("disk/fi"),
            "the group disk has no case fi; it has: fio, fio-memory, long, rare"
        );
    }

    #[test]
    fn the_table_names_each_case_once() {
        for group in GROUPS {
            let mut names: Vec<&str> = group.cases.iter().map(|case| case.name).collect();
            names.sort_unstable();
            let whole = names.len();
            names.dedup();
            assert_eq!(names.len(), whole, "{}", group.name);
            assert!(
                !group.cases.is_empty() && (whole == 1 || !names.contains(&"")),
                "{}",
                group.name
            );
        }
    }
}
