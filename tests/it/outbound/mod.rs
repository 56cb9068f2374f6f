//! The kind `http`.

mod deliver;
