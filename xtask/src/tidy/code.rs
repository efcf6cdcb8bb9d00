//! Rust text without comments and literals, line by line, and which lines are not shipped.
//!
//! A lexer of the few things that could hide or fake a word; the parser is rustc, and rustfmt has
//! made the layout regular.

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its code; comments are gone, literals are empty.
    pub(crate) code: String,
    /// Within an item for tests or for debug builds only.
    pub(crate) unshipped: bool,
}

/// Where the lexer stands.
enum Within {
    Code,
    /// `/* */`, nested so deep.
    Comment(usize),
    /// A string ended by `"` and so many `#`; with escapes unless raw.
    Text {
        hashes: usize,
        raw: bool,
    },
}

/// The lines of `text`.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut within = Within::Code;
    let stripped = text.lines().map(|line| strip(line, &mut within)).collect();
    mark_tests(stripped)
}

/// `line` without comments and the insides of literals.
fn strip(line: &str, within: &mut Within) -> String {
    let chars: Vec<char> = line.chars().collect();
    let mut code = String::new();
    let mut at = 0;
    while at < chars.len() {
        at += match *within {
            Within::Comment(depth) => comment(&chars[at..], depth, within),
            Within::Text { hashes, raw } => literal(&chars[at..], hashes, raw, within, &mut code),
            Within::Code if chars[at..].starts_with(&['/', '/']) => break,
            Within::Code => plain(&chars, at, within, &mut code),
        };
    }
    code.trim_end().to_owned()
}

/// Inside a comment: how many characters were used.
fn comment(rest: &[char], depth: usize, within: &mut Within) -> usize {
    if rest.starts_with(&['*', '/']) {
        *within = if depth == 1 { Within::Code } else { Within::Comment(depth - 1) };
        return 2;
    }
    if rest.starts_with(&['/', '*']) {
        *within = Within::Comment(depth + 1);
        return 2;
    }
    1
}

/// Inside a string.
fn literal(
    rest: &[char],
    hashes: usize,
    raw: bool,
    within: &mut Within,
    code: &mut String,
) -> usize {
    if rest[0] == '\\' && !raw {
        return 2;
    }
    if rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#') {
        *within = Within::Code;
        code.push('"');
        return 1 + hashes;
    }
    1
}

/// In code, at `at`.
fn plain(chars: &[char], at: usize, within: &mut Within, code: &mut String) -> usize {
    let rest = &chars[at..];
    if rest.starts_with(&['/', '*']) {
        *within = Within::Comment(1);
        return 2;
    }
    let in_word = at > 0 && is_word(chars[at - 1]);
    if let Some((used, hashes)) = raw_string(rest).filter(|_| !in_word) {
        *within = Within::Text { hashes, raw: true };
        code.push('"');
        return used;
    }
    if rest[0] == '"' {
        *within = Within::Text { hashes: 0, raw: false };
        code.push('"');
        return 1;
    }
    if let Some(used) = character(rest) {
        code.push_str("''");
        return used;
    }
    code.push(rest[0]);
    1
}

/// The opening of a raw string (`r"`, `br#"`): its length, and how many `#`.
fn raw_string(rest: &[char]) -> Option<(usize, usize)> {
    let prefix = rest.iter().take_while(|c| matches!(**c, 'b' | 'c' | 'r')).count();
    if prefix == 0 || prefix > 2 || rest[prefix - 1] != 'r' {
        return None;
    }
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    (rest.get(prefix + hashes) == Some(&'"')).then_some((prefix + hashes + 1, hashes))
}

/// The length of a character literal; `None` for a lifetime.
fn character(rest: &[char]) -> Option<usize> {
    if rest[0] != '\'' {
        return None;
    }
    if rest.get(1) == Some(&'\\') {
        let close = rest.iter().skip(3).position(|c| *c == '\'')?;
        return Some(close + 4);
    }
    (rest.get(2) == Some(&'\'')).then_some(3)
}

/// What an item that is not shipped starts with.
const NOT_SHIPPED: [&str; 3] = ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(debug_assertions)]"];

/// Marks each item that is not shipped, from the attribute to its closing brace or semicolon.
fn mark_tests(code: Vec<String>) -> Vec<Line> {
    let mut lines: Vec<Line> =
        code.into_iter().map(|code| Line { code, unshipped: false }).collect();
    let mut at = 0;
    while at < lines.len() {
        let attribute = lines[at].code.trim();
        if !NOT_SHIPPED.iter().any(|start| attribute.starts_with(start)) {
            at += 1;
            continue;
        }
        let end = item_end(&lines, at);
        lines[at..=end].iter_mut().for_each(|line| line.unshipped = true);
        at = end + 1;
    }
    lines
}

/// The line on which the item that starts at `start` ends: at depth 0, a `;` or the last `}`.
pub(crate) fn item_end(lines: &[Line], start: usize) -> usize {
    let mut depth = 0usize;
    for (index, line) in lines.iter().enumerate().skip(start) {
        for c in line.code.chars() {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && c == '}' {
                        return index;
                    }
                }
                ';' if depth == 0 => return index,
                _ => {}
            }
        }
    }
    lines.len().saturating_sub(1)
}

/// Whether `c` can be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `code` holds `word`, not as part of a longer name.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let starts_open = !word.starts_with(is_word);
    let ends_open = !word.ends_with(is_word);
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        (starts_open || !before.is_some_and(is_word)) && (ends_open || !after.is_some_and(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_literals_go() {
        let text = "let a = \"unsafe // no\"; // unsafe\n\
                    let b = 'x'; let c: &'a str = r#\"un\"safe\"#;\n\
                    /* unsafe /* nested */ still */ let d = b'\\''; let e = '\"';\n\
                    \"over \\\" two\n lines\"; f('{');";
        let expected = [
            "let a = \"\";",
            "let b = ''; let c: &'a str = \"\";",
            " let d = b''; let e = '';",
            "\"",
            "\"; f('');",
        ];
        assert_eq!(stripped(text), expected);
    }

    #[test]
    fn items_for_tests_are_marked_to_their_end() {
        let text = "fn a() {}\n#[cfg(test)]\nfn b(x: [u8; 2]) {\n  {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod tests;\nfn d() {}";
        let marked: Vec<bool> = lines(text).iter().map(|line| line.unshipped).collect();
        assert_eq!(marked, [false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn checks_of_debug_builds_are_not_shipped() {
        let text = "#[cfg(debug_assertions)]\nimpl Drop for A {\n    panic!()\n}\npanic!()";
        let marked: Vec<bool> = lines(text).iter().map(|line| line.unshipped).collect();
        assert_eq!(marked, [true, true, true, true, false]);
    }

    #[test]
    fn a_word_is_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(has_word("x.unwrap()", ".unwrap()"));
        assert!(!has_word("x.unwrap_or(1)", ".unwrap()"));
        assert!(has_word("std::time::Instant::now()", "Instant::now"));
    }
}
