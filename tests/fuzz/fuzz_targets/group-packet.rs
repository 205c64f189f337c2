//! See `tests/fuzzing`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidemill_fuzzing::execute("group-packet", bytes));
