//! Secret values in the arguments of jobs: their marks, and the keys that encrypt and decrypt them.
//!
//! ```text
//!   {"$secret": "Bearer 5up3r"}               a plain value, as its sender marks it
//!   {"$encrypted": "v1.4be1f0a2.9qY1…"}       the same at rest: key, nonce and ciphertext
//! ```
//!
//! An encrypted value is bound to the kind and the tenant of its job: copied into a job of another
//! kind or tenant, it does not decrypt. Pure; the nonces are arguments.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::input::{Issue, pointer};

/// The only field of an object that marks a plain value as secret.
pub const PLAIN: &str = "$secret";

/// The only field of an object that holds an encrypted value.
pub const ENCRYPTED: &str = "$encrypted";

/// The text that stands for a secret value wherever arguments are shown.
pub const MASK: &str = "[secret]";

/// The variable of the keys, the first of which encrypts.
pub const VARIABLE: &str = "FLYBALL_SECRET_KEYS";

/// The variable that names a file with the keys instead.
pub const FILE_VARIABLE: &str = "FLYBALL_SECRET_KEYS_FILE";

/// The beginning of the capability to decrypt what a key encrypted; the id of the key follows.
const CAPABILITY: &str = "secret-key";

/// The capability to encrypt, which a job needs whose values are still plain.
pub(super) const ANY_KEY: &str = "secret-key any";

/// The version of the form of an encrypted value.
const VERSION: &str = "v1";

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 24;

/// Bytes of the authentication tag.
const TAG_BYTES: usize = 16;

/// Bytes of a key's digest that are its id.
const ID_BYTES: usize = 4;

/// The kinds whose arguments the database reads itself, so that no value in them can be encrypted.
const READ_BY_DATABASE: [&str; 2] = ["notification", "batch"];

/// A variable without usable keys. The error never shows the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {message}")]
pub struct KeysError {
    /// The variable.
    pub variable: &'static str,
    /// The fault, and what is allowed.
    pub message: String,
}

struct SecretKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

/// The keys of a process. The first encrypts; all of them decrypt.
///
/// ```
/// # use flyball_core as flyball;
/// use flyball::jobs::SecretKeys;
///
/// let keys = SecretKeys::parse("Vt0cI0bGE1BqTBJQtEpZ2xPd1m3VZCkNR2Y7Gqmpfzo=").unwrap();
/// assert_eq!(keys.ids().count(), 1);
/// assert!(!format!("{keys:?}").contains("Vt0c"));
/// ```
#[derive(Default)]
pub struct SecretKeys(Vec<SecretKey>);

impl SecretKeys {
    /// Reads the keys from the values of [`VARIABLE`] and [`FILE_VARIABLE`], of which one may be
    /// set; `read` reads the file. Without either there are no keys.
    pub fn from_variables(
        keys: Option<&str>,
        file: Option<&str>,
        read: impl FnOnce(&str) -> std::io::Result<String>,
    ) -> Result<Self, KeysError> {
        let fault = |variable, message: String| KeysError { variable, message };
        let is_set = |value: &&str| !value.trim().is_empty();
        match (keys.filter(is_set), file.filter(is_set)) {
            (None, None) => Ok(Self::default()),
            (Some(_), Some(_)) => Err(fault(
                VARIABLE,
                format!("is set beside {FILE_VARIABLE}: set one of them"),
            )),
            (Some(text), None) => Self::parse(text).map_err(|message| fault(VARIABLE, message)),
            (None, Some(path)) => {
                let text = read(path).map_err(|error| {
                    fault(
                        FILE_VARIABLE,
                        format!("names a file that cannot be read: {error}"),
                    )
                })?;
                Self::parse(&text).map_err(|message| fault(FILE_VARIABLE, message))
            }
        }
    }

