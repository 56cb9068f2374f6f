//! Origins of settings: a file with its lines, or an environment variable.

use std::collections::BTreeMap;

use toml::Table;

use crate::input::issue::segments;
use crate::input::{FileError, FileProblem, Issue, TomlDocument, pointer};

/// The file and the variables that settings came from, for messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingsOrigin {
    pub(super) file: String,
    pub(super) document: Option<TomlDocument>,
    /// The variable of each setting that came from the environment.
    pub(super) variables: BTreeMap<String, String>,
}

impl SettingsOrigin {
    /// Returns the path of the settings file; empty if there is none.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Locates problems, in the order of the lines.
    pub(super) fn error(&self, pools: &BTreeMap<String, Table>, issues: Vec<Issue>) -> FileError {
        let problems = issues.into_iter().map(|issue| self.problem(pools, issue));
        let mut problems: Vec<FileProblem> = problems.collect();
        problems.sort_by_key(|problem| problem.line);
        // An error in a pool's key applies to each of its accounts.
        let last = |problem: &FileProblem| problem.key.rsplit('.').next().map(str::to_owned);
        problems.dedup_by(|one, other| {
            one.line > 0
                && (one.line, &one.reason) == (other.line, &other.reason)
                && last(one) == last(other)
        });
        FileError(problems)
    }

    fn problem(&self, pools: &BTreeMap<String, Table>, issue: Issue) -> FileProblem {
        let names: Vec<String> = segments(&issue.pointer).collect();
        if let [key] = names.as_slice()
            && let Some(variable) = self.variables.get(key)
        {
            return FileProblem {
                file: variable.clone(),
                line: 0,
                key: String::new(),
                reason: issue.message,
            };
        }
        let line = self.line(&issue.pointer, &names);
        FileProblem {
            file: line.map(|_| self.file.clone()).unwrap_or_default(),
            line: line.unwrap_or(0),
            key: key_of(pools, &names),
            reason: issue.message,
        }
    }

    /// Returns the line of a key, also of one that an account inherits from its pool or that says
    /// where its value is; else that of the table that lacks it.
    fn line(&self, at: &str, names: &[String]) -> Option<usize> {
        let document = self.document.as_ref()?;
        let mut places = vec![at.to_owned()];
        if let [pools, pool, accounts, _, key, ..] = names
            && pools == "pools"
            && accounts == "accounts"
        {
            places.push(pointer(&pointer("/pools", pool), key));
        }
        let ways = places
            .iter()
            .flat_map(|place| ["", "_env", "_file"].map(|way| format!("{place}{way}")));
        ways.into_iter()
            .find_map(|place| document.line_of(&place))
            .or_else(|| document.line(at))
    }
}

/// Returns the name of a key as people write it, with the name of the account.
fn key_of(pools: &BTreeMap<String, Table>, names: &[String]) -> String {
    let [table, pool, accounts, at, rest @ ..] = names else {
        return names.join(".");
    };
    if table != "pools" || accounts != "accounts" {
        return names.join(".");
    }
    let account = pools
        .get(pool)
        .and_then(|pool| pool.get("accounts")?.get(at.parse::<usize>().ok()?))
        .and_then(|account| account.get("name")?.as_str());
    let account = account.map_or_else(|| format!("accounts[{at}]"), str::to_owned);
    let mut key = format!("pools.{pool}.{account}");
    for name in rest {
        key.push('.');
        key.push_str(name);
    }
    key
}
