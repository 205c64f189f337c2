//! Compares windows with those cut by definition, over any division into chunks, epochs and restarts.
use super::*;
use crate::api::{BoundOperator, Output, Stateful};
use crate::record::{Metadata, float64, tensor_f32, text};
use crate::relational::test::{bind, run_epochs};
use crate::testing::{Record, only, records};
use proptest::prelude::*;
use serde_json::json;
use tidemill_random::Random;

/// Samples a second. All bytes of its sounds are letters of ASCII, so that test records can hold them.
const RATE: u32 = 1024;

/// A sound of 8-bit samples.
fn wav(samples: &[u8]) -> String {
    let length = samples.len() as u32;
    let mut bytes = b"RIFF    WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    bytes.extend(RATE.to_le_bytes());
    bytes.extend(RATE.to_le_bytes());
    bytes.extend(b"\x01\0\x08\0data");
    bytes.extend(length.to_le_bytes());
    bytes.extend(samples);
    String::from_utf8(bytes).unwrap()
}

/// A length near this one whose lower byte is a letter.
fn letters(length: usize) -> usize {
    length & !0x80 | 1
}

/// Samples of which the place is seen.
fn samples(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at * 7 % 101) as u8).collect()
}

fn value(sample: u8) -> f32 {
    (f32::from(sample) - 128.0) / 128.0
}

fn stream() -> StreamType {
    StreamType::new([
        Column::new("name", ColumnType::Text),
        Column::new("audio", ColumnType::Audio),
        Column::new("number", ColumnType::Int64),
    ])
}

fn record(sequence: u64, time: i64, name: &str, sound: &str) -> Record {
    Record { source: 0, sequence, time, payload: json!({"name": name, "audio": sound, "number": sequence}) }
}

fn bound(yaml: &str) -> BoundOperator {
    bind(&Slices, &[stream()], yaml).unwrap()
}

/// Name, number, start and samples of each window.
fn windows(output: &Output) -> Vec<(String, i64, f64, Vec<f32>)> {
    let mut all = Vec::new();
    for batch in &output.batches {
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let (values, length) = tensor_f32(column("samples")).unwrap();
        for row in 0..batch.num_rows() {
            all.push((
                text(column("name")).unwrap().value(row).to_owned(),
                crate::record::int64(column("number")).unwrap().value(row),
                float64(column("start")).unwrap().value(row),
                values.values()[row * length..(row + 1) * length].to_vec(),
            ));
        }
    }
    all
}

const LIVE: &str = "{length: 125ms, every: 31250us, sample_rate: 1024, key: name}";

/// Chunks of one name that follow one another, from microsecond `begin` on.
fn chunks(name: &str, begin: i64, lengths: &[usize], first: u64) -> Vec<Record> {
    let mut at = 0;
    let chunk = |(number, length): (usize, &usize)| {
        let time = begin + at as i64 * 1_000_000 / i64::from(RATE);
        let sound = wav(&samples(at, *length));
        at += length;
        record(first + number as u64, time, name, &sound)
    };
    lengths.iter().enumerate().map(chunk).collect()
}

/// Records, some in each epoch.
fn epochs(mut rows: Vec<Record>, random: u64) -> Vec<(Vec<(usize, Record)>, i64)> {
    let mut random = Random::of_seed(random);
    rows.sort_by_key(|row| row.time);
    let mut epochs = Vec::new();
    while !rows.is_empty() {
        let count = random.below(5).min(rows.len());
        let epoch: Vec<_> = rows.drain(..count).map(|row| (0, row)).collect();
        let watermark = rows.first().map_or(i64::MAX - 1, |row| row.time);
        epochs.push((epoch, watermark));
    }
    epochs.push((Vec::new(), i64::MAX));
    epochs
}

