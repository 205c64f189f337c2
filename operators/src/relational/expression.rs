//! Expressions over the columns of a row, in the Common Expression Language (CEL), for `filter` and `map`.
//!
//! An expression is parsed and typed once, at bind time, against the columns of the input. An unknown column, an
//! operator that does not fit or a wrong result type is an error before anything runs. CEL itself never mixes whole
//! numbers and floats. Here a whole number beside a float becomes a float, so that `temperature * 2` and
//! `temperature > 20` work on a float64 column. Two whole numbers stay whole: `7 / 2` is 3; write `double(a) / 2` for
//! 3.5.
//!
//! | what | |
//! |---|---|
//! | values | columns of type text, int64, float64, bool; `1`, `1.5`, `'text'`, `true`, `null` |
//! | tensors | `scores[0]`, `boxes[0][4]`, `scores[n]`, `size(t)`, `max(t)`, `min(t)`, `sum(t)`, `mean(t)`, `norm(t)`, `argmax(t)`, `argmin(t)`, `dot(a, b)`, `cosine(a, b)`, `distance(a, b)`, `x in t`, `top_k(t, 5)`, `top_positions(t, 5)` |
//! | operators | `+ - * / %`, `== != < <= > >=`, `&& || !`, `c ? a : b`, `x in [1, 2, 3]`, `+` joins texts |
//! | text | `size(t)`, `t.contains(u)`, `t.startsWith(u)`, `t.endsWith(u)`, `t.matches('regex')`, `t.lowerAscii()`, `t.upperAscii()`, `t.trim()`, `t.replace(a, b)`, `t.substring(from, to)`, `t.indexOf(u)` |
//! | numbers | `math.abs(x)`, `math.ceil(x)`, `math.floor(x)`, `math.round(x)` |
//! | conversions | `int(x)`, `double(x)`, `string(x)`, `bool(t)` |
//!
//! Floats compare as in IEEE 754: with NaN on a side `<`, `<=`, `>`, `>=` and `==` are false, `!=` is true.
//!
//! Positions of tensors count from 0. A value of a float tensor is a float64, of an int64, int32, int8 or uint8 tensor
//! an int64, of a bool tensor a bool, of a text tensor a text. A constant position that the shape does not have is an
//! error before anything runs; a computed one fails the row. `boxes[0]` of a tensor with two dimensions is a row, a
//! tensor itself. `max`, `min` and `sum` of whole numbers are whole, and a sum beyond int64 fails; all other sums are
//! of float64, in the order of the values. `norm` and `distance` are Euclidean. `argmax` and `argmin` give the first of
//! equal values, `top_k(t, k)` the k largest values with the largest first, `top_positions` their positions; equal
//! values come by position. NaN has no place in an order: a tensor with one fails these six functions, and with it the
//! row. Other functions of it are NaN, as in IEEE 754. `cosine` with a tensor of zeros fails. An expression may give a
//! tensor only as its result: a column, a row, `top_k` or `top_positions`.
//!
//! An empty value (`null`) fails every operator but `==`, `!=` and the side of `&&`, `||`, `?:` that is not needed.
//! It stays empty where a whole number becomes a float. The operator that uses an expression reports a row on which
//! it fails (division by zero, overflow, an empty value); such a row never stops the run. A row also fails if one of
//! its texts, including intermediate ones, would exceed 8 MiB, or the texts of its batch together 512 MiB: `replace`
//! and `+` can make large texts from small ones.
//!
//! Batches are evaluated by column where all parts of the expression allow it (see `columnar.rs`). Only undecided
//! rows, which are those that may fail, go through the CEL interpreter. The results are identical.
//!
//! ```
//! use tidemill_operators::relational::expression::Expression;
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! let readings = StreamType::new([Column::new("temperature", ColumnType::Float64)]);
//! let warm = Expression::compile("temperature * 2 > 40", &readings).unwrap();
//! assert_eq!(warm.result(), Some(ColumnType::Bool));
//! let wrong = Expression::compile("temprature > 20", &readings).unwrap_err();
//! assert_eq!(wrong.help.as_deref(), Some("did you mean `temperature`?"));
//!
//! let scores = StreamType::new([Column::new("scores", ColumnType::named("tensor<float32>[8]").unwrap())]);
//! let sure = Expression::compile("scores[0] > 0.9 || max(scores) > 0.5", &scores).unwrap();
//! assert_eq!(sure.result(), Some(ColumnType::Bool));
//! let best = Expression::compile("top_positions(scores, 3)", &scores).unwrap();
//! assert_eq!(best.result(), ColumnType::named("tensor<int64>[3]"));
//! let wrong = Expression::compile("scores > 0.5", &scores).unwrap_err();
//! assert_eq!(wrong.help.unwrap(), "`scores` has 8 values: write `max(scores) > 0.5`, or `scores[0] > 0.5` for one of them");
//! ```
use super::columnar::Columnar;
use super::tensors::{Derived, Failures, Source, is_derived};
use super::typing::{Kind, Typing};
use super::{float_order, text_length, widening};
use crate::columns::ScalarBuilder;
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Schema};
use cel::common::ast::Expr;
use cel::common::types::{CelBool, CelDouble, CelInt, CelNull, CelString};
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, IdedExpr};
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Longest expression, in bytes. The parser is recursive; people do not write longer ones.
const MAX_LENGTH: usize = 8 * 1024;
/// Deepest nesting of brackets, for the same reason.
const MAX_NESTING: usize = 50;
/// Most consecutive operators and brackets (`--------a`, `a in b in c`, `a[0][0]`), for the same reason.
const MAX_OPERATORS: usize = 400;

