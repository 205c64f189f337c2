//! Writes HTML and SVG that is also well-formed XML: everything is escaped, everything opened is closed.
//!
//! Elements without content are written `<name/>`, which HTML accepts only for its void elements (`img`, `meta`) and
//! for SVG: others need [`Markup::element`].
use std::fmt::{self, Display, Write};

/// Text of a document under construction.
#[derive(Debug, Clone, Default)]
pub struct Markup {
    text: String,
}

/// An attribute: name and value.
pub type Attribute<'a> = (&'static str, &'a dyn Display);

impl Markup {
    /// Creates an empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes an element with the output of `content`.
    pub fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        content: impl FnOnce(&mut Self),
    ) {
        self.open(name, attributes);
        self.text.push('>');
        content(self);
        let _ = write!(self.text, "</{name}>");
    }

    /// Writes an element with a text.
    pub fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.element(name, attributes, |inner| inner.text(text));
    }

    /// Writes an element that cannot have content.
    pub fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.open(name, attributes);
        self.text.push_str("/>");
    }

    /// Writes escaped text.
    pub fn text(&mut self, text: &str) {
        escape(text, &mut self.text);
    }

    /// Writes a line break in the source, for readers.
    pub fn break_line(&mut self) {
        self.text.push('\n');
    }

    /// Writes text of this program as it is: style sheets, the document type.
    pub fn verbatim(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// Inserts other markup.
    pub fn nest(&mut self, other: &Markup) {
        self.text.push_str(&other.text);
    }

    /// Returns the document.
    pub fn finish(self) -> String {
        self.text
    }

    fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        let _ = write!(self.text, "<{name}");
        for (key, value) in attributes {
            let _ = write!(self.text, " {key}=\"");
            escape(&value.to_string(), &mut self.text);
            self.text.push('"');
        }
    }
}

/// A number with at most one decimal place.
#[derive(Debug, Clone, Copy)]
pub struct Short(pub f64);

impl Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round();
        if tenths % 10.0 == 0.0 {
            write!(f, "{}", tenths / 10.0 + 0.0)
        } else {
            write!(f, "{:.1}", tenths / 10.0)
        }
    }
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(character),
            // XML does not allow them, not even escaped.
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_written_is_read_again(text in any::<String>(), value in any::<String>()) {
            let mut markup = Markup::new();
            markup.element("p", &[("title", &value)], |inner| {
                inner.text(&text);
                inner.empty("br", &[]);
            });
            let written = markup.finish();
            let document = roxmltree::Document::parse(&written).unwrap();
            let read = |text: &str| -> String {
                let legal = |c: char| matches!(c, '\t' | '\n') || !(c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}'));
                text.chars().map(|c| if legal(c) { c } else { '\u{FFFD}' }).collect()
            };
            let root = document.root_element();
            prop_assert_eq!(root.children().filter(|node| node.is_element()).count(), 1);
            prop_assert_eq!(root.text().unwrap_or_default(), read(&text));
            // In attributes, XML reads line breaks and tabs as spaces.
            let spaces = |text: &str| text.replace(['\t', '\n'], " ");
            prop_assert_eq!(spaces(root.attribute("title").unwrap()), spaces(&read(&value)));
        }
    }

    #[test]
    fn numbers_are_short() {
        let texts = [1.0, 0.04, -0.01, 12.345].map(|number| Short(number).to_string());
        assert_eq!(texts, ["1", "0", "0", "12.3"]);
    }
}
