//! A mail address with an optional name before it. It is parsed once; outgoing headers are built
//! from the parsed parts and never from the text.
//!
//! Text that could be read as two addresses is rejected. The grammar is that of RFC 5322 without
//! the constructs that programs interpret differently: comments, groups, quoted local parts and
//! host addresses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The error message for text that is not exactly one mailbox.
pub const ONE_MAILBOX: &str = "must be exactly one mail address, such as ann@example.com or Ann <ann@example.com>; a name with commas, colons or brackets stands in double quotes";

/// The maximum length of a name, in characters.
const NAME_CHARS: usize = 256;

/// The maximum length of an address, in bytes (RFC 5321).
const ADDRESS_BYTES: usize = 254;
/// The maximum length of a local part, in bytes (RFC 5321).
const LOCAL_BYTES: usize = 64;
/// The maximum length of a domain, in bytes (RFC 5321).
const DOMAIN_BYTES: usize = 253;
/// The maximum length of a domain label, in bytes (RFC 5321).
const LABEL_BYTES: usize = 63;

/// The maximum number of bytes of a name in one encoded word: with its delimiters the word then has
/// fewer than 75 characters.
const WORD_BYTES: usize = 42;

/// Characters that become address syntax, such as `@`, in programs that fold wide and small forms,
/// and Unicode line separators.
const LOOKALIKES: &[char] = &[
    '＠', '﹫', '＜', '＞', '﹤', '﹥', '，', '﹐', '；', '﹔', '＂', '\u{2028}', '\u{2029}',
];

/// A mail address and its optional name.
#[derive(Clone, PartialEq, Eq)]
pub struct Mailbox {
    name: Option<String>,
    address: String,
}

impl Mailbox {
    /// Parses `ann@example.com`, `Ann Example <ann@example.com>` or `"Example, Ann"
    /// <ann@example.com>`; returns `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches([' ', '\t', '\r', '\n']);
        let (name, address) = match text.strip_suffix('>') {
            Some(text) => {
                let (name, address) = text.rsplit_once('<')?;
                (display_name(name)?, address)
            }
            None => (None, text),
        };
        Some(Self {
            name,
            address: address_of(address)?,
        })
    }

    /// Returns the name, without quotes.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the address; its domain is in lower case and in ASCII.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Formats the mailbox as a header value, with the name in quotes if it needs them. Letters
    /// beyond ASCII stay as they are.
    pub fn quoted(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~ ".contains(c);
        match &self.name {
            Some(name) if name.chars().all(is_plain) => format!("{name} <{}>", self.address),
            Some(name) => format!("\"{}\" <{}>", escaped(name), self.address),
            None => self.address.clone(),
        }
    }

    /// Formats the mailbox as a header value in ASCII; a name with other letters becomes encoded
    /// words (RFC 2047).
    pub fn encoded(&self) -> String {
        match &self.name {
            Some(name) if !name.is_ascii() => format!("{} <{}>", encoded_words(name), self.address),
            _ => self.quoted(),
        }
    }
}

/// Parses the name before an address. Returns `Some(None)` for an empty name, and `None` for text
/// that could hold more than a name.
fn display_name(text: &str) -> Option<Option<String>> {
    let text = text.trim();
    let name = match text.strip_prefix('"') {
        Some(text) => unquoted(text.strip_suffix('"')?)?,
        None if text.contains(|c| ",;:()[]\\\"".contains(c)) => return None,
        None => text.to_owned(),
    };
    let is_odd = |c: char| c.is_control() || "<>@".contains(c) || LOOKALIKES.contains(&c);
    // An encoded word may hold any characters once it is decoded.
    let fits = name.chars().count() <= NAME_CHARS && !name.contains(is_odd) && !name.contains("=?");
    fits.then_some(Some(name).filter(|name| !name.is_empty()))
}

/// Returns the text between quotes, unescaped, or `None` if it contains an unescaped quote.
fn unquoted(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(chars.next()?),
            '"' => return None,
            c => out.push(c),
        }
    }
    Some(out.trim().to_owned())
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

