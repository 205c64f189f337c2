//! Expressions over the columns of a row, in the Common Expression Language (CEL): what `filter` and `map` compute.
//!
//! An expression is parsed and typed once, at bind time, against the columns of the input: a column that does not
//! exist, an operator that does not fit or a wrong result is an error before anything runs. CEL itself never mixes
//! whole numbers and floats; here a whole number beside a float becomes a float, so that `temperature * 2` and
//! `temperature > 20` work on a float64 column. Two whole numbers stay whole: `7 / 2` is 3, write `double(a) / 2`
//! for 3.5.
//!
//! | what | |
//! |---|---|
//! | values | columns of type text, int64, float64, bool; `1`, `1.5`, `'text'`, `true`, `null` |
//! | operators | `+ - * / %`, `== != < <= > >=`, `&& || !`, `c ? a : b`, `x in [1, 2, 3]`, `+` joins texts |
//! | text | `size(t)`, `t.contains(u)`, `t.startsWith(u)`, `t.endsWith(u)`, `t.matches('regex')`, `t.lowerAscii()`, `t.upperAscii()`, `t.trim()`, `t.replace(a, b)`, `t.substring(from, to)`, `t.indexOf(u)` |
//! | numbers | `math.abs(x)`, `math.ceil(x)`, `math.floor(x)`, `math.round(x)` |
//! | conversions | `int(x)`, `double(x)`, `string(x)`, `bool(t)` |
//!
//! Floats are compared as IEEE 754 has it: with NaN on a side `<`, `<=`, `>`, `>=` and `==` are false, `!=` is true.
//!
//! An empty value (`null`) fails every operator but `==`, `!=` and the side of `&&`, `||`, `?:` that is not needed.
//! A row on which the expression fails (division by zero, overflow, an empty value) is reported by the operator that
//! uses it; it never stops the run. So is one for which a text would become longer than 8 MiB, on the way to the result
//! too: `replace` and `+` can make much of little.
//!
//! ```
//! use tidemill_operators::relational::expression::Expression;
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! let readings = StreamType::new([Column::new("temperature", ColumnType::Float64)]);
//! let warm = Expression::compile("temperature * 2 > 40", &readings).unwrap();
//! assert_eq!(warm.result(), Some(ColumnType::Bool));
//! let wrong = Expression::compile("temprature > 20", &readings).unwrap_err();
//! assert_eq!(wrong.help.as_deref(), Some("did you mean `temperature`?"));
//! ```
use super::typing::{Kind, Typing};
use super::{float_order, text_length};
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use cel::common::types::{CelBool, CelDouble, CelInt, CelNull, CelString};
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, IdedExpr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use tidemill_spec::types::{ColumnType, StreamType};

/// Longest expression, bytes. The parser works recursively; longer ones are no longer written by people.
const MAX_LENGTH: usize = 8 * 1024;
/// Deepest nesting of brackets, for the same reason.
const MAX_NESTING: usize = 50;
/// Most operators and brackets one after the other (`--------a`), for the same reason.
const MAX_OPERATORS: usize = 400;

/// The functions that expressions may call.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    environment
        .add_extension(cel::extensions::strings)
        .and_then(|()| environment.add_extension(cel::extensions::math))
        .and_then(|()| environment.add_extension(text_length::functions))
        .and_then(|()| environment.add_extension(float_order::functions))
        .expect("the extensions of the language fit together");
    Arc::new(environment)
});

/// Why an expression was refused at bind time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

impl ExpressionError {
    /// An error without advice.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    /// The same with advice.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A compiled expression. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Expression {
    tree: Arc<IdedExpr>,
    kind: Kind,
    /// Used columns: name and position in the payload.
    columns: Arc<[(String, usize)]>,
}

