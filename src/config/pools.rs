//! Pools of accounts: `[pools.<name>]` and `[[pools.<name>.accounts]]` of the settings file.
//!
//! A key of an account may also be set in its pool, for all accounts that do not set it themselves.
//! Credentials are never written into the file: `x_env` names an environment variable that holds
//! `x`, and `x_file` a file that holds it.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::DeTable;
use toml::{Table, Value};

use crate::providers::{Account, AccountSecret, Field, Limited, Pool, Pools, Provider, build};
use crate::throttle::Name;

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
pub const ACCOUNT_KEYS: [&str; 6] = [
    "name",
    "rps",
    "base_url",
    "headers",
    "headers_env",
    "ip_pools",
];

/// An invalid setting of a pool, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{place} {message}")]
pub struct PoolProblem {
    /// File and line, `own.toml:12: `; empty if they are not known.
    pub file: String,
    /// The key, as `pools.<name>.<key>` or with the account's name.
    pub place: String,
    /// The fault, and the allowed values.
    pub message: String,
}

/// A source of credentials.
pub trait Vault {
    /// Returns the value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the content of a file.
    fn file(&self, path: &str) -> Option<String>;
}

/// The environment and the files of this process.
pub struct Real;

impl Vault for Real {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }
}

/// Reads all pools. Without a vault no credential is read, as for a mere check of the settings.
pub fn read(
    tables: &BTreeMap<String, Table>,
    vault: Option<&dyn Vault>,
) -> Result<Pools, PoolProblem> {
    let pools = tables
        .iter()
        .map(|(name, table)| Ok((name.clone(), pool(name, table, vault)?)));
    Ok(Pools(pools.collect::<Result<_, PoolProblem>>()?))
}

fn pool(name: &str, table: &Table, vault: Option<&dyn Vault>) -> Result<Pool, PoolProblem> {
    let at = At(format!("pools.{name}"));
    if Name::new(format!("{name}:accounts")).is_err() {
        return Err(
            at.problem("", "is not a pool's name: it names a throttle; use 1 to 119 letters, digits or any of . _ - / : { }")
        );
    }
    let provider = provider(&at, table)?;
    let fields = build::fields(provider);
    if table.contains_key("name") {
        return Err(at.problem(
            "name",
            format!("is not a key here: the pool's name is {name}, as its table says"),
        ));
    }
    check_keys(&at, table, fields, &POOL_KEYS)?;
    let accounts = match table.get("accounts") {
        Some(Value::Array(accounts)) if !accounts.is_empty() && accounts.len() <= ACCOUNTS_MAX => {
            accounts
        }
        _ => {
            return Err(at.problem(
                "accounts",
                format!("must be 1 to {ACCOUNTS_MAX} tables: [[pools.{name}.accounts]]"),
            ));
        }
    };
    let mut read = Vec::new();
    for (place, own) in accounts.iter().enumerate() {
        let Some(own) = own.as_table() else {
            return Err(at.problem("accounts", "must be tables"));
        };
        read.extend(account(&at, place, table, own, fields, vault)?);
    }
    for (place, limited) in read.iter().enumerate() {
        if read[..place]
            .iter()
            .any(|other| other.account.name == limited.account.name)
        {
            return Err(at.problem(
                "accounts",
                format!(
                    "has the name {:?} twice; each account needs one of its own",
                    limited.account.name
                ),
            ));
        }
    }
    let seconds = |key, default, low, high| {
        Ok(Duration::from_secs_f64(
            at.number(table, key, default, low, high)?,
        ))
    };
    Ok(Pool {
        name: name.to_owned(),
        provider,
        accounts: read,
        shedding: at.flag(table, "shedding", true)?,
        headroom: at.number(table, "headroom", 0.98, 0.01, 1.0)?,
        breaker_failures: at.whole(table, "breaker_failures", 5, 1, 10_000)?,
        breaker_window: seconds("breaker_window_s", 30.0, 0.1, 3600.0)?,
        breaker_cooldown: seconds("breaker_cooldown_s", 30.0, 0.1, 86_400.0)?,
        alert_url: alert_url(&at, table)?,
        alert_secret: at.text(table, "alert_secret")?,
        retry_ambiguous: match at.text(table, "on_ambiguous")?.as_deref() {
            None | Some("retry") => true,
            Some("dead") => false,
            Some(_) => return Err(at.problem("on_ambiguous", "must be \"retry\" or \"dead\"")),
        },
        valid_for: seconds("valid_for_s", 86_400.0, 1.0, 30.0 * 86_400.0)?,
        requeue_on_recovery: at.flag(table, "requeue_on_recovery", false)?,
        timeout: seconds("timeout_s", 10.0, 0.01, 300.0)?,
    })
}

