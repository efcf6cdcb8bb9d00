//! One declaration of each field of a device: a table of which the spec, the change and what both need are made.
//!
//! An entry is: what the field is (its help); its name and type; in brackets what stands for it on the command line,
//! its bounds, a usual value, and what there is none of with 0 or nothing; `= USUAL "function"` where it is not left
//! out; `anew` if a reload makes the device anew for it; `since N` if no older form of the saved state has it. If it
//! may be changed on a running device, then after a comma: its help in the change, `set`, the part of the change that
//! it is in, and its bounds there if they are others. Decision 26 has why.

use super::{DiskSpec, GroupSpec, NicSpec, OnFailure, Policy, Redirect, SocketMode, Spoof};
use crate::size::Size;

/// What is made of a table besides the structs.
pub(crate) trait Told {
    /// What has bounds, in the order of the table.
    const NUMBERS: &'static [Number];
    /// Fields for which a reload makes the device anew.
    const ANEW: &'static [&'static str];
    /// Fields that an older form of the saved state does not have.
    const SINCE: &'static [&'static str];
    /// The newest form that one of them came with, 1 if there are none.
    const NEWEST: u64;

    /// One of which nothing is said.
    fn usual() -> Self;

    /// The numbers that are written, as [`Told::NUMBERS`] has them.
    fn numbers(&self) -> Vec<Option<u32>>;

    /// The oldest version of the saved state that can hold what is written.
    fn since(&self) -> u64;
}

/// The highest of some versions of the saved state, 1 if there are none.
pub(crate) const fn newest(versions: &[u64]) -> u64 {
    let (mut newest, mut rest) = (1, versions);
    while let [version, more @ ..] = rest {
        newest = if *version > newest { *version } else { newest };
        rest = more;
    }
    newest
}

/// What may be changed of it.
pub(crate) trait Change: Default + PartialEq {
    /// What is changed.
    type Spec: Told + Clone;
    /// All names.
    const NAMES: &'static [&'static str];

    /// Puts what is named in its place.
    fn apply(&self, spec: &mut Self::Spec);
}

/// A number of a device, as its table has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) name: &'static str,
    /// Least and most.
    pub(crate) bounds: (u32, u32),
    /// A usual one, if there is one.
    pub(crate) example: &'static [i64],
    /// What there is none of, if it may be left out for that.
    pub(crate) none: &'static [&'static str],
}

impl Number {
    /// That of that name. What several kinds of device have has one example and one word.
    pub(crate) fn named(name: &str) -> Option<&'static Number> {
        let all = [DiskSpec::NUMBERS, NicSpec::NUMBERS, GroupSpec::NUMBERS];
        all.into_iter().flatten().find(|number| number.name == name)
    }
}

/// A number that was written, if one was.
pub(super) trait Written {
    fn written(self) -> Option<u32>;
}

impl Written for u16 {
    fn written(self) -> Option<u32> {
        Some(self.into())
    }
}

impl Written for u32 {
    fn written(self) -> Option<u32> {
        Some(self)
    }
}

impl<T: Into<u32>> Written for Option<T> {
    fn written(self) -> Option<u32> {
        self.map(Into::into)
    }
}

/// A field that a change may name.
pub(super) trait Set<T> {
    /// Puts what is named in its place. `least` is the least that the field can be.
    fn set(&mut self, to: &Option<T>, least: u32);
}

impl<T: Clone> Set<T> for T {
    fn set(&mut self, to: &Option<T>, _: u32) {
        to.iter().for_each(|to| self.clone_from(to));
    }
}

impl<T: Clone + Empty> Set<T> for Option<T> {
    fn set(&mut self, to: &Option<T>, least: u32) {
        if let Some(to) = to {
            *self = Some(to.clone()).filter(|to| least == 0 || !to.is_empty());
        }
    }
}

/// What can say that there is to be none.
pub(super) trait Empty {
    fn is_empty(&self) -> bool;
}

macro_rules! empty {
    ($($type:ty: |$value:ident| $is_empty:expr;)+) => {$(
        impl Empty for $type {
            fn is_empty(&self) -> bool {
                let $value = self;
                $is_empty
            }
        }
    )+};
}

empty! {
    u16: |number| *number == 0;
    u32: |number| *number == 0;
    Size: |size| size.0 == 0;
    String: |name| name.is_empty();
    Vec<u16>: |list| list.is_empty();
    Policy: |_word| false;
    SocketMode: |_word| false;
    OnFailure: |_word| false;
    Redirect: |_word| false;
    Spoof: |_word| false;
}

