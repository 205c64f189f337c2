//! Explains text that is not YAML: the library names the broken rule, users need the correction. Looks at the lines
//! around the place for the usual mistakes; where none is found, the library's words stay.
use crate::diagnostic::Diagnostic;
use crate::span::{SourceFile, Span};
use serde_saphyr::granit_parser::ErrorKind as Slip;
use std::sync::Arc;

/// A line of the file.
#[derive(Clone, Copy)]
struct Line<'a> {
    /// Counted from 1.
    number: usize,
    /// Byte at which it starts.
    start: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn content(&self) -> &'a str {
        self.text.trim_start()
    }

    fn indent(&self) -> usize {
        self.text.len() - self.content().len()
    }

    fn is_blank(&self) -> bool {
        let content = self.content();
        content.is_empty() || content.starts_with('#')
    }

    /// Column of the first key after all `- `, counted from 1, and that key.
    fn key(&self) -> Option<(usize, &'a str)> {
        let mut rest = self.content();
        while let Some(item) = rest.strip_prefix("- ") {
            rest = item.trim_start();
        }
        let key = rest.split(':').next()?.trim_end();
        let plain = !key.is_empty() && key.len() < rest.len() && !key.contains([' ', '{', '[', '"', '\'']);
        plain.then(|| (self.text.len() - rest.len() + 1, key))
    }

    fn is_item(&self) -> bool {
        self.content().starts_with("- ")
    }
}

/// The error at `place` in better words than `message`, the library's.
pub(super) fn explained(
    slip: Option<&Slip>,
    message: &str,
    place: Span,
    source: &Arc<SourceFile>,
) -> Diagnostic {
    let mut start = 0;
    let mut lines = Vec::new();
    for (index, text) in source.text().split_inclusive('\n').enumerate() {
        lines.push(Line { number: index + 1, start, text: text.trim_end_matches(['\n', '\r']) });
        start += text.len();
    }
    let at = place.range().start;
    let index = lines.iter().rposition(|line| line.start <= at).unwrap_or(0);
    let look = Look { slip, at, lines: &lines, index, source };
    let found = look.tab().or_else(|| look.colon()).or_else(|| look.indentation());
    let found = found.or_else(|| look.no_colon()).or_else(|| look.flow()).or_else(|| look.star());
    let found = found.or_else(|| look.quotes()).or_else(|| look.open_above());
    found.unwrap_or_else(|| {
        Diagnostic::error("E0101", format!("this is not YAML: {message}"))
            .with_help("check indentation, quotes and brackets just before this place")
            .at(place)
    })
}

struct Look<'a> {
    /// The broken rule.
    slip: Option<&'a Slip>,
    at: usize,
    lines: &'a [Line<'a>],
    /// The line of the place.
    index: usize,
    source: &'a Arc<SourceFile>,
}

