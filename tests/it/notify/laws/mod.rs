//! Laws of the attempt at a message, on real stores and with servers that answer by what they are asked.

mod fixture;
mod one_message;
mod recipients;