/// Reads `alert_url`, which must be a valid URL for the jobs of the kind `http` that send alerts to
/// it.
fn alert_url(at: &At, table: &Table) -> Result<Option<String>, PoolProblem> {
    let given = at.text(table, "alert_url")?;
    let is_fit = |text: &str| {
        let url = url::Url::parse(text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        url.is_some_and(|url| url.username().is_empty() && url.password().is_none())
    };
    match given {
        Some(text) if !is_fit(&text) => Err(at.problem(
            "alert_url",
            "must be a URL that begins with https:// or http://, without credentials",
        )),
        given => Ok(given),
    }
}

fn provider(at: &At, table: &Table) -> Result<Provider, PoolProblem> {
    let word = at.text(table, "provider")?;
    let found = Provider::ALL
        .into_iter()
        .find(|provider| Some(provider.as_str()) == word.as_deref());
    found.ok_or_else(|| {
        at.problem(
            "provider",
            format!(
                "must be one of {}",
                Provider::ALL.map(Provider::as_str).join(", ")
            ),
        )
    })
}

/// Reads one account, or one for each of its IP pools, because each IP pool has its own rate.
fn account(
    at: &At,
    place: usize,
    of_pool: &Table,
    own: &Table,
    fields: &[Field],
    vault: Option<&dyn Vault>,
) -> Result<Vec<Limited>, PoolProblem> {
    let name = at
        .text(own, "name")?
        .filter(|name| (1..=128).contains(&name.len()) && !name.chars().any(char::is_control));
    let Some(name) = name else {
        return Err(At(format!("{}.accounts[{place}]", at.0)).problem(
            "name",
            "must name the account: a text of 1 to 128 characters",
        ));
    };
    let at = At(format!("{}.{name}", at.0));
    check_keys(&at, own, fields, &[])?;
    let key = |key: &str| own.get(key).or_else(|| of_pool.get(key));
    let rps = match key("rps") {
        None => -1.0,
        Some(value) => match value
            .as_float()
            .or_else(|| value.as_integer().map(|whole| whole as f64))
        {
            Some(rps) if rps == -1.0 || (1e-4..=1e6).contains(&rps) => rps,
            _ => {
                return Err(at.problem(
                    "rps",
                    "must be 0.0001 to 1000000 messages per second, or -1 for no limit",
                ));
            }
        },
    };
    let base_url = key("base_url").map(|value| url(&at, value)).transpose()?;
    let mut account = Account {
        name,
        base_url,
        headers: headers(&at, &key, vault)?,
        ..Account::default()
    };
    for field in fields {
        read_field(&at, field, own, of_pool, vault, &mut account)?;
    }
    let Some(pools) = key("ip_pools") else {
        return Ok(vec![Limited { account, rps }]);
    };
    let pools: Option<Vec<&str>> = pools
        .as_array()
        .and_then(|pools| pools.iter().map(Value::as_str).collect());
    match pools {
        Some(pools)
            if !pools.is_empty()
                && pools.iter().all(|pool| (1..=128).contains(&pool.len()))
                && fields.iter().any(|field| field.name == "ip_pool_name") =>
        {
            let of = |pool: &str| {
                let mut account = Account { name: format!("{}/{pool}", account.name), ..account.clone() };
                account.options.insert("ip_pool_name".to_owned(), pool.to_owned());
                Limited { account, rps }
            };
            Ok(pools.into_iter().map(of).collect())
        }
        _ => {
            Err(at
                .problem("ip_pools", "must be a list of names of IP pools, each with a rate of its own; only sendgrid has them"))
        }
    }
}

fn read_field(
    at: &At,
    field: &Field,
    own: &Table,
    of_pool: &Table,
    vault: Option<&dyn Vault>,
    account: &mut Account,
) -> Result<(), PoolProblem> {
    let (by_env, by_file) = (
        format!("{}_env", field.name),
        format!("{}_file", field.name),
    );
    let is_elsewhere = [own, of_pool]
        .into_iter()
        .any(|table| table.contains_key(&by_env) || table.contains_key(&by_file));
    if !field.is_secret && !is_elsewhere {
        let value = own.get(field.name).or_else(|| of_pool.get(field.name));
        let text = value.map(|value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
            _ => Err(at.problem(field.name, "must be a text or a number")),
        });
        match text.transpose()? {
            Some(text) => drop(account.options.insert(field.name.to_owned(), text)),
            None if field.is_required => {
                return Err(at.problem(field.name, format!("is missing: {}", field.about)));
            }
            None => {}
        }
        return Ok(());
    }
    // The account's setting wins over the pool's, whichever of the two forms each uses.
    let table = if own.contains_key(&by_env) || own.contains_key(&by_file) {
        own
    } else {
        of_pool
    };
    let (variable, file) = (at.text(table, &by_env)?, at.text(table, &by_file)?);
    let found = match (&variable, &file, vault) {
        (Some(_), Some(_), _) => {
            return Err(at.problem(
                &by_file,
                format!("is set beside {by_env}; one of the two is allowed"),
            ));
        }
        (None, None, _) if field.is_required => {
            return Err(at.problem(
                &by_env,
                format!("is missing (or {by_file}): {}", field.about),
            ));
        }
        (None, None, _) => return Ok(()),
        (_, _, None) => Some(String::new()),
        (Some(variable), None, Some(vault)) => vault.variable(variable),
        (None, Some(file), Some(vault)) => vault.file(file),
    };
    match found.filter(|secret| vault.is_none() || !secret.trim().is_empty()) {
        Some(text) if field.is_secret => drop(
            account
                .secrets
                .insert(field.name.to_owned(), AccountSecret::new(text)),
        ),
        Some(text) => drop(
            account
                .options
                .insert(field.name.to_owned(), text.trim().to_owned()),
        ),
        None if variable.is_some() => {
            let shown = shown_variable(variable.as_deref().unwrap_or_default());
            return Err(at.problem(&by_env, format!("names {shown}, which is not set or empty")));
        }
        None => {
            let shown = shown_file(file.as_deref().unwrap_or_default());
            return Err(at.problem(
                &by_file,
                format!("names {shown}, which cannot be read or is empty"),
            ));
        }
    }
    Ok(())
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

fn headers<'a>(
    at: &At,
    key: &impl Fn(&str) -> Option<&'a Value>,
    vault: Option<&dyn Vault>,
) -> Result<Vec<(String, AccountSecret)>, PoolProblem> {
    let mut headers = Vec::new();
    for (name, is_variable) in [("headers", false), ("headers_env", true)] {
        let Some(value) = key(name) else { continue };
        let Some(table) = value.as_table() else {
            return Err(at.problem(name, "must be a table of names and texts"));
        };
        for (header, value) in table {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            let Some(text) = value
                .as_str()
                .filter(|_| !header.is_empty() && header.chars().all(token))
            else {
                return Err(at.problem(
                    name,
                    format!("has {header:?}, which is no header's name, or its value is no text"),
                ));
            };
            let value = match (is_variable, vault) {
                (false, _) => Some(text.to_owned()),
                (true, None) => Some(String::new()),
                (true, Some(vault)) => vault.variable(text),
            };
            let Some(value) = value else {
                let shown = shown_variable(text);
                return Err(at.problem(
                    name,
                    format!("gives {header} the value of {shown}, which is not set"),
                ));
            };
            if value.chars().any(char::is_control) {
                return Err(at.problem(
                    name,
                    format!(
                        "has a value for {header} with control characters; a header is one line"
                    ),
                ));
            }
            headers.push((header.clone(), AccountSecret::new(value)));
        }
    }
    Ok(headers)
}

