use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;

const CHUNKS: [usize; 5] = [1, 2, 7, 64, CHUNK];

fn open(path: &Path, limit: usize, quotes: bool, chunk: usize) -> Lines {
    let origin = Origin::of(path.to_str().unwrap(), path.to_owned());
    Lines::with_chunks(&origin, limit, quotes, chunk).unwrap()
}

/// Returns all records, read in chunks of this size; each is read again from its place.
fn all_in(path: &Path, limit: usize, quotes: bool, chunk: usize) -> Vec<(NextLine, Vec<u8>)> {
    let mut lines = open(path, limit, quotes, chunk);
    let mut result = Vec::new();
    loop {
        let place = lines.place();
        let found = lines.next().unwrap();
        let (record, after) = (lines.record().to_vec(), lines.place());
        lines.seek(place).unwrap();
        assert_eq!((lines.next().unwrap(), lines.record(), lines.place()), (found, &record[..], after));
        let mut fresh = open(path, limit, quotes, chunk);
        fresh.seek(place).unwrap();
        assert_eq!((fresh.next().unwrap(), fresh.record(), fresh.place()), (found, &record[..], after));
        if found == NextLine::End {
            return result;
        }
        result.push((found, record));
    }
}

fn written(text: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Returns all records; they must not depend on the size of reads, nor on compression.
fn all(text: &[u8], limit: usize, quotes: bool) -> Vec<(NextLine, Vec<u8>)> {
    let file = written(text);
    let found = all_in(file.path(), limit, quotes, CHUNK);
    for chunk in CHUNKS {
        assert_eq!(all_in(file.path(), limit, quotes, chunk), found, "chunks of {chunk}");
    }
    for packed in [gzip(text), zstd::encode_all(text, 1).unwrap()] {
        assert_eq!(all_in(written(&packed).path(), limit, quotes, 7), found, "compressed");
    }
    found
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// The format of the command `zstd`.
fn zstd_with_checksum(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn blank_lines_long_lines_quotes() {
    assert_eq!(
        all(b"\xef\xbb\xbfa\r\n\n  \nbb\n12345\nlast", 4, false),
        [
            (NextLine::Record(1), b"a".to_vec()),
            (NextLine::Record(4), b"bb".to_vec()),
            (NextLine::TooLong(5), vec![]),
            (NextLine::Record(6), b"last".to_vec()),
        ]
    );
    assert_eq!(
        all(b"a,\"b\nc\"\nd\n", 100, true),
        [(NextLine::Record(1), b"a,\"b\nc\"".to_vec()), (NextLine::Record(3), b"d".to_vec())]
    );
    // After the start of a field a quote is a character like any other.
    assert_eq!(
        all(b"a,5\"\nb,\"\"\"\n\"\n", 100, true),
        [(NextLine::Record(1), b"a,5\"".to_vec()), (NextLine::Record(2), b"b,\"\"\"\n\"".to_vec())]
    );
}

/// A line with an open quote: its number and text.
fn open_quote(line: u64, quote: u64, text: &str) -> (NextLine, Vec<u8>) {
    (NextLine::OpenQuote { line, quote }, text.into())
}

fn record(line: u64, text: &str) -> (NextLine, Vec<u8>) {
    (NextLine::Record(line), text.into())
}

#[test]
fn a_stray_quote_costs_its_line() {
    // Up to the end.
    assert_eq!(
        all(b"1,\"a\r\n2,b\n3,c", 100, true),
        [open_quote(1, 1, "1,\"a"), record(2, "2,b"), record(3, "3,c")]
    );
    assert_eq!(all(b"1,a\n2,\"b", 100, true), [record(1, "1,a"), open_quote(2, 2, "2,\"b")]);
    // Up to the limit.
    assert_eq!(
        all(b"\"\n1234567\nx\n", 6, true),
        [open_quote(1, 1, "\""), (NextLine::TooLong(2), vec![]), record(3, "x")]
    );
    // Up to the quote of another field.
    assert_eq!(
        all(b"1,\"a\n2,\"b\"\n3,\"c\"\"\"\n", 100, true),
        [open_quote(1, 1, "1,\"a"), record(2, "2,\"b\""), record(3, "3,\"c\"\"\"")]
    );
    // The record starts before the line of the quote.
    assert_eq!(
        all(b"1,\"a\nb\",\"c\n2,d\n", 100, true),
        [open_quote(1, 2, "1,\"a"), open_quote(2, 2, "b\",\"c"), record(3, "2,d")]
    );
    // Blanks after a quote do not belong to another field.
    assert_eq!(all(b"1,\"a\nb\" ,c\n", 100, true), [record(1, "1,\"a\nb\" ,c")]);
}

#[test]
fn many_open_quotes_take_time_in_proportion() {
    // In each line one field closes and another one opens: without the recorded offset, every line would be scanned again
    // for each line before it, 10^11 bytes.
    let text = b"a\",\"x\n".repeat(200_000);
    let file = written(&text);
    let mut lines = open(file.path(), 8 << 20, true, CHUNK);
    for line in 1..=200_000 {
        assert_eq!(
            lines.next().unwrap(),
            NextLine::OpenQuote { line, quote: if line == 1 { 200_000 } else { line } }
        );
    }
    assert_eq!(lines.next().unwrap(), NextLine::End);
}

#[test]
fn a_record_is_held_while_others_are_looked_at() {
    let file = written(b"1\n2\n123456789\n3\n");
    for chunk in CHUNKS {
        let mut lines = open(file.path(), 4, false, chunk);
        lines.next().unwrap();
        let place = lines.place();
        lines.hold();
        assert_eq!(lines.next().unwrap(), NextLine::Record(2));
        assert_eq!(lines.next().unwrap(), NextLine::TooLong(3));
        lines.release();
        assert_eq!((lines.record(), lines.place()), (&b"1"[..], place));
        assert_eq!(lines.next().unwrap(), NextLine::Record(2));
        assert_eq!(lines.next().unwrap(), NextLine::TooLong(3));
        assert_eq!((lines.next().unwrap(), lines.record()), (NextLine::Record(4), &b"3"[..]));
    }
}

#[test]
fn a_long_line_takes_no_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // A sparse file: 256 MiB of zeros in one line.
    file.as_file().set_len(256 << 20).unwrap();
    let mut lines = open(file.path(), 1 << 10, false, CHUNK);
    assert_eq!(lines.next().unwrap(), NextLine::TooLong(1));
    assert!(lines.buffer.capacity() < 1 << 20);
    assert_eq!(lines.next().unwrap(), NextLine::End);
}

#[test]
fn a_line_without_end_is_refused() {
    let mut lines = open(Path::new("/dev/zero"), 1 << 10, true, CHUNK);
    lines.unbroken = 1 << 20;
    let error = lines.next().unwrap_err().to_string();
    assert_eq!(error, "line 1 has no end within 1MiB: this is not text with one record per line");
    assert!(lines.place().offset < 2 << 20);
}

#[test]
fn damaged_compressed_data_fail_behind_the_rows_before() {
    let text: Vec<u8> = (0..40_000).flat_map(|n| format!("{}\n", n * 7919 % 40_009).into_bytes()).collect();
    for (packed, name) in [(gzip(&text), "gzip"), (zstd_with_checksum(&text), "zstd")] {
        let file = written(&packed[..packed.len() - 3]);
        let mut lines = open(file.path(), 100, false, CHUNK);
        let (mut rows, mut failure) = (0, None);
        while failure.is_none() {
            match lines.next() {
                Ok(NextLine::End) => break,
                Ok(_) => rows += 1,
                Err(error) => failure = Some(error.to_string()),
            }
        }
        assert_eq!(failure.unwrap(), format!("the {name} data end too early: the file was truncated"));
        assert!(rows > 0, "{name}");
        assert!(lines.next().is_err(), "it stays so");

        let mut damaged = packed.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
        let file = written(&damaged);
        let mut lines = open(file.path(), 100, false, CHUNK);
        let error = loop {
            match lines.next() {
                Ok(found) => assert_ne!(found, NextLine::End, "{name}"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.starts_with(&format!("the {name} data ")), "{error}");
    }
}

#[test]
fn several_compressed_parts_are_one_text() {
    for packed in
        [[gzip(b"a\nb"), gzip(b"c\nd\n")], [b"a\nb", &b"c\nd\n"[..]].map(|t| zstd::encode_all(t, 1).unwrap())]
    {
        let file = written(&packed.concat());
        let found: Vec<_> = all_in(file.path(), 9, false, CHUNK);
        assert_eq!(found, [record(1, "a"), record(2, "bc"), record(3, "d")]);
    }
}

/// A field with characters that need quotes.
fn field() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", ",", "\"", "\n", "é", " ", "\r\n", "b,\"c\"\n"]),
        0..6,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes(text in prop::collection::vec(prop::sample::select(b"ab\"\n\r,".to_vec()), 0..200), limit in 1usize..20) {
        let found = all(&text, limit, false);
        let expected = text.split(|b| *b == b'\n').filter(|l| l.len() > limit || !l.trim_ascii().is_empty()).count();
        prop_assert_eq!(found.len(), expected);
        // Every line is in one record, whatever its quotes.
        let mut lines = 0;
        for (found, record) in all(&text, limit, true) {
            let (NextLine::Record(line) | NextLine::TooLong(line) | NextLine::OpenQuote { line, .. }) = found else { unreachable!() };
            prop_assert!(line > lines);
            lines = line + record.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
    }

    #[test]
    fn records_are_those_of_the_csv_crate(
        rows in prop::collection::vec(prop::collection::vec(field(), 2), 1..12),
        chunk in 1usize..40,
    ) {
        let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
        rows.iter().for_each(|row| writer.write_record(row).unwrap());
        let text = writer.into_inner().unwrap();
        let file = written(&text);
        let found = all_in(file.path(), 1 << 20, true, chunk);
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&text[..]);
        let expected: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        prop_assert_eq!(found.len(), expected.len());
        for ((found, record), expected) in found.into_iter().zip(expected) {
            prop_assert!(matches!(found, NextLine::Record(_)), "{:?}", found);
            let mut one = csv::ReaderBuilder::new().has_headers(false).from_reader(&record[..]);
            let fields: Vec<csv::StringRecord> = one.records().map(Result::unwrap).collect();
            prop_assert_eq!(fields, [expected]);
        }
    }
}

#[test]
fn a_quote_at_the_end_of_the_buffer_opens_a_field() {
    // The comma before the quote is the last byte of what is read at once.
    let filler = "x".repeat(CHUNK - 3);
    let text = format!("{filler}\n1,\"two\nlines\"\n2,b\n");
    assert_eq!(text.as_bytes()[CHUNK - 1], b',');
    let file = written(text.as_bytes());
    let found = all_in(file.path(), 1 << 20, true, CHUNK);
    assert_eq!(found[1..], [record(2, "1,\"two\nlines\""), record(4, "2,b")]);
}
