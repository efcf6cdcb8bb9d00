//! Memory taken away under every kind of access.
