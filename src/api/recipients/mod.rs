//! The profiles of recipients, and the defaults of tenants.

pub mod profiles;
pub mod view;
