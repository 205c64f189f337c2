use crate::record::METADATA_COLUMNS;
use crate::relational::expression::{Evaluated, Expression};
use crate::testing::batch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;
use tidemill_spec::types::{Column, ColumnType, StreamType};

const INTS: [i64; 9] = [0, 1, -1, 2, 7, i64::MAX, i64::MIN, i64::MAX - 1, 1 << 53];
const FLOATS: [f64; 10] = [
    0.0,
    -0.0,
    1.5,
    -2.5,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    9_223_372_036_854_775_807.0,
    f64::MIN_POSITIVE,
    -9_223_372_036_854_775_808.0,
];
const TEXTS: [&str; 12] = [
    "",
    "a",
    "north",
    "North-West",
    "Süd ß",
    "日本語",
    "🎈a🎈",
    " \t blank\u{a0}",
    "12",
    "-9223372036854775808",
    "1e400",
    "NaN",
];

fn input() -> StreamType {
    StreamType::new([
        Column::new("i", ColumnType::Int64),
        Column::new("j", ColumnType::Int64),
        Column::new("f", ColumnType::Float64),
        Column::new("g", ColumnType::Float64),
        Column::new("t", ColumnType::Text),
        Column::new("u", ColumnType::Text),
        Column::new("b", ColumnType::Bool),
        Column::new("c", ColumnType::Bool),
    ])
}

/// Rows with the values that the bytes choose; every eighth byte gives an empty one.
fn rows(choices: &[[u8; 8]], offset: usize) -> RecordBatch {
    let plain = batch(&input(), &vec![json!({}); choices.len()]);
    let long = "long ä ".repeat(3000);
    let value = |column: usize, row: usize| {
        let byte = choices[row][column];
        (!byte.is_multiple_of(8)).then_some(byte as usize / 8)
    };
    let mut columns = plain.columns()[..METADATA_COLUMNS].to_vec();
    let all = || 0..choices.len();
    for column in 0..8 {
        let array: ArrayRef = match column {
            0 | 1 => Arc::new(
                all().map(|row| value(column, row).map(|v| INTS[v % INTS.len()])).collect::<Int64Array>(),
            ),
            2 | 3 => Arc::new(
                all()
                    .map(|row| value(column, row).map(|v| FLOATS[v % FLOATS.len()]))
                    .collect::<Float64Array>(),
            ),
            4 | 5 => Arc::new(
                all()
                    .map(|row| {
                        value(column, row)
                            .map(|v| if v == 31 { long.as_str() } else { TEXTS[v % TEXTS.len()] })
                    })
                    .collect::<StringArray>(),
            ),
            _ => Arc::new(
                all().map(|row| value(column, row).map(|v| v.is_multiple_of(2))).collect::<BooleanArray>(),
            ),
        };
        columns.push(array);
    }
    let rows = RecordBatch::try_new(plain.schema(), columns).expect("arrays of the columns' types");
    let offset = offset.min(rows.num_rows());
    rows.slice(offset, rows.num_rows() - offset)
}

/// Writes well-typed expressions, as the bytes choose.
struct Writer<'a> {
    choices: std::slice::Iter<'a, u8>,
    depth: usize,
}

