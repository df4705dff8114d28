//! The values that travel, whatever a call came in on.

pub mod payload;
