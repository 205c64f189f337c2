use super::*;
use hound::{SampleFormat, WavSpec, WavWriter};
use proptest::prelude::*;
use std::io::Cursor;

fn spec(channels: u16, bits: u16, sample_format: SampleFormat) -> WavSpec {
    WavSpec { channels, sample_rate: 8000, bits_per_sample: bits, sample_format }
}

fn wav(spec: WavSpec, samples: &[f32]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
    for sample in samples {
        match spec.sample_format {
            SampleFormat::Float => writer.write_sample(*sample).unwrap(),
            SampleFormat::Int => {
                let scale = (1i64 << (spec.bits_per_sample - 1)) as f32;
                writer.write_sample((sample * scale) as i32).unwrap();
            }
        }
    }
    writer.finalize().unwrap();
    bytes.into_inner()
}

#[test]
fn all_sample_formats_give_the_same() {
    let samples = [0.0, 0.5, -0.5, 0.25, -1.0];
    for (bits, format) in [
        (8, SampleFormat::Int),
        (16, SampleFormat::Int),
        (24, SampleFormat::Int),
        (32, SampleFormat::Int),
        (32, SampleFormat::Float),
    ] {
        let decoded = decode(&wav(spec(1, bits, format), &samples), 8000).unwrap();
        assert_eq!(decoded, samples, "{bits} bits {format:?}");
    }
}

#[test]
fn channels_are_averaged() {
    let bytes = wav(spec(2, 16, SampleFormat::Int), &[0.5, -0.25, 0.0, 0.5]);
    assert_eq!(decode(&bytes, 8000).unwrap(), [0.125, 0.25]);
}

#[test]
fn another_rate_says_what_to_do() {
    let rejected = decode(&wav(spec(1, 16, SampleFormat::Int), &[0.5]), 16000).unwrap_err();
    assert_eq!(rejected.reason, "audio_sample_rate");
    assert!(rejected.detail.contains("8000") && rejected.detail.contains("-ar 16000"), "{rejected}");
}

#[test]
fn any_rate_is_told() {
    let bytes = wav(spec(1, 16, SampleFormat::Int), &[0.5, -0.5]);
    let longest = Longest { sample_rate: 16000, seconds: None };
    assert_eq!(decode_any(&bytes, longest), Ok((vec![0.5, -0.5], 8000)));
    assert_eq!(decode_any(&bytes[..bytes.len() - 1], longest).unwrap_err().reason, "audio_truncated");
    let short = Longest { seconds: Some(1.5 / 8000.0), ..longest };
    assert_eq!(decode_any(&bytes, short).unwrap_err().reason, "audio_too_long");
}

/// 5 million samples of 1 kHz would be 80 million of 16 kHz.
#[test]
fn a_sound_that_would_become_too_long_is_refused_by_its_header() {
    let slow = WavSpec { sample_rate: 1000, ..spec(1, 8, SampleFormat::Int) };
    let mut bytes = wav(slow, &[0.5; 4]);
    let data = bytes.len() - 4;
    bytes[data - 4..data].copy_from_slice(&5_000_000u32.to_le_bytes());
    let longest = Longest { sample_rate: 16000, seconds: None };
    let rejected = decode_any(&bytes, longest).unwrap_err();
    assert_eq!(rejected.reason, "audio_too_long", "{rejected}");
    assert!(rejected.detail.contains("80000000 at 16000 per second"), "{rejected}");
    assert_eq!(
        decode_any(&bytes, Longest { sample_rate: 8000, ..longest }).unwrap_err().reason,
        "audio_truncated"
    );
}

/// No length includes the byte that pads a chunk to an even length.
#[test]
fn chunks_of_odd_lengths_are_passed_over() {
    let bytes = wav(spec(1, 16, SampleFormat::Int), &[0.5, -0.5]);
    let data = bytes.windows(4).position(|four| four == b"data").unwrap();
    let with = |more: &[u8]| [&bytes[..data], more, &bytes[data..]].concat();
    let odd = b"LIST\x03\0\0\0abc\0";
    for more in [&odd[..], b"bext\x02\0\0\0ab", &[&odd[..], &odd[..]].concat()] {
        assert_eq!(decode(&with(more), 8000), Ok(vec![0.5, -0.5]), "{more:?}");
    }
    // Without that byte, as some programs write them.
    assert_eq!(decode(&with(&odd[..11]), 8000), Ok(vec![0.5, -0.5]));
}

