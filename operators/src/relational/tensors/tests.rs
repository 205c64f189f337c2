use crate::record::METADATA_COLUMNS;
use crate::relational::expression::{Evaluated, Expression};
use crate::testing::batch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, Float32Array, RecordBatch};
use arrow_schema::Field;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tidemill_spec::types::{Column, ColumnType, StreamType};

fn input() -> StreamType {
    let columns = [
        ("scores", "tensor<float32>[4]"),
        ("other", "tensor<float64>[4]"),
        ("counts", "tensor<int64>[3]"),
        ("bytes", "tensor<uint8>[2, 2]"),
        ("small", "tensor<int8>[2]"),
        ("ids", "tensor<int32>[3]"),
        ("halves", "tensor<float16>[2]"),
        ("boxes", "tensor<float32>[3, 2]"),
        ("labels", "tensor<text>[3]"),
        ("flags", "tensor<bool>[2]"),
        ("alone", "tensor<float32>[]"),
        ("none", "tensor<float32>[0]"),
        ("n", "int64"),
        ("f", "float64"),
        ("t", "text"),
    ];
    StreamType::new(columns.map(|(name, kind)| Column::new(name, ColumnType::named(kind).unwrap())))
}

fn row(n: i64) -> Value {
    json!({
        "scores": [0.5, 0.25, -1.0, 0.5], "other": [1.0, 2.0, 3.0, 4.0], "counts": [7, -2, 9], "bytes": [[1, 2], [3, 255]],
        "small": [-128, 127], "ids": [10, 20, 30], "halves": [0.5, -2.0], "boxes": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "labels": ["cat", "dog", "cat"], "flags": [true, false], "alone": [0.75], "none": [], "n": n, "f": 0.5, "t": "dog",
    })
}

/// Results row by row: values, lists, `null`, and failures with a leading `!`.
fn shown(evaluated: &Evaluated) -> Vec<String> {
    let column = &evaluated.column;
    let value = |row: usize| {
        if column.is_null(row) {
            "null".to_owned()
        } else if let Some(list) = column.as_fixed_size_list_opt() {
            crate::sinks::rows::tensor_text(column, row, &[list.value_length() as usize])
        } else if let Some(texts) = column.as_string_opt::<i32>() {
            format!("'{}'", texts.value(row))
        } else if let Some(ints) = column.as_primitive_opt::<Int64Type>() {
            ints.value(row).to_string()
        } else if let Some(floats) = column.as_primitive_opt::<Float64Type>() {
            format!("{:?}", floats.value(row))
        } else {
            column.as_boolean().value(row).to_string()
        }
    };
    let mut all: Vec<String> = (0..column.len()).map(value).collect();
    for (row, why) in &evaluated.failed {
        assert_eq!(all[*row], "null");
        all[*row] = format!("!{why}");
    }
    all
}

/// Evaluates by columns, row by row, and each row in a batch of its own; all must give the same.
fn results_of(text: &str, stream: &StreamType, rows: &RecordBatch) -> Vec<String> {
    let expression = Expression::compile(text, stream).unwrap_or_else(|e| panic!("{text}: {e} {:?}", e.help));
    let kind = expression.result().unwrap_or(ColumnType::Text);
    let evaluated = expression.evaluate(rows, &kind);
    assert_eq!(*evaluated.column.data_type(), crate::record::arrow_type(&kind), "{text}");
    let all = shown(&evaluated);
    assert_eq!(all, shown(&expression.evaluate_row_by_row(rows, &kind)), "{text}");
    let alone = (0..rows.num_rows()).flat_map(|row| shown(&expression.evaluate(&rows.slice(row, 1), &kind)));
    assert_eq!(all, alone.collect::<Vec<_>>(), "{text}");
    all
}

fn results(text: &str) -> Vec<String> {
    assert!(Expression::compile(text, &input()).is_ok_and(|expression| expression.has_loops()), "{text}");
    let rows = batch(&input(), &[row(1), row(7), json!({"n": 0, "f": 1.0, "t": "cat"})]);
    results_of(text, &input(), &rows)
}

