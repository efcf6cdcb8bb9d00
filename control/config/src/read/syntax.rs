//! What is no TOML, in the words of an operator: what stands there, and what would be right.
//!
//! Not here: what is TOML and no configuration (`schema`, and the plans). Called by `read`.

use std::ops::Range;

use crate::size::Size;

/// What is right of a file where nothing better is known.
const FILE: &str =
    "a file has headers such as [daemon] and [[disk]], and below each lines such as id = \"vm1\"";
const LIST: &str = "close the list with ], with commas between what is in it, such as [10, 20]";
/// Words that are no TOML, of whoever means `true` or `false`.
const TRUTHS: [(&str, &str); 8] = [
    ("yes", "true"),
    ("on", "true"),
    ("enabled", "true"),
    ("true", "true"),
    ("no", "false"),
    ("off", "false"),
    ("disabled", "false"),
    ("false", "false"),
];

/// What is wrong and what would be right where a text is no TOML, in `range` of it, as its reader `said`.
pub(super) fn mistake(text: &str, range: &Range<usize>, said: &str) -> (String, String) {
    let start = text.floor_char_boundary(range.start.min(text.len()));
    let from = text.get(..start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let line = text.get(from..).unwrap_or("").lines().next().unwrap_or("");
    // "expected nothing" is of its grammar.
    let said = said.trim().trim_end_matches(", expected nothing");
    let wrong = format!("not TOML: {said}");
    if said == "duplicate key" {
        let name = text.get(range.clone()).unwrap_or("");
        return twice(text, from, line.trim(), name);
    }
    let (wrong, right) = match line.trim_start() {
        _ if said.contains("array") && !said.contains("array table") => (wrong, Some(LIST.into())),
        header if header.starts_with('[') => (wrong, of_header(header)),
        line => match (of_line(line), bare_value(line)) {
            // What its reader took it for is of no use.
            (Some(right), Some(value)) => (format!("not TOML: {value} is no value"), Some(right)),
            (right, _) => (wrong, right),
        },
    };
    (wrong, right.unwrap_or_else(|| FILE.to_string()))
}

/// The value of a field, without what follows, where it is no text or list.
fn bare_value(line: &str) -> Option<&str> {
    let (_, value) = line.split_once('=').filter(|(name, _)| is_name(name.trim()))?;
    let value = value.split(" #").next()?.trim();
    (!value.is_empty() && !value.starts_with(['"', '\'', '[', '{', '#'])).then_some(value)
}

/// Of a header, what it is to be.
fn of_header(line: &str) -> Option<String> {
    let named = |c: char| c.is_ascii_alphanumeric() || "._-\" ".contains(c);
    let open = line.chars().take_while(|c| *c == '[').count().min(2);
    let behind = line.trim_start_matches('[');
    let name = behind.split(|c| !named(c)).next().unwrap_or_default().trim();
    if name.is_empty() {
        return None;
    }
    let whole = format!("{}{name}{}", "[".repeat(open), "]".repeat(open));
    let rest = behind.trim_start().strip_prefix(name)?.trim();
    let more = rest.trim_start_matches(']').trim();
    if more.is_empty() || more.starts_with('#') {
        return (rest != "]".repeat(open)).then(|| format!("write {whole}"));
    }
    Some(format!("write {whole} alone, and each of its fields on a line below"))
}

/// Of a line of a field, what it is to be.
fn of_line(line: &str) -> Option<String> {
    if ["//", ";", "--", "/*"].iter().any(|mark| line.starts_with(mark)) {
        return Some("a comment begins with #".to_string());
    }
    if let Some((name, value)) = line.split_once('=') {
        let name = name.trim();
        let is_spaced = name.contains(' ') && is_name(&name.replace(' ', "_"));
        return match is_name(name) {
            true => of_value(name, value.trim()),
            false => is_spaced.then(|| {
                format!("write a name without spaces, such as {}", name.replace(' ', "_"))
            }),
        };
    }
    let (name, behind) = line.split_at(line.find([':', ' '])?);
    let value = behind.trim_start_matches([':', ' ']);
    let value = value.split(" #").next().unwrap_or_default().trim();
    let value = quoted(value).unwrap_or_else(|| value.to_string());
    let value = if value.is_empty() { ".." } else { &value };
    is_name(name).then(|| format!("write {name} = {value}"))
}

/// Whether it can be the name of a field.
fn is_name(text: &str) -> bool {
    let named = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !text.is_empty() && text.chars().all(named)
}

/// Of a field's value, what it is to be.
fn of_value(name: &str, value: &str) -> Option<String> {
    if value.is_empty() || value.starts_with('#') {
        return Some(format!("write a value behind `{name} =`, or leave the line out"));
    }
    if value.starts_with(['\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}', '`']) {
        let bare = |c: char| "\u{201c}\u{201d}\u{2018}\u{2019}`".contains(c);
        return Some(format!("write it between straight quotes: \"{}\"", value.trim_matches(bare)));
    }
    if let Some(quote) = value.chars().next().filter(|c| "\"'".contains(*c)) {
        return of_quoted(quote, value);
    }
    if value.starts_with('[') {
        return Some(match value.contains(']') {
            true => "put commas between what is in the list, and texts between quotes".to_string(),
            false => LIST.to_string(),
        });
    }
    let word = value.split(" #").next().unwrap_or_default().trim().trim_end_matches([',', ';']);
    let lower = word.to_lowercase();
    if let Some((_, meant)) = TRUTHS.iter().find(|(written, _)| *written == lower) {
        return Some(format!(
            "write {meant}, without quotes, if that is meant; a text between quotes"
        ));
    }
    if ["none", "null", "nil", "undefined"].contains(&&*lower) {
        return Some(format!("leave `{name}` out"));
    }
    of_number(name, word, word != value)
        .or_else(|| quoted(word).map(|text| format!("write it between quotes: {text}")))
}

/// Of what begins as a number, what it is to be. Whether something follows the word.
fn of_number(name: &str, word: &str, is_more: bool) -> Option<String> {
    let number = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let behind = word.strip_prefix(number)?.trim();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_size =
        word.parse::<Size>().is_ok() && !["_us", "_s"].iter().any(|it| name.ends_with(it));
    if !behind.is_empty() {
        return (!is_size).then(|| format!("write {number}, without a unit"));
    }
    let least = number.trim_start_matches('0');
    match number.len() > 1 && number.starts_with('0') {
        true if name.ends_with("mode") => None,
        true => Some(format!(
            "write {}, without zeroes in front",
            if least.is_empty() { "0" } else { least }
        )),
        false => is_more.then(|| format!("write {number}, and nothing behind it")),
    }
}

/// Of a text with quotes, what it is to be.
fn of_quoted(quote: char, value: &str) -> Option<String> {
    let behind = value.get(1..).unwrap_or_default();
    let Some((text, more)) = behind.split_once(quote) else {
        return Some(format!("close the text with {quote} on the same line"));
    };
    if quote == '"' && text.contains('\\') {
        return Some("write a text that has a \\ in it between single quotes: '..'".to_string());
    }
    let more = more.trim();
    match more.is_empty() || more.starts_with('#') {
        true => None,
        false if more.starts_with([',', ';']) => {
            Some(format!("write nothing behind it: {quote}{text}{quote}"))
        }
        false => Some(
            "write each field on a line of its own, and a text between one pair of quotes".into(),
        ),
    }
}

/// A text as it is written between quotes, if it has none.
fn quoted(text: &str) -> Option<String> {
    let is_bare = !text.is_empty() && !text.contains(['"', '\\', '\'']);
    is_bare.then(|| format!("\"{text}\""))
}

/// What is there already, and where.
fn twice(text: &str, from: usize, line: &str, name: &str) -> (String, String) {
    let before = text.get(..from).unwrap_or("").lines().enumerate();
    let before: Vec<(usize, &str)> = before.map(|(at, line)| (at + 1, line.trim())).collect();
    let header_of = |line: &str| {
        let header = line.strip_prefix('[')?.trim_start_matches('[');
        Some(header.split(']').next()?.trim().to_string())
    };
    let Some(header) = header_of(line) else {
        // The same table: nothing above its header counts.
        let is_it = |(_, line): &&(usize, &str)| {
            let key = line.split('=').next().unwrap_or_default().trim();
            line.contains('=') && key.trim_matches(['"', '\'']) == name.trim_matches(['"', '\''])
        };
        let table = before.iter().rev().take_while(|(_, line)| header_of(line).is_none());
        let first = table.filter(is_it).last();
        let on = first.map(|(at, _)| format!(", on line {at}")).unwrap_or_default();
        let wrong = format!("not TOML: `{name}` is here already{on}");
        return (wrong, "leave out one of the two; another device has a header of its own".into());
    };
    let inner = format!("{header}.");
    let named = |wanted: &dyn Fn(&str) -> bool| {
        before.iter().find(|(_, line)| header_of(line).is_some_and(|header| wanted(&header)))
    };
    if let Some((at, same)) = named(&|it| it == header) {
        let alone = !(line.starts_with("[[") && same.starts_with("[["));
        let right = match alone && same.starts_with("[[") {
            true => format!("write [[{header}]], as on line {at}"),
            false if line.starts_with("[[") => {
                format!("write {same} once, or [[{header}]] at both")
            }
            false => format!("write its fields below the one on line {at}"),
        };
        return (format!("not TOML: {same} is there already, on line {at}"), right);
    }
    let Some((at, within)) = named(&|it| it.starts_with(&inner)) else {
        return ("not TOML: duplicate key".into(), FILE.into());
    };
    let wrong = format!("not TOML: {line} stands below {within}, which is a part of it");
    (wrong, format!("move {line} with its fields above {within}, which is on line {at}"))
}
