//! Reading of a query string parameter by parameter, so that every wrong one is listed at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use axum::extract::Query as Pairs;
use axum::http::Uri;
use jiff::Timestamp;

use super::fields::{Errors, FieldLocation, TIME, clipped, must_be, pointer, time_of, unknown};
use super::problem::{Code, Problem};
use crate::input::wording::must_be_one_of;

/// Returns the problem of a query that is not UTF-8 after percent-decoding, because the intended
/// text is unknown.
pub fn unreadable(query: &str) -> Option<Problem> {
    let is_text = |part: &str| {
        percent_encoding::percent_decode_str(part)
            .decode_utf8()
            .is_ok()
    };
    let pair = query.split('&').find(|pair| !is_text(pair))?;
    let name = pair
        .split('=')
        .next()
        .filter(|name| is_text(name))
        .unwrap_or("?");
    Some(Problem::at(
        Code::InvalidQuery,
        FieldLocation::Query,
        &clipped(name),
        "must be percent-encoded UTF-8",
    ))
}

/// Refuses every parameter, for a route that takes none.
pub fn none(uri: &Uri) -> Result<(), Problem> {
    let Ok(Pairs(pairs)) = Pairs::<Vec<(String, String)>>::try_from_uri(uri) else {
        return Ok(());
    };
    let query = Query::open(pairs, &[]);
    if query.errors.is_empty() {
        return Ok(());
    }
    Err(Problem::fields(Code::InvalidQuery, query.errors))
}

/// The longest page of a list.
pub const PAGE_MAX: i64 = 1000;

/// A reader of the parameters of one request. An empty text counts as absent, unless it has a
/// meaning of its own; an empty number, time or name is an error like any other invalid value.
#[derive(Debug)]
pub struct Query {
    values: BTreeMap<String, String>,
    /// The errors found so far.
    pub errors: Errors,
}

impl Query {
    /// Opens the decoded pairs; unknown and repeated parameters are listed.
    pub fn open(pairs: Vec<(String, String)>, allowed: &[&str]) -> Self {
        let mut query = Self {
            values: BTreeMap::new(),
            errors: Errors::default(),
        };
        for (name, value) in pairs {
            if !allowed.contains(&name.as_str()) {
                let message = if allowed.is_empty() {
                    "is not a known parameter; this route takes none".to_owned()
                } else {
                    unknown(&name, "parameter", allowed)
                };
                query.wrong(&name, message);
            } else if query.values.insert(name.clone(), value).is_some() {
                query.wrong(&name, "must be given once, not twice");
            }
        }
        query
    }

    /// Reports that `name` is wrong.
    pub fn wrong(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push(
            FieldLocation::Query,
            pointer("", &clipped(name)),
            message.into(),
        );
    }

    /// Takes a text without NUL of at most `bytes_max` bytes.
    pub fn text(&mut self, name: &str, bytes_max: usize) -> Option<String> {
        self.text_or_empty(name, bytes_max)
            .filter(|text| !text.is_empty())
    }