impl Expression {
    /// Parses and types an expression over the columns of `input`.
    ///
    /// # Errors
    /// Text that is no expression, unknown columns or functions, operands of types that do not fit.
    pub fn compile(text: &str, input: &StreamType) -> Result<Self, ExpressionError> {
        check_size(text)?;
        let program = ENVIRONMENT.compile(text).map_err(|errors| {
            let first = errors.errors.first();
            let place = first.map_or(String::new(), |error| {
                let (line, character) = error.pos;
                let line = if text.trim_end().contains('\n') {
                    format!(" of line {}", line.max(1))
                } else {
                    String::new()
                };
                format!("at character {}{line}", character.max(1))
            });
            let what = first.map_or("it does not parse", |e| e.msg.as_str());
            not_parsed(text, what, &place)
        })?;
        let mut tree = program.expression().clone();
        let mut typing = Typing::new(text, input, program.source_info());
        let kind = typing.check(&mut tree)?;
        let columns = typing.used().map(|index| (input.columns[index].name.clone(), index)).collect();
        Ok(Self { tree: Arc::new(tree), kind, columns })
    }

    /// Type of the result; `None` for the expression `null`, which fits every column.
    pub fn result(&self) -> Option<ColumnType> {
        self.kind.column_type()
    }

    /// The same expression with its whole-number result turned into a float.
    pub(crate) fn into_float(self) -> Self {
        if self.kind != Kind::Int {
            return self;
        }
        let mut tree = (*self.tree).clone();
        super::typing::widen(&mut tree);
        Self { tree: Arc::new(tree), kind: Kind::Float, ..self }
    }

    /// Evaluates the expression for every row of a batch with metadata columns, handing row number and result
    /// to `each`.
    pub(crate) fn evaluate(
        &self,
        batch: &RecordBatch,
        mut each: impl FnMut(usize, Result<Cell<'_>, String>),
    ) {
        let row = Row {
            columns: self
                .columns
                .iter()
                .filter_map(|(name, index)| {
                    Some((name.as_str(), typed(batch.column(METADATA_COLUMNS + index))?))
                })
                .collect(),
            row: AtomicUsize::new(0),
        };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(&row);
        for index in 0..batch.num_rows() {
            row.row.store(index, Ordering::Relaxed);
            match cel::Value::resolve_val(&self.tree, &context) {
                Ok(value) => each(index, cell(&value)),
                Err(error) => each(index, Err(explain(&error, &row))),
            }
        }
    }
}

/// One result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
}

fn cell<'a>(value: &'a CowVal<'_, '_>) -> Result<Cell<'a>, String> {
    if let Some(b) = value.downcast_ref::<CelBool>() {
        Ok(Cell::Bool(*b.inner()))
    } else if let Some(x) = value.downcast_ref::<CelDouble>() {
        Ok(Cell::Float(*x.inner()))
    } else if let Some(i) = value.downcast_ref::<CelInt>() {
        Ok(Cell::Int(*i.inner()))
    } else if let Some(text) = value.downcast_ref::<CelString>() {
        Ok(Cell::Text(text.inner()))
    } else if value.downcast_ref::<CelNull>().is_some() {
        Ok(Cell::Null)
    } else {
        Err(format!("the result is a {}", value.get_type().name()))
    }
}

/// What went wrong with one row, in a sentence without the language's inner names.
fn explain(error: &cel::ExecutionError, row: &Row<'_>) -> String {
    use cel::ExecutionError as E;
    let index = row.row.load(Ordering::Relaxed);
    let empty = row.columns.iter().find(|(_, column)| column.is_null(index));
    match (error, empty) {
        (E::DivisionByZero(_), _) => "division by zero".into(),
        (E::RemainderByZero(_), _) => "remainder of a division by zero".into(),
        (E::Overflow(..), _) => "the result does not fit into int64".into(),
        (E::FunctionError { message, .. }, _) if message == text_length::TOO_LONG => message.clone(),
        (_, Some((name, _))) => format!("column `{name}` is empty (null)"),
        (other, None) => other.to_string(),
    }
}

