//! Recipients as their senders write them: the fields of a profile, beside an id in a list.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::profile::{PROFILE_FIELDS, Profile};
use crate::input::Reader;
use crate::providers::RESERVED_IDS;

/// The fields of the defaults of a tenant.
pub const DEFAULTS_FIELDS: [&str; 3] = ["time_zone", "quiet_hours", "preferences"];

/// The longest id, in bytes: the longest that a message can name.
pub const ID_BYTES: usize = super::fields::GATE_FIELD_BYTES;

/// The most recipients of one import.
pub const IMPORT_MAX: usize = 1000;

/// The form of an id, for messages.
const ID: &str = "must be a text of 1 to 128 bytes without control characters";

/// A recipient with its profile, which was checked.
///
/// Its debug text shows nothing of the profile, because it has addresses.
#[derive(Clone, PartialEq)]
pub struct NewRecipient {
    pub id: String,
    /// The profile as it was written, without fields that are `null`.
    pub profile: Value,
}

impl std::fmt::Debug for NewRecipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewRecipient").finish_non_exhaustive()
    }
}

/// Checks an id. The error does not contain it.
pub fn check_id(id: &str) -> Result<(), &'static str> {
    if RESERVED_IDS.contains(&id) {
        Err("must not be check, . or .., which cannot be in a path")
    } else if id.is_empty() || id.len() > ID_BYTES || id.chars().any(char::is_control) {
        Err(ID)
    } else {
        Ok(())
    }
}

/// Takes the fields of a profile, which must be among `allowed`, and reports everything that is
/// wrong with it.
pub fn take_profile(fields: &mut Reader<'_>, allowed: &[&str]) -> Value {
    let given: Map<String, Value> = allowed
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), fields.take_nullable(name)?)))
        .collect();
    let profile = Value::Object(given);
    for issue in Profile::parse(&profile).err().unwrap_or_default() {
        fields.wrong_at(&issue.pointer, issue.message);
    }
    profile
}

/// Takes a list of recipients from a field: objects with an id and the fields of a profile.
pub fn take_recipients(fields: &mut Reader<'_>, name: &str) -> Vec<NewRecipient> {
    let form = format!("a list of 1 to {IMPORT_MAX} recipients");
    let Some(value) = fields.take(name) else {
        fields.missing(name, &form);
        return Vec::new();
    };
    let items = match value {
        Value::Array(items) if (1..=IMPORT_MAX).contains(&items.len()) => items,
        Value::Array(items) => {
            fields.wrong(name, format!("must be {form}, not of {}", items.len()));
            return Vec::new();
        }
        // The value is not shown, because it may be an address.
        _ => {
            fields.wrong(name, format!("must be {form}"));
            return Vec::new();
        }
    };
    let mut ids = BTreeSet::new();
    let mut found = Vec::new();
    for (nth, item) in items.iter().enumerate() {
        let at = format!("/{name}/{nth}");
        let Some(one) = take_recipient(fields, item, &at) else {
            continue;
        };
        if ids.insert(one.id.clone()) {
            found.push(one);
        } else {
            fields.wrong_at(&format!("{at}/id"), "must differ from those before it");
        }
    }
    found
}

/// Reads a recipient at a JSON pointer below an object.
fn take_recipient(fields: &mut Reader<'_>, item: &Value, at: &str) -> Option<NewRecipient> {
    if !item.is_object() {
        fields.wrong_at(
            at,
            "must be an object with an id and the fields of a profile",
        );
        return None;
    }
    let allowed: Vec<&str> = ["id"].into_iter().chain(PROFILE_FIELDS).collect();
    let mut one = fields.nested(item, at, &allowed)?;
    let id = match one.take_nullable("id") {
        None => {
            one.missing("id", "the id by which messages name the recipient");
            None
        }
        Some(Value::String(id)) => match check_id(&id) {
            Ok(()) => Some(id),
            Err(message) => {
                one.wrong("id", message);
                None
            }
        },
        Some(_) => {
            one.wrong("id", ID);
            None
        }
    };
    let profile = take_profile(&mut one, &PROFILE_FIELDS);
    Some(NewRecipient { id: id?, profile })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::input::Issue;

    fn read(value: &Value) -> (Vec<NewRecipient>, Vec<String>) {
        let mut issues: Vec<Issue> = Vec::new();
        let mut fields = Reader::of(value, "", &["recipients"], &mut issues).unwrap();
        let found = take_recipients(&mut fields, "recipients");
        let lines = issues
            .iter()
            .map(|issue| format!("{}: {}", issue.pointer, issue.message));
        (found, lines.collect())
    }

    #[test]
    fn each_error_of_a_list_has_its_pointer_and_shows_no_address() {
        let (_, wrong) = read(&json!({"recipients": [
            {"id": "ada", "addresses": {"email": "ada@example.org"}},
            {"id": "ada"},
            {"addresses": {"email": "bob at example.org"}, "time_zone": "Mars/Base"},
            {"id": "", "addresses": "eve@example.org"},
            "eve@example.org",
            {"id": "check"},
        ]}));
        let pointers: Vec<&str> = wrong
            .iter()
            .map(|line| line.split(':').next().unwrap())
            .collect();
        assert_eq!(
            pointers,
            [
                "/recipients/1/id",
                "/recipients/2/id",
                "/recipients/2/time_zone",
                "/recipients/2/addresses/email",
                "/recipients/3/id",
                "/recipients/3/addresses",
                "/recipients/4",
                "/recipients/5/id",
            ]
        );
        assert!(
            wrong.iter().all(|line| !line.contains("example.org")),
            "{wrong:#?}"
        );
    }

    #[test]
    fn a_list_has_one_to_a_thousand_recipients() {
        let list = |count: usize| {
            let all: Vec<Value> = (0..count).map(|n| json!({"id": n.to_string()})).collect();
            let (found, wrong) = read(&json!({ "recipients": all }));
            (found.len(), wrong.len())
        };
        assert_eq!(list(IMPORT_MAX), (IMPORT_MAX, 0));
        assert_eq!((list(0), list(IMPORT_MAX + 1)), ((0, 1), (0, 1)));
        assert_eq!(read(&json!({})).1.len(), 1);
    }

    #[test]
    fn absent_fields_and_those_that_are_null_are_not_kept() {
        let (found, wrong) = read(&json!({"recipients": [
            {"id": "ada", "time_zone": null, "preferences": {"all": false}},
        ]}));
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(found[0].profile, json!({"preferences": {"all": false}}));
    }
}