    /// Reads keys, separated by blanks or commas, each the base64 of 32 bytes.
    pub fn parse(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "it must be one or several keys with blanks or commas between them, each the base64 of 32 random bytes, as flyball secret-key prints it";
        let mut keys: Vec<SecretKey> = Vec::new();
        for one in text.split(|c: char| c.is_whitespace() || c == ',') {
            if one.is_empty() {
                continue;
            }
            let bytes = STANDARD.decode(one).ok();
            let key = bytes
                .and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok())
                .ok_or_else(|| format!("cannot be used: {ALLOWED}"))?;
            // The same key twice, as while a list is turned over, is no fault.
            let key = SecretKey::new(&key);
            if keys.iter().all(|known| known.id != key.id) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            return Err(format!("holds no key: {ALLOWED}"));
        }
        Ok(Self(keys))
    }

    /// Returns the text of a key of these bytes.
    pub fn text_of(bytes: &[u8; KEY_BYTES]) -> String {
        STANDARD.encode(bytes)
    }

    /// Returns true if there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ids of the keys, eight hexadecimal digits each; the first is that of the key
    /// that encrypts.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| key.id.as_str())
    }

    /// Returns the capabilities of a process with these keys.
    pub fn capabilities(&self) -> impl Iterator<Item = String> {
        let any = (!self.is_empty()).then(|| ANY_KEY.to_owned());
        self.ids().map(capability_of).chain(any)
    }

    /// Encrypts one value for a job of this kind and tenant; `None` without a key.
    pub fn encrypt_value(
        &self,
        kind: &str,
        tenant: &str,
        value: &Value,
        nonce: [u8; NONCE_BYTES],
    ) -> Option<Value> {
        let key = self.0.first()?;
        let plain = value.to_string();
        let payload = Payload {
            msg: plain.as_bytes(),
            aad: &bound_to(kind, tenant),
        };
        let encrypted = key.cipher.encrypt(&XNonce::from(nonce), payload).ok()?;
        let text = URL_SAFE_NO_PAD.encode([&nonce[..], &encrypted].concat());
        Some(Value::Object(Map::from_iter([(
            ENCRYPTED.to_owned(),
            format!("{VERSION}.{}.{text}", key.id).into(),
        )])))
    }

    /// Replaces every marked value in the arguments of a job by its encrypted form; on a problem
    /// the arguments may be encrypted in part.
    pub fn encrypt(
        &self,
        kind: &str,
        tenant: &str,
        args: &mut Value,
        mut nonce: impl FnMut() -> [u8; NONCE_BYTES],
    ) -> Result<(), Issue> {
        each_mark(args, "", &mut |at: &str, value: &mut Value| {
            match mark_of(value) {
                Some(Mark::Mixed(name)) => return Err(mixed(at, name)),
                Some(Mark::Encrypted(text)) if key_id_of(text).is_none() => {
                    return Err(Issue::new(at, NOT_ENCRYPTED));
                }
                Some(_) if READ_BY_DATABASE.contains(&kind) => {
                    return Err(Issue::new(at, not_encryptable(kind)));
                }
                Some(Mark::Plain(plain)) => {
                    let encrypted = self.encrypt_value(kind, tenant, plain, nonce());
                    *value = encrypted.ok_or_else(|| Issue::new(at, NO_KEYS))?;
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Replaces every encrypted value in the arguments of a job by the plain one, and every mark by
    /// what it marks; returns the texts in them.
    pub fn decrypt(
        &self,
        kind: &str,
        tenant: &str,
        args: &mut Value,
    ) -> Result<SecretTexts, Issue> {
        let mut texts = SecretTexts::default();
        each_mark(args, "", &mut |at: &str, value: &mut Value| {
            let plain = match mark_of(value) {
                Some(Mark::Plain(plain)) => plain.clone(),
                Some(Mark::Encrypted(text)) => self.decrypt_text(kind, tenant, text, at)?,
                Some(Mark::Mixed(name)) => return Err(mixed(at, name)),
                None => return Ok(()),
            };
            texts.collect(&plain);
            *value = plain;
            Ok(())
        })?;
        Ok(texts.in_order())
    }

    fn decrypt_text(
        &self,
        kind: &str,
        tenant: &str,
        text: &Value,
        at: &str,
    ) -> Result<Value, Issue> {
        let id = key_id_of(text).ok_or_else(|| Issue::new(at, NOT_ENCRYPTED))?;
        let Some(key) = self.0.iter().find(|key| key.id == id) else {
            let message =
                format!("cannot be decrypted: this process has no key {id} in {VARIABLE}");
            return Err(Issue::new(at, message));
        };
        let decrypted = bytes_of(text).and_then(|bytes| {
            let (nonce, encrypted) = bytes.split_at_checked(NONCE_BYTES)?;
            let nonce = <[u8; NONCE_BYTES]>::try_from(nonce).ok()?;
            let payload = Payload {
                msg: encrypted,
                aad: &bound_to(kind, tenant),
            };
            let plain = key.cipher.decrypt(&XNonce::from(nonce), payload).ok()?;
            serde_json::from_slice(&plain).ok()
        });
        decrypted.ok_or_else(|| {
            Issue::new(
                at,
                "cannot be decrypted: it was changed, or encrypted for another kind or tenant",
            )
        })
    }
}

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}

impl SecretKey {
    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"flyball secret key")
            .chain_update(bytes)
            .finalize();
        let id = digest.iter().take(ID_BYTES);
        Self {
            id: id.map(|byte| format!("{byte:02x}")).collect(),
            cipher: XChaCha20Poly1305::new(bytes.into()),
        }
    }
}

/// The texts of secret values that an attempt works with, for the removal from what it reports.
#[derive(Default)]
pub struct SecretTexts(Vec<String>);

/// The shortest text that is removed: a shorter one occurs everywhere by chance.
const TEXT_CHARS_MIN: usize = 4;

/// The shortest word of a text that is removed by itself, such as the token behind `Bearer`.
const WORD_CHARS_MIN: usize = 8;

impl SecretTexts {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                self.add(text, TEXT_CHARS_MIN);
                text.split_whitespace()
                    .for_each(|word| self.add(word, WORD_CHARS_MIN));
            }
            Value::Number(number) => self.add(&number.to_string(), TEXT_CHARS_MIN),
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(fields) => fields.values().for_each(|item| self.collect(item)),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn add(&mut self, text: &str, least: usize) {
        if text.chars().count() < least {
            return;
        }
        // In an error a text may stand as JSON, with its quotes and line ends escaped.
        let quoted = Value::from(text).to_string();
        let inner = quoted[1..quoted.len() - 1].to_owned();
        self.0.extend([text.to_owned(), inner]);
    }

    /// Orders the texts, the longest first, because a shorter one may be a part of it.
    fn in_order(mut self) -> Self {
        self.0
            .sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.0.dedup();
        self
    }

    /// Replaces every secret text in `text` by [`MASK`].
    pub fn remove_from(&self, text: &mut String) {
        for secret in &self.0 {
            if text.contains(secret) {
                *text = text.replace(secret, MASK);
            }
        }
    }
}