#[test]
fn values_by_position() {
    for (text, expected) in [
        ("scores[0]", "0.5"),
        ("halves[1]", "-2.0"),
        ("other[3] + 1", "5.0"),
        ("counts[1]", "-2"),
        ("ids[2] / 4", "7"),
        ("small[0]", "-128"),
        ("bytes[1][1]", "255"),
        ("flags[0] && !flags[1]", "true"),
        ("labels[1] + '!'", "'dog!'"),
        ("boxes[2][1]", "6.0"),
        ("boxes[1]", "[3.0,4.0]"),
        ("scores[n]", "0.25"),
        ("boxes[n][n - 1]", "3.0"),
        ("boxes[counts[0] - 6]", "[3.0,4.0]"),
        ("max(boxes[n + 1])", "6.0"),
        ("alone > 0.5", "true"),
        ("scores", "[0.5,0.25,-1.0,0.5]"),
        ("top_k(scores, 3)[2]", "0.25"),
    ] {
        assert_eq!(results(text)[0], expected, "{text}");
    }
    assert_eq!(
        results("scores[n]")[1..],
        ["!`scores` has 4 positions from 0 on, not 7", "!column `scores` is empty (null)"]
    );
    assert_eq!(results("boxes[n - 2]")[0], "!`boxes` has 3 positions from 0 on, not -1");
    assert_eq!(results("boxes[10 / (n - 1)][0]")[0], "!division by zero");
    assert_eq!(results("scores")[2], "null", "a column stays as it is");
    assert_eq!(results("boxes[0]")[2], "!column `boxes` is empty (null)");
    assert_eq!(results("alone")[2], "!column `alone` is empty (null)");
}

#[test]
fn functions() {
    for (text, expected) in [
        ("size(scores)", "4"),
        ("size(boxes)", "3"),
        ("boxes.size()", "3"),
        ("size(boxes[0])", "2"),
        ("max(scores)", "0.5"),
        ("min(scores)", "-1.0"),
        ("sum(scores)", "0.25"),
        ("mean(scores)", "0.0625"),
        ("norm(halves)", "2.0615528128088303"),
        ("argmax(scores)", "0"),
        ("argmin(scores)", "2"),
        ("argmax(counts)", "2"),
        ("max(counts)", "9"),
        ("min(bytes)", "1"),
        ("sum(bytes)", "261"),
        ("mean(counts)", "4.666666666666667"),
        ("sum(none)", "0.0"),
        ("dot(scores, other)", "0.0"),
        ("distance(scores, scores)", "0.0"),
        ("cosine(other, other)", "1.0"),
        ("cosine(boxes[0], boxes[1])", "0.9838699100999074"),
        ("t in labels", "true"),
        ("'cow' in labels", "false"),
        ("n + 8 in counts", "true"),
        ("!(20 in ids)", "false"),
        ("scores[argmax(other)]", "0.5"),
        ("top_k(scores, 2)", "[0.5,0.5]"),
        ("top_positions(scores, 3)", "[0,3,1]"),
        ("top_k(counts, 3)", "[9,7,-2]"),
        ("top_positions(counts, 1)", "[2]"),
        ("top_k(halves, 1)", "[0.5]"),
        ("labels[top_positions(counts, 1)[0]]", "'cat'"),
        ("max(scores) > 0.4 ? labels[argmin(counts)] : 'none'", "'dog'"),
        ("scores != null && scores[0] > 0.1", "true"),
        ("null == scores", "false"),
    ] {
        assert_eq!(results(text)[0], expected, "{text}");
    }
    let empty = "!column `labels` is empty (null)";
    assert_eq!(results("t in labels")[2], empty);
    assert_eq!(results("t == 'cat' || t in labels"), ["true", "true", "true"], "not needed, no failure");
    assert_eq!(results("scores == null || max(scores) > 0.4"), ["true", "true", "true"]);
    assert_eq!(results("scores != null"), ["true", "true", "false"]);
    assert_eq!(results("cosine(scores, other) > 2.0")[2], "!column `scores` is empty (null)");
}

