//! Requests for an inbox: a page, or a mark. All interfaces read them here.

use jiff::Timestamp;
use serde_json::Value;

use crate::input::Reader;
use crate::input::reader::time_of;
use crate::input::wording::any_of;
pub use crate::notify::args::CATEGORY_BYTES;

/// The most messages of a page.
pub const PAGE_MAX: i64 = 100;

/// The messages of a page if no limit is given.
pub const PAGE_USUAL: i64 = 50;

/// The most ids of a mark.
pub const IDS_MAX: usize = 1000;

/// The most digits of an id.
const ID_DIGITS: usize = 18;

/// The longest id or time, in bytes.
pub const ID_BYTES: usize = 40;

/// The states by which a page can be filtered; `unread` are the unseen and the seen ones.
pub const FILTERS: [&str; 5] = ["unseen", "seen", "read", "unread", "archived"];

/// The marks.
pub const MARKS: [&str; 5] = ["seen", "read", "unread", "archived", "unarchived"];

/// The fields of a mark.
pub const MARK_FIELDS: [&str; 3] = ["ids", "all_up_to", "as"];

/// The form of a cursor, for messages.
pub const CURSOR_FORM: &str = "must be the next of the page before";

/// The page that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Only messages with a smaller id.
    pub before: Option<i64>,
    /// The most messages.
    pub limit: i64,
    /// One of [`FILTERS`]; all but the archived ones if absent.
    pub state: Option<&'static str>,
    /// Only messages of this category.
    pub category: Option<String>,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self {
            before: None,
            limit: PAGE_USUAL,
            state: None,
            category: None,
        }
    }
}

/// The messages that a mark concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkTarget {
    /// Messages by their ids.
    Ids(Vec<i64>),
    /// All messages up to an id.
    UpToId(i64),
    /// All messages that came until a time.
    UpToTime(Timestamp),
}

/// The mark that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    pub target: MarkTarget,
    /// One of [`MARKS`].
    pub mark: &'static str,
}

impl PageRequest {
    /// Takes the fields of a page.
    pub fn take(fields: &mut Reader<'_>) -> Self {
        let cursor = fields.text_or_null("cursor", 1..=ID_BYTES);
        let before = cursor.as_deref().and_then(id_of);
        if cursor.is_some() && before.is_none() {
            fields.wrong("cursor", CURSOR_FORM);
        }
        let limit = fields.whole("limit", 1..=PAGE_MAX, " messages");
        Self {
            before,
            limit: limit.unwrap_or(PAGE_USUAL),
            state: fields.choice("state", &words(FILTERS)),
            category: fields.text_or_null("category", 1..=CATEGORY_BYTES),
        }
    }
}

impl MarkRequest {
    /// Takes the fields of a mark; `None` if something is wrong, which is reported.
    pub fn take(fields: &mut Reader<'_>) -> Option<Self> {
        if !fields.has("as") {
            fields.missing("as", &any_of(&MARKS));
        }
        let mark = fields.choice("as", &words(MARKS));
        let (ids, has_bound) = (fields.take("ids"), fields.contains("all_up_to"));
        let target = match (ids, has_bound) {
            (Some(_), true) => {
                fields.wrong("all_up_to", "must be left out beside ids");
                None
            }
            (Some(ids), false) => taken_ids(fields, &ids),
            (None, true) => {
                let bound = fields.text("all_up_to", 1..=ID_BYTES)?;
                let up_to_time = || time_of(&bound).map(MarkTarget::UpToTime);
                let target = id_of(&bound).map(MarkTarget::UpToId).or_else(up_to_time);
                if target.is_none() {
                    fields.wrong("all_up_to", "must be the id of a message or a time");
                }
                target
            }
            (None, false) => {
                fields.missing("ids", "a list of ids, unless all_up_to is given");
                None
            }
        };
        Some(Self {
            target: target?,
            mark: mark?,
        })
    }
}

