//! Rules against a guest: what is as wished, what is not, and what would be written.

use serde::Serialize;

use crate::guest::{Device, Guest};
use crate::place::{Place, filled};
use crate::rule::{Rule, Setting, Subject, Test, Way, Wish};
use crate::system::{SETTING_BYTES_MAX, System, Trouble};
use crate::table::rules;
use crate::value::{Form, choices, cpus, value};

/// What was found of one setting of one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// The disk or NIC; nothing for the guest as a whole.
    pub subject: String,
    /// The setting.
    pub place: Place,
    /// Its value; nothing if it was not understood.
    pub is: Option<String>,
    /// The value that is wished, if it is one.
    pub wish: Option<String>,
    /// How that stands.
    pub state: State,
    /// What to know of it, and to do.
    pub say: String,
    /// What would be written.
    #[serde(skip)]
    pub change: Option<Change>,
}

/// How a setting stands to its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As wished.
    Good,
    /// Not as wished; `apply` sets it.
    Settable,
    /// Not as wished; whether it gains depends on the load: `try`, or `apply --rule`.
    ByName,
    /// Not as wished; the host or the kernel's command line sets it.
    Elsewhere,
    /// Not as wished, and left alone for a reason.
    Left,
    /// Not understood or not readable, and so left alone.
    Unknown,
}

/// A value that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its rule.
    pub rule: &'static str,
    /// The device, if the setting is one's.
    pub device: Option<Device>,
    /// Where.
    pub place: Place,
    /// What is there now.
    pub old: String,
    /// What is to be there.
    pub new: String,
    /// What the kernel changes with it.
    pub beside: Vec<Place>,
}

/// A subject of a rule, by what its templates take.
struct Target<'a> {
    device: Option<&'a Device>,
    irq: &'a str,
    vcpu: u32,
}

impl Target<'_> {
    fn fill(&self, template: &str) -> String {
        let name = self.device.map_or("", |device| &device.name);
        let text = filled(template, &[("{name}", name)]);
        if self.irq.is_empty() { text } else { filled(&text, &[("{irq}", self.irq)]) }
    }
}

/// Looks at all rules. A rule that has nothing to look at in this guest has no finding.
pub fn check(system: &mut dyn System, guest: &Guest) -> Vec<Finding> {
    rules().flat_map(|rule| check_rule(system, guest, rule)).collect()
}

/// Looks at one rule.
pub fn check_rule(system: &mut dyn System, guest: &Guest, rule: &'static Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in targets(rule.subject, guest) {
        let found = rule.settings.iter();
        findings.extend(found.filter_map(|of| look(system, guest, rule, of, &target)));
    }
    findings
}

/// The changes that findings ask for: those of `apply`, or of the rules that are named.
pub fn changes(findings: &[Finding], named: &[String]) -> Vec<Change> {
    let is_asked = |finding: &&Finding| match finding.state {
        State::Settable => named.is_empty() || named.iter().any(|name| name == finding.rule),
        State::ByName => named.iter().any(|name| name == finding.rule),
        _ => false,
    };
    findings.iter().filter(is_asked).filter_map(|finding| finding.change.clone()).collect()
}

fn targets(subject: Subject, guest: &Guest) -> Vec<Target<'_>> {
    match subject {
        Subject::Guest => vec![Target { device: None, irq: "", vcpu: 0 }],
        Subject::Disk => of_devices(&guest.disks),
        Subject::Nic => of_devices(&guest.nics),
        Subject::OtherDisk => of_devices(&guest.other_disks),
        Subject::OtherNic => of_devices(&guest.other_nics),
        Subject::NicInterrupt => {
            let of = guest.interrupts.iter();
            of.map(|it| Target { device: Some(&it.nic), irq: &it.irq, vcpu: it.vcpu }).collect()
        }
    }
}

