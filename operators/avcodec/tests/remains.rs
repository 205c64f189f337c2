//! Memory, threads and files after the end of decoders: one test, alone in its process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod clips;

use clips::{MOST, clip, library};
use std::sync::Arc;
use std::time::Duration;
use tidemill_avcodec::{Codec, Decoder, File, Interpolation, Library, Packet, Scaler, Settings};

/// Decoders that are made and dropped.
const MANY: usize = 10_000;
/// Growth of memory that may be the allocator's, in bytes.
const GROWTH: usize = 32 << 20;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Decodes packets with other damage each time.
fn decode_damaged(library: &Arc<Library>, extradata: &[u8], packets: &[Packet], number: usize) {
    let settings = Settings { strict: number.is_multiple_of(20), ..Settings::default() };
    let mut decoder = Decoder::new(library, Codec::H264, extradata, &settings).unwrap();
    let mut errors = 0;
    for (at, packet) in packets.iter().enumerate() {
        let mut damaged = packet.data().to_vec();
        let length = damaged.len();
        damaged[(number * 31 + at * 7) % length..].iter_mut().step_by(5).for_each(|byte| *byte ^= 0x5a);
        errors += usize::from(decoder.send(&damaged, at as i64).is_err());
        while !matches!(decoder.receive(), Ok(None)) {}
    }
    assert!(errors > 0, "damage was made, and is an error");
}

#[test]
fn nothing_remains_of_many_decoders() {
    let folder = tempfile::tempdir().unwrap();
    let source = "testsrc2=size=64x48:rate=10:duration=1";
    let path = clip(folder.path(), "a.mp4", source, "-pix_fmt yuv420p -c:v libx264 -bf 3");
    let library = library();
    let mut file = File::open(&library, &path, &Settings::default()).unwrap();
    let extradata = file.video().unwrap().extradata.clone();
    let packets: Vec<_> = std::iter::from_fn(|| file.read().unwrap()).collect();
    drop(file);
    // What the libraries say would be here.
    let told = folder.path().join("told");
    let kept = rustix::io::dup(rustix::stdio::stderr()).unwrap();
    rustix::stdio::dup2_stderr(std::fs::File::create(&told).unwrap()).unwrap();
    let (before, files) = (threads(), open_files());
    let mut after_some = 0;
    for number in 0..MANY {
        let settings = Settings { threads: if number % 50 == 0 { 3 } else { 1 }, ..Settings::default() };
        let mut decoder = Decoder::new(&library, Codec::H264, &extradata, &settings).unwrap();
        let mut scaler = Scaler::new(&library, Some((32, 32)), MOST, Interpolation::Exact).unwrap();
        let mut frames = Vec::new();
        for packet in &packets[..3] {
            decoder.send_packet(packet).unwrap();
            frames.extend(decoder.receive().unwrap());
        }
        if settings.threads == 3 {
            assert!(threads() > before, "it has threads");
        }
        // Some go without having been drained.
        if number % 2 == 0 {
            decoder.drain().unwrap();
            frames.extend(decoder.receive().unwrap());
            let mut pixels = Vec::new();
            scaler.append(&frames[0], &mut pixels).unwrap();
        }
        drop(decoder);
        if number % 10 == 0 {
            decode_damaged(&library, &extradata, &packets, number);
        }
        if number % 100 == 0 {
            drop(File::open(&library, &path, &Settings::default()).unwrap());
        }
        if number == MANY / 10 {
            after_some = resident();
        }
    }
    rustix::stdio::dup2_stderr(&kept).unwrap();
    assert_eq!(std::fs::read_to_string(&told).unwrap(), "");
    let grown = resident().saturating_sub(after_some);
    assert!(grown < GROWTH, "memory grew by {grown} bytes from {after_some}");
    // A thread that was waited for is listed a moment longer.
    for _ in 0..3000 {
        if threads() == before {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((threads(), open_files()), (before, files));
    println!("memory: {after_some} bytes, {grown} more after {MANY} decoders");
}
