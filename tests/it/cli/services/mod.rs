//! `flyball services`: the supervisor of the private servers, as a program.

mod servers;
mod start;
mod stop;
