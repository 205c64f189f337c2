//! See `tests/fuzzing`.
#![no_main]
// Panics of libraries that the parser catches are no findings.
libfuzzer_sys::fuzz_target!(init: tidemill_fuzzing::quiet(), |bytes: &[u8]| tidemill_fuzzing::execute("sample", bytes));
