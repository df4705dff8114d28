#![no_main]

#[allow(dead_code)]
#[path = "../functions.rs"]
mod functions;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| functions::renaming(bytes));
