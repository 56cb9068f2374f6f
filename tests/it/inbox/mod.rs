//! The inbox: every interface, devices at the same time, walls between recipients, and its
//! maintenance.

mod devices;
mod fixture;
mod interfaces;
mod locks;
mod maintenance;
mod marks;
mod sending;
mod walls;
