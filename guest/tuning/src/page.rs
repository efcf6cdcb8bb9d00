//! The rules as a page: `docs/tune-rules.md`.

use crate::rule::{Rule, Setting, Subject, Way, Wish};
use crate::table::rules;

/// Columns of a line at most.
const COLUMNS: usize = 100;

const HEAD: &str = "\
# Rules of `sidecore-tune`

Written by `sidecore-tune docs docs` from the table that the program has. How it is used is in
[tune.md](tune.md). \"Paper\" is kvm-guest-io, one of the papers that [lab.md](lab.md) follows; where
it gives no number, that is said.
";

/// The page.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    text += "\n| rule | looks at | who sets it |\n|---|---|---|\n";
    for rule in rules() {
        let (name, looks_at) = (rule.name, rule.looks_at);
        text += &format!("| [`{name}`](#{name}) | {looks_at} | {} |\n", who(rule));
    }
    for rule in rules() {
        text += &section(rule);
    }
    text
}

/// Who sets a rule's settings, in words.
pub fn who(rule: &Rule) -> &'static str {
    match rule.way {
        Way::Apply => "`apply`",
        Way::Named => "`apply --rule`, `try`",
        Way::Told => "only said",
    }
}

fn section(rule: &Rule) -> String {
    let mut text = format!("\n## {}\n\n", rule.name);
    let mut item = |name: &str, words: &str| text += &wrapped(&format!("- *{name}*: {words}."));
    item("looks at", rule.looks_at);
    item("wished", rule.wish);
    item("why", rule.why);
    item("costs", rule.costs);
    item("price of the wish", rule.price);
    item("left alone when", rule.not_when);
    if rule.way != Way::Told {
        let set: Vec<String> = rule.settings.iter().map(|it| set(it, rule.subject)).collect();
        item("set", &set.join("; "));
        item("undone", &undone(rule));
    }
    if !rule.elsewhere.is_empty() {
        item("elsewhere", rule.elsewhere);
    }
    text
}

fn set(setting: &Setting, subject: Subject) -> String {
    let place = match setting.place.strip_prefix("ethtool:") {
        Some(rest) => format!("ethtool's `{}` of NIC", rest.rsplit(':').next().unwrap_or(rest)),
        None => format!("`/{}`", setting.place),
    };
    let value = match setting.wish {
        Wish::Is(value) => format!("`{value}`"),
        Wish::OneOf(values, _) => format!("the first of `{}` that is offered", values.join("`, `")),
        Wish::AtLeast(value) => format!("`{value}`, if it is less"),
        Wish::OwnVcpu => "the queue's vCPU".to_owned(),
        Wish::Vcpus(_) => "the vCPUs' count, or the device's most".to_owned(),
        Wish::NoneOf(_) | Wish::NoWord(_) | Wish::Without(_) => "nothing".to_owned(),
    };
    let each = if subject == Subject::Guest { "" } else { ", of each" };
    format!("{place}{each} gets {value}")
}

fn undone(rule: &Rule) -> String {
    let beside = rule.settings.iter().flat_map(|setting| setting.beside);
    let beside: Vec<&str> = beside.filter_map(|place| place.split("/queue/").last()).collect();
    let back = "the old value is written back";
    match beside.is_empty() {
        true => back.to_owned(),
        false => {
            format!("{back}, and so are those beside it that it reset: `{}`", beside.join("`, `"))
        }
    }
}

/// A list's item in lines of a page's width.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &line;
            lines.push('\n');
            line = " ".to_owned();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}
