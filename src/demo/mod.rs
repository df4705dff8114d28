//! `takeback demo`.
mod client;
pub mod gateway;
mod guide;
mod mcp;
mod rest;
#[cfg(test)]
mod scratch;
mod screen;
mod tools;
mod world;
