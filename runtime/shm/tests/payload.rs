//! A payload of a megabyte, read by another process where its owner wrote it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod processes;

use processes::{Owner, Reader, check, socket, start};

const MEGABYTE: usize = 1 << 20;
/// More than fit at once, so that blocks are used again.
const PAYLOADS: u64 = 20;

#[test]
fn another_process_reads_a_megabyte_without_a_copy() {
    let (mut child, socket) = start("holder_of_payloads");
    let mut owner = Owner::new(&socket);
    while owner.sent() < PAYLOADS {
        owner.fill(MEGABYTE);
        assert!(owner.take_returned().is_some(), "the holder has ended: {:?}", child.try_wait());
    }
    while owner.lent() > 0 {
        assert!(owner.take_returned().is_some(), "the holder has ended: {:?}", child.try_wait());
    }
    assert_eq!(owner.forget(), 0, "the holder has nothing");
    assert_eq!(owner.used(), 0, "all memory came back");
    drop((owner, socket));
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "started by another_process_reads_a_megabyte_without_a_copy"]
fn holder_of_payloads() {
    let Some(socket) = socket() else { return };
    let mut reader = Reader::new(&socket);
    let mut read = 0;
    while let Some(payload) = reader.next() {
        assert_eq!(payload.len(), MEGABYTE);
        check(&payload);
        assert!(is_in_region(&payload), "it lies in memory of the owner that cannot be written here");
        read += 1;
    }
    assert!(read >= PAYLOADS);
}

/// Returns whether bytes are in a mapping of a region that is shared and read-only.
fn is_in_region(bytes: &[u8]) -> bool {
    let (start, maps) = (bytes.as_ptr() as usize, std::fs::read_to_string("/proc/self/maps").unwrap());
    let mut regions = maps.lines().filter(|line| line.contains("/memfd:tidemill-region"));
    regions.any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        rest.starts_with("r--s") && number(from) <= start && start + bytes.len() <= number(to)
    })
}
