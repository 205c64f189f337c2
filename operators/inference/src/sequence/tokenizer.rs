//! Conversion of tokens to text.
use crate::preprocess::tokens;

/// The file is not a list of token texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer ends in the middle of token {token}")]
pub struct TokenizerError {
    /// Number of the incomplete token.
    pub token: usize,
}

/// The text of each token. A text is bytes: a character beyond ASCII may be spread over several tokens.
///
/// ```
/// use tidemill_inference::sequence::tokenizer::Tokenizer;
/// // A length and so many bytes, token after token; U+2581 stands for a blank.
/// let tokenizer = Tokenizer::parse(b"\x03<s>\x05\xe2\x96\x81no\x01w")?;
/// assert_eq!(tokenizer.text(&[0, 1, 2]), "now");
/// # Ok::<(), tidemill_inference::sequence::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer {
    tokens: Vec<Vec<u8>>,
}

impl Tokenizer {
    /// Parses the file's bytes. A length from 128 takes two bytes: the low 7 bits with the highest bit set, then the rest.
    ///
    /// # Errors
    /// [`TokenizerError`] if the last token is incomplete.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut tokens = Vec::new();
        while let Some((first, rest)) = bytes.split_first() {
            let cut_off = TokenizerError { token: tokens.len() };
            let (length, rest) = match (*first, rest.split_first()) {
                (short @ 0..=127, _) => (usize::from(short), rest),
                (low, Some((high, rest))) => (usize::from(*high) * 128 + usize::from(low & 0x7f), rest),
                (_, None) => return Err(cut_off),
            };
            let (text, rest) = rest.split_at_checked(length).ok_or(cut_off)?;
            tokens.push(text.to_vec());
            bytes = rest;
        }
        Ok(Self { tokens })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the text of tokens, trimmed. Tokens without a text and control tokens (`<s>`, `<<ST_7>>`) give nothing;
    /// invalid UTF-8 is replaced.
    pub fn text(&self, tokens: &[usize]) -> String {
        let texts =
            tokens.iter().filter_map(|token| self.tokens.get(*token)).filter(|text| !is_control(text));
        let bytes: Vec<u8> = texts.flatten().copied().collect();
        String::from_utf8_lossy(&bytes).replace('\u{2581}', " ").trim().to_owned()
    }
}

/// The texts of the tokens of a decoder, by the kind of its file.
#[derive(Debug, Clone)]
pub(crate) enum Vocabulary {
    /// A list of texts.
    Listed(Tokenizer),
    /// A `tokenizer.json`.
    Json(tokens::Tokenizer),
}

impl Vocabulary {
    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Listed(tokenizer) => tokenizer.len(),
            Self::Json(tokenizer) => tokenizer.vocabulary(),
        }
    }

    /// Returns the text of tokens without special ones, trimmed, or the reason why there is none.
    pub(crate) fn text(&self, tokens: &[u32]) -> Result<String, String> {
        match self {
            Self::Listed(tokenizer) => {
                let tokens: Vec<usize> = tokens.iter().map(|token| *token as usize).collect();
                Ok(tokenizer.text(&tokens))
            }
            Self::Json(tokenizer) => {
                let text = tokenizer.decode(tokens).map_err(|rejected| rejected.to_string())?;
                Ok(text.trim().to_owned())
            }
        }
    }
}

fn is_control(text: &[u8]) -> bool {
    text.len() > 2 && text.starts_with(b"<") && text.ends_with(b">")
}

/// Returns a text in lower case with the characters of `alphabet` only; consecutive blanks become one.
pub(crate) fn normalized(text: &str, alphabet: &str) -> String {
    let kept: String = text.chars().flat_map(char::to_lowercase).filter(|c| alphabet.contains(*c)).collect();
    kept.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_have_two_bytes_of_length() {
        let mut bytes = vec![0, 0x80 | 44, 2];
        bytes.extend([b'x'; 300]);
        bytes.extend([1, b'y']);
        let tokenizer = Tokenizer::parse(&bytes).unwrap();
        assert_eq!((tokenizer.len(), tokenizer.text(&[0, 1, 2]).len()), (3, 301));
        for length in [2, 3, 302, 304] {
            assert!(Tokenizer::parse(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Tokenizer::parse(&[]).unwrap().is_empty());
    }

    #[test]
    fn control_tokens_and_unknown_ones_say_nothing() {
        let tokenizer =
            Tokenizer::parse(b"\x04</s>\x07<<ST_1>\x03\xe2\x96\x81\x02<>\x01\xc3\x01\xa9").unwrap();
        assert_eq!(tokenizer.text(&[0, 1, 2, 3, 99]), "<>");
        assert_eq!(tokenizer.text(&[4, 5]), "\u{e9}");
        assert_eq!(tokenizer.text(&[4]), "\u{fffd}");
    }

    #[test]
    fn texts_are_normalized() {
        let alphabet = " abcdefghijklmnopqrstuvwxyz'";
        assert_eq!(normalized("How many, 3 or  Four?\n", alphabet), "how many or four");
        assert_eq!(normalized("", alphabet), "");
    }
}
