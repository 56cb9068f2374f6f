//! Pools of accounts on a real Redis, shared by several workers.

mod accounts;
mod fixture;
mod limits;