#[test]
fn values_without_an_answer_fail_the_row() {
    let stream = StreamType::new([
        Column::new("v", ColumnType::named("tensor<float32>[2]").unwrap()),
        Column::new("i", ColumnType::named("tensor<int64>[2]").unwrap()),
    ]);
    let plain =
        batch(&stream, &[json!({"v": [0, 0], "i": [i64::MAX, 1]}), json!({"v": [0, 0], "i": [1, 2]})]);
    let item = Arc::new(Field::new("item", arrow_schema::DataType::Float32, false));
    let values = Arc::new(Float32Array::from(vec![0.0, 0.0, 1.0, f32::NAN]));
    let mut columns = plain.columns().to_vec();
    columns[METADATA_COLUMNS] = Arc::new(arrow_array::FixedSizeListArray::new(item, 2, values, None));
    let rows = RecordBatch::try_new(plain.schema(), columns).unwrap();
    let nan = "!value 1 of `v` is NaN, which is neither larger nor smaller than another";
    for function in ["max(v)", "min(v)", "argmax(v)", "argmin(v)", "top_k(v, 1)", "top_positions(v, 1)"] {
        assert_eq!(results_of(function, &stream, &rows)[1], nan);
    }
    for function in ["sum(v)", "mean(v)", "norm(v)", "dot(v, v)", "v[1]"] {
        assert_eq!(results_of(function, &stream, &rows)[1], "NaN");
    }
    let zeros = "!`cosine` of a tensor of zeros, which has no direction";
    assert_eq!(results_of("cosine(v, v)", &stream, &rows)[0], zeros);
    assert_eq!(results_of("sum(i)", &stream, &rows), ["!the result does not fit into int64", "3"]);
    assert_eq!(results_of("i[0] + 1", &stream, &rows), ["!the result does not fit into int64", "2"]);
}

#[test]
fn wrong_uses_are_refused_with_advice() {
    for (text, message, help) in [
        ("scores[4]", "`scores` is tensor<float32>[4], it has no position 4", "the last one is `scores[3]`"),
        ("scores[-1]", "it has no position -1", "positions count from 0: the last one is `scores[3]`"),
        ("boxes[0][2]", "`boxes[0]` is tensor<float32>[2], it has no position 2", "`boxes[0][1]`"),
        ("none[0]", "it has no position 0", "has no values"),
        ("scores[0][0]", "only a tensor has positions, found float64", ""),
        ("t[0]", "only a tensor has positions, found text", "substring"),
        ("scores[f]", "a position is a whole number, found float64", "int(x)"),
        ("scores['a']", "a position is a whole number, found text", "no names"),
        (
            "scores > 0.5",
            "`>` needs two numbers or two texts, found tensor<float32>[4] and float64",
            "write `max(scores) > 0.5`, or `scores[0] > 0.5` for one of them",
        ),
        ("boxes * 2", "`*` needs two numbers, found tensor<float32>[3, 2] and int64", "`boxes[0][0] * 2`"),
        (
            "labels == 'cat'",
            "compares values of one type",
            "write `'...' in labels`, or `labels[0] == 'cat'`",
        ),
        ("scores == scores", "compares values of one type", ""),
        ("t == 'a' ? scores : other", "`?:` gives plain values", "max(scores)"),
        ("scores in [scores]", "a list has plain values", ""),
        ("0.5 in scores", "`in` looks for float64 in tensor<float32>[4]", "max(scores) >= 0.5"),
        ("1 in labels", "`in` looks for int64 in tensor<text>[3]", "quotes"),
        ("f in counts", "`in` looks for float64 in tensor<int64>[3]", "whole number"),
        ("max(f, 1)", "`max` needs one tensor, found 2 arguments", "a > b ? a : b"),
        ("max(f)", "`max` needs a tensor, found float64", "max(t)"),
        ("max(labels)", "`max` needs a tensor of numbers, found tensor<text>[3]", ""),
        ("max(none)", "`max` needs a value", ""),
        ("argmax(boxes)", "`argmax` needs a tensor of one dimension", "boxes[0]"),
        (
            "dot(scores, counts)",
            "two tensors of one shape, found tensor<float32>[4] and tensor<int64>[3]",
            "",
        ),
        ("top_k(scores, 5)", "a number from 1 to 4", "top_k(scores, 4)"),
        ("top_k(scores, n)", "a number from 1 to 4", "constant"),
        ("top_k(scores)", "`top_k` needs two arguments, found 1 arguments", "top_k(t, 5)"),
        ("scores.max()", "`max` cannot be called as `x.max()`", "max(t)"),
        ("maxx(scores)", "there is no function `maxx`", "max"),
        ("avg(scores)", "there is no function `avg`", "mean(t)"),
        ("string(scores)", "`string` needs a number, bool or text, found tensor<float32>[4]", "scores[0]"),
        ("scorse[0]", "there is no column `scorse`", "did you mean `scores`?"),
    ] {
        let error = Expression::compile(text, &input()).map(|e| e.result()).unwrap_err();
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(error.help.clone().unwrap_or_default().contains(help), "{text}: {:?}", error.help);
    }
}

