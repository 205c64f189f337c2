//! Converts text to [`Value`] and program types to text; the only module that depends on the YAML library.
//!
//! Limits hold before and while parsing, so that hostile files fail fast: 4 MiB of text, 64 levels of nesting,
//! 250 000 nodes, 1 000 aliases that repeat at most 100 000 events.
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, NO_FOLDER, nearest};
use crate::span::{Located, SourceFile, Span};
use crate::value::{Entry, Node, Text, Value};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::granit_parser::ErrorKind as Slip;
use serde_saphyr::{DefaultMessageFormatter, ExternalMessageSource, Localizer, Location, Spanned};
use std::borrow::Cow;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod print;
mod rows;
mod syntax;

pub(crate) use print::print_with_variables;
pub use print::{print, print_in_rows};

/// Largest file that is read.
pub const LARGEST_FILE: u64 = 4 << 20;
/// Most levels of nesting.
const DEEPEST: usize = 64;
/// Most values, starts and ends of lists and maps that all aliases together repeat.
const MOST_REPEATED: usize = 100_000;

/// Reads a file.
///
/// # Errors
/// `E0102` if it cannot be read or is not UTF-8, `E0108` if it is larger than [`LARGEST_FILE`], `E0117` for a model.
pub fn read(path: &Path) -> Result<Arc<SourceFile>, Diagnostics> {
    let name = path.display().to_string();
    let unreadable = |error: &dyn fmt::Display| {
        Diagnostics::from(
            Diagnostic::error("E0102", format!("cannot read `{name}`: {error}"))
                .with_help("check the path and the permissions"),
        )
    };
    // Relative paths in it start at the current folder, as those of any file there.
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let file = std::fs::File::open(path).map_err(|error| unopened(path, &error))?;
    let metadata = file.metadata().map_err(|error| unreadable(&error))?;
    if metadata.is_dir() {
        let folder = Diagnostic::error("E0102", format!("`{name}` is a folder, a YAML file is needed"));
        return Err(folder.with_help(files_of(path)).into());
    }
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx")) {
        let model = Diagnostic::error(
            "E0117",
            format!("`{name}` is a model; its manifest, a YAML file, is needed here"),
        );
        return Err(model
            .with_help(format!(
                "write a manifest with `tidemill models inspect {name} --manifest > model.yaml` and name that"
            ))
            .into());
    }
    let size = metadata.len();
    if size > LARGEST_FILE {
        return Err(too_large(&name, size).into());
    }
    let mut bytes = Vec::new();
    // The limit also holds for files without a size (pipes, devices).
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(too_large(&name, bytes.len() as u64).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        Diagnostic::error("E0102", format!("`{name}` is not text: it has bytes that are not UTF-8"))
            .with_help("is this the right file? If it is, save it with the encoding UTF-8")
    })?;
    Ok(SourceFile::new(name, text))
}

/// Why a file cannot be opened, with a correction.
fn unopened(path: &Path, error: &std::io::Error) -> Diagnostic {
    let name = path.display();
    match error.kind() {
        ErrorKind::NotFound => {
            let help = similar_file(path).map(|found| format!("did you mean `{}`?", found.display()));
            Diagnostic::error("E0102", format!("the file `{name}` does not exist"))
                .with_help(help.unwrap_or_else(|| missing_part(path)))
        }
        ErrorKind::PermissionDenied => {
            Diagnostic::error("E0102", format!("the file `{name}` cannot be read: permission denied"))
                .with_help(format!("allow reading, for instance with `chmod u+r {name}`"))
        }
        _ => Diagnostic::error("E0102", format!("cannot read `{name}`: {error}"))
            .with_help("check the path and the disk"),
    }
}

/// Returns an existing file or folder with a similar name, in the folder of `path`.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("readings.csv"), "")?;
/// let found = tidemill_spec::yaml::similar_file(&folder.path().join("reading.csv"));
/// assert_eq!(found, Some(folder.path().join("readings.csv")));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn similar_file(path: &Path) -> Option<PathBuf> {
    let wanted = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.take(2_000).flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    nearest(wanted, names.iter().map(String::as_str)).map(|name| path.with_file_name(name))
}

/// The missing part of a path.
fn missing_part(path: &Path) -> String {
    let missing = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    match missing.filter(|folder| !folder.exists()).last() {
        Some(folder) => format!("{NO_FOLDER} `{}`; check the path", folder.display()),
        None => {
            let here =
                std::env::current_dir().map_or_else(|_| "here".to_owned(), |d| d.display().to_string());
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            match folder {
                Some(folder) => format!("there is no such file in `{}`; check the path", folder.display()),
                None => format!("there is no such file in the current folder, `{here}`"),
            }
        }
    }
}

/// The YAML files of a folder, as advice.
fn files_of(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let yaml = |path: &PathBuf| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let mut names: Vec<String> = entries.filter(yaml).map(|path| format!("`{}`", path.display())).collect();
    names.sort();
    names.truncate(5);
    match names.is_empty() {
        true => "name a file; this folder has no YAML files".to_owned(),
        false => format!("name a file in it: {}", names.join(", ")),
    }
}

