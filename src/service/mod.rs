//! The service room.