fn encoded_words(name: &str) -> String {
    let mut words: Vec<String> = vec![String::new()];
    for c in name.chars() {
        if words
            .last()
            .is_none_or(|word| word.len() + c.len_utf8() > WORD_BYTES)
        {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("=?UTF-8?B?{}?=", STANDARD.encode(word)))
        .collect();
    words.join(" ")
}

/// Returns the address with its domain normalised, or `None` if the text is not exactly one
/// address.
fn address_of(text: &str) -> Option<String> {
    let (local, domain) = text.rsplit_once('@')?;
    let is_atom = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~-".contains(&byte))
    };
    let domain = domain_of(domain)?;
    let fits = local.len() <= LOCAL_BYTES
        && local.split('.').all(is_atom)
        && local.len() + 1 + domain.len() <= ADDRESS_BYTES;
    fits.then(|| format!("{local}@{domain}"))
}

/// Returns a domain in lower case and in ASCII, as it is looked up, or `None` if the text is not a
/// domain.
fn domain_of(text: &str) -> Option<String> {
    if text.contains('%') {
        return None;
    }
    let url::Host::Domain(domain) = url::Host::parse(text).ok()? else {
        return None;
    };
    let is_label = |label: &str| {
        (1..=LABEL_BYTES).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    (domain.len() <= DOMAIN_BYTES && domain.split('.').all(is_label)).then_some(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(Option<String>, String)> {
        Mailbox::parse(text).map(|mailbox| (mailbox.name, mailbox.address))
    }

    #[test]
    fn one_address_with_or_without_a_name_is_read() {
        for (text, name, address) in [
            ("ann@example.com", None, "ann@example.com"),
            (" Ann@Example.COM\n", None, "Ann@example.com"),
            ("<ann@localhost>", None, "ann@localhost"),
            ("Ann B <ann@example.com>", Some("Ann B"), "ann@example.com"),
            (
                "Dr. Ann <ann@example.com>",
                Some("Dr. Ann"),
                "ann@example.com",
            ),
            (
                r#""Ann, \"B\"" <ann@example.com>"#,
                Some("Ann, \"B\""),
                "ann@example.com",
            ),
            (
                "Jürgen <j+x@bücher.example>",
                Some("Jürgen"),
                "j+x@xn--bcher-kva.example",
            ),
            ("j@BÜCHER。example", None, "j@xn--bcher-kva.example"),
        ] {
            assert_eq!(
                parts(text),
                Some((name.map(str::to_owned), address.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn what_could_be_read_as_two_addresses_or_as_none_is_refused() {
        for text in [
            "",
            "ann",
            "@example.com",
            "ann@",
            "a b@example.com",
            "a@b@c",
            "a@b..c",
            "a@-b",
            "A <a@b.c",
            "a@b.c, d@e.f",
            "a\n@b.c",
            "a@x.example, Bob <b@y.example>",
            "b@y.example <a@x.example>",
            "\"b@y.example\" <a@x.example>",
            "Bob <b@y.example> <a@x.example>",
            "Bob, Ann <a@x.example>",
            "Group: a@x.example;",
            "Bob; <a@x.example>",
            "\"Bob\" , \"Ann\" <a@x.example>",
            "(b@y.example) <a@x.example>",
            "Ann\r\nBcc: b@y.example <a@x.example>",
            "=?UTF-8?B?Yg==?= <a@x.example>",
            "b＠y.example， <a@x.example>",
            "\"a b\"@example.com",
            "a@[127.0.0.1]",
            "a@127.0.0.1",
            "a@0x7f.1",
            "a@x.example.",
            "a%40b@x.example%2c",
            ".a@b.c",
            "a..b@c.d",
            "ä@b.c",
        ] {
            assert_eq!(parts(text), None, "{text:?}");
        }
        assert_eq!(parts(&format!("{}@b.c", "a".repeat(65))), None);
    }

    #[test]
    fn headers_are_built_from_the_parts() {
        let both = |text: &str| {
            Mailbox::parse(text)
                .map(|mailbox| (mailbox.quoted(), mailbox.encoded()))
                .unwrap()
        };
        assert_eq!(both("a@b.c"), ("a@b.c".to_owned(), "a@b.c".to_owned()));
        let quoted = r#""A, \"B\"" <a@b.c>"#.to_owned();
        assert_eq!(both(r#""A, \"B\"" <a@b.c>"#), (quoted.clone(), quoted));
        assert_eq!(
            both("Jürgen <a@b.c>"),
            (
                "\"Jürgen\" <a@b.c>".to_owned(),
                "=?UTF-8?B?SsO8cmdlbg==?= <a@b.c>".to_owned()
            )
        );
        let (_, long) = both(&format!("{} <a@b.c>", "ü".repeat(100)));
        assert!(
            long.split(' ').all(|word| word.len() <= 75) && long.is_ascii(),
            "{long}"
        );
    }
}
