//! An account at a provider, with its credentials.

use std::collections::BTreeMap;
use std::fmt;

/// A credential. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a credential as it was read; blanks and line ends around it are no part of it.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    /// The credential, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An account of a pool. What its `options` and `secrets` are is the driver's table of [`super::Field`]s.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Unique in its pool; shown in records, metrics and pages.
    pub name: String,
    /// Where requests go instead of the provider's own address, without a slash at the end.
    pub base_url: Option<String>,
    /// More headers of each request; values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Settings that are no credentials.
    pub options: BTreeMap<String, String>,
    /// Credentials, from the environment or from files.
    pub secrets: BTreeMap<String, Secret>,
}

impl Account {
    /// A setting; `None` where it is absent.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// A credential; `None` where it is absent.
    pub fn secret(&self, name: &str) -> Option<&str> {
        self.secrets.get(name).map(Secret::reveal)
    }
}
