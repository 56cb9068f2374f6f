//! Recipients in Postgres.

mod profiles;

pub use profiles::{
    ErasedRecipient, PROFILE_STATEMENTS, PutRecipients, RecipientProfiles, StoredDefaults,
    StoredRecipient,
};
