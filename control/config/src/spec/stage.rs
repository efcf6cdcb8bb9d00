//! What the operator wrote about stages of a disk: what is done to its requests on their way.
//!
//! Each field is told once, in the table below, with the kind that has it: the file, the API and the command line have
//! what is made of that. A kind more is a variant of [`StageKind`], at its place, and its lines of the table. Not here:
//! which stages go together (`plan::stages`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mistake::{Mistake, Path};
use crate::schema;

/// What a stage does, in the order in which requests come by.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum StageKind {
    /// Records each request that has ended: `sidecore disk trace` shows them.
    Trace,
    /// Delays requests, and has some fail, to see what a guest makes of it.
    Fault,
}

words! { StageKind { Trace => "trace", Fault => "fault" } }

impl StageKind {
    /// All of them, in that order.
    pub const ALL: [StageKind; 2] = [StageKind::Trace, StageKind::Fault];

    /// That of a name, as a path of the API has it.
    pub fn named(name: &str) -> Option<StageKind> {
        StageKind::ALL.into_iter().find(|kind| kind.word() == name)
    }
}

/// A number that a stage has: where, its bounds, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageNumber {
    pub(crate) name: &'static str,
    pub(crate) kind: StageKind,
    /// Least and most.
    pub(crate) bounds: (u32, u32),
    /// Where nothing is said.
    pub(crate) usual: u32,
    /// For who wrote something else.
    pub(crate) example: u32,
}

/// A text that a stage has: where, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageText {
    pub(crate) name: &'static str,
    pub(crate) kind: StageKind,
}

macro_rules! stages {
    ($(
        $(#[$doc:meta])+
        $name:ident: u32 ($value:literal, $least:literal..=$most:literal, $example:literal) = $usual:literal
            of $kind:ident;
    )+ texts $(
        $(#[$text_doc:meta])+
        $text:ident ($text_value:literal) of $text_kind:ident;
    )+) => {
        /// One stage of a disk.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct StageSpec {
            /// What it does. There is one of each kind, and they are written in the order in which requests come by.
            pub kind: StageKind,
            $(
                $(#[$doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                #[schemars(range(min = $least, max = $most))]
                pub $name: Option<u32>,
            )+
            $(
                $(#[$text_doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $text: Option<String>,
            )+
        }

        /// What a stage of a disk is to be. What is not named stays, or is as usual.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[cfg_attr(feature = "cli", derive(clap::Args))]
        #[serde(deny_unknown_fields)]
        pub struct StageChange {
            $(
                $(#[$doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                #[schemars(range(min = $least, max = $most))]
                #[cfg_attr(feature = "cli", arg(long, value_name = $value,
                    value_parser = crate::number::of::<u32>(stringify!($name), $least..=$most)))]
                pub $name: Option<u32>,
            )+
            $(
                $(#[$text_doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                #[cfg_attr(feature = "cli", arg(long, value_name = $text_value))]
                pub $text: Option<String>,
            )+
        }

        impl StageSpec {
            /// One of which nothing is said.
            pub fn new(kind: StageKind) -> StageSpec {
                StageSpec { kind, $($name: None,)+ $($text: None),+ }
            }

            /// What has bounds, in the order of the table.
            pub(crate) const NUMBERS: &'static [StageNumber] = &[$(StageNumber {
                name: stringify!($name),
                kind: StageKind::$kind,
                bounds: ($least, $most),
                usual: $usual,
                example: $example,
            }),+];

            /// What is text, in the order of the table.
            pub(crate) const TEXTS: &'static [StageText] = &[$(StageText {
                name: stringify!($text),
                kind: StageKind::$text_kind,
            }),+];

            /// The texts that are written, as [`Self::TEXTS`] has them.
            pub(crate) fn texts(&self) -> Vec<Option<&str>> {
                vec![$(self.$text.as_deref()),+]
            }

            /// The numbers that are written, as [`Self::NUMBERS`] has them.
            pub(crate) fn numbers(&self) -> Vec<Option<u32>> {
                vec![$(self.$name),+]
            }

            /// The same with what a change names.
            #[must_use]
            pub fn changed(&self, change: &StageChange) -> StageSpec {
                StageSpec {
                    kind: self.kind,
                    $($name: change.$name.or(self.$name),)+
                    $($text: change.$text.clone().or_else(|| self.$text.clone())),+
                }
            }
        }

        impl StageChange {
            /// Whether nothing is named.
            pub fn is_empty(&self) -> bool {
                *self == StageChange::default()
            }
        }
    };
}