fn url(at: &At, value: &Value) -> Result<String, PoolProblem> {
    let text = value.as_str().unwrap_or_default().trim_end_matches('/');
    let host = ["http://", "https://", "smtp://", "smtps://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let authority = host
        .and_then(|host| host.split(['/', '?', '#']).next())
        .unwrap_or_default();
    if authority.is_empty() || authority.contains('@') {
        return Err(at.problem(
            "base_url",
            "must be a URL that begins with https:// or http://, without credentials",
        ));
    }
    Ok(text.to_owned())
}

/// Refuses unknown keys, and credentials that are written into the file.
fn check_keys(at: &At, table: &Table, fields: &[Field], more: &[&str]) -> Result<(), PoolProblem> {
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
    let Some(key) = table.keys().find(|key| !known.contains(key)) else {
        return Ok(());
    };
    let message = if fields
        .iter()
        .any(|field| field.is_secret && field.name == key)
    {
        format!(
            "is a credential and is not written down: name where it is, with {key}_env or {key}_file"
        )
    } else {
        format!("is not a key here; keys are {}", known.join(", "))
    };
    Err(at.problem(key, message))
}

/// Returns file and line of each key of each pool, by its place. A key that an account inherits has
/// the line in its pool.
pub(super) fn lines(file: &str, text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Ok(parsed) = DeTable::parse(text) else {
        return found;
    };
    let line = |at: usize| {
        format!(
            "{file}:{}: ",
            text[..at.min(text.len())].matches('\n').count() + 1
        )
    };
    let Some((_, pools)) = parsed
        .get_ref()
        .iter()
        .find(|(key, _)| key.get_ref() == "pools")
    else {
        return found;
    };
    for (name, pool) in pools.get_ref().as_table().into_iter().flatten() {
        let place = format!("pools.{}", name.get_ref());
        found.insert(place.clone(), line(name.span().start));
        let of_pool: Vec<_> = pool.get_ref().as_table().into_iter().flatten().collect();
        for (key, _) in &of_pool {
            found.insert(format!("{place}.{}", key.get_ref()), line(key.span().start));
        }
        let accounts = of_pool
            .iter()
            .find(|(key, _)| key.get_ref() == "accounts")
            .and_then(|(_, value)| value.get_ref().as_array());
        for (number, account) in accounts.into_iter().flatten().enumerate() {
            let Some(own) = account.get_ref().as_table() else {
                continue;
            };
            let name = own
                .iter()
                .find(|(key, _)| key.get_ref() == "name")
                .and_then(|(_, value)| value.get_ref().as_str());
            let of_account = name.map_or_else(
                || format!("{place}.accounts[{number}]"),
                |name| format!("{place}.{name}"),
            );
            found
                .entry(of_account.clone())
                .or_insert_with(|| line(account.span().start));
            for (key, _) in of_pool.iter().copied().chain(own) {
                found.insert(
                    format!("{of_account}.{}", key.get_ref()),
                    line(key.span().start),
                );
            }
        }
    }
    found
}

impl PoolProblem {
    /// Adds file and line, if the key is in a file; for a missing key, those of its table.
    pub(super) fn located(self, lines: &BTreeMap<String, String>) -> Self {
        let table = self.place.rsplit_once('.').map_or("", |(table, _)| table);
        let named = ["_env", "_file"].map(|way| format!("{}{way}", self.place));
        let places = [&self.place, &named[0], &named[1]]
            .into_iter()
            .map(String::as_str)
            .chain([table]);
        let file = places
            .into_iter()
            .find_map(|place| lines.get(place))
            .cloned()
            .unwrap_or_default();
        Self { file, ..self }
    }
}

struct At(String);

impl At {
    fn problem(&self, key: &str, message: impl Into<String>) -> PoolProblem {
        let place = if key.is_empty() {
            self.0.clone()
        } else {
            format!("{}.{key}", self.0)
        };
        PoolProblem {
            file: String::new(),
            place,
            message: message.into(),
        }
    }

    fn text(&self, table: &Table, key: &str) -> Result<Option<String>, PoolProblem> {
        match table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.problem(key, "must be a text")),
        }
    }

    fn flag(&self, table: &Table, key: &str, default: bool) -> Result<bool, PoolProblem> {
        match table.get(key) {
            None => Ok(default),
            Some(Value::Boolean(flag)) => Ok(*flag),
            Some(_) => Err(self.problem(key, "must be true or false")),
        }
    }

    fn whole(
        &self,
        table: &Table,
        key: &str,
        default: u32,
        low: u32,
        high: u32,
    ) -> Result<u32, PoolProblem> {
        let number = self.number(table, key, default.into(), low.into(), high.into())?;
        match number.fract() == 0.0 {
            true => Ok(number as u32),
            false => Err(self.problem(key, format!("must be a whole number, {low} to {high}"))),
        }
    }

    fn number(
        &self,
        table: &Table,
        key: &str,
        default: f64,
        low: f64,
        high: f64,
    ) -> Result<f64, PoolProblem> {
        let number = match table.get(key) {
            None => return Ok(default),
            Some(Value::Integer(whole)) => *whole as f64,
            Some(Value::Float(number)) => *number,
            Some(_) => f64::NAN,
        };
        match (low..=high).contains(&number) {
            true => Ok(number),
            false => Err(self.problem(key, format!("must be {low} to {high}"))),
        }
    }
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
