//! Quoting of shell words.

/// Quotes a word for a shell; a plain one is unchanged.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("a/b:c"), "a/b:c");
        assert_eq!(["", "a b", "it's", "$HOME"].map(quoted), ["''", "'a b'", r"'it'\''s'", "'$HOME'"]);
    }
}
