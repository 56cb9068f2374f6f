//! The outbound room.
