//! The edges of a policy: `from -> to`, where `*` is any.
use super::Home;
use crate::deserializer::coded;
use crate::identifier;
use crate::span::Span;
use std::fmt;

const HELP: &str = "write `FROM -> TO` with ids, such as `cameras -> detect`; `*` in place of an id is any, and `\"*\"` alone all edges";

/// A pattern of edges, by the ids of sources, operators and sinks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct EdgePattern {
    /// The sending source or operator; none: any.
    pub from: Option<String>,
    /// The receiving operator or sink; none: any.
    pub to: Option<String>,
}

impl EdgePattern {
    /// Whether it includes this edge.
    pub fn includes(&self, from: &str, to: &str) -> bool {
        includes(self.from.as_deref(), self.to.as_deref(), from, to)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// A text with message and help, for the deserializer.
    pub(super) fn parse(text: &str, home: Home) -> Result<Self, String> {
        let shown: String = text.chars().take(60).collect();
        let is_none = || coded(home.code(), format!("`{shown}` is no edge"), HELP);
        if text.trim() == "*" {
            return Ok(Self::default());
        }
        let (from, to) = text.split_once("->").ok_or_else(is_none)?;
        let end = |text: &str| match text.trim() {
            "*" => Ok(None),
            id if id.is_empty() || id.contains("->") => Err(is_none()),
            id => match identifier::wrong(id, "") {
                Some((message, help)) => Err(coded(home.code(), message, help)),
                None => Ok(Some(id.to_owned())),
            },
        };
        Ok(Self { from: end(from)?, to: end(to)? })
    }
}

/// Whether a pattern of this sender and receiver includes an edge.
pub(crate) fn includes(pattern_from: Option<&str>, pattern_to: Option<&str>, from: &str, to: &str) -> bool {
    pattern_from.is_none_or(|id| id == from) && pattern_to.is_none_or(|id| id == to)
}

impl fmt::Display for EdgePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from.as_deref(), self.to.as_deref()) {
            (None, None) => f.write_str("*"),
            (from, to) => write!(f, "{} -> {}", from.unwrap_or("*"), to.unwrap_or("*")),
        }
    }
}

/// End of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    From,
    To,
}

/// Returns the place of an id in the text of an edge, so that errors point at it and not at the whole edge.
pub(crate) fn place(edge: &Span, end: End, id: &str) -> Span {
    let found = || {
        let text = edge.text()?;
        let start = match end {
            End::From => 0,
            End::To => text.find("->")? + 2,
        };
        let start = edge.range().start + start + text[start..].find(id)?;
        Some(Span::new(edge.source()?, start, start + id.len()))
    };
    found().unwrap_or_else(|| edge.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::SourceFile;

    fn parsed(text: &str) -> EdgePattern {
        EdgePattern::parse(text, Home::Workflow).expect("is right")
    }

    #[test]
    fn a_star_is_any() {
        for (pattern, edges) in [
            ("*", [true, true, true]),
            ("* -> *", [true, true, true]),
            ("a -> *", [true, false, true]),
            (" *->c ", [false, true, true]),
            ("a->c", [false, false, true]),
        ] {
            let own =
                [("a", "b"), ("b", "c"), ("a", "c")].map(|(from, to)| parsed(pattern).includes(from, to));
            assert_eq!(own, edges, "{pattern}");
        }
    }

    #[test]
    fn printed_edges_are_read_again() {
        for (text, printed) in
            [("*", "*"), ("* -> *", "*"), ("a->b", "a -> b"), ("a -> *", "a -> *"), ("*->b", "* -> b")]
        {
            assert_eq!(parsed(text).to_string(), printed);
            assert_eq!(parsed(printed), parsed(text));
        }
    }

    #[test]
    fn other_texts_are_no_edges() {
        for text in ["", "a", "a -> ", "-> b", "a => b", "a -> b -> c", "A -> b", "a -> b c", "a -> **"] {
            let error = EdgePattern::parse(text, Home::Infrastructure).expect_err(text);
            assert!(error.starts_with("[E0317] `") && error.contains("\nhelp: "), "{error}");
        }
    }

    #[test]
    fn the_place_of_an_id_is_within_the_edge() {
        let source = SourceFile::new("w", "edge: 'a -> ab'\n");
        let edge = Span::new(&source, 6, 15);
        assert_eq!(place(&edge, End::From, "a").column(), Some(8));
        assert_eq!(place(&edge, End::To, "ab").text(), Some("ab"));
        // An escape hides it.
        assert_eq!(place(&edge, End::To, "c").column(), edge.column());
    }
}
