//! Pools of accounts: `[pools.<name>]` and `[[pools.<name>.accounts]]` of the settings file.
//!
//! A key of an account may also be set in its pool, for all accounts that do not set it themselves.
//! Credentials are never written into the file: `x_env` names an environment variable that holds
//! `x`, and `x_file` a file that holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use toml::Table;

use crate::input::toml::json_of;
use crate::input::wording::{self, any_of};
use crate::input::{Issue, Reader, pointer};
use crate::providers::capture::CAPTURE;
use crate::providers::{Account, AccountSecret, Field, Limited, Pool, Pools, Provider, build};
use crate::throttle::{Name, RateLimit};

/// Most accounts of one pool.
const ACCOUNTS_MAX: usize = 5000;

/// Keys of `[pools.<name>]` besides those of accounts.
pub const POOL_KEYS: [&str; 13] = [
    "provider",
    "accounts",
    "shedding",
    "headroom",
    "breaker_failures",
    "breaker_window_s",
    "breaker_cooldown_s",
    "alert_url",
    "alert_secret",
    "on_ambiguous",
    "valid_for_s",
    "requeue_on_recovery",
    "timeout_s",
];

/// Keys of every account, besides those of its provider's driver.
pub const ACCOUNT_KEYS: [&str; 7] = [
    "name",
    "rps",
    "base_url",
    "headers",
    "headers_env",
    "capture",
    "ip_pools",
];

/// A source of credentials.
pub trait Vault {
    /// Returns the value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the content of a file.
    fn file(&self, path: &str) -> Option<String>;
}

/// The environment and the files of this process.
pub struct ProcessVault;

impl Vault for ProcessVault {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }
}

/// Reads all pools, or lists everything that is wrong with them. Without a vault no credential is
/// read, as for a mere check of the settings.
pub fn read(
    tables: &BTreeMap<String, Table>,
    vault: Option<&dyn Vault>,
) -> Result<Pools, Vec<Issue>> {
    let mut issues = Vec::new();
    let mut pools = Pools::default();
    for (name, table) in tables {
        let value = json_of(table);
        let at = pointer("/pools", name);
        // A credential may be anywhere by mistake.
        let fields = Reader::of(&value, &at, &[], &mut issues).map(Reader::hide_values);
        if let Some(pool) = fields.and_then(|fields| pool(name, fields, &value, vault)) {
            pools.0.insert(name.clone(), pool);
        }
    }
    if issues.is_empty() {
        Ok(pools)
    } else {
        Err(issues)
    }
}