/// What the expressions below give, computed anew for one row: from the numbers of `scores` and `counts`.
fn expected(text: &str, scores: Option<[f32; 4]>, counts: Option<[i64; 3]>, n: i64) -> String {
    let empty = |name: &str| format!("!column `{name}` is empty (null)");
    let float = |value: f64| format!("{value:?}");
    let Some(counts) =
        counts.filter(|_| text.contains("counts")).or_else(|| (!text.contains("counts")).then_some([0; 3]))
    else {
        return empty("counts");
    };
    if text == "n in counts" {
        return counts.contains(&n).to_string();
    }
    if text == "sum(counts)" {
        return counts.iter().sum::<i64>().to_string();
    }
    if text == "top_k(counts, 2)" {
        let mut sorted = counts;
        sorted.sort_unstable();
        return format!("[{},{}]", sorted[2], sorted[1]);
    }
    let Some(scores) = scores else { return empty("scores") };
    let wide = scores.map(f64::from);
    let nan = wide.iter().position(|value| value.is_nan());
    match text {
        "scores[n]" => match usize::try_from(n).ok().and_then(|n| wide.get(n)) {
            Some(value) => float(*value),
            None => format!("!`scores` has 4 positions from 0 on, not {n}"),
        },
        "sum(scores) * 2.0" => float((((0.0 + wide[0]) + wide[1]) + wide[2] + wide[3]) * 2.0),
        _ if nan.is_some() => {
            let at = nan.unwrap_or_default();
            format!("!value {at} of `scores` is NaN, which is neither larger nor smaller than another")
        }
        "argmax(scores)" => {
            let most = wide.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            wide.iter().position(|value| *value == most).unwrap().to_string()
        }
        "max(scores) > 0.5 && n > 0" | "n > 0 && max(scores) > 0.5" => {
            (wide.iter().any(|value| *value > 0.5) && n > 0).to_string()
        }
        "top_positions(scores, 4)" => {
            let mut places = [0usize, 1, 2, 3];
            places.sort_by(|a, b| wide[*b].partial_cmp(&wide[*a]).unwrap());
            format!("[{},{},{},{}]", places[0], places[1], places[2], places[3])
        }
        other => panic!("{other}"),
    }
}

