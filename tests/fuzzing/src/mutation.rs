//! Random mutations of inputs: bits and bytes, lengths and numbers; parts removed, doubled, nested or taken from elsewhere.
use tidemill_random::Random;

/// Most bytes of a mutated input.
const LONGEST: usize = 64 << 10;

/// Bytes that are significant for parsers of texts and of lengths.
const BYTES: &[u8] = b"{}[]:,-#&*!|>'\"%@`$?~ \n\r\t0\x00\x01\x7f\x80\xc6\xdb\xdd\xdf\xff";
/// Numbers at the edges of types, as texts.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1e999",
    "-0.0",
    "nan",
    "255",
    "256",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0.1",
    "1e-9",
];
/// Unusual words of texts.
const ODD: &[&str] = &[
    "null", "true", "é", "\u{FEFF}", "../", "/etc/x", "\\u0000", "%00", "%2e%2e", "&a ", "*a", "<<: ",
    "!!int ", "${X}",
];

/// Mutates an input once or a few times. `other` provides parts, `words` are tokens of this kind of input.
pub fn mutated(input: &[u8], other: &[u8], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, other, words, random);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let some = 1 + random.below(40);
    let until = (at + some).min(bytes.len());
    match random.below(16) {
        0..=2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3 if at < bytes.len() => bytes[at] = random.draw() as u8,
        4 if at < bytes.len() => bytes[at] = BYTES[random.below(BYTES.len())],
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(at..until)),
        7 => drop(bytes.splice(at..at, (0..some).map(|_| random.draw() as u8).collect::<Vec<_>>())),
        // Lengths and numbers of four or eight bytes, at either end of their range.
        8 | 9 if at + 8 <= bytes.len() => {
            let wide = if random.chance(0.5) { 4 } else { 8 };
            let number: u64 = match random.below(4) {
                0 => u64::MAX >> random.below(64),
                1 => random.below(bytes.len() + 2) as u64,
                2 => 1 << random.below(64),
                _ => 0,
            };
            bytes[at..at + wide].copy_from_slice(&number.to_le_bytes()[..wide]);
        }
        // A number in a text.
        10 => {
            let Some(begin) = bytes[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset)
            else {
                return;
            };
            let end = bytes[begin..]
                .iter()
                .position(|byte| !byte.is_ascii_digit())
                .map_or(bytes.len(), |n| begin + n);
            bytes.splice(begin..end, NUMBERS[random.below(NUMBERS.len())].bytes());
        }
        11 => {
            let list = if words.is_empty() || random.chance(0.3) { ODD } else { words };
            let word = list[random.below(list.len())].bytes();
            let replaced = if random.chance(0.5) { at..until } else { at..at };
            drop(bytes.splice(replaced, word));
        }
        // Doubles or moves a line or a part.
        12 => {
            let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            let line = lines.get(random.below(lines.len())).map(|line| line.to_vec()).unwrap_or_default();
            bytes.splice(at..at, line);
        }
        13 => {
            let part = bytes[at..until].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, part);
        }
        // Deeply nested, or long.
        14 => {
            let one = [&b"["[..], b"{\"a\":", b"- ", b"a: ", b"\"", b"\xdc\xff", b"("][random.below(7)];
            bytes.splice(at..at, one.repeat(1 << random.below(10)));
        }
        _ => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(400)).min(other.len());
            bytes.splice(at..at, other[from..to].iter().copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_follow_from_the_seed_and_change_something() {
        let input = b"first: 17\nsecond: [1, 2, 3]\n";
        let all = |seed| {
            let mut random = Random::of_seed(seed);
            (0..500).map(|_| mutated(input, b"other", &["word"], &mut random)).collect::<Vec<_>>()
        };
        let (one, again) = (all(1), all(1));
        assert_eq!(one, again);
        assert_ne!(one, all(2));
        assert!(one.iter().filter(|bytes| bytes[..] != input[..]).count() > 450);
        assert!(one.iter().any(|bytes| bytes.windows(4).any(|part| part == b"word")));
        assert!(one.iter().all(|bytes| bytes.len() <= LONGEST));
        // An empty input can be mutated, too.
        assert!((0..50).any(|seed| !mutated(b"", b"", &[], &mut Random::of_seed(seed)).is_empty()));
    }
}