fn too_large(name: &str, size: u64) -> Diagnostic {
    Diagnostic::error(
        "E0108",
        format!("`{name}` is too large: {size} bytes, the limit is {LARGEST_FILE} (4 MiB)"),
    )
    .with_help("is this the right file? Data belongs in files that the sources read")
}

/// Parses one document.
///
/// # Errors
/// `E0101` for text that is not YAML, `E0105` for numbers that are not finite, `E0107` for a duplicate key, `E0108` for
/// too much text, `E0109` for other limits.
pub fn parse(source: &Arc<SourceFile>) -> Result<Value, Diagnostics> {
    if source.text().len() as u64 > LARGEST_FILE {
        return Err(too_large(source.name(), source.text().len() as u64).into());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            flow_nesting_limit: DEEPEST,
            max_documents: 1,
            max_aliases: 1_000,
            max_anchors: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED },
        // `not_finite` reports it with the key.
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Option<Spanned<Raw>>>(source.text(), options) {
        Ok(Some(raw)) => {
            let value = positioned(raw, source);
            if let Some(slip) = source.text().contains(" !").then(|| tag(&value)).flatten() {
                return Err(slip.into());
            }
            let mut found = Diagnostics::new();
            not_finite(&value, None, &mut found);
            found.into_result(value)
        }
        Ok(None) => Ok(Value { node: Node::Null, span: Span::new(source, 0, 0) }),
        Err(error) => Err(syntax_error(&error, source).into()),
    }
}

/// Converts YAML text to JSON, without places, to search files of any kind for names.
///
/// # Errors
/// The text is no YAML, with the reason.
pub fn to_json(text: &str) -> Result<serde_json::Value, String> {
    serde_saphyr::from_str(text).map_err(|error: serde_saphyr::Error| error.to_string())
}

fn syntax_error(error: &serde_saphyr::Error, source: &Arc<SourceFile>) -> Diagnostic {
    let span = error.location().map_or_else(|| Span::new(source, 0, 0), |location| at(location, source));
    let mut error = error;
    while let serde_saphyr::Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    let message = || error.render_with_formatter(&DefaultMessageFormatter.with_localizer(&WithoutPlace));
    let slip = slip(error);
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            Diagnostic::error("E0107", format!("key `{}` is given twice", key.as_deref().unwrap_or("?")))
                .with_help("keep one of the two")
        }
        // Only names are read as texts regardless of their content.
        serde_saphyr::Error::NullIntoString { .. } => {
            let written = match span.text().map(str::trim) {
                Some("") | None => return empty_name().at(span),
                Some(written) => crate::units::shown(written),
            };
            Diagnostic::error("E0101", format!("`{written}` is not a name: it means no value in YAML"))
                .with_help(format!("put quotes around `{written}`: write `\"{written}\"`"))
        }
        serde_saphyr::Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            Diagnostic::error("E0109", "there is a second document in the file")
                .with_help("a file holds one: remove the line `---`, or move the rest into another file")
        }
        serde_saphyr::Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
        _ if slip == Some(&Slip::RecursionLimitExceeded) => too_deep(),
        serde_saphyr::Error::AliasReplayLimitExceeded { .. } => Diagnostic::error(
            "E0109",
            format!("the aliases of this file repeat more than {MOST_REPEATED} values"),
        )
        .with_help(
            "an alias such as `*a` repeats everything under its anchor `&a`, with the aliases in it: write \
             out the values, or repeat smaller parts",
        ),
        serde_saphyr::Error::Budget { .. }
        | serde_saphyr::Error::AliasExpansionLimitExceeded { .. }
        | serde_saphyr::Error::AliasReplayStackDepthExceeded { .. } => {
            Diagnostic::error("E0109", format!("this goes beyond the limits: {}", message()))
                .with_help("use fewer levels of nesting and fewer aliases")
        }
        _ => return syntax::explained(slip, &message(), span, source),
    }
    .at(span)
}

/// The YAML rule that a text breaks; none for other errors.
fn slip(error: &serde_saphyr::Error) -> Option<&Slip> {
    match error {
        serde_saphyr::Error::UnknownAnchor { .. } => Some(&Slip::UnknownAnchor),
        serde_saphyr::Error::ExternalMessage { source, .. } => match source.as_ref() {
            ExternalMessageSource::Parser(error) => Some(error.kind()),
            _ => None,
        },
        _ => None,
    }
}

/// The library's words; our own snippet shows the place.
struct WithoutPlace;

impl Localizer for WithoutPlace {
    fn attach_location<'a>(&self, base: Cow<'a, str>, _: Location) -> Cow<'a, str> {
        base
    }
}

fn empty_name() -> Diagnostic {
    Diagnostic::error("E0101", "there is no name before the colon")
        .with_help("write the name, in quotes (`\"\"`) if it is the empty text")
}

fn too_deep() -> Diagnostic {
    Diagnostic::error("E0109", format!("lists and maps are nested more than {DEEPEST} levels deep"))
        .with_help("is a bracket left open? Files need about ten levels")
}

