//! What a rule is. All of them are in `table`.

use crate::value::Form;

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name, as `--rule` takes it.
    pub name: &'static str,
    /// What it looks at, in words.
    pub looks_at: &'static str,
    /// What is wished, in words.
    pub wish: &'static str,
    /// Why it matters in this guest.
    pub why: &'static str,
    /// What it costs where it is not so, and who says that.
    pub costs: &'static str,
    /// What the wish costs.
    pub price: &'static str,
    /// When it is left alone.
    pub not_when: &'static str,
    /// Where it is set by whoever can, if this guest cannot: what to write there.
    pub elsewhere: &'static str,
    /// On what it is looked at.
    pub subject: Subject,
    /// Who sets it.
    pub way: Way,
    /// What must hold, or the rule leaves the subject alone.
    pub conditions: &'static [Condition],
    /// What is set; together, or not at all.
    pub settings: &'static [Setting],
}

/// On what a rule is looked at; its templates get the subject's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The guest as a whole.
    Guest,
    /// Each virtio disk: `{name}`.
    Disk,
    /// Each virtio NIC: `{name}`.
    Nic,
    /// Each queue's interrupt of a virtio NIC with several pairs: `{name}`, `{irq}`.
    NicInterrupt,
    /// Each disk that is no virtio disk; only looked at.
    OtherDisk,
    /// Each NIC that is no virtio NIC; only looked at.
    OtherNic,
}

/// Who sets what a rule wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `apply`.
    Apply,
    /// `apply --rule NAME`, or `try`: whether it gains depends on the load.
    Named,
    /// The host, or the kernel's command line: it is only said.
    Told,
}

/// What must hold for a rule.
#[derive(Debug)]
pub struct Condition {
    /// What.
    pub test: Test,
    /// What is said where it does not.
    pub otherwise: &'static str,
}

/// A test of a condition. A file that is absent passes none but [`Test::Not`].
#[derive(Debug)]
pub enum Test {
    /// The value of a file is one of these.
    Is(&'static str, Form, &'static [&'static str]),
    /// The value of a file is none of these.
    Not(&'static str, Form, &'static [&'static str]),
    /// A bit of a virtio device's features, in the subject's file `device/features`.
    Feature(&'static str, usize),
    /// A processor's flag.
    CpuFlag(&'static str),
    /// No process has this name.
    NoProcess(&'static str),
    /// The disk has fewer queues than the guest has vCPUs.
    FewQueues(&'static str),
}

/// One value that a rule sets.
#[derive(Debug)]
pub struct Setting {
    /// Its place, as a template.
    pub place: &'static str,
    /// The form of its text.
    pub form: Form,
    /// What is wished.
    pub wish: Wish,
    /// Settings that the kernel changes when this one is written: they are kept, and put back after it.
    pub beside: &'static [&'static str],
}

/// What is wished of a value.
#[derive(Debug)]
pub enum Wish {
    /// This one.
    Is(&'static str),
    /// One of these, the first that the other file offers.
    OneOf(&'static [&'static str], &'static str),
    /// A number at least so large.
    AtLeast(i64),
    /// The subject's own vCPU.
    OwnVcpu,
    /// At least as many as vCPUs, or as the other place says that there may be.
    Vcpus(Option<&'static str>),
    /// None of these; nobody here can change it.
    NoneOf(&'static [&'static str]),
    /// A line that has none of these words; nobody here can change it.
    NoWord(&'static [&'static str]),
    /// A text without this; nobody here can change it.
    Without(&'static str),
}
