//! The signals room.
