//! The stack room.