impl<'a> Look<'a> {
    fn line(&self) -> Option<Line<'a>> {
        self.lines.get(self.index).copied()
    }

    /// Bytes of the place's line before the place.
    fn within(&self, line: &Line<'_>) -> usize {
        self.at.saturating_sub(line.start).min(line.text.len())
    }

    fn before(&self) -> impl Iterator<Item = Line<'a>> {
        self.lines[..self.index].iter().rev().copied().filter(|line| !line.is_blank())
    }

    fn span(&self, line: &Line<'_>, from: usize, to: usize) -> Span {
        Span::new(self.source, line.start + from, line.start + to)
    }

    /// The library notices a tab a line too early or not at all, so the neighbours are checked too.
    fn tab(&self) -> Option<Diagnostic> {
        let near = self.lines.iter().skip(self.index.saturating_sub(1)).take(3);
        let line = near.copied().find(|line| line.text[..line.indent()].contains('\t'))?;
        let from = line.text.find('\t')?;
        Some(
            Diagnostic::error("E0101", "this line is indented with a tab; YAML allows only spaces")
                .at(self.span(&line, from, line.indent()))
                .with_help("use spaces instead; most editors have a setting to insert them for Tab"),
        )
    }

    /// A colon where the value before it continues.
    fn colon(&self) -> Option<Diagnostic> {
        if self.slip != Some(&Slip::MappingValueNotAllowed) {
            return None;
        }
        let line = self.line()?;
        let (column, key) = line.key()?;
        if column - 1 + key.len() != self.within(&line) {
            // `where: a ? b : c`: the second colon of the line.
            return Some(self.quote(&line, "a text with `: ` in it needs quotes"));
        }
        let above = self.before().next()?;
        if let Some((first, rest)) = above.content().trim_start_matches("- ").split_once(':')
            && !first.contains(' ')
            && !rest.is_empty()
            && !rest.starts_with(' ')
        {
            let from = above.text.len() - first.len() - rest.len() - 1;
            return Some(
                Diagnostic::error("E0101", format!("there is no space after the colon of `{first}`"))
                    .at(self.span(&above, from, above.text.len()))
                    .with_help(format!("write `{first}: {}`", rest.trim())),
            );
        }
        let (column_above, key_above) = above.key()?;
        (column > column_above).then(|| {
            Diagnostic::error("E0101", format!("`{key}` is indented further than `{key_above}` above it"))
                .at(self.span(&line, column - 1, column - 1 + key.len()))
                .with_help(format!(
                    "keys that belong together start at the same column: start `{key}` at column {column_above}, as \
                     `{key_above}` in line {}",
                    above.number
                ))
        })
    }

    /// A line that starts at a column where no line above it starts.
    fn indentation(&self) -> Option<Diagnostic> {
        if !matches!(self.slip, Some(Slip::ExpectedBlockMappingKey | Slip::ExpectedBlockSequenceEntry)) {
            return None;
        }
        let line = self.line()?;
        let (column, key) = line.key().filter(|_| !line.is_item())?;
        if self.within(&line) != line.indent() {
            return None;
        }
        let (mut places, mut lowest) = (Vec::new(), usize::MAX);
        for above in self.before() {
            let Some((place, name)) = above.key() else { continue };
            if place < lowest && place != column {
                places.push((place, name, above.number));
            }
            lowest = lowest.min(above.indent() + 1);
        }
        places.sort_by_key(|(place, _, _)| place.abs_diff(column));
        let place_text =
            |(place, name, number): &(usize, &str, usize)| format!("{place} (as `{name}` in line {number})");
        let mut help: Vec<String> = places.iter().take(2).map(place_text).collect();
        if help.is_empty() {
            return None;
        }
        let an_item = self.before().any(|above| above.is_item() && above.indent() + 1 == column);
        let message = match an_item {
            true => format!("`{key}` starts where a new item would, but has no `- ` before it"),
            false => format!("`{key}` starts at column {column}, where nothing above it starts"),
        };
        if an_item {
            help.truncate(1);
        }
        let more = if an_item { ", or write `- ` before it to start an item" } else { "" };
        Some(
            Diagnostic::error("E0101", message)
                .at(self.span(&line, column - 1, column - 1 + key.len()))
                .with_help(format!("start it at column {}{more}", help.join(" or "))),
        )
    }

    fn no_colon(&self) -> Option<Diagnostic> {
        if self.slip != Some(&Slip::SimpleKeyExpected) {
            return None;
        }
        let line = self.line()?;
        let content = line.content().trim_start_matches("- ");
        let (key, rest) = content.split_once(' ').unwrap_or((content, "..."));
        Some(
            Diagnostic::error("E0101", format!("there is no colon after `{key}`"))
                .at(self.span(&line, line.text.len() - content.len(), line.text.len()))
                .with_help(format!("write `{key}: {}`", rest.trim())),
        )
    }

    /// Inside `{...}` or `[...]`.
    fn flow(&self) -> Option<Diagnostic> {
        let line = self.line()?;
        let unclosed = match self.slip {
            Some(Slip::UnclosedFlowCollection { .. }) => true,
            Some(Slip::MismatchedFlowCollectionEnd { .. }) => return self.open(self.source.text().len()),
            Some(Slip::ExpectedFlowMappingSeparator | Slip::ExpectedFlowSequenceSeparator) => false,
            _ => return None,
        };
        let before = &line.text[..self.within(&line)];
        if !unclosed && line.text[self.within(&line)..].starts_with(':') && before.contains(": ") {
            let no_comma = self.no_comma(&line, before);
            return no_comma.or_else(|| Some(self.quote(&line, "a text with `: ` in it needs quotes")));
        }
        if let Some(at) = line.text.find("${") {
            let place = self.span(&line, at, at + 2);
            return Some(
                Diagnostic::error("E0101", "a `${` inside `{...}` needs quotes")
                    .at(place)
                    .with_help("put quotes around the whole text, such as `path: \"${HOME}/answers.jsonl\"`"),
            );
        }
        self.open(if unclosed { self.source.text().len() } else { self.at })
    }

    /// `{a: 1 b: 2}`: a word and a colon where the value before it continues.
    fn no_comma(&self, line: &Line<'_>, before: &str) -> Option<Diagnostic> {
        let entry = before.rsplit([',', '{', '[']).next()?;
        let (_, value) = entry.split_once(": ")?;
        let (value, key) = value.trim_start().rsplit_once(' ')?;
        let is_word = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
        if key.is_empty() || !is_word(key) || !is_word(value.trim()) {
            return None;
        }
        let at = before.len() - key.len();
        Some(
            Diagnostic::error("E0101", format!("there is no comma before `{key}`"))
                .at(self.span(line, at, before.len()))
                .with_help(format!(
                    "write `{}, {key}: ...`, or put quotes around a text that has `: ` in it",
                    value.trim()
                )),
        )
    }

    /// A bracket of an earlier line, and the invalid content in it.
    fn open_above(&self) -> Option<Diagnostic> {
        if !matches!(self.slip?, Slip::InvalidColonPlacement | Slip::BlockEntryInFlowCollection) {
            return None;
        }
        let line = self.line()?;
        let (at, _) = open_bracket(self.source.text().get(..self.at)?)?;
        (at < line.start).then(|| self.open(self.at)).flatten()
    }

    fn open(&self, end: usize) -> Option<Diagnostic> {
        let (at, bracket) = open_bracket(self.source.text().get(..end)?)?;
        let closing = if bracket == '{' { '}' } else { ']' };
        let opened = Span::new(self.source, at, at + 1);
        let number = opened.line().unwrap_or(1);
        Some(
            Diagnostic::error("E0101", format!("a `{bracket}` is not closed"))
                .at(opened)
                .with_help(format!("write `{closing}` where it ends, probably in line {number}")),
        )
    }

    /// `edge: * -> detect`: the star is taken for the start of an alias.
    fn star(&self) -> Option<Diagnostic> {
        let line = self.line().filter(|_| self.slip == Some(&Slip::MissingAnchorOrAliasName))?;
        let from = line.text.get(..=self.within(&line))?.rfind('*')?;
        let rest = &line.text[from..];
        let is_in_flow = line.text[..from].contains(['{', '[']);
        let end = rest.find([',', '}', ']']).filter(|_| is_in_flow).unwrap_or(rest.len());
        let text = rest[..end].trim_end();
        Some(
            Diagnostic::error("E0101", "a text that starts with `*` needs quotes around the whole of it")
                .at(self.span(&line, from, from + text.len()))
                .with_help(format!("write `\"{text}\"`")),
        )
    }

    /// Texts that YAML misreads by their first character.
    fn quotes(&self) -> Option<Diagnostic> {
        let line = self.line()?;
        if matches!(self.slip, Some(Slip::DocumentIndicatorInQuotedScalar | Slip::InvalidQuotedScalarIndent))
        {
            let above = self.before().next()?;
            return Some(
                Diagnostic::error("E0101", "a quote is not closed")
                    .at(self.span(&above, above.indent(), above.text.len()))
                    .with_help("write the second quote where the text ends"),
            );
        }
        let is_special = matches!(
            self.slip?,
            Slip::UnknownAnchor
                | Slip::UnexpectedCharacter { .. }
                | Slip::InvalidTrailingSingleQuotedScalar
                | Slip::InvalidTrailingDoubleQuotedScalar
        );
        if !is_special {
            return None;
        }
        let value = line.key().map(|(column, key)| line.text[column - 1 + key.len() + 1..].trim())?;
        let first = value.chars().next()?;
        Some(
            self.quote(
                &line,
                &format!("a text that starts with `{first}` needs quotes around the whole of it"),
            ),
        )
    }

    /// Advice to quote the value of a line.
    fn quote(&self, line: &Line<'_>, why: &str) -> Diagnostic {
        let (from, key, value) = match line.key().filter(|_| !line.text.contains('{')) {
            Some((column, key)) => {
                let value = line.text[column + key.len()..].trim();
                (line.text.len() - value.len(), key, value)
            }
            None => (self.within(line), "", ""),
        };
        let help = match value {
            "" => "such as `where: \"a ? b : c\"`".to_owned(),
            value if value.contains('"') => format!("write `{key}: '{}'`", value.replace('\'', "''")),
            value => format!("write `{key}: \"{value}\"`"),
        };
        Diagnostic::error("E0101", why.to_owned())
            .at(self.span(line, from, line.text.len().max(from)))
            .with_help(help)
    }
}

