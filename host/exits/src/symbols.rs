//! A guest's functions: addresses to names, from `/proc/kallsyms` or a `System.map`.
//!
//! A function of text that a guest's user may have written: everything is bounded, and names are printable.

use std::fmt;

/// Symbols at most.
const SYMBOLS_MAX: usize = 1_000_000;
/// Bytes of text at most.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a name at most; with its module, of that one as well.
const NAME_BYTES_MAX: usize = 512;
/// What the kernel's own text begins with.
const START: &str = "_text";

/// A function that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name, printable.
    pub name: &'a str,
    /// Its module, if it is in one.
    pub module: Option<&'a str>,
}

/// Why a text says nothing about functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// More than 64 MiB.
    TooLong,
    /// More than a million symbols.
    TooMany,
    /// A line that is no symbol.
    Line(usize),
    /// All addresses are zero.
    Hidden,
    /// Debian's file that says where the real one is.
    Stub,
    /// No function.
    Empty,
    /// A map without `_text`, so that a base says nothing.
    NoStart,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::TooLong => f.write_str("it has more than 64 MiB: give the guest's own file"),
            Unusable::TooMany => {
                f.write_str("it has more than 1,000,000 symbols: give the guest's own file")
            }
            Unusable::Line(line) => write!(
                f,
                "line {line} is no symbol (an address, a letter, a name): give the guest's \
                 /proc/kallsyms, or a System.map with --map"
            ),
            Unusable::Hidden => f.write_str(
                "all addresses are 0: in the guest read /proc/kallsyms as root, with kptr_restrict 0 \
                 or 1",
            ),
            Unusable::Stub => f.write_str(
                "it only names the package that has the real one: take the System.map of Debian's \
                 linux-image-VERSION-dbg, or the guest's /proc/kallsyms",
            ),
            Unusable::Empty => f.write_str("it has no function: give the guest's /proc/kallsyms"),
            Unusable::NoStart => {
                f.write_str("it has no `_text`, from which --base counts: give the kernel's System.map")
            }
        }
    }
}

impl std::error::Error for Unusable {}

/// A symbol; one without a name ends what is before it.
#[derive(Debug)]
struct Symbol<'a> {
    address: u64,
    /// Of several at one address the least is taken: global ones, then the kernel's own, then weak ones.
    rank: u8,
    function: Option<(&'a str, Option<&'a str>)>,
}

/// Functions by address.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Addresses, each with the place of its name; none where a function ends and no other begins.
    places: Vec<(u64, Option<[u32; 3]>)>,
    text: String,
}

impl Symbols {
    /// Understands a guest's `/proc/kallsyms`.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn kallsyms(text: &[u8]) -> Result<Symbols, Unusable> {
        Symbols::of(parse(text)?, 0)
    }

    /// Understands a `System.map` of a kernel that lies at `base`: the address of its `_text`.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn map(text: &[u8], base: u64) -> Result<Symbols, Unusable> {
        let symbols = parse(text)?;
        let is_start = |symbol: &&Symbol<'_>| symbol.function == Some((START, None));
        let start = symbols.iter().find(is_start).ok_or(Unusable::NoStart)?;
        let moved = base.wrapping_sub(start.address);
        Symbols::of(symbols, moved)
    }

    fn of(mut symbols: Vec<Symbol<'_>>, moved: u64) -> Result<Symbols, Unusable> {
        // What is in the lower half is no address of the kernel's: offsets of each processor's own data.
        symbols.retain(|symbol| symbol.address >> 63 == 1);
        symbols.sort_by_key(|symbol| (symbol.address, symbol.rank));
        symbols.dedup_by_key(|symbol| symbol.address);
        let mut found = Symbols::default();
        for Symbol { address, function, .. } in symbols {
            let place = function.map(|(name, module)| {
                let at = found.text.len();
                found.text.push_str(name);
                let end = found.text.len();
                found.text.push_str(module.unwrap_or_default());
                [at, end, found.text.len()].map(|at| at as u32)
            });
            found.places.push((address.wrapping_add(moved), place));
        }
        let has_some = found.places.iter().any(|(_, place)| place.is_some());
        if has_some { Ok(found) } else { Err(Unusable::Empty) }
    }

    /// The function that has this address.
    pub fn function(&self, address: u64) -> Option<Function<'_>> {
        let behind = self.places.partition_point(|(at, _)| *at <= address);
        let (_, place) = self.places.get(behind.checked_sub(1)?)?;
        let [at, end, module_end] = (*place)?.map(|at| at as usize);
        let name = self.text.get(at..end)?;
        let module = self.text.get(end..module_end).filter(|module| !module.is_empty());
        Some(Function { name, module })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Symbol<'_>>, Unusable> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Unusable::TooLong);
    }
    let mut symbols = Vec::new();
    for (nth, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        if symbols.len() == SYMBOLS_MAX {
            return Err(Unusable::TooMany);
        }
        let symbol = std::str::from_utf8(line).ok().and_then(symbol_of);
        let (symbol, is_stub) = symbol.ok_or(Unusable::Line(nth + 1))?;
        if is_stub {
            return Err(Unusable::Stub);
        }
        symbols.push(symbol);
    }
    if !symbols.is_empty() && symbols.iter().all(|symbol| symbol.address == 0) {
        return Err(Unusable::Hidden);
    }
    Ok(symbols)
}