/// 24 valid bits in samples of 32 are the upper ones where the format has extensions.
#[test]
fn valid_bits_are_the_upper_ones() {
    let (half, format) = (0.5f32, spec(1, 32, SampleFormat::Int));
    let mut bytes = wav(format, &[half, -half]);
    let place = bytes.windows(4).position(|four| four == b"fmt ").unwrap();
    assert_eq!(bytes[place + 8..place + 10], [0xfe, 0xff], "it is written with extensions");
    bytes[place + 26..place + 28].copy_from_slice(&24u16.to_le_bytes());
    assert_eq!(decode(&bytes, 8000), Ok(vec![half, -half]));
}

#[test]
fn an_empty_sound_is_empty() {
    assert_eq!(decode(&wav(spec(1, 16, SampleFormat::Int), &[]), 8000).unwrap_err().reason, "audio_empty");
}

#[test]
fn not_a_number_is_refused() {
    let bytes = wav(spec(1, 32, SampleFormat::Float), &[f32::NAN]);
    assert_eq!(decode(&bytes, 8000).unwrap_err().reason, "audio_invalid");
}

#[test]
fn every_truncation_is_found() {
    for whole in
        [wav(spec(2, 16, SampleFormat::Int), &[0.1; 40]), wav(spec(1, 32, SampleFormat::Float), &[0.1; 9])]
    {
        for length in 0..whole.len() {
            let rejected = decode(&whole[..length], 8000).expect_err("a part is not a whole");
            assert_eq!(rejected.reason, "audio_truncated", "{length} bytes: {rejected}");
        }
    }
}

