//! The verification of an SNS certificate: issued for Amazon's name, by an authority that this
//! machine trusts for TLS.
//!
//! Amazon serves the certificate without its issuer's and names the URL of that inside. It is
//! fetched from Amazon's own authority only; its validity follows from the chain.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls_platform_verifier::Verifier;
use url::Url;

use super::super::RejectedWebhook;
use super::certificate::{self, Certificate};

/// A verifier that decides whether a chain ends at a trusted authority.
pub type Authorities = Arc<dyn ServerCertVerifier>;

/// The domain of Amazon's certificate authority.
const AUTHORITY: &str = "amazontrust.com";

/// Returns the authorities that this machine trusts.
pub fn platform() -> Result<Authorities, RejectedWebhook> {
    static PLATFORM: OnceLock<Authorities> = OnceLock::new();
    if let Some(known) = PLATFORM.get() {
        return Ok(known.clone());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        Verifier::new(provider).map_err(|_| wrong("this machine has no CA certificates"))?;
    Ok(PLATFORM.get_or_init(|| Arc::new(verifier)).clone())
}

/// Certificates as served: the signing one first, then those of its issuers, if any.
#[derive(Debug)]
pub struct CertificateChain(Vec<CertificateDer<'static>>);

impl CertificateChain {
    /// Parses the served text, which must begin with a certificate.
    pub fn read(served: &[u8]) -> Result<Self, RejectedWebhook> {
        certificate::from_pem(served)
            .map(Self)
            .ok_or_else(|| wrong("the certificate cannot be read"))
    }

    /// Returns the URL of the issuer's certificate, if that was not served and is on Amazon's
    /// domain.
    pub fn issuer(&self) -> Option<String> {
        let [only] = self.0.as_slice() else {
            return None;
        };
        let text = Certificate::from_der(only)?.issuer_url()?;
        let url = Url::parse(text).ok()?;
        let is_amazons = url.host_str().is_some_and(|host| {
            host.strip_suffix(AUTHORITY)
                .is_some_and(|rest| rest.ends_with('.'))
        });
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.port().is_none()
            && url.query().is_none();
        (is_amazons && is_plain && matches!(url.scheme(), "http" | "https")).then(|| url.into())
    }

    /// Appends the certificate of an issuer, as served.
    pub fn add(&mut self, served: Vec<u8>) {
        self.0.push(CertificateDer::from(served));
    }

    /// Rejects a chain that does not end at a trusted authority, or whose first certificate is for
    /// none of these names.
    pub fn check(
        &self,
        names: &[&str],
        authorities: &dyn ServerCertVerifier,
        now_s: i64,
    ) -> Result<(), RejectedWebhook> {
        let Some((first, issuers)) = self.0.split_first() else {
            return Err(wrong("the certificate cannot be read"));
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s.max(0).unsigned_abs()));
        let is_for = |name: &&str| {
            let Ok(name) = ServerName::try_from(*name) else {
                return false;
            };
            authorities
                .verify_server_cert(first, issuers, &name, &[], now)
                .is_ok()
        };
        match names.iter().any(is_for) {
            true => Ok(()),
            false => Err(wrong(
                "the certificate is not for Amazon SNS, or its issuer is not trusted",
            )),
        }
    }
}

fn wrong(what: &str) -> RejectedWebhook {
    RejectedWebhook::Signature(what.to_owned())
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;

    use super::*;

    const ROOT: &str = include_str!("certificates/test_only_root.pem");
    const ISSUER: &str = include_str!("certificates/test_only_int.pem");
    const LEAF: &str = include_str!("certificates/test_only_leaf.pem");
    const OTHER_CERTIFICATE: &str = include_str!("certificates/test_only_other.pem");
    const SELF_SIGNED: &str = include_str!("certificates/test_only_self.pem");

    const NAMES: [&str; 2] = ["sns.amazonaws.com", "sns.eu-central-1.amazonaws.com"];
    const NOW_S: i64 = 1_900_000_000;

    fn authorities() -> Authorities {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateChain::read(ROOT.as_bytes()).unwrap().0.remove(0))
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .unwrap()
    }

    fn check(served: &str, now_s: i64) -> Result<(), RejectedWebhook> {
        CertificateChain::read(served.as_bytes())?.check(&NAMES, &*authorities(), now_s)
    }

    #[test]
    fn only_a_certificate_for_amazon_from_a_trusted_authority_is_believed() {
        assert_eq!(check(&format!("{LEAF}{ISSUER}"), NOW_S), Ok(()));
        let forged = [
            ("its issuer is missing", LEAF.to_owned()),
            (
                "it is for another name",
                format!("{OTHER_CERTIFICATE}{ISSUER}"),
            ),
            ("it is signed by itself", SELF_SIGNED.to_owned()),
            (
                "it is signed by itself, with a chain beside it",
                format!("{SELF_SIGNED}{ISSUER}{ROOT}"),
            ),
            (
                "it stands behind something else",
                format!("<html>{LEAF}{ISSUER}"),
            ),
            ("it stands behind a line", format!("\n{LEAF}{ISSUER}")),
            (
                "it is none",
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
            ),
            ("it is nothing", String::new()),
        ];
        for (why, served) in forged {
            assert!(
                matches!(check(&served, NOW_S), Err(RejectedWebhook::Signature(_))),
                "{why}"
            );
        }
        for another_time in [0, 1_000_000_000, 9_000_000_000] {
            assert!(
                check(&format!("{LEAF}{ISSUER}"), another_time).is_err(),
                "{another_time}"
            );
        }
        let platform = platform().map(|known| {
            CertificateChain::read(format!("{LEAF}{ISSUER}").as_bytes())
                .unwrap()
                .check(&NAMES, &*known, NOW_S)
        });
        assert!(
            !matches!(platform, Ok(Ok(()))),
            "a test's authority is not trusted"
        );
    }

    #[test]
    fn the_issuer_is_asked_for_at_amazons_authority_alone() {
        let mut chain = CertificateChain::read(LEAF.as_bytes()).unwrap();
        assert_eq!(
            chain.issuer().as_deref(),
            Some("http://crt.r2m01.amazontrust.com/r2m01.cer")
        );
        let issuer = CertificateChain::read(ISSUER.as_bytes())
            .unwrap()
            .0
            .remove(0)
            .to_vec();
        chain.add(issuer);
        assert_eq!(chain.issuer(), None, "it is known");
        assert_eq!(chain.check(&NAMES, &*authorities(), NOW_S), Ok(()));
        assert_eq!(
            CertificateChain::read(SELF_SIGNED.as_bytes())
                .unwrap()
                .issuer(),
            None
        );
    }
}