fn taken_ids(fields: &mut Reader<'_>, given: &Value) -> Option<MarkTarget> {
    let of_text = |id: &Value| id.as_str().and_then(id_of);
    let ids: Option<Vec<i64>> = given
        .as_array()
        .filter(|ids| (1..=IDS_MAX).contains(&ids.len()))
        .and_then(|ids| ids.iter().map(of_text).collect());
    if ids.is_none() {
        fields.wrong(
            "ids",
            format!("must be a list of 1 to {IDS_MAX} ids of messages, each a text"),
        );
    }
    ids.map(MarkTarget::Ids)
}

/// Parses the id of a message.
pub fn id_of(text: &str) -> Option<i64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = is_digits && text.len() <= ID_DIGITS && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

/// Returns words as the choices of a field.
pub fn words<const N: usize>(words: [&'static str; N]) -> [(&'static str, &'static str); N] {
    words.map(|word| (word, word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mark(value: Value) -> Result<MarkRequest, Vec<String>> {
        let mut issues = Vec::new();
        let read = Reader::open(value, "", &MARK_FIELDS, &mut issues)
            .and_then(|mut fields| MarkRequest::take(&mut fields));
        let pointers = || issues.iter().map(|issue| issue.pointer.clone()).collect();
        match read {
            Some(read) if issues.is_empty() => Ok(read),
            _ => Err(pointers()),
        }
    }

    #[test]
    fn a_mark_names_messages_or_all_up_to_one_of_them_or_to_a_time() {
        let read = |value| mark(value).unwrap().target;
        assert_eq!(
            read(json!({"ids": ["3", "4"], "as": "read"})),
            MarkTarget::Ids(vec![3, 4])
        );
        assert_eq!(
            read(json!({"all_up_to": "17", "as": "seen"})),
            MarkTarget::UpToId(17)
        );
        assert_eq!(
            read(json!({"all_up_to": "2026-11-25T10:00:00Z", "as": "seen"})),
            MarkTarget::UpToTime("2026-11-25T10:00:00Z".parse().unwrap())
        );
    }

    #[test]
    fn a_mark_that_means_nothing_certain_is_refused() {
        let many: Vec<String> = (1..=1001).map(|id| id.to_string()).collect();
        for (value, pointer) in [
            (json!({"as": "read"}), "/ids"),
            (json!({"ids": [], "as": "read"}), "/ids"),
            (json!({"ids": [1], "as": "read"}), "/ids"),
            (json!({"ids": ["+1"], "as": "read"}), "/ids"),
            (json!({"ids": ["01"], "as": "read"}), "/ids"),
            (json!({"ids": null, "as": "read"}), "/ids"),
            (json!({"ids": many, "as": "read"}), "/ids"),
            (json!({"all_up_to": "soon", "as": "read"}), "/all_up_to"),
            (json!({"all_up_to": "0", "as": "read"}), "/all_up_to"),
            (
                json!({"ids": ["1"], "all_up_to": "1", "as": "read"}),
                "/all_up_to",
            ),
            (json!({"ids": ["1"]}), "/as"),
            (json!({"ids": ["1"], "as": "unseen"}), "/as"),
        ] {
            assert_eq!(
                mark(value.clone()),
                Err(vec![pointer.to_owned()]),
                "{value}"
            );
        }
    }

    #[test]
    fn a_page_has_a_cursor_a_limit_a_state_and_a_category() {
        let read = |value: Value| {
            let mut issues = Vec::new();
            let page = Reader::open(
                value,
                "",
                &["cursor", "limit", "state", "category"],
                &mut issues,
            )
            .map(|mut fields| PageRequest::take(&mut fields));
            let pointers: Vec<String> = issues.into_iter().map(|issue| issue.pointer).collect();
            (page.unwrap(), pointers)
        };
        assert_eq!(read(json!({})), (PageRequest::default(), vec![]));
        let (page, wrong) = read(json!({"cursor": "9", "limit": 5, "state": "unread"}));
        assert_eq!(
            (page.before, page.limit, page.state, wrong),
            (Some(9), 5, Some("unread"), vec![])
        );
        let (_, wrong) = read(json!({"cursor": "x", "limit": 101, "state": "new", "category": ""}));
        assert_eq!(wrong, ["/cursor", "/limit", "/state", "/category"]);
    }
}
