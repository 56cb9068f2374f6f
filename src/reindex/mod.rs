//! The reindex room.
