//! Signatures that prove a request's sender and integrity to its receiver, in the form of Standard
//! Webhooks.
//!
//! ```text
//!   webhook-id           the same for every attempt of a job
//!   webhook-timestamp    unix seconds of the attempt
//!   webhook-signature    v1,<base64 of HMAC-SHA256 over "id.timestamp.body">, one for each secret
//! ```
//!
//! Jobs name secrets and the workers hold them, in the environment or in files that it names; a job
//! never holds one. Two more variables of a secret bind it: to the origins of its receivers, and to
//! the tenants whose jobs may use it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::origins::{are_origins, is_among};
use crate::input::patterns::{TENANT, is_tenant_pattern};

/// Prefix of variables of secrets. The rest is the secret's name; the suffix `_FILE` means that the
/// value is a file's path.
pub const PREFIX: &str = "FLYBALL_WEBHOOK_SECRET_";

/// Suffix of variables whose value is a file's path.
const FILE: &str = "_FILE";

/// Suffix of the variable that lists the origins to which a secret signs requests.
pub(super) const ORIGINS: &str = "_ORIGINS";

/// Suffix of the variable that lists the tenants whose jobs may use a secret.
pub(super) const TENANTS: &str = "_TENANTS";

/// Prefix of a secret's text.
const MARK: &str = "whsec_";

/// Least and most bytes of a key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The headers that a signature sets.
pub const HEADERS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// Secrets by their names, in capitals. All secrets under one name sign, so that one can replace
/// another.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, Secret>);

/// The secrets under one name.
#[derive(Clone)]
struct Secret {
    keys: Vec<hmac::Key>,
    /// The origins to which they sign requests, with commas between; `None` for all.
    origins: Option<String>,
    /// The tenants whose jobs may use them, as patterns. Jobs without a tenant always may.
    tenants: Vec<String>,
}

/// A variable that holds no valid secret. The error names the variable and never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {message}")]
pub struct SecretError {
    pub variable: String,
    /// The fault, and the allowed values.
    pub message: String,
}

