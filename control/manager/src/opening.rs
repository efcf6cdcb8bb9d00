//! Devices that are not open, and opening them.
//!
//! | module | |
//! |---|---|
//! | `apart` | that no two have one socket |
//! | `not_open` | why one is not open, and what to do |
//! | `shut` | those that are in the plan and not open |
//! | `openers` | threads that open and close images |
//! | `open` | from a plan to a device that is served |

pub(crate) mod apart;
pub(crate) mod not_open;
pub(crate) mod open;
pub(crate) mod openers;
pub(crate) mod shut;
