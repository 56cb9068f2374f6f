//! The values of one table of a knobs file, read by the table of keys.

use std::collections::BTreeMap;

use serde_json::Value;

use super::keys::{self, Allowed, Default, PolicyTable};
use crate::input::Reader;
use crate::input::wording::must_be_one_of;

/// The values of one table that their keys accept.
pub(super) struct Values {
    pub(super) part: PolicyTable,
    pub(super) given: BTreeMap<&'static str, Value>,
}

impl Values {
    pub(super) fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    pub(super) fn given_number(&self, name: &str) -> Option<f64> {
        self.given.get(name)?.as_f64()
    }

    pub(super) fn default(&self, name: &str) -> Option<Default> {
        keys::find(self.part, name).map(|key| key.default)
    }

    /// Returns the number given, or the key's default; 1 for a missing required key, which was
    /// reported, so that reading continues.
    pub(super) fn number(&self, name: &str) -> f64 {
        self.given_number(name)
            .unwrap_or_else(|| match self.default(name) {
                Some(Default::Number(x)) => x,
                _ => 1.0,
            })
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        match (self.given.get(name), self.default(name)) {
            (Some(Value::Bool(x)), _) => *x,
            (_, Some(Default::Flag(x))) => x,
            _ => false,
        }
    }

    pub(super) fn text(&self, name: &str) -> &str {
        match (self.given.get(name), self.default(name)) {
            (Some(Value::String(text)), _) => text,
            (_, Some(Default::Word(word))) => word,
            _ => "",
        }
    }
}

/// Reads the keys of a table by the table of keys.
pub(super) fn values(fields: &mut Reader<'_>, part: PolicyTable) -> Values {
    let mut given = BTreeMap::new();
    for key in keys::KEYS.iter().filter(|key| key.part == part) {
        match fields.take(key.name) {
            None if key.default == Default::Required => {
                fields.missing(key.name, &key.allowed.description());
            }
            None => {}
            Some(value) if key.allowed.accepts(&value) => {
                given.insert(key.name, value);
            }
            Some(value) => match key.allowed {
                Allowed::Word(words) => fields.wrong(key.name, must_be_one_of(words, &value)),
                _ => fields.refuse(key.name, &key.allowed.description(), &value),
            },
        }
    }
    Values { part, given }
}