proptest! {
    /// `run_epochs` also restarts from snapshots and divides the state.
    #[test]
    fn windows_run_across_chunks(lengths in prop::collection::vec(1usize..100, 1..30), random: u64) {
        let begin = 1_000_000_000_000;
        let mut rows = chunks("a", begin, &lengths, 0);
        rows.extend(chunks("b", begin + 77, &lengths, 1000));
        let output = run_epochs(&bound(LIVE), &[stream()], &epochs(rows, random), random);
        prop_assert!(output.dead_letters.is_empty() && output.drops.is_empty() && output.notes.is_empty());
        let total: usize = lengths.iter().sum();
        let found = windows(&output);
        for name in ["a", "b"] {
            let of_name: Vec<_> = found.iter().filter(|(of, ..)| of == name).collect();
            let count = if total < 128 { 0 } else { (total - 128) / 32 + 1 };
            prop_assert_eq!(of_name.len(), count);
            for (index, (_, _, start, values)) in of_name.into_iter().enumerate() {
                let expected: Vec<f32> = samples(index * 32, 128).into_iter().map(value).collect();
                prop_assert_eq!(values, &expected);
                let seconds = 1_000_000.0 + (index * 32) as f64 / f64::from(RATE);
                prop_assert!((start - seconds).abs() < 2e-4, "{} for {}", start, seconds);
            }
        }
    }

    #[test]
    fn files_are_by_themselves(lengths in prop::collection::vec(100usize..600, 1..12), random: u64) {
        let sound = |(at, length): (usize, &usize)| {
            record(at as u64, at as i64 * 1000, "f", &wav(&samples(at, letters(*length))))
        };
        let rows: Vec<Record> = lengths.iter().enumerate().map(sound).collect();
        let every = "{length: 125ms, every: 62500us, sample_rate: 1024}";
        let output = run_epochs(&bound(every), &[stream()], &epochs(rows, random), random);
        let mut expected = Vec::new();
        let mut short = 0;
        for (at, length) in lengths.iter().enumerate() {
            let length = letters(*length);
            short += u64::from(length < 128);
            for index in 0.. {
                if index * 64 + 128 > length {
                    break;
                }
                let values: Vec<f32> = samples(at + index * 64, 128).into_iter().map(value).collect();
                expected.push(("f".to_owned(), at as i64, index as f64 * 0.0625, values));
            }
        }
        prop_assert_eq!(windows(&output), expected);
        prop_assert_eq!(output.drops.iter().map(|(_, rows)| rows).sum::<u64>(), short);
    }

    /// With silence before, after and in the last window, cut by definition.
    #[test]
    fn silence_is_around_files(
        lengths in prop::collection::vec(1usize..300, 1..8), (length, every) in (1usize..90, 1usize..120),
        (before, after) in (0usize..90, 0usize..90), pads: bool, random: u64,
    ) {
        let before = before.min(length - 1);
        let sound = |(at, count): (usize, &usize)| {
            record(at as u64, at as i64 * 1_000_000, "f", &wav(&samples(at, letters(*count))))
        };
        let rows: Vec<Record> = lengths.iter().enumerate().map(sound).collect();
        let last = if pads { "pad" } else { "drop" };
        let yaml = format!(
            "{{length: {length} samples, every: {every} samples, before: {before} samples, after: {after} samples, \
             last: {last}, sample_rate: 1024}}"
        );
        let output = run_epochs(&bound(&yaml), &[stream()], &epochs(rows, random), random);
        let mut expected = Vec::new();
        for (at, count) in lengths.iter().enumerate() {
            let mut all = vec![0.0; before];
            all.extend(samples(at, letters(*count)).into_iter().map(value));
            all.resize(all.len() + after, 0.0);
            let (mut begin, mut covered) = (0, 0);
            while begin + length <= all.len() || (pads && begin.max(covered) < all.len()) {
                let mut window: Vec<f32> = all[begin..all.len().min(begin + length)].to_vec();
                window.resize(length, 0.0);
                let start = (begin as f64 - before as f64) / f64::from(RATE);
                expected.push(("f".to_owned(), at as i64, start, window));
                (begin, covered) = (begin + every, begin + length);
            }
        }
        prop_assert_eq!(windows(&output), expected);
        for batch in &output.batches {
            let (times, numbers) = (Metadata::of(batch).times, batch.column_by_name("number").unwrap());
            let numbers = crate::record::int64(numbers).unwrap();
            for row in 0..batch.num_rows() {
                prop_assert!(times.value(row) >= numbers.value(row) * 1_000_000, "none is before its sound");
            }
        }
    }
}

fn running(yaml: &str) -> Box<dyn Stateful> {
    match (bound(yaml).make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => panic!("a stateful operator"),
    }
}

