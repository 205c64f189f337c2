//! Tokens of texts, by a `tokenizer.json` of Hugging Face's tokenizers.
//!
//! ```
//! use std::path::Path;
//! use tidemill_inference::preprocess::tokens::Tokenizer;
//! # let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers/wordpiece.json");
//! let tokenizer = Tokenizer::read(&file).unwrap();
//! let tokens = tokenizer.encode("the street", true, 512, Some(6)).unwrap();
//! assert_eq!(tokens.mask, [1, 1, 1, 1, 0, 0]); // [CLS] the street [SEP] and padding
//! assert_eq!(tokenizer.decode(&tokens.ids).unwrap(), "the street");
//! ```
use super::Rejected;
use crate::backend::panic::caught;
use crate::origin::{TextPart, TextParts};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tidemill_spec::digest::sha256;
use tokenizers::{
    Encoding, Model, OffsetType, PaddingDirection, PostProcessor, PreTokenizer, TruncationDirection,
};

/// Longest text that is split, in bytes.
pub const LONGEST: usize = 1 << 20;

/// A text with characters of each length, with which a tokenizer is tried.
const SAMPLE: &str = "a B1,é日\u{301} 😀";

/// Names that the padding token has in files that do not say which one it is.
const PADDING: [&str; 3] = ["[PAD]", "<pad>", "<|pad|>"];

/// Error of a `tokenizer.json`.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("{}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        cause: std::io::Error,
    },
    /// The file is no tokenizer, or one of a kind that is not known.
    #[error("{} is not a tokenizer.json: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason, with line and column.
        message: String,
    },
}

impl TokensError {
    /// Advice.
    pub fn fix(&self) -> &'static str {
        match self {
            TokensError::Read { .. } => {
                "the path is relative to the folder of the manifest: put the model's `tokenizer.json` there"
            }
            TokensError::Invalid { .. } => {
                "take `tokenizer.json` of the model, not `tokenizer_config.json` or `vocab.txt`; if there is \
                 none, `AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)` in Python writes it"
            }
        }
    }
}

/// The tokens of one text, one value each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The tokens' numbers.
    pub ids: Vec<u32>,
    /// 1 for a token, 0 for padding.
    pub mask: Vec<u32>,
    /// The number of the part of the text that a token belongs to.
    pub types: Vec<u32>,
}

/// A tokenizer. Copies share one vocabulary, as do those that are read from equal files.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    /// Number that no other tokenizer of this process has.
    number: u64,
    /// Without truncation and padding.
    inner: tokenizers::Tokenizer,
    truncation: TruncationDirection,
    padding: Padding,
}

#[derive(Clone, Copy)]
struct Padding {
    id: u32,
    type_id: u32,
    left: bool,
}

