//! The inbox: every door, devices at the same time, walls between recipients, and its upkeep.

mod devices;
mod doors;
mod fixture;
mod locks;
mod marks;
mod sending;
mod upkeep;
mod walls;