#[test]
fn a_gap_starts_anew_and_overlaps_are_cut() {
    let mut slices = running(LIVE);
    let mut hear = |time: i64, from: usize| {
        let mut output = Output::default();
        let sound = record(time as u64, time, "a", &wav(&samples(from, 100)));
        slices.apply(0, &records(&stream(), &[sound]), &mut output).unwrap();
        output
    };
    let time = |samples: i64| samples * 1_000_000 / 1024;
    assert!(windows(&hear(0, 0)).is_empty());
    // Up to half of 32 samples late or early counts as in time.
    let next = hear(time(115), 100);
    assert_eq!(windows(&next)[0].3, samples(0, 128).into_iter().map(value).collect::<Vec<_>>());
    assert_eq!(windows(&next).len(), 3, "200 samples");
    // An overlap of 50 samples.
    let overlap = hear(time(165), 150);
    let found = windows(&overlap);
    assert_eq!(found[0].3, samples(96, 128).into_iter().map(value).collect::<Vec<_>>());
    assert!(overlap.drops.is_empty() && overlap.notes.is_empty());
    // What was heard already.
    assert_eq!(hear(time(100), 85).drops, [("late".into(), 1)]);
    // More than 16 samples are missing.
    let gap = hear(time(300), 300);
    assert!(windows(&gap).is_empty());
    assert_eq!(gap.notes, [("gap".into(), 1)]);
    let after = windows(&hear(time(400), 400));
    assert_eq!(after[0].3, samples(300, 128).into_iter().map(value).collect::<Vec<_>>());
    assert!((after[0].2 - 300.0 / 1024.0).abs() < 1e-5, "{}", after[0].2);
}

/// A busy machine notes times late; the numbers tell that nothing is missing.
#[test]
fn numbers_decide_where_they_are_given() {
    let mut slices = running("{length: 125ms, every: 31250us, sample_rate: 1024, key: name, number: number}");
    let mut hear = |number: u64, time: i64, from: usize| {
        let mut output = Output::default();
        let sound = record(number, time, "a", &wav(&samples(from, 100)));
        slices.apply(0, &records(&stream(), &[sound]), &mut output).unwrap();
        let snapshot = slices.snapshot().unwrap();
        slices.restore(&snapshot).unwrap();
        output
    };
    assert!(windows(&hear(7, 0, 0)).is_empty());
    let late = hear(8, 400_000, 100);
    assert_eq!(windows(&late).len(), 3);
    assert!(late.notes.is_empty(), "{:?}", late.notes);
    // Its time is before the end of the last one by their times.
    let next = hear(9, 410_000, 200);
    assert_eq!(windows(&next)[0].3, samples(96, 128).into_iter().map(value).collect::<Vec<_>>());
    assert_eq!(hear(8, 100_000, 100).drops, [("late".into(), 1)]);
    assert_eq!(hear(11, 600_000, 400).notes, [("gap".into(), 1)]);
    // The source counts anew.
    assert_eq!(hear(0, 900_000, 0).notes, [("gap".into(), 1)]);
    assert_eq!(windows(&hear(1, 1_000_000, 100)).len(), 3);
}

/// As the recogniser of voices needs it: each chunk with the samples before it.
#[test]
fn silence_is_before_the_first_sound_of_a_key_and_after_a_gap() {
    let mut slices =
        running("{length: 96 samples, every: 64 samples, before: 32 samples, sample_rate: 1024, key: name}");
    let mut hear = |time: i64, from: usize| {
        let mut output = Output::default();
        let sound = record(time as u64, time, "a", &wav(&samples(from, 65)));
        slices.apply(0, &records(&stream(), &[sound]), &mut output).unwrap();
        let snapshot = slices.snapshot().unwrap();
        slices.restore(&snapshot).unwrap();
        output
    };
    let time = |samples: i64| samples * 1_000_000 / 1024;
    let heard = |from: usize, count: usize| samples(from, count).into_iter().map(value).collect::<Vec<_>>();
    let first = windows(&hear(0, 0));
    assert_eq!(first[0].3, [vec![0.0; 32], heard(0, 64)].concat());
    assert!((first[0].2 + 32.0 / 1024.0).abs() < 1e-5, "{}", first[0].2);
    assert_eq!(windows(&hear(time(65), 65))[0].3, heard(32, 96));
    let gap = hear(time(1000), 1000);
    assert_eq!(gap.notes, [("gap".into(), 1)]);
    assert_eq!(windows(&gap)[0].3, [vec![0.0; 32], heard(1000, 64)].concat());
}

#[test]
fn times_between_windows_are_passed_over() {
    let mut slices = running("{length: 31250us, every: 125ms, sample_rate: 1024, key: name}");
    let mut output = Output::default();
    let rows = chunks("a", 0, &[50, 30, 100, 120, 100], 0);
    slices.apply(0, &records(&stream(), &rows), &mut output).unwrap();
    let found = windows(&output);
    assert_eq!(found.len(), 3, "of 400 samples");
    for (index, (.., values)) in found.iter().enumerate() {
        assert_eq!(values, &samples(index * 128, 32).into_iter().map(value).collect::<Vec<_>>());
    }
}

