//! An account at a provider, with its credentials.

use std::collections::BTreeMap;
use std::fmt;

/// A credential. Its debug text is `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct AccountSecret(String);

impl AccountSecret {
    /// Wraps a credential, without the blanks and line ends around it.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    /// Returns the credential in the clear, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccountSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An account of a pool. The driver's table of [`super::Field`]s defines its `options` and
/// `secrets`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// The account's name, unique in its pool; shown in records, metrics and pages.
    pub name: String,
    /// The base URL of requests in place of the provider's own, without a trailing slash.
    pub base_url: Option<String>,
    /// Additional headers of each request; values may be credentials.
    pub headers: Vec<(String, AccountSecret)>,
    /// Settings that are not credentials.
    pub options: BTreeMap<String, String>,
    /// Credentials, read from the environment or from files.
    pub secrets: BTreeMap<String, AccountSecret>,
}

impl Account {
    /// Returns a setting, or `None` if it is absent.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Returns a credential in the clear, or `None` if it is absent.
    pub fn secret(&self, name: &str) -> Option<&str> {
        self.secrets.get(name).map(AccountSecret::reveal)
    }
}
