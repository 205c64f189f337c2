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
    results_of(
        text,
        &[
            json!({"t": 20.5, "n": 3, "site": "north", "ok": true}),
            json!({"t": -1.0, "n": 0, "site": "South", "ok": false}),
            json!({"t": null, "n": i64::MAX, "site": null, "ok": null}),
        ],
    )
}

fn results_of(text: &str, rows: &[serde_json::Value]) -> Vec<String> {
    let rows = batch(&input(), rows);
    let expression = Expression::compile(text, &input()).unwrap_or_else(|e| panic!("{e} {:?}", e.help));
    let all = shown(&expression, &rows, Expression::evaluate);
    assert_eq!(all, shown(&expression, &rows, Expression::evaluate_row_by_row), "{text}");
    all
}

/// Returns the results as texts; failures have a leading `!`.
fn shown(
    expression: &Expression,
    rows: &RecordBatch,
    evaluate: fn(&Expression, &RecordBatch, &ColumnType) -> Evaluated,
) -> Vec<String> {
    let column_type = expression.result().unwrap_or(ColumnType::Text);
    let Evaluated { column, failed } = evaluate(expression, rows, &column_type);
    assert_eq!(*column.data_type(), crate::record::arrow_type(&column_type));
    let values = typed(&column).expect("a plain column");
    let mut all: Vec<String> = (0..rows.num_rows())
        .map(|row| match values.cell(row) {
            Cell::Null => "null".into(),
            Cell::Bool(v) => v.to_string(),
            Cell::Int(v) => v.to_string(),
            Cell::Float(v) => format!("{v:?}"),
            Cell::Text(v) => format!("'{v}'"),
            Cell::Tensor(v) => panic!("{v:?} is no plain value"),
        })
        .collect();
    for (row, why) in failed {
        assert_eq!(all[row], "null");
        all[row] = format!("!{why}");
    }
    all
}

#[test]
fn numbers_of_both_kinds_mix() {
    assert_eq!(results("t * 2"), ["41.0", "-2.0", "!column `t` is empty (null)"]);
    assert_eq!(results("t > n"), ["true", "false", "!column `t` is empty (null)"]);
    assert_eq!(results("ok ? n : t"), ["3.0", "-1.0", "!column `t` is empty (null)"]);
    assert_eq!(results("n in [3, 4.0]"), ["true", "false", "false"]);
    assert_eq!(results("-t + 1"), ["-19.5", "2.0", "!column `t` is empty (null)"]);
    assert_eq!(results("n / 2"), ["1", "0", &(i64::MAX / 2).to_string()]);
    assert_eq!(results("double(n) / 2"), ["1.5", "0.0", "4.611686018427388e18"]);
}

#[test]
fn an_empty_whole_number_beside_a_float_stays_empty() {
    let rows = [
        json!({"t": 1.5, "n": null, "ok": true}),
        json!({"t": null, "n": null, "ok": true}),
        json!({"t": 3.0, "n": 3, "ok": false}),
        json!({"t": null, "n": 3, "ok": false}),
    ];
    let (no_n, no_t) = ("!column `n` is empty (null)", "!column `t` is empty (null)");
    for (text, expected) in [
        ("t == n", ["false", "true", "true", "false"]),
        ("n != t", ["true", "false", "false", "true"]),
        ("ok ? n : t", ["null", "null", "3.0", "null"]),
        ("ok ? (ok ? null : 1) : t", ["null", "null", "3.0", "null"]),
        ("n in [3, 4.5]", ["false", "false", "true", "true"]),
        ("1.5 in [t, n]", ["true", "false", "false", "false"]),
        // An operator that needs a value fails on an empty one.
        ("n * t", [no_n, no_t, "9.0", no_t]),
        ("n < t", [no_n, no_t, "false", no_t]),
        ("(n == t ? n : 1) + 0.5", ["1.5", no_t, "3.5", "1.5"]),
        ("math.floor(n)", [no_n, no_n, "3.0", "3.0"]),
        ("double(n)", [no_n, no_n, "3.0", "3.0"]),
    ] {
        assert_eq!(results_of(text, &rows), expected, "{text}");
    }
    let float = Expression::compile("n", &input()).unwrap().into_float(&input());
    for evaluate in [Expression::evaluate, Expression::evaluate_row_by_row] {
        assert_eq!(shown(&float, &batch(&input(), &rows), evaluate), ["null", "null", "3.0", "3.0"]);
    }
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
        let Evaluated { column, failed } =
            Expression::compile(text, &stream).unwrap().evaluate(&rows, &ColumnType::Bool);
        assert!(failed.is_empty(), "{text}: {failed:?}");
        column.as_boolean().iter().flatten().collect::<Vec<bool>>()
    };
    for (sign, compare) in [
        ("<", f64::lt as fn(&f64, &f64) -> bool),
        ("<=", f64::le),
        (">", f64::gt),
        (">=", f64::ge),
        ("==", f64::eq),
        ("!=", f64::ne),
    ] {
        // NaN comes from the data and from expressions, beside floats and whole numbers.
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

/// Replaces one letter by 112, five times: 1.8e10.
#[test]
fn texts_do_not_grow_without_bound() {
    let hundred = "x".repeat(112);
    let replaced = format!(".replace('', '{hundred}')").repeat(5);
    let repeated = (0..3).fold("site".to_owned(), |text, _| format!("({text} + {text} + {text} + {text})"));
    for long in [format!("site{replaced}"), format!("{repeated}{}", &replaced[..replaced.len() / 5 * 3])] {
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
        ("site.matches('[a-')", "`[a-` is not a regular expression: unclosed character class", "backslash"),
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
    // An expression over several lines: the message names the line and stays on one.
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
    for chained in [" in n", " in 1in 1u", "\tin[1]", "[0]"] {
        let chain = format!("n{}", chained.repeat(800));
        let error = Expression::compile(&chain, &input()).map(|e| e.kind).unwrap_err();
        assert!(error.message.contains("too large"), "{chained}: {error}");
    }
    let inside = format!("site == '{}' || n in [1]", "inn in_ min ".repeat(200));
    assert!(Expression::compile(&inside, &input()).is_ok());
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z0-9 ()\\[\\].,?:+*/%<>=!&|'\"{}-]{0,40}") {
        if let Ok(expression) = Expression::compile(&text, &input()) {
            let rows = batch(&input(), &[json!({"t": 1.0, "n": 1, "site": "a", "ok": true})]);
            prop_assert_eq!(shown(&expression, &rows, Expression::evaluate).len(), 1);
        }
    }

    #[test]
    fn the_static_type_is_the_type_of_the_result(text in typed_text()) {
        let Ok(expression) = Expression::compile(&text, &input()) else { return Ok(()) };
        let rows = batch(&input(), &[
            json!({"t": 1.5, "n": 4, "site": "a", "ok": true}), json!({"t": -2.0, "n": 0, "site": "", "ok": false}),
        ]);
        // The builder of a column refuses values of another type.
        for result in shown(&expression, &rows, Expression::evaluate_row_by_row) {
            // Well-typed rows without empty values fail only because of their values.
            let fails = ["zero", "int64", "range", "parse"].iter().any(|word| result.contains(word));
            prop_assert!(fails || !result.starts_with('!') && result != "null", "{}: {}", text, result);
        }
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
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} in [{b}, {b}])")),
            inner.clone().prop_map(|a| format!("double({a})")),
            inner.clone().prop_map(|a| format!("string({a})")),
            inner.clone().prop_map(|a| format!("(-{a})")),
            inner.prop_map(|a| format!("(!{a})")),
        ]
    })
}