    /// Takes a text as [`Self::text`] does, but returns an empty one as well.
    pub fn text_or_empty(&mut self, name: &str, bytes_max: usize) -> Option<String> {
        let text = self.values.remove(name)?;
        if text.len() <= bytes_max && !text.contains('\0') {
            return Some(text);
        }
        self.wrong(
            name,
            format!("must be a text of at most {bytes_max} bytes without NUL"),
        );
        None
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// Takes a whole number in `range`.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let text = self.take(name)?;
        match i64::from_str(&text) {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let allowed = format!("a whole number from {} to {}", range.start(), range.end());
                self.wrong(name, must_be(&allowed, &text.into()));
                None
            }
        }
    }

    /// Takes a time.
    pub fn time(&mut self, name: &str) -> Option<Timestamp> {
        let text = self.take(name)?;
        // The plus sign of an offset arrives as a space if it was not encoded.
        let found = time_of(&text).or_else(|| time_of(&text.replace(' ', "+")));
        if found.is_none() {
            self.wrong(name, must_be(TIME, &text.into()));
        }
        found
    }

    /// Takes a truth value: `true`, `1`, `false` or `0`.
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        self.choice(
            name,
            &[("true", true), ("false", false), ("1", true), ("0", false)],
        )
    }

    /// Takes one of a few words.
    pub fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.take(name)?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(name, must_be_one_of(&names, &text.into()));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn what_is_not_utf8_is_refused_by_the_name_of_its_parameter() {
        assert!(
            unreadable("key=%ff")
                .unwrap()
                .detail
                .starts_with("/key: must be percent-encoded UTF-8")
        );
        assert!(unreadable("a=1&key=%c3").is_some() && unreadable("%ff=1").is_some());
        assert!(unreadable("key=%c3%bc&a=b+c&d").is_none() && unreadable("").is_none());
    }

    #[test]
    fn every_wrong_parameter_is_listed() {
        let mut query = Query::open(
            pairs(&[
                ("limt", "1"),
                ("limit", "0"),
                ("state", "redy"),
                ("key", "a"),
                ("key", "b"),
            ]),
            &["limit", "state", "key"],
        );

        assert_eq!(query.whole("limit", 1..=1000), None);
        assert_eq!(query.choice("state", &[("ready", 1), ("dead", 2)]), None);

        let pointers: Vec<&str> = query
            .errors
            .listed
            .iter()
            .map(|error| error.pointer.as_str())
            .collect();
        assert_eq!(pointers, ["/limt", "/key", "/limit", "/state"]);
        assert!(
            query.errors.listed[0]
                .message
                .contains("did you mean \"limit\"?")
        );
        assert!(
            query.errors.listed[3]
                .message
                .contains("did you mean \"ready\"?")
        );
    }

    #[test]
    fn an_empty_text_counts_as_absent_and_an_empty_number_time_or_word_is_wrong() {
        let names = ["kind", "limit", "state", "before", "dry_run"];
        let mut query = Query::open(
            names
                .iter()
                .map(|name| ((*name).to_owned(), String::new()))
                .collect(),
            &names,
        );

        assert_eq!(
            (query.text("kind", 10), query.whole("limit", 1..=10)),
            (None, None)
        );
        assert_eq!(
            (
                query.choice("state", &[("ready", 1)]),
                query.time("before"),
                query.flag("dry_run")
            ),
            (None, None, None)
        );

        let pointers: Vec<&str> = query
            .errors
            .listed
            .iter()
            .map(|error| error.pointer.as_str())
            .collect();
        assert_eq!(pointers, ["/limit", "/state", "/before", "/dry_run"]);
    }

    #[test]
    fn an_empty_text_is_distinguished_from_an_absent_one_where_it_has_a_meaning() {
        let mut query = Query::open(pairs(&[("key", "")]), &["key", "kind"]);

        let texts = (
            query.text_or_empty("key", 10),
            query.text_or_empty("kind", 10),
        );

        assert_eq!(texts, (Some(String::new()), None));
    }

    #[test]
    fn refusals_are_as_pinned() {
        let cases = [
            "limt=1",
            "limit=0",
            "limit=",
            "limit=x",
            "state=redy",
            "before=soon",
            "dry_run=yes",
            "kind=a%00",
            "kind=aaaaaaaaaaa",
            "limit=1&limit=2",
        ];
        let names = ["limit", "state", "before", "dry_run", "kind"];
        let lines = |query: Query| -> Vec<String> {
            let errors = query.errors.listed.into_iter();
            errors
                .map(|error| format!("{}: {}", error.pointer, error.message))
                .collect()
        };
        let read = cases.map(|text| {
            let given = url::form_urlencoded::parse(text.as_bytes());
            let mut query = Query::open(given.into_owned().collect(), &names);
            query.whole("limit", 1..=1000);
            query.choice("state", &[("ready", 1), ("dead", 2)]);
            query.time("before");
            query.flag("dry_run");
            query.text("kind", 10);
            (text.to_owned(), lines(query))
        });
        let none = Query::open(pairs(&[("a", "1")]), &[]);
        let none = ("a=1 (no parameters)".to_owned(), lines(none));
        let unread = ["key=%ff", "%ff=1"]
            .map(|text| (text.to_owned(), vec![unreadable(text).unwrap().detail]));
        crate::input::pinned::check("query", read.into_iter().chain([none]).chain(unread));
    }
}
