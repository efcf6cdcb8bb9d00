//! The walk on one thread and in made-up time: guests with rings and nothing behind them, and a
//! sidecore that does one pass when it is told to.

mod bed;
mod calling;
mod commands;
mod file;
mod large;
mod limits;
mod links;
mod losing;
mod moderating;
mod moves;
mod net;
mod remote;
mod resting;
mod sampled;
mod serving;
mod slots;
mod staged;
mod stalls;
mod urgent;
