//! Operating the queue over HTTP and on the command line.

mod command_line;
mod fixture;
mod jobs;
mod throttles;
