//! JSON Web Tokens: an identity provider signs them, and they name the sender of a request and its
//! tenant.
//!
//! [`verify`], [`keys`] and [`claims`] are pure; [`jwks`] reads the keys from a file or a URL, and
//! [`authenticate`] puts them together.

pub mod algorithm;
pub mod authenticate;
pub mod claims;
pub mod error;
pub mod jwks;
pub mod keys;
pub mod verify;
