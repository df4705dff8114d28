//! What an effect contract is. Pure: no I/O, no clock, no randomness, nothing of this crate.
//!
//! An operation declares what its calls do and how that is undone ([`operation::Operation`]). A
//! call is evaluated against it with values only: paths and pointers read the request and the
//! answer ([`path`], [`mod@pointer`], [`selector`]), a status becomes a disposition ([`status`]),
//! assertions become a verdict ([`assertion`]), mappings become the call that takes the effect back
//! ([`prefill`], [`undo`]), and all of it becomes the report ([`report`]). JSON is read and changed in one place
//! ([`json`]).

#![warn(clippy::wildcard_enum_match_arm)]

pub mod assertion;
pub mod class;
pub mod credential;
pub mod deadline;
mod decimal;
pub mod declared;
pub mod json;
pub mod key;
pub mod operation;
pub mod overrides;
pub mod path;
pub mod pin;
pub mod plan;
pub mod pointer;
pub mod prefill;
pub mod report;
pub mod selector;
mod slots;
pub mod status;
pub mod template;
pub mod thing;
pub mod undeclared;
pub mod undo;