/// Returns the JSON pointer to an account, or to one that stands for its IP pools.
pub(super) fn pointer_of(tables: &BTreeMap<String, Table>, pool: &str, account: &str) -> String {
    let at = pointer("/pools", pool);
    let accounts = tables
        .get(pool)
        .and_then(|pool| pool.get("accounts")?.as_array());
    let is_named = |own: &toml::Value| {
        let name = own.get("name").and_then(toml::Value::as_str);
        name.is_some_and(|name| {
            let rest = account.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    match accounts.and_then(|accounts| accounts.iter().position(is_named)) {
        Some(place) => format!("{at}/accounts/{place}"),
        None => at,
    }
}

fn pool(
    name: &str,
    mut fields: Reader<'_>,
    table: &Value,
    vault: Option<&dyn Vault>,
) -> Option<Pool> {
    if let Some(reason) = Pool::why_taken(name) {
        fields.wrong_whole(format!("must have another name: {reason}"));
    }
    if Name::new(format!("{name}:accounts")).is_err() {
        fields.wrong_whole(
            "must have a name of 1 to 119 letters, digits or any of . _ - / : { }, because it names a throttle",
        );
    }
    let provider = provider(&mut fields)?;
    let known = build::fields(provider);
    check_keys(&mut fields, known, &POOL_KEYS);
    if fields.get("name").is_some() {
        fields.wrong(
            "name",
            format!("must be left out: the pool's name is {name}, as its table says"),
        );
    }
    let given = table.get("accounts").and_then(Value::as_array);
    let given = given.filter(|accounts| (1..=ACCOUNTS_MAX).contains(&accounts.len()));
    if given.is_none() {
        let message = format!("must be 1 to {ACCOUNTS_MAX} tables: [[pools.{name}.accounts]]");
        fields.wrong("accounts", message);
    }
    let mut accounts: Vec<Limited> = Vec::new();
    for (place, own) in given.into_iter().flatten().enumerate() {
        let Some(own) = fields.nested(own, &format!("/accounts/{place}"), &[]) else {
            continue;
        };
        let reader = AccountReader {
            own,
            of_pool: table,
            vault,
        };
        accounts.extend(reader.read(known));
    }
    let mut names = BTreeSet::new();
    let twice: Vec<&str> = accounts
        .iter()
        .map(|limited| limited.account.name.as_str())
        .filter(|name| !names.insert(*name))
        .collect();
    for name in twice {
        let message = format!("must have names of their own, and {name:?} is given twice");
        fields.wrong("accounts", message);
    }
    let seconds = |fields: &mut Reader<'_>, key, usual, low, high| {
        let seconds = fields.number(key, low..=high, "");
        Duration::from_secs_f64(seconds.unwrap_or(usual))
    };
    Some(Pool {
        name: name.to_owned(),
        provider,
        accounts,
        shedding: fields.flag("shedding").unwrap_or(true),
        headroom: fields.number("headroom", 0.01..=1.0, "").unwrap_or(0.98),
        breaker_failures: fields
            .whole("breaker_failures", 1..=10_000, "")
            .unwrap_or(5) as u32,
        breaker_window: seconds(&mut fields, "breaker_window_s", 30.0, 0.1, 3600.0),
        breaker_cooldown: seconds(&mut fields, "breaker_cooldown_s", 30.0, 0.1, 86_400.0),
        alert_url: alert_url(&mut fields),
        alert_secret: fields.any_text("alert_secret"),
        retry_ambiguous: fields
            .choice("on_ambiguous", &[("retry", true), ("dead", false)])
            .unwrap_or(true),
        valid_for: seconds(&mut fields, "valid_for_s", 86_400.0, 1.0, 30.0 * 86_400.0),
        requeue_on_recovery: fields.flag("requeue_on_recovery").unwrap_or(false),
        timeout: seconds(&mut fields, "timeout_s", 10.0, 0.01, 300.0),
    })
}

/// Reads `alert_url`, which must be a valid URL for the jobs of the kind `http` that send alerts to
/// it.
fn alert_url(fields: &mut Reader<'_>) -> Option<String> {
    let given = fields.any_text("alert_url")?;
    let url = url::Url::parse(&given)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .filter(|url| url.username().is_empty() && url.password().is_none());
    if url.is_none() {
        fields.wrong("alert_url", NO_URL);
    }
    Some(given)
}

fn provider(fields: &mut Reader<'_>) -> Option<Provider> {
    let words = Provider::ALL.map(|provider| (provider.as_str(), provider));
    if fields.get("provider").is_none() {
        fields.missing("provider", &any_of(&words.map(|(word, _)| word)));
    }
    fields.choice("provider", &words)
}

/// The message about an address.
const NO_URL: &str = "must be a URL that begins with https:// or http://, without credentials";

/// A reader of one account, whose keys may also be set in its pool.
struct AccountReader<'a> {
    own: Reader<'a>,
    of_pool: &'a Value,
    vault: Option<&'a dyn Vault>,
}

impl AccountReader<'_> {
    /// Reads one account, or one for each of its IP pools, because each IP pool has its own rate.
    fn read(mut self, known: &[Field]) -> Vec<Limited> {
        check_keys(&mut self.own, known, &[]);
        let name = self.own.take("name").and_then(|name| match name {
            Value::String(name)
                if (1..=128).contains(&name.len()) && !name.chars().any(char::is_control) =>
            {
                Some(name)
            }
            _ => None,
        });
        let Some(name) = name else {
            let message = "must name the account: a text of 1 to 128 characters";
            self.own.wrong("name", message);
            return Vec::new();
        };
        let rps = self.rps();
        let mut account = Account {
            name,
            base_url: self.base_url(),
            headers: self.headers(),
            ..Account::default()
        };
        for field in known {
            self.field(field, &mut account);
        }
        if self.captures() {
            let option = (CAPTURE.to_owned(), true.to_string());
            account.options.extend([option]);
        }
        let Some(pools) = self.inherited("ip_pools") else {
            return vec![Limited { account, rps }];
        };
        let names: Option<Vec<&str>> = pools
            .as_array()
            .and_then(|pools| pools.iter().map(Value::as_str).collect());
        match names {
            Some(names)
                if !names.is_empty()
                    && names.iter().all(|name| (1..=128).contains(&name.len()))
                    && known.iter().any(|field| field.name == "ip_pool_name") =>
            {
                let of = |pool: &str| {
                    let mut account = Account {
                        name: format!("{}/{pool}", account.name),
                        ..account.clone()
                    };
                    let option = ("ip_pool_name".to_owned(), pool.to_owned());
                    account.options.extend([option]);
                    Limited { account, rps }
                };
                names.into_iter().map(of).collect()
            }
            _ => {
                let message = "must be a list of names of IP pools, each with a rate of its own; only sendgrid has them";
                self.own.wrong("ip_pools", message);
                Vec::new()
            }
        }
    }

    fn inherited(&self, key: &str) -> Option<Value> {
        let value = self.own.get(key).or_else(|| self.of_pool.get(key));
        value.cloned()
    }

    fn rps(&mut self) -> RateLimit {
        let Some(value) = self.inherited("rps") else {
            return RateLimit::Unlimited;
        };
        match value.as_f64() {
            Some(rps) if rps == -1.0 || (1e-4..=1e6).contains(&rps) => RateLimit::new(rps),
            _ => {
                let message = "must be a number from 0.0001 to 1000000 messages per second, or -1 for no limit";
                self.own.wrong("rps", message);
                RateLimit::Unlimited
            }
        }
    }

    fn captures(&mut self) -> bool {
        match self.inherited(CAPTURE) {
            None => false,
            Some(Value::Bool(captures)) => captures,
            Some(_) => {
                self.own.wrong(CAPTURE, "must be true or false");
                false
            }
        }
    }

    fn base_url(&mut self) -> Option<String> {
        let value = self.inherited("base_url")?;
        let text = value.as_str().unwrap_or_default().trim_end_matches('/');
        let host = ["http://", "https://", "smtp://", "smtps://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme));
        let authority = host
            .and_then(|host| host.split(['/', '?', '#']).next())
            .unwrap_or_default();
        if authority.is_empty() || authority.contains('@') {
            self.own.wrong("base_url", NO_URL);
        }
        Some(text.to_owned())
    }

    fn headers(&mut self) -> Vec<(String, AccountSecret)> {
        let mut headers = Vec::new();
        for (name, is_variable) in [("headers", false), ("headers_env", true)] {
            let Some(value) = self.inherited(name) else {
                continue;
            };
            let Some(table) = value.as_object() else {
                self.own.wrong(name, "must be a table of names and texts");
                continue;
            };
            for (header, value) in table {
                match self.header(header, value, is_variable) {
                    Ok(value) => headers.push((header.clone(), AccountSecret::new(value))),
                    Err(message) => self.own.wrong(name, message),
                }
            }
        }
        headers
    }

    fn header(&self, header: &str, value: &Value, is_variable: bool) -> Result<String, String> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let text = value
            .as_str()
            .filter(|_| !header.is_empty() && header.chars().all(token))
            .ok_or_else(|| {
                format!("must be headers' names, each with a text, which {header:?} is not")
            })?;
        let value = match (is_variable, self.vault) {
            (false, _) => text.to_owned(),
            (true, None) => String::new(),
            (true, Some(vault)) => vault.variable(text).ok_or_else(|| {
                let shown = shown_variable(text);
                format!("must name variables that are set, which {shown} for {header} is not")
            })?,
        };
        if value.chars().any(char::is_control) {
            return Err(format!(
                "must be texts of one line, which that of {header} is not"
            ));
        }
        Ok(value)
    }

    /// Reads a key of the provider's driver that is in the settings themselves.
    fn written(&mut self, field: &Field, account: &mut Account) {
        let value = match self.inherited(field.name) {
            Some(Value::String(text)) => text,
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(_) => return self.own.wrong(field.name, "must be a text or a number"),
            None if field.is_required => return self.own.missing(field.name, field.about),
            None => return,
        };
        account.options.insert(field.name.to_owned(), value);
    }

    /// Reads a key of the provider's driver, or the place where its value is.
    fn field(&mut self, field: &Field, account: &mut Account) {
        let (by_env, by_file) = (
            format!("{}_env", field.name),
            format!("{}_file", field.name),
        );
        let has_own = self.own.get(&by_env).is_some() || self.own.get(&by_file).is_some();
        let has_pool = self.of_pool.get(&by_env).is_some() || self.of_pool.get(&by_file).is_some();
        if !field.is_secret && !has_own && !has_pool {
            return self.written(field, account);
        }
        // The account's setting wins over the pool's, whichever of the two forms each uses.
        let mut place = |key: &str| {
            let value = if has_own {
                self.own.get(key).cloned()
            } else {
                self.of_pool.get(key).cloned()
            };
            match value? {
                Value::String(text) => Some(text),
                _ => {
                    self.own.wrong(key, "must be a text");
                    None
                }
            }
        };
        let (variable, file) = (place(&by_env), place(&by_file));
        let found = match (&variable, &file, self.vault) {
            (Some(_), Some(_), _) => {
                let message = format!("must be left out beside {by_env}");
                return self.own.wrong(&by_file, message);
            }
            (None, None, _) => {
                let is_written = self.inherited(field.name).is_some();
                if field.is_required && !has_own && !has_pool && !is_written {
                    let message = format!("is missing (or {by_file}): {}", field.about);
                    self.own.wrong(&by_env, message);
                }
                return;
            }
            (_, _, None) => Some(String::new()),
            (Some(variable), None, Some(vault)) => vault.variable(variable),
            (None, Some(file), Some(vault)) => vault.file(file),
        };
        match found.filter(|text| self.vault.is_none() || !text.trim().is_empty()) {
            Some(text) => take_found(field, text, account),
            None if variable.is_some() => {
                let shown = shown_variable(variable.as_deref().unwrap_or_default());
                let message = format!("names {shown}, which is not set or empty");
                self.own.wrong(&by_env, message);
            }
            None => {
                let shown = shown_file(file.as_deref().unwrap_or_default());
                let message = format!("names {shown}, which cannot be read or is empty");
                self.own.wrong(&by_file, message);
            }
        }
    }
}