/// The result for the text of the previous call, for models with several inputs from one text.
struct Last {
    tokenizer: u64,
    special: bool,
    limit: usize,
    text: String,
    tokens: Tokens,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Tokenizers in use, by the digests of their files: vocabularies take many megabytes.
static IN_USE: Mutex<Option<HashMap<String, Weak<Shared>>>> = Mutex::new(None);

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokensError`] if there is no such file or it is not a tokenizer.
    pub fn read(path: &Path) -> Result<Self, TokensError> {
        let bytes =
            std::fs::read(path).map_err(|cause| TokensError::Read { path: path.to_owned(), cause })?;
        let digest = sha256(&bytes);
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = in_use.get_or_insert_default();
        if let Some(shared) = in_use.get(&digest).and_then(Weak::upgrade) {
            return Ok(Self { shared });
        }
        let invalid = |message| TokensError::Invalid { path: path.to_owned(), message };
        let shared = Arc::new(Shared::parse(&bytes).map_err(invalid)?);
        in_use.retain(|_, known| known.strong_count() > 0);
        in_use.insert(digest, Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Returns the tokens of a text: the first `length`, or `most` without it, with those that the tokenizer adds at the
    /// ends if `special`. The file says whether the first or the last ones are kept. With `length` they are padded to it.
    ///
    /// # Errors
    /// [`Rejected`] if the text exceeds [`LONGEST`] (`text_too_long`) or the tokenizer has no token for a part of it
    /// (`not_tokenized`).
    pub fn encode(
        &self,
        text: &str,
        special: bool,
        most: usize,
        length: Option<usize>,
    ) -> Result<Tokens, Rejected> {
        let limit = length.unwrap_or(most);
        let mut tokens = LAST.with_borrow_mut(|last| {
            if let Some(last) = last
                && (last.tokenizer, last.special, last.limit) == (self.shared.number, special, limit)
                && last.text == text
            {
                return Ok(last.tokens.clone());
            }
            let tokens = self.shared.encode(text, special, limit)?;
            let tokenizer = self.shared.number;
            *last = Some(Last { tokenizer, special, limit, text: text.to_owned(), tokens: tokens.clone() });
            Ok(tokens)
        })?;
        if let Some(length) = length {
            self.pad(&mut tokens, length);
        }
        Ok(tokens)
    }

    /// Returns the places in the text of the tokens that [`Tokenizer::encode`] gives with a limit of `most`, without padding.
    ///
    /// # Errors
    /// See [`Tokenizer::encode`].
    pub fn parts(&self, text: &str, special: bool, most: usize) -> Result<TextParts, Rejected> {
        let encoding = self.shared.encoding(text, special, most, OffsetType::Char)?;
        let places = encoding.get_offsets().iter().zip(encoding.get_word_ids());
        let parts = places.zip(encoding.get_special_tokens_mask()).take(most);
        let parts = parts.map(|((&(start, end), &word), &is_added)| TextPart {
            start,
            end,
            word,
            is_added: is_added != 0,
        });
        Ok(TextParts { text: text.to_owned(), parts: parts.collect(), pads_left: self.pads_left() })
    }

    /// Pads tokens to `length` on the tokenizer's side; longer ones stay.
    pub fn pad(&self, tokens: &mut Tokens, length: usize) {
        let Padding { id, type_id, left } = self.shared.padding;
        let Some(missing) = length.checked_sub(tokens.ids.len()) else { return };
        for (values, padding) in [(&mut tokens.ids, id), (&mut tokens.mask, 0), (&mut tokens.types, type_id)]
        {
            let at = if left { 0 } else { values.len() };
            values.splice(at..at, std::iter::repeat_n(padding, missing));
        }
    }

    /// The padding token: the one that the file names, else one called `[PAD]` or `<pad>`, else 0.
    pub fn pad_id(&self) -> u32 {
        self.shared.padding.id
    }

    /// Type of padding; see [`Tokens::types`].
    pub fn pad_type(&self) -> u32 {
        self.shared.padding.type_id
    }

    /// Whether padding comes before the tokens.
    pub fn pads_left(&self) -> bool {
        self.shared.padding.left
    }

    /// Number of tokens that `special` adds to each text. A `length` must exceed it.
    pub fn added(&self, special: bool) -> usize {
        self.shared.added(special)
    }

    /// Number of tokens, with the special ones.
    pub fn vocabulary(&self) -> usize {
        self.shared.inner.get_vocab_size(true)
    }

    /// Number of the token of this text, such as `</s>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// Returns the text of tokens without special ones. Numbers without a token are left out.
    ///
    /// # Errors
    /// [`Rejected`] if the tokenizer's decoder refuses them (`not_decoded`).
    pub fn decode(&self, ids: &[u32]) -> Result<String, Rejected> {
        let decoded = flat(caught(|| self.shared.inner.decode(ids, true)));
        decoded.map_err(|error| Rejected::new("not_decoded", error))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("number", &self.shared.number).finish_non_exhaustive()
    }
}

