//! The fields of an X.509 certificate that events need (RFC 5280, section 4).

use std::ops::RangeInclusive;

use der::asn1::{
    AnyRef, BitStringRef, GeneralizedTime, Ia5StringRef, ObjectIdentifier, OctetStringRef, UtcTime,
};
use der::{Decode as _, Tag, Tagged as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The line before a certificate in PEM; Amazon puts nothing before it.
const BEGINS: &[u8] = b"-----BEGIN CERTIFICATE-----";
/// The most certificates that are read of one text.
const CERTIFICATES_MAX: usize = 5;

/// The extension that names where the issuer's certificate is (`id-pe-authorityInfoAccess`).
const AUTHORITY_INFO_ACCESS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.1");
/// The method of that extension for a certificate (`id-ad-caIssuers`).
const CA_ISSUERS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.2");

/// A part of a certificate, or an element of one.
type Elements<'a> = Vec<AnyRef<'a>>;

/// Returns the certificates of a text in PEM that begins with one.
pub fn from_pem(text: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    text.starts_with(BEGINS)
        .then(|| CertificateDer::pem_slice_iter(text).take(CERTIFICATES_MAX))?
        .collect::<Result<_, _>>()
        .ok()
}

/// Returns the key of a `SubjectPublicKeyInfo` in DER.
pub fn public_key(info: &[u8]) -> Option<&[u8]> {
    let [_algorithm, key] = <[AnyRef; 2]>::try_from(Elements::from_der(info).ok()?).ok()?;
    key.decode_as::<BitStringRef>().ok()?.as_bytes()
}

/// A certificate that was parsed and not verified.
pub struct Certificate<'a> {
    /// The seconds of Unix time at which it is valid.
    pub valid_s: RangeInclusive<u64>,
    /// The key, as its algorithm writes it.
    pub public_key: &'a [u8],
    extensions: Elements<'a>,
}

impl<'a> Certificate<'a> {
    /// Parses a certificate in DER.
    pub fn from_der(der: &'a [u8]) -> Option<Self> {
        let signed = *Elements::from_der(der).ok()?.first()?;
        let mut fields = elements(signed)?;
        // The version has a default, and a tag for that.
        if fields.first().is_some_and(|first| is_tagged(*first, 0)) {
            fields.remove(0);
        }
        let [
            _serial,
            _algorithm,
            _issuer,
            validity,
            _subject,
            key,
            optional @ ..,
        ] = &fields[..]
        else {
            return None;
        };
        let [not_before, not_after] = elements(*validity)?[..] else {
            return None;
        };
        let [_algorithm, key] = elements(*key)?[..] else {
            return None;
        };
        let extensions = optional.iter().find(|field| is_tagged(**field, 3));
        let extensions = extensions.map_or(Some(Vec::new()), |tagged| {
            Elements::from_der(tagged.value()).ok()
        })?;
        Some(Self {
            valid_s: time_s(not_before)?..=time_s(not_after)?,
            public_key: key.decode_as::<BitStringRef>().ok()?.as_bytes()?,
            extensions,
        })
    }

    /// Returns the URL of the issuer's certificate, if there is one.
    pub fn issuer_url(&self) -> Option<&'a str> {
        let access = self.extensions.iter().find_map(|extension| {
            let parts = elements(*extension)?;
            let id = parts.first()?.decode_as::<ObjectIdentifier>().ok()?;
            (id == AUTHORITY_INFO_ACCESS).then(|| parts.last().copied())?
        })?;
        let access = access.decode_as::<&OctetStringRef>().ok()?;
        let places = Elements::from_der(access.as_bytes()).ok()?;
        places
            .into_iter()
            .find_map(|place| {
                let [method, place] = elements(place)?[..] else {
                    return None;
                };
                let is_issuer = method.decode_as::<ObjectIdentifier>().ok()? == CA_ISSUERS;
                // A URI is the seventh choice of a name.
                (is_issuer && is_tagged(place, 6)).then(|| Ia5StringRef::new(place.value()).ok())?
            })
            .map(|url| url.as_str())
    }
}

/// Returns the elements of a sequence.
fn elements(sequence: AnyRef<'_>) -> Option<Elements<'_>> {
    sequence.decode_as().ok()
}

/// Returns true for an element with this context-specific tag.
fn is_tagged(element: AnyRef<'_>, number: u32) -> bool {
    matches!(element.tag(), Tag::ContextSpecific { number: tag, .. } if tag.value() == number)
}

/// Returns a time in seconds of Unix time.
fn time_s(time: AnyRef<'_>) -> Option<u64> {
    let since_epoch = match time.tag() {
        Tag::UtcTime => time.decode_as::<UtcTime>().ok()?.to_unix_duration(),
        _ => time.decode_as::<GeneralizedTime>().ok()?.to_unix_duration(),
    };
    Some(since_epoch.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = include_str!("certificates/test_only_leaf.pem");
    const ISSUER: &str = include_str!("certificates/test_only_int.pem");
    const SELF_SIGNED: &str = include_str!("certificates/test_only_self.pem");

    fn der(pem: &str) -> CertificateDer<'static> {
        from_pem(pem.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn validity_key_and_the_url_of_the_issuer_are_read() {
        let leaf = der(LEAF);
        let leaf = Certificate::from_der(&leaf).unwrap();
        assert!(leaf.valid_s.contains(&1_900_000_000));
        assert!(!leaf.valid_s.contains(&1_000_000_000));
        assert!(!leaf.valid_s.contains(&9_000_000_000));
        assert_eq!(
            leaf.issuer_url(),
            Some("http://crt.r2m01.amazontrust.com/r2m01.cer")
        );
        let key = Elements::from_der(leaf.public_key).unwrap();
        assert_eq!(key.len(), 2, "an RSA key is its modulus and its exponent");

        let alone = der(SELF_SIGNED);
        let alone = Certificate::from_der(&alone).unwrap();
        assert_eq!(alone.issuer_url(), None);
    }

    #[test]
    fn all_certificates_of_a_text_are_read_up_to_a_limit() {
        let both = format!("{LEAF}{ISSUER}");
        assert_eq!(from_pem(both.as_bytes()).unwrap().len(), 2);
        let many = LEAF.repeat(7);
        assert_eq!(from_pem(many.as_bytes()).unwrap().len(), CERTIFICATES_MAX);
        assert_eq!(from_pem(format!("\n{LEAF}").as_bytes()), None);
        assert_eq!(from_pem(&LEAF.as_bytes()[..200]), None);
        assert_eq!(from_pem(b""), None);
    }

    #[test]
    fn what_is_no_certificate_is_none() {
        let whole = der(LEAF);
        for end in 0..whole.len() {
            assert!(Certificate::from_der(&whole[..end]).is_none(), "{end}");
        }
        let longer = [&whole[..], b"\0"].concat();
        assert!(Certificate::from_der(&longer).is_none());
        for at in 0..whole.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut other = whole.to_vec();
                other[at] ^= bits;
                // A change is found by the signature; here it must not panic.
                _ = Certificate::from_der(&other).map(|read| read.issuer_url().map(str::len));
            }
        }
    }
}