/// Puts the value from a variable or a file into the account.
fn take_found(field: &Field, text: String, account: &mut Account) {
    let name = field.name.to_owned();
    if field.is_secret {
        account.secrets.insert(name, AccountSecret::new(text));
    } else {
        account.options.insert(name, text.trim().to_owned());
    }
}

/// Returns a variable's name for a message. A text that does not look like a name may be the
/// credential itself, which is never shown.
fn shown_variable(name: &str) -> String {
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    if is_name {
        format!("the variable {name}")
    } else {
        "a variable".to_owned()
    }
}

/// Returns a file's name for a message, by the same rule.
fn shown_file(path: &str) -> String {
    let is_path = ["/", "./", "../"]
        .iter()
        .any(|start| path.starts_with(start))
        && !path.contains(char::is_control);
    if is_path {
        format!("the file {path}")
    } else {
        "a file".to_owned()
    }
}

/// Refuses unknown keys, and credentials that are written into the file.
fn check_keys(reader: &mut Reader<'_>, fields: &[Field], more: &[&str]) {
    let mut known: Vec<String> = more
        .iter()
        .chain(&ACCOUNT_KEYS)
        .map(|key| (*key).to_owned())
        .collect();
    for field in fields {
        if !field.is_secret {
            known.push(field.name.to_owned());
        }
        known.extend([
            format!("{}_env", field.name),
            format!("{}_file", field.name),
        ]);
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let unknown: Vec<String> = reader
        .names()
        .filter(|name| !known.contains(name))
        .map(str::to_owned)
        .collect();
    for key in unknown {
        let is_secret = |field: &Field| field.is_secret && field.name == key;
        let message = if fields.iter().any(is_secret) {
            format!(
                "must be left out: a credential is not written down; name where it is, with {key}_env or {key}_file"
            )
        } else {
            wording::unknown(&key, "field", &known)
        };
        reader.wrong(&key, message);
    }
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
