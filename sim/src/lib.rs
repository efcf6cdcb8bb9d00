//! Schedules compared: the real `schedule` crate in a simulated host, from a seed.
//!
//! Discrete events in whole nanoseconds, on one thread: guests that send by a few arrival models,
//! rings that they fill, and cores that empty them. Three ways to run the cores, which differ in who
//! is next, in notifications and in sleep, and in nothing else: the costs of the work are the same
//! for all (`costs`).
//!
//! ```text
//!   guest --push--> ring --(kick, if asked for)--> core: sidecores    the crate `schedule`
//!     ^                                                  round_robin  SPDK: poll all, always
//!     +------------- reply, when it is shown ------------threads      kernel vhost: a thread a device
//! ```
//!
//! What it is not: a model of the daemon's memory accesses, of back-ends that answer later, or of
//! hosts whose guests compete for processors with their own I/O. No wall clock, no files: the same
//! seed gives the same bytes. Called by `./x sim schedule` and by its own tests, which compare small
//! runs with what is checked in.
#![forbid(unsafe_code)]

mod costs;
mod guest;
mod measure;
pub mod plot;
mod ring;
mod round_robin;
pub mod scenarios;
mod sidecore_model;
mod stuck;
pub mod table;
mod threads;
mod world;

#[cfg(test)]
mod tests;
