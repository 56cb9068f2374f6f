//! The profiles of recipients, and the defaults of tenants.

pub mod inbox;
pub mod profiles;
pub mod view;
