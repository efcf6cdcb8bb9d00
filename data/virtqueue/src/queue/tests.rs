//! The device's side against the driver's side and against raw ring memory.
//!
//! | file | shows |
//! |---|---|
//! | `rig` | one guest's memory with a ring, its driver, and its queue |
//! | `trips` | honest drivers: every format, size, and layout; wraps; batches; hand-over |
//! | `notify` | no kick and no call is lost |
//! | `footprints` | what a driver has taken is told by its event index, and nothing else is |
//! | `rewinds` | chains that are put back are as if never taken |
//! | `hostile_split`, `hostile_packed` | the named cases A and B of the reliability list |
//! | `crash` | in-flight records: killed at any store, nothing is lost and nothing ends twice |
//! | `lost` | memory that goes away, and chains that are given up |
//! | `layouts` | legal layouts are equal, garbage is harmless |

mod crash;
mod footprints;
mod hostile_packed;
mod hostile_split;
mod layouts;
mod lost;
mod notify;
mod rewinds;
mod rig;
mod trips;
