//! Bridges, as their callers see them.

mod frames;
mod learning;
mod model;
mod tags;
mod wires;