/// A file by its chunks; `format`: number, channels, bits of a sample, bytes of a frame.
fn file(format: (u16, u16, u16, u16), more: &[u8], lengths: (u32, u32), data: &[u8]) -> Vec<u8> {
    let (number, channels, bits, block) = format;
    let mut bytes =
        [b"RIFF", &lengths.0.to_le_bytes()[..], b"WAVEfmt ", &(16 + more.len() as u32).to_le_bytes()]
            .concat();
    bytes.extend([number, channels].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend([8000u32, 8000 * u32::from(block)].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend([block, bits].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend([more, b"data", &lengths.1.to_le_bytes(), data].concat());
    bytes
}

const PCM: (u16, u16, u16, u16) = (1, 1, 16, 2);

/// Unknown lengths as written by ffmpeg, sox and interrupted recorders.
#[test]
fn samples_of_unknown_length_go_to_the_end() {
    let data = [0, 0x40, 0, 0xc0, 7];
    for lengths in
        [(u32::MAX, u32::MAX), (0, 0), (36, 0), (0x7fff_f024, 0x7fff_f000), (0x8000_0024, 0x8000_0000)]
    {
        assert_eq!(decode(&file(PCM, &[], lengths, &data), 8000), Ok(vec![0.5, -0.5]), "{lengths:x?}");
        let longest = Longest { sample_rate: 16000, seconds: Some(1.0) };
        assert_eq!(decode_any(&file(PCM, &[], lengths, &data), longest).map(|it| it.1), Ok(8000));
        for few in [&[][..], &[1]] {
            assert_eq!(decode(&file(PCM, &[], lengths, few), 8000).unwrap_err().reason, "audio_empty");
        }
    }
    // An empty one with another chunk after it stays empty.
    let other = b"LIST\x04\0\0\0INFO";
    assert_eq!(decode(&file(PCM, &[], (36 + 12, 0), other), 8000).unwrap_err().reason, "audio_empty");
}

#[test]
fn files_beyond_4_gib_say_their_length_elsewhere() {
    let large = |length: u64, data: &[u8]| {
        let plain = file(PCM, &[], (u32::MAX, u32::MAX), data);
        let sizes = [&0u64.to_le_bytes()[..], &length.to_le_bytes(), &0u64.to_le_bytes(), &[0; 4]].concat();
        [b"RF64", &plain[4..12], b"ds64", &28u32.to_le_bytes(), &sizes, &plain[12..]].concat()
    };
    let data = [0, 0x40, 0, 0xc0];
    assert_eq!(decode(&large(4, &data), 8000), Ok(vec![0.5, -0.5]));
    assert_eq!(decode(&large(2, &data), 8000), Ok(vec![0.5]));
    for unknown in [0, u64::MAX, u64::from(u32::MAX) << 32 | u64::MAX >> 1] {
        assert_eq!(decode(&large(unknown, &data), 8000), Ok(vec![0.5, -0.5]), "{unknown:x}");
    }
    assert_eq!(decode(&large(6, &data), 8000).unwrap_err().reason, "audio_truncated");
    assert_eq!(decode(&large(1 << 40, &data), 8000).unwrap_err().reason, "audio_too_long");
}

/// Values of ITU-T G.711, in samples of 16 bits.
#[test]
fn telephones_are_heard() {
    let values = |number, data: &[u8]| -> Vec<i32> {
        let bytes = file((number, 1, 8, 1), &[0, 0], (38 + data.len() as u32, data.len() as u32), data);
        decode(&bytes, 8000).unwrap().iter().map(|value| (value * 32_768.0) as i32).collect()
    };
    let mu = values(7, &[0x00, 0x80, 0x7f, 0xff, 0x0f, 0xf0]);
    assert_eq!(mu, [-32_124, 32_124, 0, 0, -16_764, 120]);
    let a = values(6, &[0xd5, 0x55, 0xaa, 0x2a, 0x80, 0x00]);
    assert_eq!(a, [8, -8, 32_256, -32_256, 5_504, -5_504]);
}

#[test]
fn extended_formats_and_doubles_are_read() {
    let guid = |number: u8, valid: u8| {
        let identity = [number, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];
        [&[22, 0, valid, 0, 4, 0, 0, 0][..], &identity].concat()
    };
    let doubles: Vec<u8> = [0.5f64, -0.25].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(decode(&file((3, 1, 64, 8), &[], (52, 16), &doubles), 8000), Ok(vec![0.5, -0.25]));
    assert_eq!(
        decode(&file((0xfffe, 1, 64, 8), &guid(3, 64), (76, 16), &doubles), 8000),
        Ok(vec![0.5, -0.25])
    );
    assert_eq!(decode(&file((0xfffe, 2, 8, 2), &guid(7, 8), (62, 2), &[0x80, 0x00]), 8000), Ok(vec![0.0]));
    // 12 valid bits of 16, 20 of 24, 24 of 32: the upper ones.
    for (bits, bytes) in [(12, vec![0, 0x40]), (20, vec![0, 0, 0x40]), (24, vec![0, 0, 0, 0x40])] {
        let width = bytes.len() as u16;
        let whole = file(
            (0xfffe, 1, 8 * width, width),
            &guid(1, bits),
            (60 + u32::from(width), u32::from(width)),
            &bytes,
        );
        assert_eq!(decode(&whole, 8000), Ok(vec![0.5]), "{bits} bits");
    }
}

#[test]
fn what_is_not_read_is_named_with_what_to_do() {
    for (number, bits, name) in [
        (0x11, 4, "IMA ADPCM of 4 bits"),
        (2, 4, "Microsoft ADPCM"),
        (0x55, 0, "MPEG sound"),
        (0xabc, 16, "0x0abc"),
        (1, 64, "whole numbers of 64"),
    ] {
        let rejected = decode(&file((number, 1, bits, 4), &[], (40, 4), &[1; 4]), 8000).unwrap_err();
        assert_eq!(rejected.reason, "audio_invalid");
        assert!(rejected.detail.contains(name) && rejected.detail.contains("-c:a pcm_s16le"), "{rejected}");
    }
    for (bytes, name) in [
        (&b"\0\0\0\x20ftypM4A "[..], "MP4"),
        (b"RIFX\0\0\0\0WAVEfmt ", "RIFX"),
        (b"FORM\0\0\0\x20AIFF", "AIFF"),
    ] {
        let rejected = check(bytes).unwrap_err();
        assert!(rejected.reason == "audio_invalid" && rejected.detail.contains(name), "{rejected}");
    }
    assert_eq!(check(b"hello").unwrap_err().detail, "no header of WAV, FLAC, Ogg Vorbis or MP3");
}

proptest! {
    #[test]
    fn damaged_sounds_never_panic(at in 0usize..124, value: u8) {
        let mut bytes = wav(spec(2, 16, SampleFormat::Int), &[0.1; 40]);
        bytes[at] = value;
        let _ = decode(&bytes, 8000);
    }

    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>) {
        let _ = decode(&bytes, 8000);
        let mut start = b"RIFF\x40\0\0\0WAVE".to_vec();
        start.extend(bytes);
        let _ = decode(&start, 8000);
    }
}