/// A column in its own type.
enum Typed<'a> {
    Text(&'a StringArray),
    Int(&'a Int64Array),
    Float(&'a Float64Array),
    Bool(&'a BooleanArray),
}

fn typed(array: &dyn Array) -> Option<Typed<'_>> {
    array
        .as_string_opt::<i32>()
        .map(Typed::Text)
        .or_else(|| array.as_primitive_opt::<Int64Type>().map(Typed::Int))
        .or_else(|| array.as_primitive_opt::<Float64Type>().map(Typed::Float))
        .or_else(|| array.as_boolean_opt().map(Typed::Bool))
}

impl Typed<'_> {
    fn is_null(&self, row: usize) -> bool {
        match self {
            Typed::Text(array) => array.is_null(row),
            Typed::Int(array) => array.is_null(row),
            Typed::Float(array) => array.is_null(row),
            Typed::Bool(array) => array.is_null(row),
        }
    }
}

/// The columns in use and the current row. The row number is atomic only because the language asks for `Sync`.
struct Row<'a> {
    columns: Vec<(&'a str, Typed<'a>)>,
    row: AtomicUsize,
}

static NULL: CelNull = CelNull;

impl VariableResolver for Row<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let (_, column) = self.columns.iter().find(|(name, _)| *name == variable)?;
        let row = self.row.load(Ordering::Relaxed);
        if column.is_null(row) {
            return Some(CowVal::Borrowed(&NULL));
        }
        Some(match column {
            Typed::Text(array) => CowVal::owned(CelString::from(array.value(row))),
            Typed::Int(array) => CowVal::owned(CelInt::from(array.value(row))),
            Typed::Float(array) => CowVal::owned(CelDouble::from(array.value(row))),
            Typed::Bool(array) => CowVal::owned(CelBool::from(array.value(row))),
        })
    }
}

/// What is wrong with a text that does not parse; `what` and `place` are those of the parser.
fn not_parsed(text: &str, what: &str, place: &str) -> ExpressionError {
    // Messages and advice are of one line; line breaks of an expression mean nothing.
    let text = &text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let text = text.trim_end();
    if let Some((ours, changes)) = super::slips::mended(text)
        && ENVIRONMENT.compile(&ours).is_ok()
    {
        let changes: Vec<String> =
            changes.iter().map(|(theirs, ours)| format!("`{theirs}` is written `{ours}`")).collect();
        // In YAML a text with `: ` in it needs quotes.
        let shown = if ours.contains(": ") { format!("\"{ours}\"") } else { ours };
        return ExpressionError::new(format!("`{text}` is not an expression: {}", changes.join(", ")))
            .with_help(format!("write `{shown}`"));
    }
    // The parser lists everything that could stand there, by inner names.
    let what = what.strip_prefix("Syntax error: ").unwrap_or(what);
    let what = what.split(" expecting {").next().unwrap_or(what);
    let found = match what.strip_prefix("mismatched input ").or(what.strip_prefix("extraneous input ")) {
        Some("'<EOF>'") => "something is missing at its end".to_owned(),
        Some(token) => format!("{} does not fit {place}", token.trim_end_matches(" expecting <EOF>")),
        None if what.contains("at '<EOF>'") => {
            format!("something is missing at its end: {}", what.trim_end_matches(" at '<EOF>'"))
        }
        None => format!("{what} {place}"),
    };
    ExpressionError::new(format!("`{text}` is not an expression: {found}"))
        .with_help("expressions look like `temperature > 20 && site == 'north'`")
}

