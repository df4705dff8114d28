//! `takeback demo`.
pub mod gateway;
mod mcp;
mod rest;
mod tools;
mod world;
