//! Processor time of decoding, beside the program ffmpeg with a pipe. Run it where nothing else runs:
//! `cargo test --release -p tidemill-avcodec --test speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod clips;

use clips::{MOST, clip, decode, ffmpeg, library};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use tidemill_avcodec::{Interpolation, Scaler, Settings};

/// Processor time of this process and of its children that ended, in seconds.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // The 14th to the 17th field of the file are user and system time, of this process and of its children.
    let ticks: u64 = fields.split(' ').skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Prints frames per second of processor time, the best of three.
fn measure(name: &str, frames: usize, mut run: impl FnMut() -> usize) {
    let best = (0..3).map(|_| {
        let before = processor();
        assert_eq!(run(), frames);
        processor() - before
    });
    let seconds = best.fold(f64::INFINITY, f64::min);
    println!(
        "{name}: {:.0} frames/s of processor time ({:.3} ms a frame)",
        frames as f64 / seconds,
        seconds * 1e3 / frames as f64
    );
}

/// Reads pictures of this many bytes from the program.
fn by_program(file: &Path, filters: &str, codec: &str, bytes: usize) -> usize {
    let mut child = ffmpeg()
        .args(["-threads", "1", "-i"])
        .arg(file)
        .args(["-fps_mode", "passthrough", "-filter_threads", "1", "-vf", filters])
        .args(["-f", "image2pipe", "-c:v", codec, "-threads", "1", "pipe:1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 20);
    let (mut picture, mut frames) = (Vec::new(), 0);
    loop {
        picture.clear();
        match pipe.by_ref().take(bytes as u64).read_to_end(&mut picture).unwrap() {
            0 => break,
            read => assert_eq!(read, bytes),
        }
        frames += 1;
    }
    assert!(child.wait().unwrap().success());
    frames
}

#[test]
#[ignore = "long: make test-long"]
fn frames_per_second_of_processor_time() {
    let folder = tempfile::tempdir().unwrap();
    let library = library();
    let keep = std::env::var_os("CLIPS");
    let folder = keep.as_deref().map_or(folder.path(), Path::new);
    for (width, height, frames) in [(640usize, 360usize, 1500usize), (1280, 720, 500)] {
        let source = format!("testsrc2=size={width}x{height}:rate=25,noise=alls=6:allf=t");
        let options = format!("-frames:v {frames} -pix_fmt yuv420p -c:v libx264 -preset veryfast -crf 24");
        let file = clip(folder, &format!("{width}.mp4"), &source, &options);
        let rate = std::fs::metadata(&file).unwrap().len() * 8 * 25 / frames as u64 / 1000;
        println!("{width} x {height}, {frames} frames, {rate} kbit/s at 25 frames/s");
        for threads in [1, 2] {
            let settings = Settings { threads, ..Settings::default() };
            let mut bytes = Vec::new();
            measure(&format!("  library, {threads} threads, decoded only"), frames, || {
                let mut count = 0;
                decode(&library, &file, &settings, |_| count += 1).unwrap();
                count
            });
            measure(&format!("  library, {threads} threads, planes copied"), frames, || {
                let mut count = 0;
                let copy = |frame: tidemill_avcodec::Frame| {
                    bytes.clear();
                    assert!(frame.append_side_by_side(&mut bytes));
                    count += 1;
                };
                decode(&library, &file, &settings, copy).unwrap();
                count
            });
        }
        for size in [None, Some((320, 320))] {
            let (to_width, to_height) = size.unwrap_or((width as u32, height as u32));
            let mut scaler = Scaler::new(&library, size, MOST, Interpolation::Exact).unwrap();
            let mut bytes = Vec::new();
            measure(&format!("  library, 1 thread, RGB of {to_width} x {to_height}"), frames, || {
                let mut count = 0;
                let convert = |frame: tidemill_avcodec::Frame| {
                    bytes.clear();
                    scaler.append(&frame, &mut bytes).unwrap();
                    count += 1;
                };
                decode(&library, &file, &Settings::default(), convert).unwrap();
                count
            });
        }
        let header = |width: usize, rows: usize| format!("P5\n{width} {rows}\n255\n").len();
        measure("  program, planes through a pipe", frames, || {
            let bytes = header(width, height * 3 / 2) + width * height * 3 / 2;
            by_program(&file, "format=yuv420p", "pgmyuv", bytes)
        });
        let flags = "flags=bilinear+accurate_rnd+full_chroma_int+bitexact";
        measure("  program, RGB of the same size through a pipe", frames, || {
            let bytes = header(width, height) + width * height * 3;
            by_program(&file, &format!("scale={flags},format=rgb24"), "ppm", bytes)
        });
        measure("  program, RGB of 320 x 320 through a pipe", frames, || {
            let bytes = header(320, 320) + 320 * 320 * 3;
            by_program(&file, &format!("scale=320:320:{flags},format=rgb24"), "ppm", bytes)
        });
    }
}