impl Writer<'_> {
    fn choose(&mut self) -> usize {
        self.choices.next().map_or(0, |byte| *byte as usize)
    }

    fn inner(&mut self, kind: &str) -> String {
        self.depth += 1;
        let text = self.write(kind);
        self.depth -= 1;
        text
    }

    fn write(&mut self, kind: &str) -> String {
        let choice = self.choose();
        if self.depth > 5 || self.choices.len() == 0 {
            return self.leaf(kind, choice);
        }
        if choice.is_multiple_of(7) {
            let condition = self.inner("bool");
            let (yes, no) = (self.inner(kind), self.inner(kind));
            return match choice / 7 % 6 {
                0 => format!("({condition} ? null : {no})"),
                1 => format!("({condition} ? {yes} : null)"),
                _ => format!("({condition} ? {yes} : {no})"),
            };
        }
        let number = if choice.is_multiple_of(2) { "int" } else { "float" };
        match kind {
            "int" => match choice / 7 % 10 {
                0 => self.leaf(kind, choice),
                1 => format!("(-{})", self.inner("int")),
                2 => format!("math.abs({})", self.inner("int")),
                3 => format!("size({})", self.inner("text")),
                4 => format!("{}.indexOf({})", self.inner("text"), self.inner("text")),
                5 => format!("int({})", self.inner(["float", "text", "int"][choice % 3])),
                more => {
                    let sign = ["+", "-", "*", "/", "%"][(choice + more) % 5];
                    format!("({} {sign} {})", self.inner("int"), self.inner("int"))
                }
            },
            "float" => match choice / 7 % 10 {
                0 => self.leaf(kind, choice),
                1 => format!("(-{})", self.inner("float")),
                2 => {
                    format!("math.{}({})", ["abs", "ceil", "floor", "round"][choice % 4], self.inner("float"))
                }
                3 => format!("double({})", self.inner(["float", "text", "int"][choice % 3])),
                more => {
                    let sign = ["+", "-", "*", "/"][(choice + more) % 4];
                    let other = if more == 4 { "int" } else { "float" };
                    format!("({} {sign} {})", self.inner("float"), self.inner(other))
                }
            },
            "text" => match choice / 7 % 9 {
                0 => self.leaf(kind, choice),
                1 => format!("{}.{}()", self.inner("text"), ["lowerAscii", "upperAscii", "trim"][choice % 3]),
                2 => format!(
                    "{}.replace('{}', '{}')",
                    self.inner("text"),
                    TEXTS[choice % 5],
                    TEXTS[choice % 7]
                ),
                3 => format!("{}.substring({})", self.inner("text"), self.inner("int")),
                4 => format!("{}.substring({}, {})", self.inner("text"), choice % 3, self.inner("int")),
                5 => format!("string({})", self.inner(["float", "text", "int", "bool"][choice % 4])),
                _ => format!("({} + {})", self.inner("text"), self.inner("text")),
            },
            _ => match choice / 7 % 12 {
                0 => self.leaf(kind, choice),
                1 => format!("(!{})", self.inner("bool")),
                2 | 3 => format!("({} && {})", self.inner("bool"), self.inner("bool")),
                4 | 5 => format!("({} || {})", self.inner("bool"), self.inner("bool")),
                6 => {
                    let kind = ["int", "float", "text", "bool"][choice % 4];
                    let sign = if choice.is_multiple_of(3) { "==" } else { "!=" };
                    let right = if choice.is_multiple_of(5) { "null".into() } else { self.inner(kind) };
                    format!("({} {sign} {right})", self.inner(kind))
                }
                7 => format!(
                    "{}.{}({})",
                    self.inner("text"),
                    ["contains", "startsWith", "endsWith"][choice % 3],
                    self.inner("text")
                ),
                8 => format!("{}.matches('^[a-n]|ß|日.語')", self.inner("text")),
                9 => match choice % 3 {
                    0 => format!("({} in [1, -1, 7, {}])", self.inner("int"), i64::MAX),
                    1 => format!("({} in [1.5, 0, -0.0])", self.inner("float")),
                    _ => format!("({} in ['', 'north', '日本語'])", self.inner("text")),
                },
                more => {
                    let sign = ["<", "<=", ">", ">="][choice % 4];
                    let kind = if more == 11 { "text" } else { number };
                    format!("({} {sign} {})", self.inner(kind), self.inner(kind))
                }
            },
        }
    }

    fn leaf(&self, kind: &str, choice: usize) -> String {
        match (kind, choice % 4) {
            ("int", 0) => format!("({})", INTS[choice / 4 % INTS.len()]),
            ("int", 1) => "j".into(),
            ("int", _) => "i".into(),
            ("float", 0) => ["0.0", "(-0.0)", "1.5", "(0.0 / 0.0)", "1e308"][choice / 4 % 5].into(),
            ("float", 1) => "g".into(),
            ("float", _) => "f".into(),
            ("text", 0) => format!("'{}'", TEXTS[choice / 4 % TEXTS.len()]),
            ("text", 1) => "u".into(),
            ("text", _) => "t".into(),
            (_, 0) => ["true", "false"][choice / 4 % 2].into(),
            (_, 1) => "c".into(),
            _ => "b".into(),
        }
    }
}