/// The functions that expressions may call.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    environment
        .add_extension(cel::extensions::strings)
        .and_then(|()| environment.add_extension(cel::extensions::math))
        .and_then(|()| environment.add_extension(text_length::functions))
        .and_then(|()| environment.add_extension(float_order::functions))
        .and_then(|()| environment.add_extension(widening::functions))
        .expect("the extensions of the language fit together");
    Arc::new(environment)
});

/// Kind of mistake in an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// It names a column that the input does not have.
    UnknownColumn,
    /// Anything else: it does not parse, or its types do not fit.
    Malformed,
}

/// Error of an expression that was refused at bind time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// Kind of mistake.
    pub mistake: Mistake,
    /// Message.
    pub message: String,
    /// Suggested correction.
    pub help: Option<String>,
}

impl ExpressionError {
    /// Creates an error without a suggestion.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { mistake: Mistake::Malformed, message: message.into(), help: None }
    }

    /// Adds a suggestion.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A compiled expression. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Expression {
    root: Root,
    kind: Kind,
    /// Used columns with plain values: name and position in the payload, or behind it for those of `derived`.
    columns: Arc<[(String, usize)]>,
    /// Values computed from tensors before the expression.
    derived: Arc<[Derived]>,
}

/// What an expression gives.
#[derive(Clone, Debug)]
enum Root {
    Plain(Part),
    Tensor(Arc<Source>),
}

/// A typed tree of plain values.
#[derive(Clone)]
pub(super) struct Part {
    tree: Arc<IdedExpr>,
    /// `None` if rows must be evaluated one by one.
    columnar: Option<Arc<Columnar>>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.tree, f)
    }
}

/// What an expression is evaluated on.
pub(super) struct Table<'a> {
    /// A batch with metadata columns and, behind its payload, the values computed from tensors.
    pub(super) batch: Cow<'a, RecordBatch>,
    /// Name and position of the columns with plain values.
    columns: &'a [(String, usize)],
    /// Name of a derived column, and the rows that fail in it.
    failures: Vec<(&'a str, Failures)>,
}

impl<'a> Table<'a> {
    fn of(batch: &'a RecordBatch, columns: &'a [(String, usize)], derived: &'a [Derived]) -> Self {
        let mut table = Self { batch: Cow::Borrowed(batch), columns, failures: Vec::new() };
        for one in derived {
            let (column, failed) = one.evaluate(&table);
            let mut fields = table.batch.schema_ref().fields().to_vec();
            fields.push(Arc::new(Field::new(&one.name, column.data_type().clone(), true)));
            let columns = table.batch.columns().iter().cloned().chain([column]).collect();
            let wider = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
            table.batch = Cow::Owned(wider.expect("a derived column has a value for each row"));
            table.failures.push((one.name.as_str(), failed));
        }
        table
    }

    /// The reason for which a row fails in a derived column.
    fn reason(&self, name: &str, row: usize) -> Option<&String> {
        self.failures.iter().find(|(column, _)| *column == name).and_then(|(_, failed)| failed.get(&row))
    }
}

/// The values of an expression for the rows of a batch.
pub(crate) struct Evaluated {
    /// One value per row; null where the expression gives null and where it fails.
    pub(crate) column: ArrayRef,
    /// The rows on which it fails, in order, with the reason.
    pub(crate) failed: Vec<(usize, String)>,
}