fn of_devices(devices: &[Device]) -> Vec<Target<'_>> {
    devices.iter().map(|it| Target { device: Some(it), irq: "", vcpu: 0 }).collect()
}

/// Reads a place in a form.
///
/// # Errors
/// It cannot be read; what is not understood is `Ok(None)`.
pub fn read(system: &mut dyn System, place: &Place, form: Form) -> Result<Option<String>, Trouble> {
    match (place, form) {
        (Place::Nic { nic, parameter }, _) => {
            Ok(value(form, system.parameter(nic, parameter)?.as_bytes()))
        }
        (Place::File(path), Form::Count) => Ok(Some(system.names(path)?.len().to_string())),
        (Place::File(path), Form::Link | Form::LinkEnd) => {
            Ok(value(form, system.link(path)?.as_bytes()))
        }
        (Place::File(path), _) => Ok(value(form, &system.bytes(path, SETTING_BYTES_MAX)?)),
    }
}

/// What a wish says of a value.
enum Verdict {
    Good,
    Write(String),
    Elsewhere,
}

fn look(
    system: &mut dyn System,
    guest: &Guest,
    rule: &'static Rule,
    setting: &Setting,
    target: &Target<'_>,
) -> Option<Finding> {
    let place = Place::of(&target.fill(setting.place))?;
    let mut finding = Finding {
        rule: rule.name,
        subject: target.device.map_or(String::new(), |device| device.name.clone()),
        place,
        is: None,
        wish: None,
        state: State::Unknown,
        say: String::new(),
        change: None,
    };
    let is = match read(system, &finding.place, setting.form) {
        Err(Trouble::Absent) => return None,
        Err(trouble) => {
            finding.say = format!("it {trouble}; it is left as it is");
            return Some(finding);
        }
        Ok(None) => {
            finding.say = "its text is not understood; it is left as it is".to_owned();
            return Some(finding);
        }
        Ok(Some(is)) => is,
    };
    let verdict = judged(system, guest, setting, target, &is);
    finding.is = Some(is.clone());
    let unmet = rule.conditions.iter().find(|it| !holds(system, guest, &it.test, target));
    let new = match (verdict, unmet) {
        (Verdict::Good, _) => {
            finding.state = State::Good;
            return Some(finding);
        }
        (_, Some(condition)) => {
            (finding.state, finding.say) = (State::Left, condition.otherwise.to_owned());
            return Some(finding);
        }
        (Verdict::Elsewhere, _) => {
            (finding.state, finding.say) = (State::Elsewhere, elsewhere(rule));
            return Some(finding);
        }
        (Verdict::Write(new), None) => new,
    };
    finding.wish = Some(new.clone());
    (finding.state, finding.say) = match rule.way {
        Way::Apply => (State::Settable, rule.why.to_owned()),
        Way::Named => (State::ByName, rule.why.to_owned()),
        Way::Told => (State::Elsewhere, elsewhere(rule)),
    };
    let beside = beside(system, guest, setting, target);
    let device = target.device.cloned();
    let (rule, place) = (rule.name, finding.place.clone());
    finding.change = (finding.state != State::Elsewhere).then_some(Change {
        rule,
        device,
        place,
        old: is,
        new,
        beside,
    });
    Some(finding)
}

/// The places beside a setting: of a template with `{irq}` or `{queue}` that of each interrupt or queue of the NIC.
fn beside(
    system: &mut dyn System,
    guest: &Guest,
    setting: &Setting,
    target: &Target<'_>,
) -> Vec<Place> {
    let name = target.device.map_or("", |device| &device.name);
    let irqs = guest.interrupts.iter().filter(|it| it.nic.name == name).map(|it| it.irq.clone());
    let irqs: Vec<String> = irqs.collect();
    let mut all = Vec::new();
    for template in setting.beside {
        let (key, each) = match template {
            _ if template.contains("{irq}") => ("{irq}", irqs.clone()),
            _ if template.contains("{queue}") => {
                let queues = system.names(&format!("sys/class/net/{name}/queues"));
                ("{queue}", queues.unwrap_or_default())
            }
            _ => ("{name}", vec![name.to_owned()]),
        };
        let texts = each.iter().map(|one| target.fill(&filled(template, &[(key, one)])));
        all.extend(texts.filter_map(|text| Place::of(&text)));
    }
    all
}

