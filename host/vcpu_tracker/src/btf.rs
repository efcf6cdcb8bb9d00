//! The kernel's description of its own types (BTF), as far as two questions about it go.
//!
//! Read once, when the program is loaded. The kernel wrote it, so it is believed; what is out of bounds
//! all the same reads as absent.

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
const TYPE_LEN: usize = 12;

/// Kinds of types (`linux/btf.h`).
const PTR: u32 = 2;
const STRUCT: u32 = 4;
const TYPEDEF: u32 = 8;
const FUNC_PROTO: u32 = 13;

/// A type's place in the description, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) id: u32,
    at: usize,
}

/// The description, with the place of each type.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    places: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// Finds the types in it. `None` when it is none.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        if u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = |at: usize| word(bytes, at).map(|word| word as usize);
        let start = header(4)?;
        if start < HEADER_LEN {
            return None;
        }
        let part = |from: usize, len: usize| {
            let from = start.checked_add(from)?;
            bytes.get(from..from.checked_add(len)?)
        };
        let types = part(header(8)?, header(12)?)?;
        let strings = part(header(16)?, header(20)?)?;
        // Number 0 is `void`, which has no entry.
        let (mut places, mut at) = (vec![usize::MAX], 0);
        while at < types.len() {
            places.push(at);
            at += TYPE_LEN + behind(word(types, at + 4)?)?;
        }
        Some(Btf { types, strings, places })
    }

    /// The type of that kind and name.
    fn named(&self, kind: u32, name: &str) -> Option<Type> {
        let is_it = |at: usize| {
            word(self.types, at + 4).is_some_and(|info| kind_of(info) == kind)
                && word(self.types, at).is_some_and(|offset| self.is_name(offset, name))
        };
        let id = self.places.iter().position(|at| *at != usize::MAX && is_it(*at))?;
        Some(Type { id: id as u32, at: *self.places.get(id)? })
    }

    fn is_name(&self, offset: u32, name: &str) -> bool {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// What a pointer or a name stands for.
    fn target(&self, from: Type, kind: u32) -> Option<Type> {
        let info = word(self.types, from.at + 4)?;
        let id = (kind_of(info) == kind).then(|| word(self.types, from.at + 8))??;
        let at = self.places.get(id as usize).copied().filter(|at| *at != usize::MAX)?;
        Some(Type { id, at })
    }

    /// The byte at which a member of a structure begins.
    pub(crate) fn offset_of(&self, structure: &str, member: &str) -> Option<u32> {
        let found = self.named(STRUCT, structure)?;
        let info = word(self.types, found.at + 4)?;
        let at = |index: usize| found.at + TYPE_LEN + TYPE_LEN * index;
        let index = (0..(info & 0xffff) as usize).find(|index| {
            word(self.types, at(*index)).is_some_and(|offset| self.is_name(offset, member))
        })?;
        let bits = word(self.types, at(index) + 8)?;
        // With the flag, the upper byte is a width in bits.
        let bits = if info >> 31 == 1 { bits & 0x00ff_ffff } else { bits };
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// A tracepoint's type, and how many arguments it has.
    pub(crate) fn tracepoint(&self, name: &str) -> Option<(Type, u32)> {
        let named = self.named(TYPEDEF, &format!("btf_trace_{name}"))?;
        let function = self.target(self.target(named, TYPEDEF)?, PTR)?;
        let info = word(self.types, function.at + 4)?;
        // The first argument is the tracepoint's own.
        let arguments = (info & 0xffff).checked_sub(1)?;
        (kind_of(info) == FUNC_PROTO).then_some((named, arguments))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Bytes behind a type's entry.
fn behind(info: u32) -> Option<usize> {
    let members = (info & 0xffff) as usize;
    Some(match kind_of(info) {
        // An array; an integer, a variable, a tag.
        3 => 12,
        1 | 14 | 17 => 4,
        STRUCT | 5 | 15 | 19 => 12 * members,
        6 | FUNC_PROTO => 8 * members,
        PTR | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct task_struct { int state; int pid; }`, and a tracepoint of `arguments` arguments.
    fn described(arguments: u32) -> Vec<u8> {
        let strings = b"\0task_struct\0state\0pid\0btf_trace_sched_switch\0int\0";
        let at = |name: &str| {
            let whole = format!("\0{name}\0");
            let found = strings.windows(whole.len()).position(|part| part == whole.as_bytes());
            found.expect("a name") as u32 + 1
        };
        let mut types: Vec<u32> = vec![at("int"), 1 << 24, 4, 32];
        types.extend([at("task_struct"), STRUCT << 24 | 2, 8]);
        types.extend([at("state"), 1, 0, at("pid"), 1, 32]);
        types.extend([0, FUNC_PROTO << 24 | (arguments + 1), 0]);
        (0..=arguments).for_each(|_| types.extend([0, 1]));
        types.extend([0, PTR << 24, 3]);
        types.extend([at("btf_trace_sched_switch"), TYPEDEF << 24, 4]);
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut all = MAGIC.to_ne_bytes().to_vec();
        all.extend([1, 0]);
        let lens = [HEADER_LEN, 0, types.len(), types.len(), strings.len()];
        all.extend(lens.into_iter().flat_map(|len| (len as u32).to_ne_bytes()));
        all.extend(types);
        all.extend(strings);
        all
    }

    #[test]
    fn members_and_tracepoints_are_found() {
        let bytes = described(4);
        let btf = Btf::parse(&bytes).expect("it is whole");
        assert_eq!(btf.offset_of("task_struct", "pid"), Some(4));
        assert_eq!(btf.offset_of("task_struct", "comm"), None);
        let (found, arguments) = btf.tracepoint("sched_switch").expect("there");
        assert_eq!((found.id, arguments), (5, 4));
        assert_eq!(btf.tracepoint("sched_wakeup"), None);
    }

    #[test]
    fn what_is_cut_off_is_absent() {
        let bytes = described(4);
        for len in 0..bytes.len() {
            let cut = bytes.get(..len).expect("shorter");
            assert!(Btf::parse(cut).is_none(), "{len} bytes of {}", bytes.len());
        }
    }

    #[test]
    fn what_points_nowhere_is_absent() {
        let mut absent = 0;
        for (at, byte) in (HEADER_LEN..described(4).len()).flat_map(|at| [(at, 0), (at, 0xff)]) {
            let mut bytes = described(4);
            bytes[at] = byte;
            let Some(btf) = Btf::parse(&bytes) else { continue };
            assert!(btf.offset_of("task_struct", "comm").is_none(), "the byte at {at}");
            assert!(btf.tracepoint("sched_wakeup").is_none(), "the byte at {at}");
            // What is there is found or not, and nothing is read beyond it.
            absent += u32::from(btf.offset_of("task_struct", "pid").is_none());
            absent += u32::from(btf.tracepoint("sched_switch").is_none());
        }
        assert!(absent > 10, "{absent}");
    }

    #[test]
    fn this_kernel_has_what_is_needed() {
        // Where it has a description at all.
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else { return };
        let btf = Btf::parse(&bytes).expect("the kernel's own");
        assert!(btf.offset_of("task_struct", "pid").is_some());
        assert!(btf.tracepoint("sched_switch").is_some());
    }
}