/// The column that an expression names, if it does nothing else.
pub(super) fn only_column(text: &str) -> Option<String> {
    check_size(text).ok()?;
    match &ENVIRONMENT.compile(text).ok()?.expression().expr {
        Expr::Ident(name) => Some(name.clone()),
        _ => None,
    }
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
        let tensor = match kind {
            Kind::Tensor(..) => typing.tensor(&mut tree)?,
            _ => None,
        };
        let root = match tensor {
            Some(source) => Root::Tensor(Arc::new(source)),
            None => Root::Plain(Part::new(tree, &typing.extended)),
        };
        let mut columns: Vec<(String, usize)> =
            typing.used().map(|index| (input.columns[index].name.clone(), index)).collect();
        let behind = typing.derived.iter().enumerate();
        columns.extend(behind.map(|(place, one)| (one.name.clone(), input.columns.len() + place)));
        Ok(Self { root, kind, columns: columns.into(), derived: typing.derived.into() })
    }

    /// Type of the result; `None` for the expression `null`, which fits every column.
    pub fn result(&self) -> Option<ColumnType> {
        self.kind.column_type()
    }

    /// Returns the expression over the same `input` with its whole-number result turned into a float; an empty one
    /// stays empty.
    pub(crate) fn into_float(self, input: &StreamType) -> Self {
        let Root::Plain(part) = &self.root else { return self };
        if self.kind != Kind::Int {
            return self;
        }
        let mut tree = (*part.tree).clone();
        super::typing::widen(&mut tree);
        let mut extended = input.clone();
        let derived = self.derived.iter().filter_map(|one| {
            one.kind.column_type().map(|column_type| Column::new(one.name.clone(), column_type))
        });
        extended.columns.extend(derived);
        Self { root: Root::Plain(Part::new(tree, &extended)), kind: Kind::Float, ..self }
    }

    /// Evaluates the expression for every row of a batch with metadata columns, into a column of the given type.
    pub(crate) fn evaluate(&self, batch: &RecordBatch, column_type: &ColumnType) -> Evaluated {
        let table = Table::of(batch, &self.columns, &self.derived);
        match &self.root {
            Root::Plain(part) => part.evaluate(&table, column_type),
            Root::Tensor(source) => source.evaluate(&table),
        }
    }

    /// Evaluates a condition for every row of a batch with metadata columns: the rows for which it holds, and those for which it
    /// fails, with the reason. A row for which it gives null does not hold.
    pub fn holds(&self, batch: &RecordBatch) -> (BooleanArray, Vec<(usize, String)>) {
        let Evaluated { column, failed } = self.evaluate(batch, &ColumnType::Bool);
        let holds = column.as_boolean();
        let holds = match holds.nulls() {
            Some(nulls) => BooleanArray::new(holds.values() & nulls.inner(), None),
            None => holds.clone(),
        };
        (holds, failed)
    }

    /// Evaluates every row with the CEL interpreter, but for what is computed from tensors; see [`Self::evaluate`].
    #[cfg(test)]
    pub(super) fn evaluate_row_by_row(&self, batch: &RecordBatch, column_type: &ColumnType) -> Evaluated {
        let table = Table::of(batch, &self.columns, &self.derived);
        match &self.root {
            Root::Plain(part) => part.evaluate_row_by_row(&table, column_type),
            Root::Tensor(source) => source.evaluate(&table),
        }
    }

    /// Whether no row needs the interpreter, unless it fails.
    #[cfg(test)]
    pub(super) fn has_loops(&self) -> bool {
        matches!(&self.root, Root::Tensor(_) | Root::Plain(Part { columnar: Some(_), .. }))
    }
}

impl Part {
    /// Takes a tree that has been typed over the columns of `input`, with derived ones behind them.
    pub(super) fn new(tree: IdedExpr, input: &StreamType) -> Self {
        let columnar = Columnar::compile(&tree, input).map(Arc::new);
        Self { tree: Arc::new(tree), columnar }
    }

    /// Evaluates it for every row, into a column of the given type.
    pub(super) fn evaluate(&self, table: &Table<'_>, column_type: &ColumnType) -> Evaluated {
        let Some(columnar) = &self.columnar else {
            return self.evaluate_row_by_row(table, column_type);
        };
        let (column, undecided) = columnar.evaluate(&table.batch);
        match undecided {
            Some(undecided) => {
                let decided =
                    typed(&column).expect("expressions have values of the four types of their columns");
                self.collect(table, column_type, |row| !undecided.value(row), &decided)
            }
            None => Evaluated { column, failed: Vec::new() },
        }
    }

    fn evaluate_row_by_row(&self, table: &Table<'_>, column_type: &ColumnType) -> Evaluated {
        self.collect(table, column_type, |_| false, &Typed::Bool(&BooleanArray::new_null(0)))
    }