stages! {
    /// `trace`: requests that are kept for each queue until others take their place; a power of two is taken that is
    /// not less. Each takes 64 bytes. Default: 4096.
    entries: u32 ("N", 1024..=65_536, 4096) = 4096 of Trace;
    /// `fault`: microseconds by which each request is answered later. Default: 0.
    delay_us: u32 ("US", 0..=10_000_000, 500) = 0 of Fault;
    /// `fault`: microseconds of up to which requests are answered later besides, evenly. Default: 0.
    jitter_us: u32 ("US", 0..=10_000_000, 100) = 0 of Fault;
    /// `fault`: of a million requests so many fail, and are not done. Default: 0.
    errors_per_million: u32 ("N", 0..=1_000_000, 100) = 0 of Fault;
    /// `fault`: what chooses which fail, and how long each waits: with the same number and the same requests it is the
    /// same ones. Default: 1.
    seed: u32 ("N", 0..=1_000_000_000, 1) = 1 of Fault;
    texts
    /// `fault`: which requests are meant: some of `read`, `write`, `flush`, `discard` (also what writes zeroes), such as
    /// `read+write`, or `all`. Default: all.
    ops ("OPS") of Fault;
    /// `fault`: which bytes of the disk are meant, such as `1G..2G`, or `1G..` for all behind them, or `all`; a flush
    /// touches all. Default: all.
    range ("FROM..TO") of Fault;
}

/// Why a text is no stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// A part of it says nothing.
    #[error("{0:?} is not NAME=VALUE, such as entries=8192")]
    NoValue(String),
    /// Two parts are of one name.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// What the file could not say either.
    #[error("{}", Mistake::in_one_line(.0))]
    Mistakes(Vec<Mistake>),
}

/// As on the command line: `trace`, or `trace,entries=8192`.
impl std::str::FromStr for StageSpec {
    type Err = StageError;

    fn from_str(text: &str) -> Result<StageSpec, StageError> {
        let mut words = text.split(',');
        let mut fields = serde_json::Map::new();
        fields.insert("kind".to_string(), words.next().unwrap_or_default().into());
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(StageError::NoValue(word.to_string()));
            };
            let value = value.parse::<u64>().map_or(value.into(), serde_json::Value::from);
            if fields.insert(name.replace('-', "_"), value).is_some() {
                return Err(StageError::Twice(name.to_string()));
            }
        }
        schema::read(fields.into(), &Path::root(), schema::Written::Json)
            .map_err(StageError::Mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_of_the_command_line_is_that_of_the_file() {
        let trace = StageSpec::new(StageKind::Trace);
        assert_eq!("trace".parse(), Ok(trace.clone()));
        assert_eq!("trace,entries=8192".parse(), Ok(StageSpec { entries: Some(8192), ..trace }));
        for (text, why) in [
            ("", "kind: \"\" is not possible here (possible: \"trace\", \"fault\")"),
            (
                "trac",
                "kind: \"trac\" is not possible here (did you mean \"trace\"? Possible: \"trace\", \"fault\")",
            ),
            ("trace,entries", "\"entries\" is not NAME=VALUE, such as entries=8192"),
            ("trace,entries=2000,entries=2000", "`entries` is given twice"),
            ("trace,kind=trace", "`kind` is given twice"),
            ("trace,entrys=2000", "`entrys` is not a field here (did you mean `entries`?)"),
            (
                "trace,entries=7",
                "entries: 7 is out of bounds (write a number from 1024 to 65536, such as 4096)",
            ),
        ] {
            assert_eq!(text.parse::<StageSpec>().unwrap_err().to_string(), why, "{text}");
        }
    }

    #[test]
    fn kinds_have_their_names_and_a_change_leaves_what_it_does_not_name() {
        for kind in StageKind::ALL {
            assert_eq!(StageKind::named(kind.word()), Some(kind));
        }
        assert_eq!(StageKind::named("Trace"), None);
        assert!(StageKind::ALL.is_sorted());
        let trace = StageSpec { entries: Some(2048), ..StageSpec::new(StageKind::Trace) };
        assert_eq!(trace.changed(&StageChange::default()), trace);
        let change = StageChange { entries: Some(4096), ..StageChange::default() };
        assert_eq!(trace.changed(&change).entries, Some(4096));
        for number in StageSpec::NUMBERS {
            let (least, most) = number.bounds;
            assert!((least..=most).contains(&number.usual), "{number:?}");
            assert!((least..=most).contains(&number.example), "{number:?}");
        }
    }
}