/// Reports numbers that are none (`.nan`) or that no 64-bit float holds (`.inf`, `1e999`): no value here can be either.
/// `key` is that of the value.
fn not_finite(value: &Value, key: Option<&str>, found: &mut Diagnostics) {
    match &value.node {
        Node::Float(number) if !number.is_finite() && found.len() < ENOUGH => {
            let written = value.span.text().map_or_else(|| number.to_string(), str::to_owned);
            let written = crate::units::shown(&written);
            let of = key.map(|key| format!("`{key}`: ")).unwrap_or_default();
            let why = match written.contains(|c: char| c.is_ascii_digit()) {
                true => format!("{of}`{written}` is larger than the largest number (1.8e308)"),
                false => format!("{of}`{written}` is not a finite number"),
            };
            let help = "write a finite number such as `0.5`; put quotes around it if text is meant";
            found.push(value.error("E0105", why).with_help(help));
        }
        Node::List(items) => items.iter().for_each(|item| not_finite(item, key, found)),
        Node::Map(entries) => {
            entries.iter().for_each(|entry| not_finite(&entry.value, Some(entry.key.value.as_str()), found));
        }
        _ => {}
    }
}

fn at(location: Location, source: &Arc<SourceFile>) -> Span {
    let span = location.span();
    match (span.byte_offset(), span.byte_len()) {
        (Some(start), Some(len)) => {
            // The library does not count a byte order mark.
            let mark = if source.text().starts_with('\u{FEFF}') { 3 } else { 0 };
            let start = usize::try_from(start).unwrap_or(usize::MAX).saturating_add(mark);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            Span::new(
                source,
                start.min(source.text().len()),
                start.saturating_add(len).min(source.text().len()),
            )
        }
        _ => {
            let line = usize::try_from(location.line()).unwrap_or(1).max(1);
            let start: usize = source.text().split_inclusive('\n').take(line - 1).map(str::len).sum();
            let rest = source.text().get(start..).unwrap_or_default();
            let column = usize::try_from(location.column()).unwrap_or(1).max(1);
            let within: usize = rest.chars().take(column - 1).map(char::len_utf8).sum();
            Span::new(source, start + within, start + within)
        }
    }
}

/// A node from the library.
enum Raw {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;
        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::Integer(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(i64::try_from(value).map_or(Raw::Float(value as f64), Raw::Integer))
            }
            fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
                Ok(Raw::Float(value as f64))
            }
            fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
                Ok(Raw::Float(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
                Ok(Raw::Float(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
                Ok(Raw::Text(value.to_string()))
            }
            fn visit_string<E>(self, value: String) -> Result<Raw, E> {
                Ok(Raw::Text(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = access.next_element()? {
                    items.push(item);
                }
                Ok(Raw::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = access.next_entry()? {
                    entries.push(entry);
                }
                Ok(Raw::Map(entries))
            }
        }
        deserializer.deserialize_any(RawVisitor)
    }
}

fn positioned(raw: Spanned<Raw>, source: &Arc<SourceFile>) -> Value {
    let span = at(raw.defined, source);
    let node = match raw.value {
        Raw::Null => Node::Null,
        Raw::Bool(b) => Node::Bool(b),
        Raw::Integer(i) => Node::Integer(i),
        Raw::Float(x) => Node::Float(x),
        Raw::Text(text) => {
            let node = Node::Text(Text { value: text, written: None });
            return Value { node, span: without_end(&span) };
        }
        Raw::List(items) => {
            let items = items.into_iter().map(|item| positioned(item, source)).collect();
            return Value { node: Node::List(items), span: first_line(&span) };
        }
        Raw::Map(entries) => {
            let entries = entries
                .into_iter()
                .map(|(key, value)| Entry {
                    key: Located::new(key.value, at(key.defined, source)),
                    value: positioned(value, source),
                })
                .collect();
            return Value { node: Node::Map(entries), span: first_line(&span) };
        }
    };
    Value { node, span }
}

/// A text whose first word the library took for a tag.
fn tag(value: &Value) -> Option<Diagnostic> {
    match &value.node {
        Node::List(items) => items.iter().find_map(tag),
        Node::Map(entries) => entries.iter().find_map(|entry| tag(&entry.value)),
        _ => syntax::dropped_tag(&value.span),
    }
}

/// The library ends a block of text (`|`, `>`) at the start of the next key.
fn without_end(span: &Span) -> Span {
    let (Some(source), Some(text)) = (span.source(), span.text()) else { return span.clone() };
    let start = span.range().start;
    Span::new(source, start, start + text.trim_end().len())
}

/// A list or map is shown by its first line: all of it would bury the message.
fn first_line(span: &Span) -> Span {
    let Some(source) = span.source() else { return span.clone() };
    let start = span.range().start;
    let rest = source.text().get(start..).unwrap_or_default();
    let line = rest.lines().next().unwrap_or_default();
    let line = line.split(" #").next().unwrap_or(line).trim_end();
    Span::new(source, start, start + line.len())
}