impl fmt::Debug for SecretTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret texts", self.0.len())
    }
}

const NO_KEYS: &str = "is marked as secret, and this process has no key to encrypt it; set FLYBALL_SECRET_KEYS to what flyball secret-key prints";

const NOT_ENCRYPTED: &str =
    "must hold the text that flyball encrypt prints, v1.<key>.<text>, as its field $encrypted";

fn mixed(at: &str, name: &str) -> Issue {
    Issue::new(
        at,
        format!("must have {name} as its only field: the others would not be secret"),
    )
}

/// Returns the problem with the first secret value in arguments that the database reads itself.
pub fn not_encryptable_in(args: &Value, kind: &str) -> Option<Issue> {
    first_below(args, "", &|_| true).map(|at| Issue::new(at, not_encryptable(kind)))
}

fn not_encryptable(kind: &str) -> String {
    format!(
        "cannot be secret in a job of the kind {kind}, whose arguments the database reads; recipients and contents of messages are not shown anyway"
    )
}

/// The meaning of an object in the arguments of a job.
enum Mark<'a> {
    Plain(&'a Value),
    Encrypted(&'a Value),
    /// A mark beside other fields.
    Mixed(&'static str),
}

fn mark_of(value: &Value) -> Option<Mark<'_>> {
    let fields = value.as_object()?;
    let (name, marked) = match (fields.get(PLAIN), fields.get(ENCRYPTED)) {
        (Some(plain), _) => (PLAIN, Mark::Plain(plain)),
        (None, Some(encrypted)) => (ENCRYPTED, Mark::Encrypted(encrypted)),
        (None, None) => return None,
    };
    Some(if fields.len() == 1 {
        marked
    } else {
        Mark::Mixed(name)
    })
}

/// Calls `visit` with each marked value and its pointer; what is below a mark is not visited.
fn each_mark<E>(
    value: &mut Value,
    at: &str,
    visit: &mut impl FnMut(&str, &mut Value) -> Result<(), E>,
) -> Result<(), E> {
    if mark_of(value).is_some() {
        return visit(at, value);
    }
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                if item.is_object() || item.is_array() {
                    each_mark(item, &format!("{at}/{index}"), visit)?;
                }
            }
        }
        Value::Object(fields) => {
            for (name, item) in fields {
                if item.is_object() || item.is_array() {
                    each_mark(item, &pointer(at, name), visit)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns true if a value in the arguments is marked as secret, plain or encrypted.
///
/// This runs for every job, so it makes nothing.
pub fn has_secrets(args: &Value) -> bool {
    match args {
        Value::Array(items) => items.iter().any(has_secrets),
        Value::Object(fields) => mark_of(args).is_some() || fields.values().any(has_secrets),
        _ => false,
    }
}

/// Returns the first value that is marked and not encrypted: its pointer.
pub fn first_plain(args: &Value) -> Option<String> {
    first_below(args, "", &|mark| !matches!(mark, Mark::Encrypted(_)))
}

/// Returns the pointer of the first mark of which `is_wanted` is true.
fn first_below(value: &Value, at: &str, is_wanted: &dyn Fn(&Mark<'_>) -> bool) -> Option<String> {
    if let Some(mark) = mark_of(value) {
        return is_wanted(&mark).then(|| at.to_owned());
    }
    match value {
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let below = has_secrets(item).then(|| format!("{at}/{index}"))?;
            first_below(item, &below, is_wanted)
        }),
        Value::Object(fields) => fields.iter().find_map(|(name, item)| {
            let below = has_secrets(item).then(|| pointer(at, name))?;
            first_below(item, &below, is_wanted)
        }),
        _ => None,
    }
}

/// Returns the capability to decrypt what the key of an id encrypted.
pub fn capability_of(id: &str) -> String {
    format!("{CAPABILITY} {id}")
}

/// Returns the capabilities that a worker needs for the secrets in a job's arguments.
pub fn needs(args: &Value) -> Vec<String> {
    let mut needs = Vec::new();
    if has_secrets(args) {
        add_needs(args, &mut needs);
        needs.sort();
        needs.dedup();
    }
    needs
}

fn add_needs(value: &Value, needs: &mut Vec<String>) {
    match (mark_of(value), value) {
        (Some(Mark::Plain(_)), _) => needs.push(ANY_KEY.to_owned()),
        // A text that is no encrypted value decrypts with no key, so any worker can say so.
        (Some(Mark::Encrypted(text)), _) => {
            needs.extend(key_id_of(text).map(capability_of));
        }
        (Some(Mark::Mixed(_)), _) => {}
        (None, Value::Array(items)) => items.iter().for_each(|item| add_needs(item, needs)),
        (None, Value::Object(fields)) => fields.values().for_each(|item| add_needs(item, needs)),
        (None, _) => {}
    }
}

/// Returns the arguments with each plain mark replaced by what it marks, for a check of the
/// arguments by their handler; `None` if a value is encrypted, so that only its worker can check
/// them.
pub fn as_checked(args: &Value) -> Option<(Value, SecretTexts)> {
    let mut plain = args.clone();
    let texts = SecretKeys::default().decrypt("", "", &mut plain).ok()?;
    Some((plain, texts))
}

/// Replaces every marked value by [`MASK`].
pub fn mask(args: &mut Value) {
    if !has_secrets(args) {
        return;
    }
    let _ = each_mark(args, "", &mut |_: &str, value: &mut Value| {
        *value = MASK.into();
        Ok::<(), ()>(())
    });
}

fn key_id_of(encrypted: &Value) -> Option<&str> {
    let (id, _) = parts_of(encrypted)?;
    Some(id)
}

fn bytes_of(encrypted: &Value) -> Option<Vec<u8>> {
    let (_, text) = parts_of(encrypted)?;
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Returns the id of the key and the encoded bytes of an encrypted value.
fn parts_of(encrypted: &Value) -> Option<(&str, &str)> {
    let rest = encrypted
        .as_str()?
        .strip_prefix(VERSION)?
        .strip_prefix('.')?;
    let (id, text) = rest.split_once('.')?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = id.len() == 2 * ID_BYTES && id.bytes().all(is_hex);
    let is_text = text.len() > (NONCE_BYTES + TAG_BYTES)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    (is_id && is_text).then_some((id, text))
}

/// Returns the data that an encrypted value is bound to. Neither name can hold a NUL.
fn bound_to(kind: &str, tenant: &str) -> Vec<u8> {
    format!("flyball {VERSION}\0{kind}\0{tenant}").into_bytes()
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
