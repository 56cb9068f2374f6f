//! The control room.