impl Secrets {
    /// Reads the secrets from an environment; `read` reads the file that a variable names.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Self, SecretError> {
        let mut secrets = Self::default();
        let mut lists = Vec::new();
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else {
                continue;
            };
            let refuse = |message: String| SecretError {
                variable: variable.clone(),
                message,
            };
            if let Some((of, list)) = List::of(name) {
                lists.push((of.to_owned(), list, variable, value));
                continue;
            }
            let (name, text) = match name.strip_suffix(FILE) {
                Some(name) => (
                    name,
                    read(&value).map_err(|error| {
                        refuse(format!("names a file that cannot be read: {error}"))
                    })?,
                ),
                None => (name, value),
            };
            if !is_name(name) {
                return Err(refuse(format!(
                    "has no name after {PREFIX}: it must be {NAMES}, in capitals"
                )));
            }
            if List::of(name).is_some() {
                return Err(refuse(format!(
                    "cannot be a file: set {PREFIX}{name} to the list itself"
                )));
            }
            if secrets.0.contains_key(name) {
                return Err(refuse(format!(
                    "is the second of {PREFIX}{name} and {PREFIX}{name}{FILE}: set one of them"
                )));
            }
            let keys: Option<Vec<hmac::Key>> = text.split_whitespace().map(key).collect();
            let keys = keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
                let allowed = "one or several texts with blanks between them, each whsec_ and the base64 of 24 to 64 bytes";
                refuse(format!("cannot be used: it must be {allowed}"))
            })?;
            let secret = Secret {
                keys,
                origins: None,
                tenants: Vec::new(),
            };
            secrets.0.insert(name.to_owned(), secret);
        }
        for (of, list, variable, value) in lists {
            secrets
                .bind(&of, list, value)
                .map_err(|message| SecretError { variable, message })?;
        }
        Ok(secrets)
    }

    /// Binds a secret to what a list allows, or returns the fault of the list.
    fn bind(&mut self, name: &str, list: List, value: String) -> Result<(), String> {
        // A mistyped name would leave the secret that was meant unbound.
        let secret = self.0.get_mut(name).ok_or_else(|| {
            format!("needs {PREFIX}{name}, or {PREFIX}{name}{FILE}, the secret that it binds")
        })?;
        match list {
            List::Origins if are_origins(&value) => secret.origins = Some(value),
            List::Origins => {
                return Err(
                    "must be origins such as https://hooks.example.com, with commas between them"
                        .to_owned(),
                );
            }
            List::Tenants => {
                let tenants: Vec<String> = value.split(',').map(|one| one.trim().into()).collect();
                if !tenants.iter().all(|tenant| is_tenant_pattern(tenant)) {
                    return Err(format!(
                        "must be tenants with commas between them, each {TENANT}, or a beginning of their names with a * behind"
                    ));
                }
                secret.tenants = tenants;
            }
        }
        Ok(())
    }

    /// Returns the fault of a URL to which a secret may not sign requests. A name without a secret
    /// has none.
    pub fn url_problem(&self, name: &str, url: &str) -> Option<String> {
        let capitals = name.to_ascii_uppercase();
        let origins = self.0.get(&capitals)?.origins.as_deref()?;
        (!is_among(url, origins)).then(|| {
            format!(
                "must begin with an origin to which the secret {name:?} signs requests: the workers' variable {PREFIX}{capitals}{ORIGINS} lists them"
            )
        })
    }

    /// Returns the tenants whose jobs may use a secret, as patterns; `None` if there is no secret of
    /// that name.
    pub fn tenants(&self, name: &str) -> Option<&[String]> {
        let secret = self.0.get(&name.to_ascii_uppercase())?;
        Some(&secret.tenants)
    }

    /// Returns the names of the secrets, in capitals.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Returns the headers that sign a body for one attempt under `id`; `None` if there is no
    /// secret of that name.
    pub fn sign(
        &self,
        name: &str,
        id: &str,
        now_s: i64,
        body: &[u8],
    ) -> Option<[(&'static str, String); 3]> {
        let secret = self.0.get(&name.to_ascii_uppercase())?;
        let signatures: Vec<String> = secret
            .keys
            .iter()
            .map(|key| {
                let mut context = hmac::Context::with_key(key);
                context.update(format!("{id}.{now_s}.").as_bytes());
                context.update(body);
                format!("v1,{}", STANDARD.encode(context.sign()))
            })
            .collect();
        let [id_header, time_header, signature_header] = HEADERS;
        Some([
            (id_header, id.to_owned()),
            (time_header, now_s.to_string()),
            (signature_header, signatures.join(" ")),
        ])
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A list that binds a secret.
#[derive(Clone, Copy)]
enum List {
    Origins,
    Tenants,
}

impl List {
    /// Returns the list that the rest of a variable's name stands for, and the name of its secret.
    fn of(rest: &str) -> Option<(&str, Self)> {
        let origins = rest.strip_suffix(ORIGINS).map(|name| (name, Self::Origins));
        let tenants = || rest.strip_suffix(TENANTS).map(|name| (name, Self::Tenants));
        origins.or_else(tenants)
    }
}

/// The allowed form of a name, completing "it must be …".
pub const NAMES: &str = "1 to 64 letters, digits or underscores";

/// Returns true for a valid name of a secret.
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn key(text: &str) -> Option<hmac::Key> {
    let bytes = STANDARD.decode(text.strip_prefix(MARK)?).ok()?;
    KEY_BYTES
        .contains(&bytes.len())
        .then(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// Returns a short digest of a setting, to tell equal values from others without showing them.
pub fn digest_of<T: Debug + ?Sized>(value: &T) -> String {
    digest(&SHA256, format!("{value:?}").as_bytes())
        .as_ref()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn secrets(variables: &[(&str, &str)]) -> Result<Secrets, SecretError> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Secrets::from_variables(variables, |path| match path {
            "/run/acme" => Ok(format!("{SECRET}\n{OTHER_SECRET}\n")),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        })
    }

    #[test]
    fn a_signature_is_that_of_the_standard() {
        let secrets =
            secrets(&[("FLYBALL_WEBHOOK_SECRET_ACME", SECRET), ("PATH", "/bin")]).unwrap();

        // The example of the reference implementations.
        let signed = secrets
            .sign(
                "acme",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                br#"{"test": 2432232314}"#,
            )
            .unwrap();

        assert_eq!(
            signed[0],
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned())
        );
        assert_eq!(signed[1], ("webhook-timestamp", "1614265330".to_owned()));
        assert_eq!(
            signed[2],
            (
                "webhook-signature",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned()
            )
        );
        assert_eq!(secrets.sign("other", "a", 0, b""), None);
    }

    #[test]
    fn several_secrets_of_one_name_all_sign_and_a_file_may_hold_them() {
        let secrets = secrets(&[
            ("FLYBALL_WEBHOOK_SECRET_ACME_FILE", "/run/acme"),
            ("FLYBALL_WEBHOOK_SECRET_B", OTHER_SECRET),
        ])
        .unwrap();

        let both = secrets.sign("ACME", "a", 0, b"x").unwrap()[2].1.clone();
        let one = secrets.sign("B", "a", 0, b"x").unwrap()[2].1.clone();

        assert_eq!(both.split(' ').count(), 2);
        assert_eq!(both.split(' ').next_back(), Some(one.as_str()));
    }

    #[test]
    fn what_holds_no_secret_is_refused_without_being_shown() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let cases = [
            (
                "FLYBALL_WEBHOOK_SECRET_A",
                "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "cannot be used",
            ),
            ("FLYBALL_WEBHOOK_SECRET_A", "whsec_???", "cannot be used"),
            ("FLYBALL_WEBHOOK_SECRET_A", &short, "cannot be used"),
            ("FLYBALL_WEBHOOK_SECRET_A", "  ", "cannot be used"),
            (
                "FLYBALL_WEBHOOK_SECRET_A_FILE",
                "/nowhere",
                "names a file that cannot be read",
            ),
            ("FLYBALL_WEBHOOK_SECRET_", SECRET, "has no name"),
            ("FLYBALL_WEBHOOK_SECRET_A-B", SECRET, "has no name"),
        ];
        for (variable, value, expected) in cases {
            let error = secrets(&[(variable, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(variable) && error.contains(expected),
                "{error}"
            );
            assert!(
                value.trim().is_empty() || value.starts_with('/') || !error.contains(value),
                "{error}"
            );
        }
        let twice = [
            ("FLYBALL_WEBHOOK_SECRET_ACME", SECRET),
            ("FLYBALL_WEBHOOK_SECRET_ACME_FILE", "/run/acme"),
        ];
        assert!(
            secrets(&twice)
                .unwrap_err()
                .message
                .contains("set one of them")
        );
        assert_eq!(format!("{:?}", secrets(&twice[..1]).unwrap()), "{\"ACME\"}");
    }

    #[test]
    fn a_secret_is_bound_to_origins_and_to_tenants() {
        let secrets = secrets(&[
            // The lists may come before the secret.
            (
                "FLYBALL_WEBHOOK_SECRET_ACME_ORIGINS",
                "https://acme.example, https://eu.acme.example:8443",
            ),
            ("FLYBALL_WEBHOOK_SECRET_ACME_TENANTS", "acme, acme-*"),
            ("FLYBALL_WEBHOOK_SECRET_ACME_FILE", "/run/acme"),
            ("FLYBALL_WEBHOOK_SECRET_B", OTHER_SECRET),
        ])
        .unwrap();

        for url in ["https://acme.example/hook", "https://eu.acme.example:8443"] {
            assert_eq!(secrets.url_problem("acme", url), None, "{url}");
        }
        let problem = secrets.url_problem("acme", "https://evil.example/acme.example");
        assert!(
            problem.is_some_and(|problem| problem.contains("FLYBALL_WEBHOOK_SECRET_ACME_ORIGINS"))
        );
        let tenants = ["acme".to_owned(), "acme-*".to_owned()];
        assert_eq!(secrets.tenants("acme"), Some(&tenants[..]));

        assert_eq!(secrets.url_problem("b", "https://evil.example"), None);
        assert_eq!(secrets.tenants("b").map(<[String]>::len), Some(0));
        assert_eq!(secrets.tenants("c"), None);
        assert_eq!(secrets.names().count(), 2);
    }

    #[test]
    fn a_list_that_binds_nothing_is_refused() {
        for (name, value, expected) in [
            ("ACME_ORIGINS", "acme.example", "must be origins"),
            ("ACME_ORIGINS", " ", "must be origins"),
            ("ACME_TENANTS", "acme,", "must be tenants"),
            ("ACME_TENANTS", "two words", "must be tenants"),
            (
                "ACNE_ORIGINS",
                "https://acme.example",
                "needs FLYBALL_WEBHOOK_SECRET_ACNE, or",
            ),
            ("ACNE_TENANTS", "*", "needs FLYBALL_WEBHOOK_SECRET_ACNE, or"),
            ("ACME_TENANTS_FILE", "/run/acme", "cannot be a file"),
        ] {
            let variable = format!("FLYBALL_WEBHOOK_SECRET_{name}");
            let error = secrets(&[
                ("FLYBALL_WEBHOOK_SECRET_ACME", SECRET),
                (variable.as_str(), value),
            ])
            .unwrap_err();
            assert_eq!(error.variable, variable);
            assert!(error.message.starts_with(expected), "{error}");
        }
    }
}