proptest! {
    #[test]
    fn as_computed_one_by_one(
        rows in prop::collection::vec(
            (
                prop::option::weighted(0.9, prop::array::uniform4(prop::sample::select(vec![0.5f32, 0.75, -1.0, 0.0, -0.0, f32::NAN, f32::INFINITY, 1e-3]))),
                prop::option::weighted(0.9, prop::array::uniform3(-3i64..4)),
                -1i64..6,
            ),
            1..40,
        ),
        offset in 0usize..3,
    ) {
        let stream = StreamType::new([
            Column::new("scores", ColumnType::named("tensor<float32>[4]").unwrap()),
            Column::new("counts", ColumnType::named("tensor<int64>[3]").unwrap()),
            Column::new("n", ColumnType::Int64),
        ]);
        let plain: Vec<Value> = rows.iter().map(|(_, counts, n)| json!({"scores": null, "counts": counts, "n": n})).collect();
        let made = batch(&stream, &plain);
        let item = Arc::new(Field::new("item", arrow_schema::DataType::Float32, false));
        let values: Vec<f32> = rows.iter().flat_map(|(scores, ..)| scores.unwrap_or_default()).collect();
        let valid: Vec<bool> = rows.iter().map(|(scores, ..)| scores.is_some()).collect();
        let mut columns = made.columns().to_vec();
        columns[METADATA_COLUMNS] = Arc::new(arrow_array::FixedSizeListArray::new(
            item, 4, Arc::new(Float32Array::from(values)), Some(valid.into()),
        ));
        let made = RecordBatch::try_new(made.schema(), columns).unwrap();
        let offset = offset.min(rows.len());
        let part = made.slice(offset, rows.len() - offset);
        for text in [
            "scores[n]", "sum(scores) * 2.0", "argmax(scores)", "max(scores) > 0.5 && n > 0", "n in counts", "sum(counts)",
            "top_k(counts, 2)", "top_positions(scores, 4)",
        ] {
            let found = results_of(text, &stream, &part);
            for (found, (scores, counts, n)) in found.iter().zip(&rows[offset..]) {
                // `&&` needs no left side where its right side is false.
                let needs_none = text == "max(scores) > 0.5 && n > 0" && *n <= 0;
                let expected = if needs_none { "false".to_owned() } else { expected(text, *scores, *counts, *n) };
                prop_assert_eq!(found, &expected, "{}", text);
            }
        }
    }

    /// Random texts with the words of tensors: nothing panics, and columns and rows give the same.
    #[test]
    fn random_expressions_of_tensors(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "scores", "boxes", "labels", "counts", "[0]", "[n]", "[5]", "max(", "top_k(", "size(", ", 2)", ")", " + ",
                " > ", " in ", " == null", " && ", "n", "0.5", "'cat'", "argmax(", "dot(", ", ",
            ]),
            1..8,
        ),
    ) {
        let text = parts.concat();
        if Expression::compile(&text, &input()).is_ok_and(|expression| expression.result().is_some()) {
            let rows = batch(&input(), &[row(1), row(-1), json!({"n": 2})]);
            prop_assert_eq!(results_of(&text, &input(), &rows).len(), 3);
        }
    }
}

/// `map` gives tensors, and `filter` takes their values.
#[test]
fn maps_and_filters() {
    use crate::relational::test::{bind, run_stateless};
    let yaml = "columns: {best: 'top_k(scores, 2)', at: 'top_positions(scores, 2)', first: 'boxes[0]', s: 'scores[0]', all: scores}\n\
                keep: [labels]";
    let bound = bind(&crate::relational::map::Map, &[input()], yaml).unwrap();
    assert_eq!(
        bound.output.to_string(),
        "{labels: tensor<text>[3], best: tensor<float32>[2], at: tensor<int64>[2], first: tensor<float32>[2], \
         s: float64, all: tensor<float32>[4]}"
    );
    let rows = batch(&input(), &[row(1), json!({"n": 2}), row(2)]);
    let output = run_stateless(&bound, &rows);
    assert_eq!(output.batches[0].num_rows(), 2);
    assert_eq!(output.dead_letters[0].detail, "column `best`: column `scores` is empty (null)");
    let yaml = "where: \"scores[n] > 0.3 && t in labels\"";
    let bound = bind(&crate::relational::filter::Filter, &[input()], yaml).unwrap();
    let rows = batch(&input(), &[row(0), row(1), row(9)]);
    let output = run_stateless(&bound, &rows);
    assert_eq!(output.batches[0].num_rows(), 1);
    assert_eq!(output.dead_letters[0].detail, "`scores` has 4 positions from 0 on, not 9");
    let error =
        bind(&crate::relational::map::Map, &[input()], "columns: {x: {expression: scores, type: float64}}");
    let error = crate::testing::only(error.err().unwrap());
    assert!(error.message.contains("declared float64, but `scores` is tensor<float32>[4]"), "{error}");
}
