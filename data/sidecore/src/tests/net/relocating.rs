//! NICs that go from one sidecore to another, each case by itself.
