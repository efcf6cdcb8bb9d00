//! Frames on one thread and in made-up time: guests with NICs, bridges, and host ports that lead
//! nowhere.

mod attaching;
mod bed;
mod buffers;
mod flooding;
mod hostile;
mod limits;
mod linked;
mod losing;
mod moderating;
mod offloads;
mod parcels;
mod relocating;
mod relocating_world;
mod steering;
mod switching;
mod wires;