    /// Takes decided rows from `decided` and evaluates the others with the CEL interpreter.
    fn collect(
        &self,
        table: &Table<'_>,
        column_type: &ColumnType,
        is_decided: impl Fn(usize) -> bool,
        decided: &Typed<'_>,
    ) -> Evaluated {
        let batch = &table.batch;
        // A derived column that another one needs is there before the later ones.
        let columns = table.columns.iter().filter_map(|(name, index)| {
            Some((name.as_str(), typed(batch.columns().get(METADATA_COLUMNS + index)?)?))
        });
        let row = Row { columns: columns.collect(), row: AtomicUsize::new(0) };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(&row);
        let mut builder = ScalarBuilder::new(column_type, batch.num_rows());
        let mut failed = Vec::new();
        let mut bytes = 0;
        let mut append = |builder: &mut ScalarBuilder, cell: Cell<'_>| {
            if let Cell::Text(text) = cell {
                if bytes + text.len() > text_length::MOST_OF_A_BATCH {
                    return Err(text_length::TOO_MANY.to_owned());
                }
                bytes += text.len();
            }
            builder.append_cell(cell)
        };
        for index in 0..batch.num_rows() {
            let appended = if is_decided(index) {
                append(&mut builder, decided.cell(index))
            } else {
                row.row.store(index, Ordering::Relaxed);
                match cel::Value::resolve_val(&self.tree, &context) {
                    Ok(value) => cell(&value).and_then(|cell| append(&mut builder, cell)),
                    Err(error) => Err(explain(&error, &row, table)),
                }
            };
            if let Err(why) = appended {
                builder.append_null();
                failed.push((index, why));
            }
        }
        Evaluated { column: builder.finish(), failed }
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
    /// The values of a tensor, see [`crate::columns::tensor`].
    Tensor(&'a [u8]),
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

/// Describes the failure of one row, without CEL's internal names.
fn explain(error: &cel::ExecutionError, row: &Row<'_>, table: &Table<'_>) -> String {
    use cel::ExecutionError as E;
    let index = row.row.load(Ordering::Relaxed);
    if let E::UndeclaredReference(name) = error
        && let Some(why) = table.reason(name, index)
    {
        return why.clone();
    }
    let empty = row.columns.iter().find(|(name, column)| column.is_null(index) && !is_derived(name));
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

    fn cell(&self, row: usize) -> Cell<'_> {
        if self.is_null(row) {
            return Cell::Null;
        }
        match self {
            Typed::Text(array) => Cell::Text(array.value(row)),
            Typed::Int(array) => Cell::Int(array.value(row)),
            Typed::Float(array) => Cell::Float(array.value(row)),
            Typed::Bool(array) => Cell::Bool(array.value(row)),
        }
    }
}

/// The columns in use and the current row. The row number is atomic only because CEL requires `Sync`.
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
            // An empty value of a derived column is a failure.
            return if is_derived(variable) { None } else { Some(CowVal::Borrowed(&NULL)) };
        }
        Some(match column {
            Typed::Text(array) => CowVal::owned(CelString::from(array.value(row))),
            Typed::Int(array) => CowVal::owned(CelInt::from(array.value(row))),
            Typed::Float(array) => CowVal::owned(CelDouble::from(array.value(row))),
            Typed::Bool(array) => CowVal::owned(CelBool::from(array.value(row))),
        })
    }
}

/// The error for a text that does not parse; `what` and `place` are those of the parser.
fn not_parsed(text: &str, what: &str, place: &str) -> ExpressionError {
    // Messages and advice have one line; line breaks of an expression mean nothing.
    let text = &text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let text = text.trim_end();
    if let Some((ours, changes)) = super::common_mistakes::corrected(text)
        && ENVIRONMENT.compile(&ours).is_ok()
    {
        let changes: Vec<String> =
            changes.iter().map(|(theirs, ours)| format!("`{theirs}` is written `{ours}`")).collect();
        // In YAML a text with `: ` in it needs quotes.
        let shown = if ours.contains(": ") { format!("\"{ours}\"") } else { ours };
        return ExpressionError::new(format!("`{text}` is not an expression: {}", changes.join(", ")))
            .with_help(format!("write `{shown}`"));
    }
    // The parser lists every token that could stand there, by internal names.
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
                operators += usize::from(c == '[');
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '!' | '&' | '|' | '?' | '<' | '>' | '=' | '.' => operators += 1,
            _ => {}
        }
    }
    // Words inside text literals count as well, as with the signs above, so no literal has to be parsed here.
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // A number ends where a letter follows that it cannot have: `1in` is two words.
    operators += words
        .filter(|word| {
            *word == "in" || word.ends_with("in") && word.starts_with(|c: char| c.is_ascii_digit())
        })
        .count();
    if deepest > MAX_NESTING || operators > MAX_OPERATORS {
        return Err(ExpressionError::new(format!(
            "the expression is too large: at most {MAX_NESTING} nested brackets and {MAX_OPERATORS} operators"
        ))
        .with_help("split it over several `map` operators"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