impl Shared {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        // The library panics on some damaged files: on JSON that ends early, and on a damaged table of characters, in part
        // only when that is used.
        serde_json::from_slice::<serde_json::Map<_, _>>(bytes).map_err(|error| error.to_string())?;
        let mut inner = flat(caught(|| tokenizers::Tokenizer::from_bytes(bytes)))?;
        let truncation =
            inner.get_truncation().map_or(TruncationDirection::Right, |truncation| truncation.direction);
        let named = || PADDING.iter().find_map(|token| inner.token_to_id(token)).unwrap_or(0);
        let padding = match inner.get_padding() {
            Some(padding) => Padding {
                id: padding.pad_id,
                type_id: padding.pad_type_id,
                left: matches!(padding.direction, PaddingDirection::Left),
            },
            None => Padding { id: named(), type_id: 0, left: false },
        };
        // The manifest says how long texts are.
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        let read = Self { number: NUMBER.fetch_add(1, Ordering::Relaxed), inner, truncation, padding };
        caught(|| drop(read.encode_here(SAMPLE, true, LONGEST, OffsetType::None)))?; // it may have no tokens for this text
        Ok(read)
    }

    fn added(&self, special: bool) -> usize {
        let processor = self.inner.get_post_processor().filter(|_| special);
        processor.map_or(0, |processor| processor.added_tokens(false))
    }

    fn encode(&self, text: &str, special: bool, limit: usize) -> Result<Tokens, Rejected> {
        let encoding = self.encoding(text, special, limit, OffsetType::None)?;
        Ok(Tokens::of(&encoding, limit))
    }

    /// `offsets`: the unit of the tokens' places in the text.
    fn encoding(
        &self,
        text: &str,
        special: bool,
        limit: usize,
        offsets: OffsetType,
    ) -> Result<Encoding, Rejected> {
        if text.len() > LONGEST {
            let detail = format!("it has {} bytes, more than {LONGEST}", text.len());
            return Err(Rejected::new("text_too_long", detail));
        }
        let encoded = flat(caught(|| self.encode_here(text, special, limit, offsets)));
        encoded.map_err(|error| Rejected::new("not_tokenized", error))
    }

    /// The steps of [`tokenizers::TokenizerImpl::encode_fast`], with a limit of this call instead of one of the tokenizer.
    fn encode_here(
        &self,
        text: &str,
        special: bool,
        limit: usize,
        offsets: OffsetType,
    ) -> tokenizers::Result<Encoding> {
        let room = limit.saturating_sub(self.added(special));
        let known = self.inner.get_added_vocabulary();
        let mut parts = known.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        let model = self.inner.get_model();
        model.tokenize_in_pretokenized(&mut parts, Some((room, self.truncation)))?;
        let mut encoding = parts.into_encoding(None, 0, offsets)?;
        encoding.truncate(room, 0, self.truncation);
        drop(encoding.take_overflowing()); // else the processor works on what was cut off, too
        self.inner.post_process(encoding, None, special)
    }
}

/// The result of a call of the library, whose panics and errors are texts.
fn flat<T>(called: Result<tokenizers::Result<T>, String>) -> Result<T, String> {
    called.and_then(|result| result.map_err(|error| error.to_string()))
}

impl Tokens {
    fn of(encoding: &Encoding, limit: usize) -> Self {
        let first = |values: &[u32]| values.iter().take(limit).copied().collect();
        Self {
            ids: first(encoding.get_ids()),
            mask: first(encoding.get_attention_mask()),
            types: first(encoding.get_type_ids()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::sync::LazyLock;

    const ALL: usize = usize::MAX;
    const NAMES: [&str; 3] = ["wordpiece", "byte_bpe", "unigram"];

    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers").join(name)
    }

    fn tokenizer(name: &str) -> Tokenizer {
        Tokenizer::read(&file(&format!("{name}.json"))).unwrap()
    }

    fn json(name: &str) -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(file(name)).unwrap()).unwrap()
    }