/// The first bracket closed by the wrong one, else the innermost one open at the end of the text, ignoring quotes and
/// comments.
fn open_bracket(text: &str) -> Option<(usize, char)> {
    let mut open: Vec<(usize, char)> = Vec::new();
    let (mut quote, mut comment, mut previous) = (None, false, '\n');
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if comment => comment = c != '\n',
            (Some(q), c) if c == q => quote = None,
            (Some(_), '\n') => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if !previous.is_alphanumeric() => quote = Some(c),
            (None, '#') if previous.is_whitespace() => comment = true,
            (None, '{' | '[') => open.push((at, c)),
            (None, '}' | ']') => {
                let last = open.pop();
                if last.is_some_and(|(_, bracket)| (bracket == '{') != (c == '}')) {
                    return last;
                }
            }
            _ => {}
        }
        previous = c;
    }
    open.pop()
}

/// `where: !ok`: the library takes the word for a tag and drops it.
pub(super) fn dropped_tag(span: &Span) -> Option<Diagnostic> {
    let source = span.source()?;
    let start = span.range().start;
    let before = source.text().get(..start)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = &before[line_start..];
    let at = line.rfind(" !").map(|at| at + 1)?;
    // Only the tag and, for `!a && b`, the apparent anchor may precede the value.
    let mut words = line[at..].split_whitespace();
    let tag = words.next()?;
    if tag.len() < 2
        || tag.starts_with("!!")
        || tag.ends_with(':') // the end of a key
        || tag.contains(['"', '\''])
        || !words.all(|w| w.starts_with('&'))
    {
        return None;
    }
    let end = source.text()[line_start..].find('\n').map_or(source.text().len(), |end| line_start + end);
    let end = if line.contains('{') { span.range().end } else { end };
    let whole = source.text().get(line_start + at..end)?.trim_end();
    Some(
        Diagnostic::error("E0101", "a text that starts with `!` needs quotes around the whole of it")
            .at(Span::new(source, line_start + at, line_start + at + whole.len()))
            .with_help(format!("write `\"{whole}\"`")),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use crate::span::SourceFile;
    use crate::yaml::parse;

    /// The finding about a text: line, column, message and help.
    fn said(text: &str) -> (usize, usize, String, String) {
        let errors = parse(&SourceFile::new("w.yaml", text)).unwrap_err();
        let first = errors.iter().next().unwrap();
        let help = first.help.clone().unwrap_or_default();
        (first.line().unwrap(), first.column().unwrap(), first.message.clone(), help)
    }

    #[test]
    fn a_key_may_end_with_an_exclamation_mark() {
        assert!(parse(&SourceFile::new("w.yaml", "a:\n  A !: null\n")).is_ok());
    }

    #[test]
    fn usual_slips_are_named() {
        let list = "operators:\n  - id: good\n    kind: filter\n";
        for (from, to, place, message, help) in [
            ("    kind", "   kind", (3, 4), "column 4, where nothing above it starts", "column 5 (as `id`"),
            (
                "    kind",
                "  kind",
                (3, 3),
                "starts where a new item would",
                "column 5 (as `id` in line 2), or",
            ),
            ("    kind", "      kind", (3, 7), "indented further than `id`", "column 5, as `id` in line 2"),
            ("    kind", "\tkind", (3, 1), "indented with a tab", "use spaces instead"),
            ("id: good", "id:good", (2, 5), "no space after the colon of `id`", "write `id: good`"),
            ("kind: filter", "kind filter", (3, 5), "no colon after `kind`", "write `kind: filter`"),
            ("filter", "a ? b : c", (3, 11), "`: ` in it needs quotes", "write `kind: \"a ? b : c\"`"),
            ("filter", "'a' == b", (3, 11), "starts with `'` needs quotes", "write `kind: \"'a' == b\"`"),
            ("filter", "*a", (3, 11), "starts with `*` needs quotes", "write `kind: \"*a\"`"),
            ("filter", "*", (3, 11), "starts with `*` needs quotes", "write `\"*\"`"),
            ("filter", "* -> a", (3, 11), "starts with `*` needs quotes", "write `\"* -> a\"`"),
            ("filter", "{a: * -> b, c: 1}", (3, 15), "starts with `*` needs quotes", "write `\"* -> b\"`"),
            ("filter", "!a", (3, 11), "starts with `!` needs quotes", "write `\"!a\"`"),
            ("filter", "!a && b", (3, 11), "starts with `!` needs quotes", "write `\"!a && b\"`"),
            ("filter", "{a: ${B}/c}", (3, 15), "`${` inside `{...}` needs quotes", "around the whole text"),
            ("filter", "{a: b\n  - id: x", (3, 11), "a `{` is not closed", "write `}`"),
            ("filter", "{a: b\n    in: x", (3, 11), "a `{` is not closed", "write `}`"),
            ("filter", "[a\n    input: b", (3, 11), "a `[` is not closed", "write `]`"),
            ("filter", "{a: [b}\n    in: x", (3, 15), "a `[` is not closed", "write `]`"),
            ("filter", "{a: b c: d}", (3, 17), "no comma before `c`", "write `b, c: ...`"),
            ("filter", "{a: b, c: d e_f: g}", (3, 23), "no comma before `e_f`", "write `d, e_f: ...`"),
            ("filter", "{a: b ? c : d}", (3, 21), "`: ` in it needs quotes", "such as"),
            ("filter", "'a\n    input: b", (3, 5), "a quote is not closed", "second quote"),
        ] {
            assert!(list.contains(from));
            let (line, column, found, advice) = said(&list.replacen(from, to, 1));
            assert!(found.contains(message), "{to}: {found}");
            assert!(advice.contains(help), "{to}: {advice}");
            assert_eq!((line, column), place, "{to}: {found}");
        }
    }

    #[test]
    fn a_file_holds_one_document() {
        let (_, _, message, help) = said("a: b\n...\nc: d\n---\n%");
        assert_eq!(message, "there is a second document in the file");
        assert!(help.contains("remove the line `---`"), "{help}");
    }

    #[test]
    fn names_that_are_words_for_nothing_need_quotes() {
        for name in ["null", "~", "Null", "NULL"] {
            let (line, column, message, help) =
                said(&format!("kind: csv\ncolumns: {{n: a, {name}: text}}\n"));
            assert_eq!((line, column), (2, 17), "{message}");
            assert_eq!(message, format!("`{name}` is not a name: it means no value in YAML"));
            assert_eq!(help, format!("put quotes around `{name}`: write `\"{name}\"`"));
        }
        let (_, _, message, _) = said("columns:\n  : text\n");
        assert_eq!(message, "there is no name before the colon");
        // All other words are names as written.
        let names = ["true", "no", "on", "y", "1", "1.0", "'null'", "\"~\"", ".nan", "0x1f", "2026-03-29"];
        for name in names {
            let parsed = parse(&SourceFile::new("w.yaml", format!("{name}: text\n"))).unwrap();
            let crate::value::Node::Map(entries) = &parsed.node else { panic!() };
            assert_eq!(entries[0].key.value, name.trim_matches(['"', '\'']));
        }
    }

    #[test]
    fn standard_tags_are_no_slip() {
        assert!(parse(&SourceFile::new("w.yaml", "a: !!str 5\nb: '!c'\n")).is_ok());
    }
}