macro_rules! told {
    // What several kinds of device have alike. The help that is given is that of the socket.
    (@next $made:tt $(#[$($socket:tt)*])* access; $($rest:tt)*) => { told! { @next $made
        $(#[$($socket)*])*
        socket: Option<String> ("SOCKET") anew;
        /// Who opens that socket.
        mode: Mode ("MODE") anew;
        /// Owner of that socket: a user's name or number, that of the VMM. Default: `socket_owner` of `[daemon]`, else
        /// the daemon's own user.
        socket_owner: Option<String> ("USER") since 6,
            /// Owner of its socket, whoever is connected stays; an empty name for the default.
            set owner;
        /// Group of that socket: a group's name or number. Every member of it may open the socket. Default:
        /// `socket_group` of `[daemon]`, else the daemon's own group.
        socket_group: Option<String> ("GROUP") since 6,
            /// Group of its socket; an empty name for the default.
            set owner;
        /// Who may open that socket: `"0600"`, its owner, or `"0660"`, its group too. Default: `"0660"` with a
        /// `socket_group`, else `socket_mode` of `[daemon]`, else `"0600"`.
        socket_mode: Option<SocketMode> ("MODE") since 6,
            /// Who may open its socket: `"0600"`, its owner, or `"0660"`, its group too.
            set owner;
        $($rest)*
    } };
    (@next $made:tt policy; $($rest:tt)*) => { told! { @next $made
        /// When its queues are polled. Default: the policy of `[sidecores]`.
        policy: Option<Policy> ("POLICY"),
            /// When its queues are polled.
            set service;
        $($rest)*
    } };
    (@next $made:tt group; $($rest:tt)*) => { told! { @next $made
        /// The group whose limit holds for it too. Default: none.
        group: Option<String> ("GROUP"),
            /// The group whose limit holds for it too; an empty name for none.
            set owner;
        $($rest)*
    } };
    (@next $made:tt qmp; $($rest:tt)*) => { told! { @next $made
        /// Unix socket of the VMM's QMP, of which the daemon asks which threads are the guest's vCPUs, where it goes by
        /// these (`redirect`). QEMU serves one client at a time there, so give it one for this
        /// alone: `-qmp unix:SOCKET,server=on,wait=off`. Default: they
        /// are known by their names.
        qmp: Option<String> ("SOCKET") since 4;
        $($rest)*
    } };
    (@next $made:tt allow_unsealed_memory; $($rest:tt)*) => { told! { @next $made
        /// Serve guests whose memory is not sealed against shrinking. Such a front-end can make the
        /// daemon's accesses fail by truncating its memory; leave it off unless a VMM needs it.
        allow_unsealed_memory: bool anew;
        $($rest)*
    } };

    // An entry by the form of its type: first the field of the spec.
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: ($type:ty) $($rest:tt)*) => { told! {
        @spec $made $name { $(#[$($doc)*])* pub $name: $type, } [] {} $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: bool $($rest:tt)*) => { told! {
        @spec $made $name {
            $(#[$($doc)*])*
            #[serde(default)]
            #[cfg_attr(feature = "cli", arg(long))]
            pub $name: bool,
        } [] {} $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: Vec<$type:ident> ($value:literal) $($rest:tt)*) => { told! {
        @spec $made $name {
            $(#[$($doc)*])*
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value))]
            pub $name: Vec<$type>,
        } [] {} $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: Option<Vec<$type:ident>> $form:tt $($rest:tt)*) => { told! {
        @option [spec $made $name] { $(#[$($doc)*])* } $name [$type] $form $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: Option<$type:ident> $form:tt $($rest:tt)*) => { told! {
        @option [spec $made $name] { $(#[$($doc)*])* } $name $type $form $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: $type:ident ($value:literal) $($rest:tt)*) => { told! {
        @spec $made $name {
            $(#[$($doc)*])*
            #[serde(default)]
            #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, value_name = $value))]
            pub $name: $type,
        } [] {} $($rest)*
    } };
    (@next $made:tt $(#[$($doc:tt)*])* $name:ident: $type:ident
        ($value:literal, $least:literal..=$most:literal, $example:literal) = $usual:tt $function:literal
        $($rest:tt)*) => { told! {
        @spec $made $name {
            $(#[$($doc)*])*
            #[serde(default = $function)]
            #[schemars(range(min = $least, max = $most))]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value, default_value_t = $usual,
                value_parser = crate::number::of::<$type>(stringify!($name), $least..=$most)))]
            pub $name: $type,
        } [($name $least $most [$example] [])] { $type ($value, $least..=$most) } $($rest)*
    } };

    // What may be left out, in the spec or in a part of the change.
    (@option [$($to:tt)*] { $($doc:tt)* } $name:ident Size ($value:literal) $($rest:tt)*) => { told! {
        @$($to)* {
            $($doc)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value, value_parser = crate::number::size))]
            pub $name: Option<Size>,
        } [] { Size ($value) } $($rest)*
    } };
    (@option [$($to:tt)*] { $($doc:tt)* } $name:ident $type:ident ($value:literal) $($rest:tt)*) => { told! {
        @$($to)* {
            $($doc)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value))]
            pub $name: Option<$type>,
        } [] { $type ($value) } $($rest)*
    } };
    (@option [$($to:tt)*] { $($doc:tt)* } $name:ident [$type:ident]
        ($value:literal, $least:literal..=$most:literal) $($rest:tt)*) => { told! {
        @$($to)* {
            $($doc)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(inner(range(min = $least, max = $most)))]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value, value_delimiter = ',',
                value_parser = crate::number::of::<$type>(stringify!($name), $least..=$most)))]
            pub $name: Option<Vec<$type>>,
        } [] { [$type] ($value, $least..=$most) } $($rest)*
    } };
    (@option [$($to:tt)*] { $($doc:tt)* } $name:ident $type:ident
        ($value:literal, $least:literal..=$most:literal $(, $example:literal $(, $none:literal)?)?)
        $($rest:tt)*) => { told! {
        @$($to)* {
            $($doc)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = $least, max = $most))]
            #[cfg_attr(feature = "cli", arg(long, value_name = $value,
                value_parser = crate::number::of::<$type>(stringify!($name), $least..=$most)))]
            pub $name: Option<$type>,
        } [($name $least $most [$($example)?] [$($($none)?)?])] { $type ($value, $least..=$most) } $($rest)*
    } };

    // A field goes where it belongs.
    (@spec { $head:tt [$($fields:tt)*] $parts:tt [$($numbers:tt)*] $anew:tt $since:tt } $name:ident
        { $($field:tt)* } [$(($number:ident $least:literal $($more:tt)*))?] $form:tt $($rest:tt)*) => { told! {
        @then { $head [$($fields)* $($field)*] $parts [$($numbers)* $(($number $least $($more)*))?] $anew $since }
        ($name $($least)?) $form $($rest)*
    } };
    (@service { $head:tt $fields:tt { { [$($of:tt)*] [$($names:tt)*] } $owner:tt $device:tt } $($facts:tt)* }
        $name:tt { $($field:tt)* } $number:tt $form:tt $($rest:tt)*) => { told! {
        @next { $head $fields { { [$($of)* $($field)*] [$($names)* $name] } $owner $device } $($facts)* } $($rest)*
    } };
    (@owner { $head:tt $fields:tt { $service:tt { [$($of:tt)*] [$($names:tt)*] } $device:tt } $($facts:tt)* }
        $name:tt { $($field:tt)* } $number:tt $form:tt $($rest:tt)*) => { told! {
        @next { $head $fields { $service { [$($of)* $($field)*] [$($names)* $name] } $device } $($facts)* } $($rest)*
    } };
    (@device { $head:tt $fields:tt { $service:tt $owner:tt { [$($of:tt)*] [$($names:tt)*] } } $($facts:tt)* }
        $name:tt { $($field:tt)* } $number:tt $form:tt $($rest:tt)*) => { told! {
        @next { $head $fields { $service $owner { [$($of)* $($field)*] [$($names)* $name] } } $($facts)* } $($rest)*
    } };

    // What else the entry says.
    (@then { $head:tt $fields:tt $parts:tt $numbers:tt [$($anew:tt)*] $since:tt } ($name:ident $($least:literal)?)
        $form:tt anew $($rest:tt)*) => { told! {
        @then { $head $fields $parts $numbers [$($anew)* $name] $since } ($name $($least)?) $form $($rest)*
    } };
    (@then { $head:tt $fields:tt $parts:tt $numbers:tt $anew:tt [$($since:tt)*] } ($name:ident $($least:literal)?)
        $form:tt since $version:literal $($rest:tt)*) => { told! {
        @then { $head $fields $parts $numbers $anew [$($since)* ($name $version)] } ($name $($least)?) $form
        $($rest)*
    } };
    (@then $made:tt $name:tt $form:tt; $($rest:tt)*) => { told! { @next $made $($rest)* } };
    (@then $made:tt ($name:ident $($least:literal)?) { $type:tt $form:tt }, $(#[$($doc:tt)*])* set $to:ident;
        $($rest:tt)*) => { told! {
        @option [$to $made ($name $($least)?)] { $(#[$($doc)*])* } $name $type $form $($rest)*
    } };
    (@then $made:tt ($name:ident $($least:literal)?) { $type:tt ($value:literal $($own:tt)*) },
        $(#[$($doc:tt)*])* set $to:ident ($($bounds:tt)*); $($rest:tt)*) => { told! {
        @option [$to $made ($name $($least)?)] { $(#[$($doc)*])* } $name $type ($value, $($bounds)*) $($rest)*
    } };

    // The table is at its end.
    (@next {
        { { $(#[$spec_doc:meta])* $Spec:ident } { $(#[$change_doc:meta])* $Change:ident } }
        [$($field:tt)*]
        { { [$($service:tt)*] [$($serving:tt)*] } { [$($owner:tt)*] [$($owning:tt)*] }
          { [$($device:tt)*] [$($own:tt)*] } }
        [$(($number:ident $least:literal $most:literal [$($example:literal)?] [$($none:literal)?]))*]
        [$($anew:ident)*]
        [$(($news:ident $version:literal))*]
    }) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[cfg_attr(feature = "cli", derive(clap::Args))]
        $(#[$spec_doc])*
        #[serde(deny_unknown_fields)]
        pub struct $Spec { $($field)* }

        impl Told for $Spec {
            const NUMBERS: &'static [Number] = &[$(Number {
                name: stringify!($number),
                bounds: ($least, $most),
                example: &[$($example)?],
                none: &[$($none)?],
            }),*];
            const ANEW: &'static [&'static str] = &[$(stringify!($anew)),*];
            const SINCE: &'static [&'static str] = &[$(stringify!($news)),*];
            const NEWEST: u64 = $crate::spec::told::newest(&[$($version),*]);

            fn usual() -> $Spec {
                $Spec::new("")
            }

            fn numbers(&self) -> Vec<Option<u32>> {
                vec![$(self.$number.written()),*]
            }

            fn since(&self) -> u64 {
                [1, $(if self.$news != $Spec::usual().$news { $version } else { 1 }),*].into_iter().fold(1, u64::max)
            }
        }

        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[cfg_attr(feature = "cli", derive(clap::Args))]
        $(#[$change_doc])*
        #[serde(deny_unknown_fields)]
        pub struct $Change { $($service)* $($owner)* $($device)* }

        told! { @change $Spec $Change $($serving)* $($owning)* $($own)* }
    };
    (@change $Spec:ident $Change:ident $(($name:ident $($least:literal)?))*) => {
        impl Change for $Change {
            type Spec = $Spec;
            const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn apply(&self, spec: &mut $Spec) {
                $(spec.$name.set(&self.$name, [$($least,)? 1][0]);)*
            }
        }
    };

    ($(#[$($spec_doc:tt)*])* spec $Spec:ident; $(#[$($change_doc:tt)*])* change $Change:ident; $($table:tt)*) => {
        told! { @next {
            { { $(#[$($spec_doc)*])* $Spec } { $(#[$($change_doc)*])* $Change } }
            [] { { [] [] } { [] [] } { [] [] } } [] [] []
        } $($table)* }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_several_kinds_of_device_is_said_in_one_way() {
        for number in [DiskSpec::NUMBERS, NicSpec::NUMBERS, GroupSpec::NUMBERS].concat() {
            let first = Number::named(number.name).unwrap();
            assert_eq!((first.example, first.none), (number.example, number.none), "{first:?}");
            let (least, most) = number.bounds;
            assert!(least <= most && !number.example.is_empty(), "{number:?}");
        }
    }

    #[test]
    fn only_what_can_be_nothing_is_taken_away_by_a_change() {
        let (mut with_none, mut with_zero, mut name) =
            (Some(7_u32), Some(7_u32), Some("a".to_string()));
        with_none.set(&Some(0), 1);
        with_zero.set(&Some(0), 0);
        name.set(&Some(String::new()), 1);
        assert_eq!((with_none, with_zero, name), (None::<u32>, Some(0), None));
        let mut share = 7;
        share.set(&None, 1);
        assert_eq!(share, 7);
        share.set(&Some(8), 1);
        assert_eq!(share, 8);
    }
}
