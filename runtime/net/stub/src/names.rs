//! Names of Rust for names of .proto files.

/// Words that are no names unless they have `r#` before them.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait",
    "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Names that the code itself uses; a type with one of them gets an underscore.
const USED: &[&str] = &[
    "Arc",
    "BTreeMap",
    "Box",
    "Clone",
    "Debug",
    "Default",
    "Err",
    "From",
    "Future",
    "Into",
    "None",
    "Ok",
    "Option",
    "PartialEq",
    "Result",
    "Self",
    "Send",
    "Some",
    "String",
    "Sync",
    "Vec",
];

/// Splits a name into words: at underscores, and where a large letter begins a word.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = Vec::new();
    let mut word = String::new();
    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| letters.get(before));
        let after = letters.get(index + 1);
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || before.is_uppercase() && after.is_some_and(|after| after.is_lowercase())
            });
        if (*letter == '_' || begins) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if *letter != '_' {
            word.push(*letter);
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Makes the name of a field, a function or a module.
pub(crate) fn snake(name: &str) -> String {
    let joined = words(name).join("_").to_lowercase();
    match joined.as_str() {
        "" => "_0".to_owned(),
        "self" | "super" | "crate" => format!("{joined}_"),
        word if KEYWORDS.contains(&word) => format!("r#{joined}"),
        word if word.starts_with(|letter: char| letter.is_ascii_digit()) => format!("_{joined}"),
        _ => joined,
    }
}

/// Makes the name of a type or of a member of an enum.
pub(crate) fn camel(name: &str) -> String {
    let mut joined = String::new();
    for word in words(name) {
        let mut letters = word.chars();
        joined.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        joined.push_str(&letters.as_str().to_lowercase());
    }
    let is_number = joined.starts_with(|letter: char| letter.is_ascii_digit());
    if joined.is_empty() || is_number {
        return format!("_{joined}");
    }
    if USED.contains(&joined.as_str()) { format!("{joined}_") } else { joined }
}

/// Makes the name of a constant.
pub(crate) fn shout(name: &str) -> String {
    words(name).join("_").to_uppercase()
}

/// Makes the names of an enum's values, without the name of the enum before them if all have it.
pub(crate) fn values(name: &str, values: &[&str]) -> Vec<String> {
    let prefix = format!("{}_", shout(name));
    let all: Vec<String> = values.iter().map(|value| shout(value)).collect();
    let shorter: Vec<&str> = all.iter().filter_map(|value| value.strip_prefix(&prefix)).collect();
    let is_name = |value: &&str| value.starts_with(|letter: char| letter.is_ascii_alphabetic());
    if shorter.len() == all.len() && shorter.iter().all(is_name) {
        shorter.into_iter().map(str::to_owned).collect()
    } else {
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{camel, shout, snake, values};

    #[test]
    fn names_are_those_of_prost() {
        for (name, expected) in [
            ("fooBar", "foo_bar"),
            ("HTTPServer", "http_server"),
            ("v1Beta", "v1_beta"),
            ("type", "r#type"),
            ("self", "self_"),
            ("__odd__", "odd"),
        ] {
            assert_eq!(snake(name), expected);
        }
        assert_eq!(camel("get_request"), "GetRequest");
        assert_eq!(camel("HTTPServer"), "HttpServer");
        assert_eq!(camel("Option"), "Option_");
        assert_eq!(shout("fooBar"), "FOO_BAR");
    }

    #[test]
    fn values_lose_the_name_of_their_enum() {
        assert_eq!(values("Color", &["COLOR_RED", "COLOR_BLUE"]), ["RED", "BLUE"]);
        assert_eq!(values("Color", &["COLOR_RED", "BLUE"]), ["COLOR_RED", "BLUE"]);
        assert_eq!(values("Size", &["SIZE_1", "SIZE_2"]), ["SIZE_1", "SIZE_2"]);
    }
}
