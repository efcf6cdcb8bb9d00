//! Foreign clients, wrapped for the integration tests in `tests/`.
//!
//! What is tested here runs as a process of its own, reached over a real socket by a driver that
//! this project did not write.

pub mod blkio_client;
