use super::*;
use std::io::Write;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

/// A frame that decoders skip.
fn skipped(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 0x2a, 0x4d, 0x18][..], &(content.len() as u32).to_le_bytes(), content].concat()
}

fn read(bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    std::fs::write(&path, bytes).unwrap();
    let mut input = Origin::assumed("t", path).open().unwrap();
    let (mut all, mut buffer) = (Vec::new(), [0; 7]);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => {
                assert_eq!(input.read(&mut buffer).unwrap(), 0, "an end is an end");
                return (all, Ok(()));
            }
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(error) => return (all, Err(error)),
        }
    }
}

#[test]
fn frames_to_skip_are_known_as_zstd() {
    let packed = |text: &[u8]| zstd::encode_all(text, 1).unwrap();
    for kind in [0x50, 0x57, 0x5f] {
        // The format of `pzstd`: before each frame one with its length.
        let first = packed(b"one, ");
        let length = (first.len() as u32).to_le_bytes();
        let all = [skipped(kind, &length), first, skipped(kind, b""), packed(b"two")].concat();
        let (text, end) = read(&all);
        assert_eq!(text, b"one, two", "{end:?}");
        end.unwrap();
    }
}

#[test]
fn text_that_begins_like_something_compressed_is_text() {
    for text in [&b""[..], b"P", b"P*", b"P*M", b"P*Max,y\n", b"_a", b"(", b"\x1f", b"(\xb5/", b"PKx"] {
        let (read, end) = read(text);
        assert_eq!(read, text);
        end.unwrap();
    }
}

#[test]
fn zeros_behind_gzip_are_padding() {
    for zeros in [0, 1, 512, 20_000] {
        let padding = vec![0; zeros];
        let all = [gzip(b"one, "), padding.clone(), gzip(b""), gzip(b"two"), padding].concat();
        let (text, end) = read(&all);
        assert_eq!(text, b"one, two", "{zeros} {end:?}");
        end.unwrap();
    }
}

#[test]
fn what_is_damaged_fails_behind_what_could_be_read() {
    let whole = gzip(b"some text");
    for (more, expected) in [
        (&b"garbage"[..], "the gzip data are damaged (after the end of a member there is something else)"),
        (b"\0\0x", "the gzip data are damaged (after the end of a member there is something else)"),
        (b"\x1f", "the gzip data end too early: the file was truncated"),
        (&whole[..whole.len() - 1], "the gzip data end too early: the file was truncated"),
    ] {
        let (text, end) = read(&[&whole[..], more].concat());
        assert!(text.starts_with(b"some text"));
        assert_eq!(end.unwrap_err().to_string(), expected);
    }
}
