//! Bytes as text that people can read to each other: Crockford's alphabet, which has no letters that look like digits.

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Five bits a character; the last one is filled up with zeros.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut held, mut bits) = (0u32, 0);
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(held >> bits & 31) as usize]));
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(held << (5 - bits) & 31) as usize]));
    }
    text
}

/// Decodes a text, as many bytes as it fills; capital letters count as small ones, and letters that look like digits
/// as these.
///
/// # Errors
/// The first character that is not of the alphabet, with its place, which counts from 1.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, (usize, char)> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut held, mut bits) = (0u32, 0);
    for (place, character) in text.chars().enumerate() {
        let plain = match character.to_ascii_lowercase() {
            'o' => '0',
            'i' | 'l' => '1',
            other => other,
        };
        let value = ALPHABET.iter().position(|letter| char::from(*letter) == plain);
        let value = value.ok_or((place + 1, character))?;
        held = held << 5 | value as u32;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 255) as u8);
        }
        held &= (1 << bits) - 1;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn letters_that_look_alike_are_the_same() {
        assert_eq!(encode(&[0, 0x44, 0x32, 0x14, 0xC7]), "01234567");
        assert_eq!(decode("OI234567"), decode("01234567"));
        assert_eq!(decode("ol234567"), decode("01234567"));
        assert_eq!(decode("01u"), Err((3, 'u')));
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes.clone()));
            prop_assert_eq!(decode(&encode(&bytes).to_uppercase()), Ok(bytes));
        }
    }
}