fn elsewhere(rule: &Rule) -> String {
    format!("{}; {}", rule.why, rule.elsewhere)
}

fn judged(
    system: &mut dyn System,
    guest: &Guest,
    setting: &Setting,
    target: &Target<'_>,
    is: &str,
) -> Verdict {
    let good_or =
        |is_good: bool, otherwise: Verdict| if is_good { Verdict::Good } else { otherwise };
    match &setting.wish {
        // Of what the device cannot do, nothing can be set.
        Wish::Is("on") if is.ends_with("-fixed") => good_or(is == "on-fixed", Verdict::Elsewhere),
        Wish::Is(wish) => good_or(is == *wish, Verdict::Write((*wish).to_owned())),
        Wish::OneOf(good, offered) => {
            if good.contains(&is) {
                return Verdict::Good;
            }
            let path = target.fill(offered);
            let offered = crate::system::text(system, &path, SETTING_BYTES_MAX).unwrap_or_default();
            let best = good.iter().find(|word| choices(&offered).any(|it| it == **word));
            best.map_or(Verdict::Elsewhere, |word| Verdict::Write((*word).to_owned()))
        }
        Wish::AtLeast(wish) => {
            good_or(is.parse::<i64>().is_ok_and(|it| it >= *wish), Verdict::Write(wish.to_string()))
        }
        Wish::OwnVcpu => {
            let own = cpus(is).is_some_and(|all| all == [target.vcpu]);
            good_or(own, Verdict::Write(target.vcpu.to_string()))
        }
        Wish::Vcpus(most) => {
            let (vcpus, is) = (guest.vcpus.len(), is.parse::<usize>().unwrap_or(0));
            let most = most.and_then(|template| {
                let place = Place::of(&target.fill(template))?;
                read(system, &place, Form::Number).ok()??.parse::<usize>().ok()
            });
            match most.map(|most| most.min(vcpus)) {
                _ if is >= vcpus => Verdict::Good,
                Some(most) if most > is => Verdict::Write(most.to_string()),
                _ => Verdict::Elsewhere,
            }
        }
        Wish::NoneOf(bad) => good_or(!bad.contains(&is), Verdict::Elsewhere),
        Wish::NoWord(bad) => {
            let has = is.split_whitespace().any(|word| bad.contains(&word));
            good_or(!has, Verdict::Elsewhere)
        }
        Wish::Without(bad) => good_or(!is.contains(bad), Verdict::Elsewhere),
    }
}

fn holds(system: &mut dyn System, guest: &Guest, test: &Test, target: &Target<'_>) -> bool {
    let mut found = |template: &str, form| {
        let place = Place::of(&target.fill(template))?;
        read(system, &place, form).ok()?
    };
    match test {
        Test::Is(file, form, values) => {
            found(file, *form).is_some_and(|value| values.contains(&value.as_str()))
        }
        Test::Not(file, form, values) => {
            found(file, *form).is_none_or(|value| !values.contains(&value.as_str()))
        }
        Test::Feature(file, bit) => {
            found(file, Form::Line).is_some_and(|bits| bits.as_bytes().get(*bit) == Some(&b'1'))
        }
        Test::CpuFlag(flag) => guest.flags.iter().any(|it| it == flag),
        Test::NoProcess(name) => !guest.processes.iter().any(|it| it == name),
        Test::FewQueues(folder) => found(folder, Form::Count)
            .is_some_and(|count| count.parse::<usize>().is_ok_and(|it| it < guest.vcpus.len())),
    }
}
