//! Frames against packets that were built, and are checked, the slow and obvious way (`packet`).

mod cut;
mod packet;
mod small;
mod tunnels;
mod undone;
