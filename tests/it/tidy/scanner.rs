//! A source scanner: code without comments, strings and unit tests, and the paths in it.

/// A path such as `crate::jobs::State`.
#[derive(Debug)]
pub(super) struct NamedPath {
    pub(super) segments: Vec<String>,
    pub(super) is_import: bool,
    pub(super) is_public: bool,
    /// The name of an import within its file.
    pub(super) alias: Option<String>,
}

/// Returns the code without comments; string literals are reduced to their quotes.
pub(super) fn bare(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut i = 0;
    while i < chars.len() {
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            while i < chars.len() {
                if at(i) == '/' && at(i + 1) == '*' {
                    depth += 1;
                    i += 2;
                } else if at(i) == '*' && at(i + 1) == '/' {
                    depth -= 1;
                    i += 2;
                } else {
                    i += 1;
                }
                if depth == 0 {
                    break;
                }
            }
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
            out.push_str("\"\"");
        } else if is_word(c) {
            let start = i;
            while is_word(at(i)) {
                i += 1;
            }
            let word: String = chars[start..i].iter().collect();
            let hashes = (0..).take_while(|n| at(i + n) == '#').count();
            if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                i += hashes + 1;
                let is_end = |i: usize| at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                while i < chars.len() && !is_end(i) {
                    i += 1;
                }
                i += 1 + hashes;
                out.push_str("\"\"");
            } else {
                out.push_str(&word);
            }
        } else if c == '\'' && at(i + 1) == '\\' {
            i += 3;
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
            out.push_str("' '");
        } else if c == '\'' && at(i + 2) == '\'' {
            i += 3;
            out.push_str("' '");
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

/// Returns the code without the items marked `#[cfg(test)]`; code after such an item stays.
pub(super) fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        out.push_str(before);
        let mut after = after.trim_start();
        while after.starts_with("#[") {
            after = after[balanced(after, '[', ']')..].trim_start();
        }
        let end = after.find([';', '{']).expect("an item ends");
        rest = if after[end..].starts_with(';') || after.starts_with("use ") {
            after.split_once(';').expect("an import ends").1
        } else {
            &after[balanced(after, '{', '}')..]
        };
    }
    out.push_str(rest);
    out
}

/// Returns the index after the first group of these brackets.
fn balanced(code: &str, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    panic!("{open} has no {close}")
}

/// Returns words, `::` and single characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns all paths in the code, with groups expanded.
pub(super) fn paths_of(code: &str) -> Vec<NamedPath> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            let is_public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
            let first = found.len();
            at = tree(&tokens, at + 1, &[], &mut found);
            for path in &mut found[first..] {
                path.is_import = true;
                path.is_public = is_public;
            }
        } else if is_name(tokens[at]) && tokens.get(at + 1) == Some(&"::") {
            at = tree(&tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path or one group of paths at `at`; returns the index after it.
fn tree(tokens: &[&str], mut at: usize, prefix: &[String], found: &mut Vec<NamedPath>) -> usize {
    let mut segments = prefix.to_vec();
    loop {
        match tokens.get(at).copied() {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    if tokens[at] == "," {
                        at += 1;
                        continue;
                    }
                    let next = tree(tokens, at, &segments, found);
                    assert!(next > at, "a group of names: {:?}", &tokens[at..at + 3]);
                    at = next;
                }
                return at + 1;
            }
            Some(token) if is_name(token) || token == "*" => {
                segments.push(token.to_owned());
                at += 1;
                let goes_on = tokens.get(at) == Some(&"::")
                    && tokens
                        .get(at + 1)
                        .is_some_and(|next| is_name(next) || matches!(*next, "{" | "*"));
                if !goes_on {
                    break;
                }
            }
            _ => break,
        }
    }
    let mut alias = None;
    if tokens.get(at) == Some(&"as") && tokens.get(at + 1).is_some_and(|name| is_name(name)) {
        alias = Some(tokens[at + 1].to_owned());
        at += 2;
    }
    if segments.last().is_some_and(|last| last == "self") && segments.len() > 1 {
        segments.pop();
    }
    if segments.is_empty() {
        return at;
    }
    found.push(NamedPath {
        segments,
        is_import: false,
        is_public: false,
        alias,
    });
    at
}

#[test]
fn the_reader_of_imports_sees_all_forms() {
    let text = r##"
        use crate::{jobs::{self, postgres::{Db as Base, Tally}}, throttle};
        pub use super::lane::Lane;
        // use crate::api::Nothing;
        const TEXT: &str = "crate::api::Nothing";
        const RAW: &str = r#"crate::api::"Nothing"#;
        #[cfg(test)]
        #[path = "x_tests.rs"]
        mod tests;
        #[cfg(test)]
        mod more { use crate::api::Nothing; fn f() { if true {} } }
        fn f<'a>(c: char) -> crate::cron::Next { if c == '"' { crate::replay::run::<u8>(c) } }
    "##;
    let paths = paths_of(&without_tests(&bare(text)));
    let seen: Vec<String> = paths.iter().map(|path| path.segments.join("::")).collect();
    assert_eq!(
        seen,
        [
            "crate::jobs",
            "crate::jobs::postgres::Db",
            "crate::jobs::postgres::Tally",
            "crate::throttle",
            "super::lane::Lane",
            "crate::cron::Next",
            "crate::replay::run",
        ]
    );
    assert_eq!(paths[1].alias.as_deref(), Some("Base"));
    assert!(paths[4].is_public && !paths[3].is_public);
}
