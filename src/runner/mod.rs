//! The runner room.