/// Refuses texts on which the recursive parser could exhaust the stack.
fn check_size(text: &str) -> Result<(), ExpressionError> {
    if text.trim().is_empty() {
        return Err(ExpressionError::new("the expression is empty")
            .with_help("expressions look like `temperature > 20 && site == 'north'`"));
    }
    if text.len() > MAX_LENGTH {
        return Err(ExpressionError::new(format!(
            "the expression has {} bytes, at most {MAX_LENGTH} are allowed",
            text.len()
        ))
        .with_help("split it over several `map` operators"));
    }
    let (mut depth, mut deepest, mut operators) = (0usize, 0usize, 0usize);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '!' | '&' | '|' | '?' | '<' | '>' | '=' | '.' => operators += 1,
            _ => {}
        }
    }
    if deepest > MAX_NESTING || operators > MAX_OPERATORS {
        return Err(ExpressionError::new(format!(
            "the expression is too large: at most {MAX_NESTING} nested brackets and {MAX_OPERATORS} operator signs"
        ))
        .with_help("split it over several `map` operators"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch;
    use proptest::prelude::*;
    use serde_json::json;
    use tidemill_spec::types::Column;

    fn input() -> StreamType {
        StreamType::new([
            Column::new("t", ColumnType::Float64),
            Column::new("n", ColumnType::Int64),
            Column::new("site", ColumnType::Text),
            Column::new("ok", ColumnType::Bool),
            Column::new("picture", ColumnType::Image),
        ])
    }

    fn results(text: &str) -> Vec<String> {
        let rows = batch(
            &input(),
            &[
                json!({"t": 20.5, "n": 3, "site": "north", "ok": true}),
                json!({"t": -1.0, "n": 0, "site": "South", "ok": false}),
                json!({"t": null, "n": i64::MAX, "site": null, "ok": null}),
            ],
        );
        let mut all = Vec::new();
        Expression::compile(text, &input()).unwrap_or_else(|e| panic!("{e} {:?}", e.help)).evaluate(
            &rows,
            |_, r| {
                all.push(match r {
                    Ok(Cell::Null) => "null".into(),
                    Ok(Cell::Bool(v)) => v.to_string(),
                    Ok(Cell::Int(v)) => v.to_string(),
                    Ok(Cell::Float(v)) => format!("{v:?}"),
                    Ok(Cell::Text(v)) => format!("'{v}'"),
                    Err(e) => format!("!{e}"),
                });
            },
        );
        all
    }

    #[test]
    fn numbers_of_both_kinds_mix() {
        assert_eq!(results("t * 2"), ["41.0", "-2.0", "!column `t` is empty (null)"]);
        assert_eq!(results("t > n"), ["true", "false", "!column `t` is empty (null)"]);
        assert_eq!(results("ok ? n : t")[..2], ["3.0", "-1.0"]);
        assert_eq!(results("n in [3, 4.0]")[..2], ["true", "false"]);
        assert_eq!(results("-t + 1")[..2], ["-19.5", "2.0"]);
        assert_eq!(results("n / 2"), ["1", "0", &(i64::MAX / 2).to_string()]);
        assert_eq!(results("double(n) / 2")[..2], ["1.5", "0.0"]);
    }

    #[test]
    fn rows_that_fail_say_why() {
        assert_eq!(results("7 / n")[1], "!division by zero");
        assert_eq!(results("n + 1")[2], "!the result does not fit into int64");
        assert_eq!(results("site + '!'"), ["'north!'", "'South!'", "!column `site` is empty (null)"]);
    }

    #[test]
    fn nan_compares_as_in_ieee_754() {
        let stream = StreamType::new([Column::new("v", ColumnType::Float64)]);
        let plain = batch(&stream, &vec![json!({"v": 0.0}); 4]);
        let values = [f64::NAN, f64::INFINITY, -0.0, 1.5];
        let mut columns = plain.columns().to_vec();
        columns[METADATA_COLUMNS] = Arc::new(Float64Array::from(values.to_vec()));
        let rows = RecordBatch::try_new(plain.schema(), columns).unwrap();
        let found = |text: &str| {
            let mut all = Vec::new();
            Expression::compile(text, &stream).unwrap().evaluate(&rows, |_, cell| match cell {
                Ok(Cell::Bool(value)) => all.push(value),
                other => panic!("{text}: {other:?}"),
            });
            all
        };
        for (sign, compare) in [
            ("<", f64::lt as fn(&f64, &f64) -> bool),
            ("<=", f64::le),
            (">", f64::gt),
            (">=", f64::ge),
            ("==", f64::eq),
            ("!=", f64::ne),
        ] {
            // NaN comes out of the data and out of expressions, beside floats and whole numbers.
            for (text, other) in [("1.5", 1.5), ("1", 1.0), ("(0.0 / 0.0)", f64::NAN)] {
                let expected = values.map(|value| compare(&value, &other));
                assert_eq!(found(&format!("v {sign} {text}")), expected, "v {sign} {text}");
                assert_eq!(found(&format!("!(v {sign} {text})")), expected.map(|it| !it));
            }
            let expected = values.map(|value| compare(&value, &value));
            assert_eq!(found(&format!("v {sign} v")), expected, "v {sign} v");
        }
        assert_eq!(found("v in [1.5, 2.0]"), [false, false, false, true]);
    }

    #[test]
    fn text_functions() {
        assert_eq!(results("site.lowerAscii().startsWith('so')")[..2], ["false", "true"]);
        assert_eq!(results("size(site) + site.size()")[..2], ["10", "10"]);
        assert_eq!(results("site.matches('^n.*h$')")[..2], ["true", "false"]);
        assert_eq!(results("string(n) + site.substring(0, 1)")[..2], ["'3n'", "'0S'"]);
        assert_eq!(results("math.floor(t)")[..2], ["20.0", "-1.0"]);
        assert_eq!(results("math.abs(t)")[..2], ["20.5", "1.0"]);
        assert_eq!(results("int(t)")[..2], ["20", "-1"]);
    }

    /// Five times 112 letters for one: 1.8e10.
    #[test]
    fn texts_do_not_grow_without_bound() {
        let hundred = "x".repeat(112);
        let replaced = format!(".replace('', '{hundred}')").repeat(5);
        let repeated =
            (0..3).fold("site".to_owned(), |text, _| format!("({text} + {text} + {text} + {text})"));
        for long in [format!("site{replaced}"), format!("{repeated}{}", &replaced[..replaced.len() / 5 * 3])]
        {
            for text in [format!("size({long}) > 1"), long.clone()] {
                let found = results(&text);
                assert_eq!(found[..2], ["!a text of it would be longer than 8 MiB"; 2], "{text:.60}");
                assert_eq!(found[2], "!column `site` is empty (null)");
            }
            // Lists beside a float are typed twice.
            let found = results(&format!("t in [size({long} + ''), 1]"));
            assert_eq!(found[0], "!a text of it would be longer than 8 MiB");
        }
        assert_eq!(results("site.replace('o', '00') + '!' + string(n)")[..2], ["'n00rth!3'", "'S00uth!0'"]);
        assert_eq!(results("site + '!' in ['north' + '!', 'x']")[..2], ["true", "false"]);
    }

    #[test]
    fn empty_values_can_be_asked_for() {
        assert_eq!(results("t != null && t > 0"), ["true", "false", "false"]);
        assert_eq!(results("site == null ? 'none' : site"), ["'north'", "'South'", "'none'"]);
    }

    #[test]
    fn wrong_expressions_are_refused_with_advice() {
        for (text, message, help) in [
            ("tt > 1", "there is no column `tt`", "did you mean `t`?"),
            ("site.matches('[a-')", "`[a-` is no regular expression: unclosed character class", "backslash"),
            ("site > 1", "`>` needs two numbers or two texts, found text and int64", ""),
            ("site + 1", "`+` needs two numbers or two texts, found text and int64", "string("),
            ("picture == null", "column `picture` is of type image", "text, int64, float64 and bool"),
            ("t &&", "is not an expression", ""),
            ("foo(t)", "there is no function `foo`", ""),
            ("t % 2", "`%` needs two whole numbers", "int("),
            ("ok ? t : site", "both results of `?:`", ""),
            ("site.contains(n)", "`contains` needs text", ""),
            ("[1, 2].exists(x, x == n)", "not available", "in ["),
            ("", "empty", ""),
            ("n.foo", "has no fields", ""),
            ("9223372036854775808", "is not an expression", ""),
        ] {
            let error = Expression::compile(text, &input()).map(|e| e.kind).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.help.clone().unwrap_or_default().contains(help), "{text}: {:?}", error.help);
        }
        // An expression over several lines: its line is named, and the message stays on one.
        for (text, message) in [
            ("n > 0 &&\n  b < 3\n", "there is no column `b` (in line 2 of the expression, `b < 3`)"),
            ("b < 3\n", "there is no column `b` (in `b < 3`)"),
            (
                "n > 0 &&\n  n + + < 3\n",
                "`n > 0 && n + + < 3` is not an expression: '+' does not fit at character 7 of line 2",
            ),
        ] {
            let error = Expression::compile(text, &input()).map(|e| e.kind).unwrap_err();
            assert!(error.message.contains(message) && !error.message.contains('\n'), "{error}");
        }
        let deep = format!("{}n{}", "(".repeat(5000), ")".repeat(5000));
        assert!(Expression::compile(&deep, &input()).is_err());
        assert!(Expression::compile(&format!("{}n", "-".repeat(5000)), &input()).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z0-9 ()\\[\\].,?:+*/%<>=!&|'\"{}-]{0,40}") {
            if let Ok(expression) = Expression::compile(&text, &input()) {
                let rows = batch(&input(), &[json!({"t": 1.0, "n": 1, "site": "a", "ok": true})]);
                let mut seen = 0;
                expression.evaluate(&rows, |_, _| seen += 1);
                prop_assert_eq!(seen, 1);
            }
        }

        #[test]
        fn the_static_type_is_the_type_of_the_result(text in typed_text()) {
            let Ok(expression) = Expression::compile(&text, &input()) else { return Ok(()) };
            let rows = batch(&input(), &[
                json!({"t": 1.5, "n": 4, "site": "a", "ok": true}), json!({"t": -2.0, "n": 0, "site": "", "ok": false}),
            ]);
            let expected = expression.kind.clone();
            let mut wrong = None;
            expression.evaluate(&rows, |_, r| {
                let found = match r {
                    Ok(Cell::Bool(_)) => Kind::Bool,
                    Ok(Cell::Int(_)) => Kind::Int,
                    Ok(Cell::Float(_)) => Kind::Float,
                    Ok(Cell::Text(_)) => Kind::Text,
                    // Well-typed rows without empty values fail only for the values they hold.
                    Err(e) if ["zero", "int64", "range", "parse"].iter().any(|w| e.contains(w)) => return,
                    other => {
                        wrong = Some(format!("{other:?}"));
                        return;
                    }
                };
                if found != expected {
                    wrong = Some(format!("{found:?} instead of {expected:?}"));
                }
            });
            prop_assert_eq!(wrong, None, "{}", text);
        }
    }

    /// Expressions of random shape, many of them well typed.
    fn typed_text() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec!["t", "n", "site", "ok", "1", "2.5", "'x'", "true"])
            .prop_map(ToString::to_string);
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                (
                    inner.clone(),
                    prop::sample::select(vec!["+", "-", "*", "/", "<", "==", "&&", "||"]),
                    inner.clone()
                )
                    .prop_map(|(a, o, b)| format!("({a} {o} {b})")),
                (inner.clone(), inner.clone(), inner.clone())
                    .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} in [{b}, {b}])")),
                inner.clone().prop_map(|a| format!("double({a})")),
                inner.clone().prop_map(|a| format!("string({a})")),
                inner.clone().prop_map(|a| format!("(-{a})")),
                inner.prop_map(|a| format!("(!{a})")),
            ]
        })
    }
}
