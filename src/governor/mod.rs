//! The governor room.