/// The symbol of a line, and whether it is Debian's stub, whose "name" is a sentence.
fn symbol_of(line: &str) -> Option<(Symbol<'_>, bool)> {
    let (address, rest) = line.split_once(' ')?;
    let (letter, name) = rest.split_once(' ')?;
    let is_number = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    let address = u64::from_str_radix(address, 16).ok().filter(|_| is_number)?;
    let letter = letter.chars().next().filter(|_| letter.len() == 1)?;
    let (name, module) = match name.split_once('\t') {
        None => (name, None),
        Some((name, module)) => (name, Some(module.strip_prefix('[')?.strip_suffix(']')?)),
    };
    let is_stub = name.starts_with("The real System.map is in ");
    let is_name = |name: &str| {
        let is_printable = name.bytes().all(|byte| byte.is_ascii_graphic());
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && is_printable
    };
    let is_whole = is_name(name) && module.is_none_or(is_name);
    let rank = match letter {
        'T' => 0,
        't' => 1,
        'W' | 'w' => 2,
        _ => 3,
    };
    let function = (rank < 3).then_some((name, module));
    (is_whole || is_stub).then_some((Symbol { address, rank, function }, is_stub))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000040 t acpi_pm_read
ffffffff81000040 W alias
ffffffff81000080 T native_write_msr
ffffffff81000100 D data
ffffffffc0000000 t ata_sff_exec\t[libata]
ffffffffc0000100 r table\t[libata]
";

    fn name(symbols: &Symbols, address: u64) -> Option<String> {
        let Function { name, module } = symbols.function(address)?;
        Some(module.map_or(name.to_string(), |module| format!("{name} [{module}]")))
    }

    #[test]
    fn an_address_has_the_function_that_it_is_in() {
        let symbols = Symbols::kallsyms(TEXT.as_bytes()).expect("whole");
        for (address, expected) in [
            (0xffff_ffff_8100_003f, Some("_text")),
            (0xffff_ffff_8100_0040, Some("acpi_pm_read")),
            (0xffff_ffff_8100_00ff, Some("native_write_msr")),
            (0xffff_ffff_8100_0100, None),
            (0xffff_ffff_c000_0001, Some("ata_sff_exec [libata]")),
            (0xffff_ffff_c000_0100, None),
            (0xffff_ffff_80ff_ffff, None),
            (5, None),
        ] {
            assert_eq!(name(&symbols, address).as_deref(), expected, "{address:x}");
        }
    }

    #[test]
    fn a_map_is_moved_to_where_the_kernel_lies() {
        let map: String = TEXT.lines().take(7).map(|line| format!("{line}\n")).collect();
        let symbols = Symbols::map(map.as_bytes(), 0xffff_ffff_9a00_0000).expect("whole");
        assert_eq!(name(&symbols, 0xffff_ffff_9a00_0041).as_deref(), Some("acpi_pm_read"));
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0041), None);
        let without = map.replace(" _text", " _other");
        let found = Symbols::map(without.as_bytes(), 0).map(|_| ());
        assert_eq!(found, Err(Unusable::NoStart));
    }

    #[test]
    fn what_is_no_list_of_symbols_is_refused_with_its_line() {
        let refused = |text: &str| Symbols::kallsyms(text.as_bytes()).err();
        for (text, why) in [
            ("", Unusable::Empty),
            ("ffffffff81000000 D data\n", Unusable::Empty),
            ("0000000000000000 T a\n0000000000000000 t b\n", Unusable::Hidden),
            ("ffffffff81000000 T a\nhello\n", Unusable::Line(2)),
            ("+fffffff81000000 T a\n", Unusable::Line(1)),
            ("ffffffff81000000 TT a\n", Unusable::Line(1)),
            ("ffffffff81000000 T a b\n", Unusable::Line(1)),
            ("ffffffff81000000 T a\x1b[31m\n", Unusable::Line(1)),
            ("ffffffff81000000 T a\t[mod\n", Unusable::Line(1)),
            (
                "ffffffffffffffff B The real System.map is in the linux-image-6.1-dbg package\n",
                Unusable::Stub,
            ),
        ] {
            assert_eq!(refused(text), Some(why), "{text:?}");
        }
        let long = format!("ffffffff81000000 T {}\n", "a".repeat(513));
        assert_eq!(refused(&long), Some(Unusable::Line(1)));
        assert_eq!(
            Symbols::kallsyms(&vec![b'\n'; TEXT_BYTES_MAX + 1]).err(),
            Some(Unusable::TooLong)
        );
        let many = "ffffffff81000000 T a\n".repeat(SYMBOLS_MAX + 1);
        assert_eq!(refused(&many), Some(Unusable::TooMany));
    }

    #[test]
    fn this_machine_s_own_are_understood() {
        // Without the right they are all 0.
        let Ok(text) = std::fs::read("/proc/kallsyms") else { return };
        match Symbols::kallsyms(&text) {
            Ok(symbols) => assert!(symbols.places.len() > 1_000),
            Err(why) => assert!(matches!(why, Unusable::Hidden | Unusable::Empty), "{why}"),
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in prop::collection::vec(any::<u8>(), 0..400), address: u64) {
            if let Ok(symbols) = Symbols::kallsyms(&text) {
                let _ = symbols.function(address);
            }
        }

        #[test]
        fn each_function_is_found_from_its_start_to_the_next(
            gaps in prop::collection::vec(1u64..5_000, 1..50),
            base in 0xffff_8000_0000_0000u64..0xffff_ffff_0000_0000,
        ) {
            let mut at = base;
            let mut lines = String::new();
            let mut starts = Vec::new();
            for (nth, gap) in gaps.iter().enumerate() {
                lines += &format!("{at:016x} t f{nth}\n");
                starts.push((at, gap));
                at += gap;
            }
            let symbols = Symbols::kallsyms(lines.as_bytes()).expect("whole");
            for (nth, (at, gap)) in starts.into_iter().enumerate() {
                for address in [at, at + gap - 1] {
                    prop_assert_eq!(name(&symbols, address), Some(format!("f{nth}")));
                }
            }
        }
    }
}