    fn text(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            repeated => repeated[0].as_str().unwrap().repeat(repeated[1].as_u64().unwrap() as usize),
        }
    }

    /// The digest of `testdata/tokenizers/make.py`.
    fn summed(ids: &[u32]) -> u64 {
        let sum = |sum: u64, (at, id): (u64, &u32)| sum.wrapping_add((at + 1) * (u64::from(*id) + 1));
        (0..).zip(ids).fold(0, sum) & 0xffff_ffff
    }

    #[test]
    fn tokens_are_those_of_the_library_for_python() {
        let texts = json("texts.json");
        assert!(texts.len() >= 200);
        for name in NAMES {
            let tokenizer = tokenizer(name);
            let reference = json(&format!("{name}.ids.json"));
            assert_eq!(reference.len(), texts.len());
            for (text, row) in texts.iter().map(text).zip(&reference) {
                let shown: String = text.chars().take(40).collect();
                let first = tokenizer.encode(&text, true, 24, None).unwrap();
                assert_eq!(serde_json::to_value(&first.ids).unwrap(), row[0], "{name}: {shown:?}");
                assert_eq!(first.mask, vec![1; first.ids.len()], "{name}: {shown:?}");
                assert_eq!(first.types, vec![0; first.ids.len()], "{name}: {shown:?}");
                let all = tokenizer.encode(&text, true, ALL, None).unwrap().ids;
                let found = (all.len() as u64, summed(&all));
                assert_eq!(
                    (Some(found.0), Some(found.1)),
                    (row[1].as_u64(), row[2].as_u64()),
                    "{name}: {shown:?}"
                );
                if text.len() < 1000 {
                    let decoded = row.get(3).map_or(text.as_str(), |decoded| decoded.as_str().unwrap());
                    assert_eq!(tokenizer.decode(&all).unwrap(), decoded, "{name}: {shown:?}");
                }
            }
        }
    }

    #[test]
    fn tokens_have_places_in_the_text() {
        for name in NAMES {
            let tokenizer = tokenizer(name);
            for text in ["the street", "Zürich, 日本 \u{1F600} reads!", ""] {
                let tokens = tokenizer.encode(text, true, 512, None).unwrap();
                let all = tokenizer.parts(text, true, 512).unwrap();
                assert_eq!(all.parts.len(), tokens.ids.len(), "{name}: {text}");
                let length = text.chars().count();
                let mut end = 0;
                for part in all.parts.iter().filter(|part| !part.is_added) {
                    assert!(part.start <= part.end && part.end <= length, "{name}: {part:?}");
                    assert!(part.end >= end && part.word.is_some(), "{name}: {part:?}");
                    end = part.end;
                }
                assert_eq!(end, length, "{name}: {text}");
            }
            let cut = tokenizer.parts("the machine reads pictures", true, 4).unwrap();
            assert_eq!(cut.parts.len(), 4, "{name}");
        }
        let words = tokenizer("wordpiece").parts("the street", true, 512).unwrap();
        let places: Vec<_> = words.parts.iter().map(|part| (part.start, part.end, part.is_added)).collect();
        assert_eq!(places, [(0, 0, true), (0, 3, false), (4, 10, false), (0, 0, true)]);
    }

    #[test]
    fn texts_are_padded_on_the_side_and_with_the_token_of_the_file() {
        let wordpiece = tokenizer("wordpiece");
        let tokens = wordpiece.encode("the street", true, 512, Some(6)).unwrap();
        assert_eq!((tokens.ids[0], &tokens.ids[3..]), (2, &[3, 0, 0][..]));
        assert_eq!(tokens.mask, [1, 1, 1, 1, 0, 0]);
        assert_eq!(tokens.types, [0; 6]);
        let bytes = tokenizer("byte_bpe");
        let bare = bytes.encode("the", true, 512, None).unwrap().ids;
        let padded = bytes.encode("the", true, 512, Some(5)).unwrap();
        assert!(bytes.pads_left() && bare.len() < 5);
        assert!(padded.ids.ends_with(&bare) && padded.ids[0] == bytes.pad_id(), "{padded:?}");
        assert_eq!((padded.mask[0], padded.mask[4], padded.ids.len()), (0, 1, 5));
        let unigram = tokenizer("unigram");
        assert_eq!((unigram.pad_id(), unigram.id("<pad>"), unigram.pads_left()), (1, Some(1), false));
        assert_eq!(unigram.encode("", true, 512, Some(4)).unwrap().ids, [0, 2, 1, 1]);
    }

    #[test]
    fn truncation_keeps_the_special_tokens_at_the_ends() {
        let wordpiece = tokenizer("wordpiece");
        let whole = wordpiece.encode("the machine reads pictures", true, 512, None).unwrap().ids;
        let cut = wordpiece.encode("the machine reads pictures", true, 4, None).unwrap().ids;
        assert_eq!(cut, [2, whole[1], whole[2], 3]);
        let bare = wordpiece.encode("the machine reads pictures", false, 512, None).unwrap().ids;
        assert_eq!(bare, whole[1..whole.len() - 1]);
        assert_eq!((wordpiece.added(true), wordpiece.added(false)), (2, 0));
        for (limit, left) in [(0, vec![]), (1, vec![2]), (2, vec![2, 3])] {
            let tokens = wordpiece.encode("the machine", true, limit, None).unwrap();
            assert_eq!(tokens.ids, left);
            assert_eq!((tokens.mask.len(), tokens.types.len()), (limit, limit));
        }
        let bytes = tokenizer("byte_bpe");
        let whole = bytes.encode("the machine reads pictures", true, 512, None).unwrap().ids;
        let cut = bytes.encode("the machine reads pictures", true, 512, Some(3)).unwrap().ids;
        assert_eq!(cut, whole[whole.len() - 3..], "the file keeps the last tokens");
    }

    #[test]
    fn a_repeated_text_has_the_tokens_of_this_call() {
        let (words, bytes) = (tokenizer("wordpiece"), tokenizer("byte_bpe"));
        let all = words.encode("the street", true, 512, None).unwrap();
        assert_eq!(words.encode("the street", true, 512, None).unwrap(), all);
        assert_eq!(words.encode("the street", true, 3, None).unwrap().ids.len(), 3);
        assert_eq!(words.encode("the street", false, 3, None).unwrap().ids, all.ids[1..3]);
        assert_ne!(bytes.encode("the street", false, 3, None).unwrap().ids, all.ids[1..3]);
        assert_eq!(words.encode("the street", true, 512, Some(5)).unwrap().mask, [1, 1, 1, 1, 0]);
        assert_eq!(words.encode("the street", true, 512, None).unwrap(), all);
        assert_ne!(words.encode("the streets", true, 512, None).unwrap(), all);
    }

    #[test]
    fn equal_files_share_a_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("tokenizer.json");
        std::fs::copy(file("unigram.json"), &copy).unwrap();
        let (first, second) = (tokenizer("unigram"), Tokenizer::read(&copy).unwrap());
        assert!(Arc::ptr_eq(&first.shared, &second.shared));
        assert!(!Arc::ptr_eq(&first.shared, &tokenizer("wordpiece").shared));
    }

    #[test]
    fn long_texts_are_rejected() {
        let tokenizer = tokenizer("byte_bpe");
        let text = "word ".repeat(LONGEST / 5);
        assert_eq!(tokenizer.encode(&text, true, 8, None).unwrap().ids.len(), 8);
        let rejected = tokenizer.encode(&(text + "words"), true, 8, None).unwrap_err();
        let detail = format!("it has {} bytes, more than {LONGEST}", LONGEST / 5 * 5 + 5);
        assert_eq!(rejected, Rejected::new("text_too_long", detail));
    }

    #[test]
    fn damaged_files_are_errors_with_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let missing = Tokenizer::read(&path).unwrap_err();
        assert!(matches!(&missing, TokensError::Read { path: found, .. } if *found == path), "{missing}");
        for name in NAMES {
            let whole = std::fs::read(file(&format!("{name}.json"))).unwrap();
            let end = whole.iter().rposition(|byte| *byte == b'}').unwrap();
            for length in (0..=end).step_by(end / 40) {
                let text = invalid(&path, &whole[..length]);
                assert!(text.contains("line 1 column"), "{text}");
            }
        }
        invalid(&path, br#"{"version": "1.0", "model": {"type": "Other"}}"#);
        invalid(&path, b"[1, 2]");
        let whole = std::fs::read_to_string(file("unigram.json")).unwrap();
        let (before, after) = whole.split_once("precompiled_charsmap\":\"").unwrap();
        let after = &after[after.find('"').unwrap()..];
        // The last one is read, and fails where it is used.
        for table in ["", "AAQAAAAgAAA", "////AAAA", "BAAAAP///38="] {
            let text = format!("{before}precompiled_charsmap\":\"{table}{after}");
            assert!(invalid(&path, text.as_bytes()).contains("panic"), "{table}");
        }
    }

    /// The message for a file with these bytes.
    fn invalid(path: &Path, bytes: &[u8]) -> String {
        std::fs::write(path, bytes).unwrap();
        let error = Tokenizer::read(path).unwrap_err();
        assert!(matches!(error, TokensError::Invalid { .. }), "{error}");
        assert!(error.fix().contains("tokenizer_config.json"));
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        text
    }

    #[test]
    fn numbers_without_a_token_are_left_out_of_a_text() {
        let words = tokenizer("wordpiece");
        let mut ids = words.encode("the street", true, 512, Some(8)).unwrap().ids;
        ids.extend([u32::MAX, 1_000_000]);
        assert_eq!(words.decode(&ids).unwrap(), "the street");
        assert_eq!(words.decode(&[]).unwrap(), "");
    }

    proptest! {
        #[test]
        fn any_text_has_tokens(
            text in any::<String>(), blanks in "\\s{0,20}", times in 1..20_usize, limit in 0..40_usize,
        ) {
            static TOKENIZERS: LazyLock<[Tokenizer; 3]> = LazyLock::new(|| NAMES.map(tokenizer));
            let text = format!("{text}{blanks}").repeat(times);
            for tokenizer in TOKENIZERS.iter() {
                let all = tokenizer.encode(&text, true, ALL, None).unwrap();
                prop_assert_eq!((all.mask.len(), all.types.len()), (all.ids.len(), all.ids.len()));
                let cut = tokenizer.encode(&text, true, limit, None).unwrap();
                prop_assert_eq!(cut.ids.len(), limit.min(all.ids.len()));
                let padded = tokenizer.encode(&text, true, limit, Some(limit)).unwrap();
                prop_assert_eq!(padded.ids.len(), limit);
                tokenizer.decode(&all.ids).unwrap();
            }
        }
    }
}
