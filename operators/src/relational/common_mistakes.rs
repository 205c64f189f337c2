//! Common mistakes: constructs of other languages, and their counterparts in expressions.

/// Words and signs of other languages, and their counterparts.
const SIGNS: &[(&str, &str)] = &[
    ("and", "&&"),
    ("or", "||"),
    ("not", "!"),
    ("=", "=="),
    ("===", "=="),
    ("<>", "!="),
    ("=>", ">="),
    ("=<", "<="),
    ("&", "&&"),
    ("|", "||"),
    ("is not", "!="),
    ("is", "=="),
    ("none", "null"),
    ("nil", "null"),
    ("true", "true"),
    ("false", "false"),
    ("null", "null"),
];

/// Functions of other languages, and their counterparts.
const FUNCTIONS: &[(&str, &str)] = &[
    ("len", "size(x)"),
    ("length", "size(x)"),
    ("abs", "math.abs(x)"),
    ("ceil", "math.ceil(x)"),
    ("floor", "math.floor(x)"),
    ("round", "math.round(x)"),
    ("lower", "x.lowerAscii()"),
    ("upper", "x.upperAscii()"),
    ("strip", "x.trim()"),
    ("startswith", "x.startsWith('...')"),
    ("starts_with", "x.startsWith('...')"),
    ("endswith", "x.endsWith('...')"),
    ("ends_with", "x.endsWith('...')"),
    ("includes", "x.contains('...')"),
    ("float", "double(x)"),
    ("str", "string(x)"),
    ("substr", "x.substring(from, to)"),
    ("topk", "top_k(t, 5)"),
    ("avg", "mean(t)"),
    ("average", "mean(t)"),
    ("l2_norm", "norm(t)"),
    ("euclidean", "distance(a, b)"),
    ("cosine_similarity", "cosine(a, b)"),
    ("arg_max", "argmax(t)"),
    ("arg_min", "argmin(t)"),
];

/// Returns the name that a function of another language has here.
pub(super) fn function(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    FUNCTIONS.iter().find(|(other, _)| *other == name).map(|(_, ours)| format!("write `{ours}`"))
}

/// Returns the constant probably meant by a name that is no column.
pub(super) fn constant(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let found = SIGNS.iter().find(|(other, ours)| *other == lower && ours.chars().all(char::is_alphabetic));
    found.map(|(_, ours)| *ours)
}

/// A piece of an expression.
enum Piece<'a> {
    /// A quoted text, blanks, a number or a bracket; kept as it is.
    Other(&'a str),
    /// A word or a run of signs.
    Token(&'a str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let sign = |c: char| "=<>&|!".contains(c);
        let end = |fits: &dyn Fn(char) -> bool| rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let (length, token) = if first == '\'' || first == '"' {
            (rest[1..].find(first).map_or(rest.len(), |at| at + 2), false)
        } else if first.is_alphabetic() || first == '_' {
            (end(&|c| c.is_alphanumeric() || c == '_'), true)
        } else if sign(first) {
            (end(&sign), true)
        } else if first.is_ascii_digit() {
            (end(&|c| c.is_ascii_alphanumeric() || c == '.'), false)
        } else {
            (first.len_utf8(), false)
        };
        let (piece, after) = rest.split_at(length);
        all.push(if token { Piece::Token(piece) } else { Piece::Other(piece) });
        rest = after;
    }
    all
}

/// Returns the correction of an expression that does not parse, if one is found, and the words that were replaced.
pub(super) fn corrected(text: &str) -> Option<(String, Vec<(String, String)>)> {
    if let Some(choice) = choice(text) {
        return Some((choice, vec![("if ... then ... else".into(), "c ? a : b".into())]));
    }
    let (mut out, mut changes) = (String::new(), Vec::new());
    let mut all = pieces(text).into_iter().peekable();
    while let Some(piece) = all.next() {
        let token = match piece {
            Piece::Other(other) => {
                out.push_str(other);
                continue;
            }
            Piece::Token(token) => token,
        };
        let lower = token.to_ascii_lowercase();
        match SIGNS.iter().find(|(other, ours)| *other == lower && *ours != token) {
            Some((_, ours)) => {
                changes.push((token.to_owned(), (*ours).to_owned()));
                out.push_str(ours);
                // `not ok` becomes `!ok`, and `is not` one sign.
                let blank = matches!(all.peek(), Some(Piece::Other(other)) if other.trim().is_empty());
                if *ours == "!" && blank {
                    all.next();
                }
            }
            None => out.push_str(token),
        }
    }
    // `x is not null` was turned into `x == !null`.
    let out = out.replace("== !null", "!= null");
    (!changes.is_empty()).then_some((out, changes))
}

/// Turns `if c then a else b` into `c ? a : b`.
fn choice(text: &str) -> Option<String> {
    let rest = text.trim().strip_prefix("if ")?;
    let (condition, rest) = rest.split_once(" then ")?;
    let (a, b) = rest.split_once(" else ")?;
    Some(format!("{} ? {} : {}", condition.trim(), a.trim(), b.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_other_languages() {
        for (theirs, ours) in [
            ("ok and celsius > 20", "ok && celsius > 20"),
            ("ok OR site == 'and'", "ok || site == 'and'"),
            ("not ok", "!ok"),
            ("site = 'a = b'", "site == 'a = b'"),
            ("site <> 'hall'", "site != 'hall'"),
            ("n => 2 & n =< 4", "n >= 2 && n <= 4"),
            ("site is null", "site == null"),
            ("site is not None", "site != null"),
            ("if ok then 1 else 2", "ok ? 1 : 2"),
        ] {
            assert_eq!(corrected(theirs).unwrap().0, ours);
        }
        assert!(corrected("ok && site == 'not'").is_none());
        assert!(corrected("").is_none());
    }

    #[test]
    fn names_of_other_languages() {
        assert_eq!(constant("True"), Some("true"));
        assert_eq!(constant("None"), Some("null"));
        assert_eq!(constant("and"), None);
        assert_eq!(function("len").as_deref(), Some("write `size(x)`"));
        assert_eq!(function("size"), None);
    }
}
