//! The kind `notification` and the record of messages.

mod changes;
mod kind;
mod laws;
mod record;
mod serving;
mod slots;
