//! The rules. "Paper" is kvm-guest-io; its sections and tables are named.
//!
//! Only what is here is ever written: also what a journal names is looked up here before it is put back.

mod disks;
mod machine;
mod nics;

use crate::place::{Place, matches};
use crate::rule::{Rule, Setting};

/// All rules, in the order in which they are looked at and applied.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    machine::RULES.iter().chain(disks::RULES).chain(nics::RULES)
}

/// The rule of that name.
pub fn rule(name: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.name == name)
}

/// The setting that a place is one of; nothing if no rule sets it.
pub fn setting(place: &Place) -> Option<&'static Setting> {
    let text = text_of(place);
    rules().flat_map(|rule| rule.settings).find(|setting| matches(setting.place, &text))
}

/// Whether a place is put back beside a setting.
pub fn is_beside(setting: &Setting, place: &Place) -> bool {
    let text = text_of(place);
    setting.beside.iter().any(|template| matches(template, &text))
}

fn text_of(place: &Place) -> String {
    place.to_string().trim_start_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::place::filled;
    use crate::rule::Way;

    #[test]
    fn every_rule_is_whole_and_has_a_name_of_its_own() {
        let names: BTreeSet<_> = rules().map(|rule| rule.name).collect();
        assert_eq!(names.len(), rules().count());
        for rule in rules() {
            let texts = [rule.looks_at, rule.wish, rule.why, rule.costs, rule.price, rule.not_when];
            assert!(texts.iter().all(|text| !text.is_empty()), "{}", rule.name);
            assert!(rule.way != Way::Told || !rule.elsewhere.is_empty(), "{}", rule.name);
            assert!(!rule.settings.is_empty(), "{}", rule.name);
        }
    }

    #[test]
    fn what_a_rule_sets_is_found_by_its_place_and_nothing_else_is() {
        for setting in rules().flat_map(|rule| rule.settings) {
            let text = filled(setting.place, &[("{name}", "vda"), ("{irq}", "24")]);
            let found = super::setting(&Place::of(&text).unwrap()).unwrap();
            assert_eq!(found.place, setting.place);
        }
        for text in
            ["proc/sys/kernel/core_pattern", "sys/block/vda/queue/nr_requests", "etc/passwd"]
        {
            assert!(super::setting(&Place::of(text).unwrap()).is_none(), "{text}");
        }
    }
}
