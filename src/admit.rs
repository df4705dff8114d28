//! The in-flight limit: the one place where back-pressure lives.
//!
//! A call that finds no place is answered at once; it never waits, so nothing queues without a bound. The
//! place is given back at the end of the answer's body and of a write's task, not at the answer's head,
//! as tower's own limit would (pitfalls P5, P6).

pub use crate::call::place::Places;
