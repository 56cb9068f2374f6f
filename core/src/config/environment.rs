//! Variables of the environment that look like settings and are none. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{KEYS, Settings};
use crate::input::wording::similar;

/// The beginning of the names of Flyball's own variables.
const PREFIX: &str = "FLYBALL_";

/// Variables besides those of settings: of the command line, of the clients in the documents, of the
/// scripts and of the tests.
const OTHERS: &[&str] = &[
    "FLYBALL_CONFIG",
    "FLYBALL_SECRET_KEYS",
    "FLYBALL_SECRET_KEYS_FILE",
    "FLYBALL_TOKEN",
    "FLYBALL_URL",
    "FLYBALL_DATABASE_PASSWORD",
    "FLYBALL_WORDNET_DIR",
    "FLYBALL_BLESS",
    "FLYBALL_LAW_CASES",
    "FLYBALL_LAW_SEED",
    "FLYBALL_OLDER_PROGRAM",
    "FLYBALL_REINDEX_DOCUMENTS",
    "FLYBALL_SOAK_S",
    "FLYBALL_TRIPS",
];

/// The beginnings of families of such variables.
const FAMILIES: &[&str] = &["FLYBALL_WEBHOOK_SECRET_", "FLYBALL_TEST_", "FLYBALL_BENCH_"];

/// The end of the first variable with which Kubernetes tells a container of a service; the others
/// begin alike.
const SERVICE_HOST: &str = "_SERVICE_HOST";

impl Settings {
    /// Returns a message for each of these variables that is named like a setting and that nothing
    /// reads.
    pub fn unknown_variables(&self, variables: &BTreeSet<String>) -> Vec<String> {
        let mut named = BTreeSet::new();
        if let Some(document) = &self.origin.document {
            add_named(&document.value, false, &mut named);
        }
        let settings = KEYS.iter().map(|(_, variable)| *variable);
        let known: Vec<&str> = settings.chain(OTHERS.iter().copied()).collect();
        let is_known = |name: &str| {
            known.contains(&name)
                || named.contains(name)
                || FAMILIES.iter().any(|family| name.starts_with(family))
                || is_of_service(name, variables)
        };
        variables
            .iter()
            .filter(|name| name.starts_with(PREFIX) && !is_known(name.as_str()))
            .map(|name| match similar(name, &known) {
                Some(meant) => {
                    format!("{name} is not a known variable and is ignored; did you mean {meant}?")
                }
                None => format!("{name} is not a known variable and is ignored"),
            })
            .collect()
    }
}

/// Adds the variables that a settings file names by the keys that end in `_env`.
fn add_named<'a>(value: &'a Value, is_env: bool, named: &mut BTreeSet<&'a str>) {
    match value {
        Value::String(name) if is_env => {
            named.insert(name);
        }
        Value::Array(items) => {
            for item in items {
                add_named(item, is_env, named);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                add_named(value, is_env || key.ends_with("_env"), named);
            }
        }
        _ => {}
    }
}

/// Returns true for a variable with which Kubernetes describes a service such as `flyball` or
/// `flyball-redis` to every container.
fn is_of_service(name: &str, variables: &BTreeSet<String>) -> bool {
    variables
        .iter()
        .filter_map(|other| other.strip_suffix(SERVICE_HOST))
        .filter_map(|service| name.strip_prefix(service))
        .any(|rest| rest.starts_with("_SERVICE_") || rest == "_PORT" || rest.starts_with("_PORT_"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn unknown(settings: &Settings, variables: &[&str]) -> Vec<String> {
        let variables = variables.iter().map(|name| (*name).to_owned());
        settings.unknown_variables(&variables.collect())
    }

    #[test]
    fn a_variable_that_nothing_reads_is_named_with_the_one_that_was_probably_meant() {
        let settings = Settings::defaults();
        assert_eq!(
            unknown(
                &settings,
                &[
                    "FLYBALL_API_TOKN",
                    "FLYBALL_SECRET_KEY",
                    "FLYBALL_SLOTS",
                    "OTHER_FLYBALL_SLOTS",
                    "PATH",
                ]
            ),
            [
                "FLYBALL_API_TOKN is not a known variable and is ignored; did you mean FLYBALL_API_TOKEN?",
                "FLYBALL_SECRET_KEY is not a known variable and is ignored; did you mean FLYBALL_SECRET_KEYS?",
                "FLYBALL_SLOTS is not a known variable and is ignored",
            ]
        );
        let known: Vec<&str> = KEYS.iter().map(|(_, variable)| *variable).collect();
        assert_eq!(unknown(&settings, &known), [""; 0]);
        let others = [
            "FLYBALL_CONFIG",
            "FLYBALL_WEBHOOK_SECRET_ACME_FILE",
            "FLYBALL_SOAK_S",
        ];
        assert_eq!(unknown(&settings, &others), [""; 0]);
    }

    #[test]
    fn variables_that_the_settings_name_and_those_of_kubernetes_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.toml");
        let text = "[api_tokens.billing]\nsecret_env = \"FLYBALL_BILLING\"\n\
                    [prometheus.east]\nurl = \"http://e\"\nheaders_env = { \"X-Scope\" = \"FLYBALL_SCOPE\" }\n";
        std::fs::write(&path, text).unwrap();
        let settings = Settings::load(Some(&path), &BTreeMap::new()).unwrap();
        let services = [
            "FLYBALL_BILLING",
            "FLYBALL_SCOPE",
            "FLYBALL_PORT",
            "FLYBALL_PORT_8080_TCP_ADDR",
            "FLYBALL_REDIS_PORT_6379_TCP",
            "FLYBALL_REDIS_SERVICE_HOST",
            "FLYBALL_SERVICE_HOST",
            "FLYBALL_SERVICE_PORT_HTTP",
        ];
        assert_eq!(unknown(&settings, &services), [""; 0]);
        assert_eq!(
            unknown(&settings, &["FLYBALL_PORT"]).len(),
            1,
            "without a service"
        );
    }
}
