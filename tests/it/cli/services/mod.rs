//! `flyball services`: the supervisor of the private servers, run as a program.

mod servers;
mod start;
mod stop;
