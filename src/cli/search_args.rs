//! The filters that commands on many jobs share.

use serde_json::Value;

use super::given_text::{filled, lost};
use crate::config::Settings;
use crate::jobs::JobSearch;

/// The options of this file, for commands that take one job or a filter.
pub(super) const SEARCH: [&str; 7] = [
    "tenant",
    "group",
    "trace",
    "unique_key",
    "args",
    "args_path",
    "tags",
];

#[derive(clap::Args)]
pub(super) struct SearchArgs {
    /// Only jobs of this tenant
    #[arg(long, value_parser = filled)]
    pub(super) tenant: Option<String>,
    /// Only jobs of this group
    #[arg(long, value_name = "ID")]
    pub(super) group: Option<i64>,
    /// Only jobs of this trace: its id, or a whole traceparent
    #[arg(long, value_name = "ID", value_parser = filled)]
    trace: Option<String>,
    /// Only jobs that hold or held this unique key
    #[arg(long, value_name = "KEY", value_parser = filled)]
    unique_key: Option<String>,
    /// Only jobs whose arguments contain this JSON object
    #[arg(long, value_name = "JSON", value_parser = json)]
    args: Option<Value>,
    /// Only jobs whose arguments fit this path, such as '$.customer.id == 17'
    #[arg(long, value_name = "PATH", value_parser = filled)]
    args_path: Option<String>,
    /// Only jobs with this tag; repeat it for jobs that have all of several
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
}

impl SearchArgs {
    /// Returns the search, with the tokens of the settings as possible owners of the unique key.
    pub(super) fn search(self, settings: &Settings) -> JobSearch {
        let tokens = settings.api_tokens.keys();
        let owners = tokens.map(|name| format!("token:{name}"));
        JobSearch {
            key_owners: match self.unique_key {
                Some(_) => owners.collect(),
                None => Vec::new(),
            },
            trace: self.trace,
            unique_key: self.unique_key,
            args: self.args,
            args_path: self.args_path,
            tags: self.tags,
        }
    }
}

/// Lists the options of which a change of many jobs needs one: those of the command and of this
/// file. `--tenant` is not among them, because alone it would reach all jobs of the tenant.
pub(super) fn options(of_the_command: &[&str]) -> String {
    let options: Vec<String> = [of_the_command, &SEARCH[1..]]
        .concat()
        .iter()
        .map(|name| format!("--{}", name.replace('_', "-").replace("tags", "tag")))
        .collect();
    options.join(", ")
}

fn json(text: &str) -> Result<Value, String> {
    let args = serde_json::from_str(text).map_err(|error| {
        format!(
            "is not JSON ({error}); allowed is an object such as {{\"customer\": {{\"id\": 17}}}}"
        )
    })?;
    // Without the lost part the filter would find other jobs.
    match lost("", text) {
        Some(problem) => Err(problem),
        None => Ok(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_which_a_part_would_be_lost_are_refused_because_they_would_find_other_jobs() {
        let rounded = json(r#"{"customer": {"id": 123456789012345678901}}"#).unwrap_err();
        assert!(
            rounded.starts_with("customer/id: is 123456789012345678901, which would be rounded"),
            "{rounded}"
        );
        let twice = json(r#"{"id": 1, "id": 2}"#).unwrap_err();
        assert_eq!(twice, "the field \"id\" is given twice");
        let largest = json(r#"{"id": 18446744073709551615}"#).unwrap();
        assert_eq!(largest["id"], u64::MAX);
    }
}