/// Returns values and failures, row by row. All NaN are equal; -0.0 is not 0.0.
fn shown(evaluated: &Evaluated) -> Vec<String> {
    let column = &evaluated.column;
    let mut all: Vec<String> = (0..column.len())
        .map(|row| {
            if column.is_null(row) {
                "null".into()
            } else if let Some(texts) = column.as_string_opt::<i32>() {
                format!("{:?}", texts.value(row))
            } else if let Some(ints) = column.as_primitive_opt::<Int64Type>() {
                ints.value(row).to_string()
            } else if let Some(floats) = column.as_primitive_opt::<Float64Type>() {
                format!("{:?}", floats.value(row))
            } else {
                column.as_boolean().value(row).to_string()
            }
        })
        .collect();
    for (row, why) in &evaluated.failed {
        assert_eq!(all[*row], "null");
        all[*row] = format!("fails: {why}");
    }
    all
}

fn compare(text: &str, rows: &RecordBatch) -> Result<(), TestCaseError> {
    let expression = Expression::compile(text, &input()).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let Some(column_type) = expression.result() else { return Ok(()) };
    prop_assert!(expression.has_loops(), "{} has a loop for each part", text);
    let by_column = shown(&expression.evaluate(rows, &column_type));
    let by_row = shown(&expression.evaluate_row_by_row(rows, &column_type));
    prop_assert_eq!(by_column, by_row, "{}", text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn columns_and_rows_give_the_same(
        kind in prop::sample::select(vec!["int", "float", "text", "bool"]),
        choices in prop::collection::vec(any::<u8>(), 0..60),
        values in prop::collection::vec(any::<[u8; 8]>(), 0..70), offset in 0usize..5,
    ) {
        let text = Writer { choices: choices.iter(), depth: 0 }.write(kind);
        compare(&text, &rows(&values, offset))?;
    }
}

/// Applies every operator to every pair of edge values, including the empty one.
#[test]
fn all_pairs_of_edge_values() {
    let mut values = Vec::new();
    for a in 0..13u8 {
        for b in 0..13u8 {
            let (a, b) = (if a == 12 { 0 } else { 8 * a + 1 }, if b == 12 { 0 } else { 8 * b + 1 });
            values.push([a, b, a, b, a, b, a, b]);
        }
    }
    let rows = rows(&values, 3);
    for sign in ["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "&&", "||"] {
        for (a, b) in [("i", "j"), ("f", "g"), ("i", "g"), ("t", "u"), ("b", "c")] {
            let text = format!("{a} {sign} {b}");
            if Expression::compile(&text, &input()).is_ok() {
                compare(&text, &rows).unwrap();
            }
        }
    }
    for text in [
        "b && i / j > 0",
        "i / j > 0 || c",
        "b ? i / j : i",
        "-i",
        "math.abs(i)",
        "int(f)",
        "int(t)",
        "double(t)",
        "string(f)",
        "string(i)",
        "t.indexOf(u)",
        "t.substring(i, j)",
        "t.substring(i)",
        "t.contains(u)",
        "i == null",
        "b ? t : null",
        "t in ['a', 'north']",
        "math.round(f)",
        "double(i)",
        "t.replace('a', 'north')",
        "size(t) / (size(u) - 1)",
        "f == i",
        "i != g",
        "b ? i : f",
        "i in [1, 2.5]",
    ] {
        compare(text, &rows).unwrap();
    }
}

#[test]
fn what_has_no_loop_is_evaluated_by_row() {
    for (text, has_loops) in [
        ("i + 1 > 2", true),
        ("t.matches(u)", false),
        ("i in [j, 1]", false),
        ("bool(t)", false),
        ("t.replace('a', u)", false),
    ] {
        let expression = Expression::compile(text, &input()).unwrap();
        assert_eq!(expression.has_loops(), has_loops, "{text}");
    }
}

/// The texts of one lane have a memory limit; texts above it are computed row by row.
#[test]
fn many_long_texts_are_made_one_by_one() {
    let plain = rows(&[[9; 8]; 12], 0);
    let mut columns = plain.columns().to_vec();
    columns[METADATA_COLUMNS + 4] = Arc::new(StringArray::from(vec!["x".repeat(4 << 20); 12]));
    let rows = RecordBatch::try_new(plain.schema(), columns).unwrap();
    compare("size(t + t)", &rows).unwrap();
    compare("size(t + t + t)", &rows).unwrap();
    // Nine rows fit into one lane, one more is computed row by row; then the column is full.
    compare("t + ''", &rows).unwrap();
    let joined = Expression::compile("t + ''", &input()).unwrap();
    let failed = joined.evaluate(&rows, &ColumnType::Text).failed;
    assert_eq!(failed, [10usize, 11].map(|row| (row, crate::relational::text_length::TOO_MANY.to_owned())));
}