#[test]
fn sounds_that_cannot_be_heard_are_dead_letters() {
    let other = wav(&[1; 100]).replace("\0\x04\0\0\0\x04\0\0", "\0\x08\0\0\0\x08\0\0");
    for (sound, live, whole) in [
        (other, Some("audio_sample_rate"), None),
        ("no sound".to_owned(), Some("audio_invalid"), Some("audio_invalid")),
        (wav(&[]), Some("audio_empty"), Some("audio_empty")),
    ] {
        for (yaml, expected) in [(LIVE, live), ("{length: 31250us, sample_rate: 1024}", whole)] {
            let mut slices = running(yaml);
            let mut output = Output::default();
            slices.apply(0, &records(&stream(), &[record(0, 5, "a", &sound)]), &mut output).unwrap();
            slices.advance(5, &mut output).unwrap();
            let reasons: Vec<_> = output.dead_letters.iter().map(|letter| &*letter.reason).collect();
            assert_eq!(reasons, expected.into_iter().collect::<Vec<_>>(), "{yaml}");
        }
    }
}

/// A long sound gives its windows in several epochs, and holds the watermark back meanwhile.
#[test]
fn many_windows_leave_in_portions() {
    let mut slices = running("{length: 125ms, every: 31250us, sample_rate: 1024}");
    let sound = record(0, 9, "a", &wav(&samples(0, 1024 + 32)));
    slices.apply(0, &records(&stream(), &[sound]), &mut Output::default()).unwrap();
    let mut counts = Vec::new();
    loop {
        let mut output = Output::default();
        slices.advance(100, &mut output).unwrap();
        counts.push(windows(&output).len());
        for batch in &output.batches {
            // In the order of the windows, also for operators that sort by time.
            let times = Metadata::of(batch).times.values();
            assert!(times[0] > 9 && times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
        }
        assert_eq!(slices.output_watermark(100), if slices.has_more() { 9 } else { 100 });
        if !slices.has_more() {
            break;
        }
    }
    assert_eq!(counts.iter().sum::<usize>(), (1024 + 32 - 128) / 32 + 1);
    assert!(counts.len() > 3 && counts.iter().all(|count| *count <= 4), "{counts:?}");
}

#[test]
fn wrong_options_are_told_with_what_to_write() {
    let error = |yaml: &str| only(bind(&Slices, &[stream()], yaml).err().unwrap());
    let length = error("{length: 33ms, sample_rate: 1024}");
    assert_eq!((length.code, length.column()), ("E0606", Some(10)));
    assert!(length.message.contains("not a whole number of samples"), "{length}");
    assert!(length.help.unwrap().contains("`33 samples`"));
    assert!(error("{length: 0 samples}").message.contains("without samples"));
    assert_eq!(error("{length: 512}").help.unwrap(), "write `512 samples`, or a time such as `512ms`");
    assert_eq!(error("{length: 512 sampels}").help.unwrap(), "did you mean `512 samples`?");
    assert!(error("{length: 1s, before: 1s}").message.contains("fills windows of 1s"));
    assert!(error("{length: 1s, key: name, last: pad}").message.starts_with("`last: pad` is at the end"));
    assert!(error("{length: 1s, key: name, after: 1s}").message.starts_with("`after` is at the end"));
    assert!(error("{length: 1h}").message.contains("samples; at most"));
    assert!(error("{length: 1s, sample_rate: 3}").message.contains("`sample_rate: 3`"));
    assert_eq!(error("{length: 1s, key: number}").code, "E0601");
    assert_eq!(error("{length: 1s, audio: sound}").code, "E0605");
    assert!(error("{length: 1s, number: number}").help.unwrap().contains("key: microphone"));
    let with_start =
        StreamType::new([Column::new("audio", ColumnType::Audio), Column::new("start", ColumnType::Int64)]);
    let error = only(bind(&Slices, &[with_start], "length: 1s").err().unwrap());
    assert!(error.message.contains("two output columns `start`"), "{error}");
}

#[test]
fn keys_may_be_on_several_stages() {
    assert_eq!(bound(LIVE).spread, Spread::by_group(["name"]));
    assert_eq!(bound("length: 1s").spread, Spread::Any);
}
