//! Damaged files and packets. A crash of the libraries ends this process, and so fails its tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod clips;

use clips::{clip, decode, library};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::LazyLock;
use tidemill_avcodec::{Codec, Decoder, File, Frame, Interpolation, Scaler, Settings};

/// A clip: its bytes, and its packets as they are.
struct Sample {
    name: &'static str,
    bytes: Vec<u8>,
    codec: Codec,
    extradata: Vec<u8>,
    packets: Vec<Vec<u8>>,
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let sample = |name, options| {
        let file = clip(folder.path(), name, "testsrc2=size=64x48:rate=10:duration=1", options);
        let mut opened = File::open(&library(), &file, &Settings::default()).unwrap();
        let stream = opened.video().unwrap().clone();
        let packets =
            std::iter::from_fn(|| opened.read().unwrap()).map(|packet| packet.data().to_vec()).collect();
        let bytes = std::fs::read(&file).unwrap();
        Sample { name, bytes, codec: stream.codec, extradata: stream.extradata, packets }
    };
    vec![
        sample("a.mp4", "-pix_fmt yuv420p -c:v libx264 -bf 3 -g 5"),
        sample("b.mkv", "-pix_fmt yuv420p -c:v libx265 -x265-params log-level=none"),
        sample("c.avi", "-pix_fmt yuvj420p -c:v mjpeg"),
        sample("d.webm", "-pix_fmt yuv420p -c:v libvpx-vp9 -deadline realtime"),
        sample("e.ts", "-pix_fmt yuv420p -c:v mpeg2video"),
        sample("f.mp4", "-pix_fmt yuv420p -c:v mpeg4"),
    ]
});

/// Reads every byte of a frame, so that a wrong plane is noticed, and converts it.
fn look(frame: &Frame, scaler: &mut Scaler) {
    let sum: u64 = frame
        .planes()
        .iter()
        .flat_map(|plane| (0..plane.rows()).filter_map(|row| plane.row(row)))
        .flatten()
        .map(|byte| u64::from(*byte))
        .sum();
    std::hint::black_box(sum);
    let mut pixels = Vec::new();
    if let Ok((width, height)) = scaler.append(frame, &mut pixels) {
        assert_eq!(pixels.len(), 3 * width as usize * height as usize);
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    (1..4u32, any::<bool>(), any::<bool>()).prop_map(|(threads, low_delay, strict)| Settings {
        threads,
        low_delay,
        strict,
        // Damage makes frames large.
        max_pixels: 1 << 20,
    })
}

/// Flips bits; places are shares of the length.
fn flip(bytes: &mut [u8], flips: &[(f64, u8)]) {
    let length = bytes.len();
    for (place, bit) in flips {
        if let Some(byte) = bytes.get_mut((place * length as f64) as usize) {
            *byte ^= 1 << bit;
        }
    }
}

proptest! {
    // The same cases each time: a new fault of ffmpeg is not to appear by chance in a change that has nothing to do with it.
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(62),
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_files_are_errors(
        which in 0..6usize,
        flips in prop::collection::vec((0.0..1.0f64, 0..8u8), 1..40),
        settings in settings(),
        size in prop::option::of((1..200u32, 1..200u32)),
        cut in prop::option::weighted(0.2, 0.0..1.0f64),
    ) {
        let sample = &SAMPLES[which];
        let mut bytes = sample.bytes.clone();
        flip(&mut bytes, &flips);
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(sample.name);
        std::fs::write(&file, &bytes).unwrap();
        let library = library();
        let mut scaler = Scaler::new(&library, size, 1 << 20, Interpolation::Means).unwrap();
        let mut frames = 0;
        let _ = decode(&library, &file, &settings, |frame| {
            frames += 1;
            look(&frame, &mut scaler);
        });
        prop_assert!(frames < 10_000);
    }

    #[test]
    fn damaged_packets_are_errors(
        which in 0..6usize,
        flips in prop::collection::vec((0usize..10, 0.0..1.0f64, 0..8u8), 1..40),
        extra in prop::collection::vec((0.0..1.0f64, 0..8u8), 0..3),
        settings in settings(),
        starts_at in 0..3usize,
    ) {
        let sample = &SAMPLES[which];
        let library = library();
        let mut extradata = sample.extradata.clone();
        flip(&mut extradata, &extra);
        let Ok(mut decoder) = Decoder::new(&library, sample.codec, &extradata, &settings) else { return Ok(()) };
        let mut scaler = Scaler::new(&library, None, 1 << 20, Interpolation::Means).unwrap();
        let mut receive = |decoder: &mut Decoder| {
            // One that says nothing but errors would not end.
            for _ in 0..1000 {
                match decoder.receive() {
                    Ok(Some(frame)) => look(&frame, &mut scaler),
                    Ok(None) => return,
                    Err(_) => {}
                }
            }
            panic!("it does not end");
        };
        for (number, packet) in sample.packets.iter().enumerate().skip(starts_at) {
            let mut packet = packet.clone();
            let here: Vec<_> =
                flips.iter().filter(|(of, ..)| *of == number).map(|(_, place, bit)| (*place, *bit)).collect();
            flip(&mut packet, &here);
            let _ = decoder.send(&packet, number as i64);
            receive(&mut decoder);
        }
        let _ = decoder.drain();
        receive(&mut decoder);
    }
}

/// ffmpeg repeats the error for ever.
#[test]
fn an_error_that_repeats_ends() {
    let library = library();
    let sample = &SAMPLES[0];
    let mut extradata = sample.extradata.clone();
    flip(&mut extradata, &[(0.8652134841933222, 4)]);
    let settings = Settings { threads: 2, ..Settings::default() };
    let mut decoder = Decoder::new(&library, sample.codec, &extradata, &settings).unwrap();
    let mut errors = 0;
    for (number, packet) in sample.packets.iter().enumerate() {
        let _ = decoder.send(packet, number as i64);
        errors += std::iter::from_fn(|| decoder.receive().err()).count();
    }
    decoder.drain().unwrap();
    errors += std::iter::from_fn(|| decoder.receive().err()).count();
    assert!(decoder.has_ended() && errors > 1, "{errors}");
}

#[test]
fn damage_is_noticed() {
    let library = library();
    let sample = &SAMPLES[0];
    // Without damage, with damage that is left out, and with damage that is concealed: errors, and frames that are corrupt.
    let decode = |is_damaged: bool, strict: bool| {
        let settings = Settings { strict, ..Settings::default() };
        let mut decoder = Decoder::new(&library, sample.codec, &sample.extradata, &settings).unwrap();
        let (mut errors, mut frames, mut corrupt) = (0, 0, 0);
        let mut receive = |decoder: &mut Decoder| {
            while let Some(frame) = decoder.receive().unwrap() {
                frames += 1;
                corrupt += usize::from(frame.is_corrupt());
            }
        };
        for (number, packet) in sample.packets.iter().enumerate() {
            let mut packet = packet.clone();
            if is_damaged && number == 5 {
                let half = packet.len() / 2;
                packet[half..].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            errors += usize::from(decoder.send(&packet, number as i64).is_err());
            receive(&mut decoder);
        }
        decoder.drain().unwrap();
        receive(&mut decoder);
        (errors, frames, corrupt)
    };
    assert_eq!(decode(false, true), (0, 10, 0));
    let (errors, frames, _) = decode(true, true);
    assert!(errors > 0 && frames < 10, "it is left out: {errors} errors, {frames} frames");
    let (errors, frames, corrupt) = decode(true, false);
    assert!(
        errors == 0 && frames == 10 && corrupt > 0,
        "{errors} errors, {frames} frames, {corrupt} corrupt"
    );
}
