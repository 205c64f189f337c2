//! Readers of bytes from outside, for tests that write any bytes: each function returns whether they are accepted.
use crate::fingerprint::{Fingerprint, sha256};
use crate::register::Register;

/// The register of an authority, as it lies on the disk; also with a checksum that fits.
pub fn register(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let Ok(register) = Register::from_bytes(bytes) else { return false };
        let again = register.to_bytes().expect("plain data");
        assert!(Register::from_bytes(&again).is_ok_and(|again| again == register));
        true
    };
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let sealed = [line, format!("\n{}\n", Fingerprint(sha256(line))).as_bytes()].concat();
    read(bytes) | read(&sealed)
}
