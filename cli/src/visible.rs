//! Makes control characters in text visible. Names, lines of files and messages of libraries are foreign data: they must
//! not move the cursor, clear the screen or change the direction of adjacent text.
//!
//! They are written as in JSON, `\u001b`, so that JSON stays equivalent. Line ends and tabs stay.
use std::borrow::Cow;
use std::fmt::Write as _;

/// The text without control characters.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    match text.contains(is_hidden) {
        false => Cow::Borrowed(text),
        true => Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 16), shown)),
    }
}

/// Keeps colours, for text that is already coloured.
pub(crate) fn visible_but_colours(text: &str) -> Cow<'_, str> {
    let mut parts = text.split('\u{1b}');
    let mut all = visible(parts.next().unwrap_or_default());
    for part in parts {
        let is_colour = part.strip_prefix('[').is_some_and(|rest| {
            rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
        });
        let all = all.to_mut();
        match is_colour {
            true => all.push('\u{1b}'),
            false => all.push_str("\\u001b"),
        }
        all.push_str(&visible(part));
    }
    all
}

/// Processes text in pieces. Keeps the bytes of an incomplete character.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    begun: Vec<u8>,
}

impl Pieces {
    /// Returns the text that is complete so far. Invalid UTF-8 is replaced.
    pub(crate) fn visible<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, str> {
        if self.begun.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return visible(text);
        }
        self.begun.extend_from_slice(bytes);
        let mut all = String::new();
        loop {
            match std::str::from_utf8(&self.begun) {
                Ok(text) => {
                    all.push_str(&visible(text));
                    self.begun.clear();
                    break;
                }
                Err(error) => {
                    let (whole, rest) = self.begun.split_at(error.valid_up_to());
                    all.push_str(&visible(&String::from_utf8_lossy(whole)));
                    let Some(wrong) = error.error_len() else {
                        self.begun = rest.to_vec();
                        break;
                    };
                    all.push(char::REPLACEMENT_CHARACTER);
                    self.begun = rest[wrong..].to_vec();
                }
            }
        }
        Cow::Owned(all)
    }
}

/// Whether a character is a control character, or changes the direction of following text.
fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shown(mut all: String, c: char) -> String {
    match is_hidden(c) {
        true => {
            let _ = write!(all, "\\u{:04x}", u32::from(c)); // a string takes it
        }
        false => all.push(c),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(visible("a\tb\nc"), "a\tb\nc");
        assert_eq!(
            visible("\u{1b}[2J\r\u{9b}31m\u{7f}\u{202e}"),
            "\\u001b[2J\\u000d\\u009b31m\\u007f\\u202e"
        );
    }

    #[test]
    fn colours_stay_where_there_may_be_some() {
        let painted = "\u{1b}[1;31merror\u{1b}[0m: \u{1b}[2J\u{1b}]0;title\u{7}";
        let expected = "\u{1b}[1;31merror\u{1b}[0m: \\u001b[2J\\u001b]0;title\\u0007";
        assert_eq!(visible_but_colours(painted), expected);
    }

    #[test]
    fn a_json_text_stays_what_it_was() {
        let text = "\u{1b}\u{85}\u{7f}\u{202e}é";
        let json = serde_json::to_string(text).unwrap();
        let read: String = serde_json::from_str(&visible(&json)).unwrap();
        assert_eq!(read, text);
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(text: String, at: prop::sample::Index) {
            let at = at.index(text.len() + 1);
            let (mut pieces, bytes) = (Pieces::default(), text.as_bytes());
            let mut all = pieces.visible(&bytes[..at]).into_owned();
            all.push_str(&pieces.visible(&bytes[at..]));
            prop_assert_eq!(all, visible(&text));
        }

        #[test]
        fn any_bytes_come_out_without_control_characters(bytes: Vec<u8>) {
            prop_assert!(!Pieces::default().visible(&bytes).contains(is_hidden));
        }
    }
}
