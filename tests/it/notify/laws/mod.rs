//! Properties of sending a message, with real stores and servers with scripted answers.

mod fixture;
mod one_message;
mod recipients;
