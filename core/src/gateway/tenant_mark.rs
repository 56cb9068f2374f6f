//! The mark of a tenant in notifications.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A digest of a tenant's name. Every role of the database may listen to notifications, so they do
/// not name the tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TenantMark(u64);

impl TenantMark {
    /// Returns the mark of a tenant. `flyball.tenant_mark` writes the same.
    pub fn of(tenant: &str) -> Self {
        let digest = Sha256::digest(tenant.as_bytes());
        let first = digest.iter().take(8);
        Self(first.fold(0, |mark, byte| mark << 8 | u64::from(*byte)))
    }

    /// Reads a mark as `flyball.tenant_mark` writes it; `None` if it is none.
    pub fn parse(written: &str) -> Option<Self> {
        u64::from_str_radix(written, 16).ok().map(Self)
    }
}

impl fmt::Display for TenantMark {
    /// Writes the mark as `flyball.tenant_mark` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_begin_of_a_digest() {
        // The first bytes of SHA-256 of "abc", as FIPS 180-2 gives them in its example B.1.
        let abc = TenantMark::parse("ba7816bf8f01cfea");
        assert_eq!(abc, Some(TenantMark::of("abc")));
        assert_ne!(abc, Some(TenantMark::of("ab")));
        assert_eq!(TenantMark::parse(""), None);
        assert_eq!(TenantMark::parse("acme"), None);
        let written = ["ba7816bf8f01cfea", "00000000000000ff"];
        let again = written.map(|mark| TenantMark::parse(mark).unwrap().to_string());
        assert_eq!(again, written);
    }
}
