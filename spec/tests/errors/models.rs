//! Errors of model manifests and profiles.
use super::{Case, WORKFLOW, expect, with};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::profile::ProfileFile;
use tidemill_spec::workflow::Workflow;

const MODEL: &str = include_str!("../golden/model.yaml");
const PROFILE: &str = include_str!("../golden/profile.yaml");

#[test]
fn model() {
    let cases: &[Case<'_>] = &[
        (&[("sha256: e3b0", "sha256: xyz0")], &["E0501"], "64 lower-case hexadecimal digits"),
        (&[("resize:", "resise:")], &["E0114"], "did you mean `resize`?"),
        (&[("{width: 128, height: 96}", "{width: 128, height: 64}")], &["E0502"], "[batch, 3, 64, 128]"),
        (&[("seconds: 4s", "seconds: 2s")], &["E0502"], "[batch, 40, 198]"),
        (&[("      - transpose: {}\n", "")], &["E0502"], "[batch, 398, 40]"),
        (&[("length: 64}", "length: 32}")], &["E0502"], "[batch, 32]"),
        (&[("type: image", "type: text")], &["E0503", "E0503"], "does not fit"),
        (&[("labels: [red, blue]", "labels: [red]")], &["E0503"], "1 labels for 2 values"),
        (&[("blank: 0", "blank: 4")], &["E0503"], "outside of 4 values"),
        (&[("argmax: {labels: [red, blue]}", "join: {labels: [red]}")], &["E0503"], "1 labels for 2 values"),
        (&[("argmax: {labels: [red, blue]}", "join: {}")], &["E0503"], "the step has no labels"),
        (
            &[("argmax: {labels: [red, blue]}", "entities: {labels: [red, blue]}")],
            &["E0504"],
            "`entities` needs an input with the step `tokenize`",
        ),
        (
            &[
                (
                    "type: text\n    dtype: float32\n    shape: [batch, 2]",
                    "type: tensor\n    dtype: float32\n    shape: [batch, 2]",
                ),
                ("argmax: {labels: [red, blue]}", "top_k: {k: 1, give: labels}"),
            ],
            &["E0503"],
            "`give: labels` needs labels",
        ),
        (
            &[
                (
                    "type: text\n    dtype: float32\n    shape: [batch, 2]",
                    "type: float64\n    dtype: float32\n    shape: [batch, 2]",
                ),
                ("argmax: {labels: [red, blue]}", "pick: {at: 2}"),
            ],
            &["E0503"],
            "`pick` takes place 2 of 2",
        ),
        (&[("{softmax: {}}, {argmax", "{softmax: {}}, {mean_pool: {}}, {argmax")], &["E0503"], "first step"),
        (&[("high: 3900", "high: 4900")], &["E0503"], "sample_rate / 2"),
        (&[("0.25, 0.25, 0.25", "0.25, 0, 0.25")], &["E0503"], "cannot be 0"),
        (
            &[("column: features\n    type: tensor", "column: features\n    type: text")],
            &["E0504"],
            "`join` or `argmax` with labels",
        ),
        (&[("dtype: int64", "dtype: float16")], &["E0504"], "here it can be int64, int32, float32"),
        (&[("dtype: int64", "dtype: int65")], &["E0114"], "`int64`"),
        (&[("script: train.py, ", "")], &["E0505"], "needs `script`"),
        (
            &[("kind: trained", "kind: published"), ("note: for the tests", "commit: abc")],
            &["E0505"],
            "needs `note`",
        ),
        (&[("file: everything.onnx\n", "")], &["E0104"], "missing key `file`"),
        (&[("kind: trained", "kind: fetched")], &["E0505", "E0505"], "needs `package`"),
        (&[("backends: [rten, ort]", "backends: []")], &["E0506"], "at least one"),
        (&[("name: sound", "name: image")], &["E0508"], "given twice"),
        (&[("input: token", "input: image")], &["E0508"], "given twice"),
        (&[("column: colour", "column: _colour")], &["E0508"], "belong to the engine"),
        (&[("[batch, 256]", "[batch, SIZE-OF-n]")], &["E0105"], "`SIZE-OF-n` is a placeholder"),
        (&[("max_steps: 32", "max_steps: 0")], &["E0509"], "0 steps"),
        (&[("end: 2", "end: 4")], &["E0509"], "has no label"),
        (&[("interval: [0.85, 0.89]", "interval: [0.88, 0.89]")], &["E0510"], "not in its interval"),
        (
            &[("- resize: {width: 128, height: 96}", "- {resize: {width: 128, height: 96}, transpose: {}}")],
            &["E0105"],
            "exactly one key",
        ),
        (&[("[batch, 256]", "[batch, batch, 256]")], &["E0502"], "write `batch` once"),
        (&[("[batch, 256]", "[batch, 65536, 65536]")], &["E0502"], "would have 4294967296 numbers"),
        (&[("[batch, 256]", "[bach, 256]")], &["E0105"], "`batch`, `any` or a whole number"),
    ];
    for (changes, codes, words) in cases {
        let text = with(MODEL, changes);
        let found = Manifest::parse(&text, "model.yaml").expect_err(&format!("{changes:?}"));
        expect(&found, codes, words);
    }
}

/// Steps that give one number may end in a column of numbers.
#[test]
fn places_and_means_are_numbers() {
    for (dtype, row, steps, kind) in [
        ("float32", "2", "{softmax: {}}, {pick: {at: 1}}", "float64"),
        ("float32", "2", "{sigmoid: {}}, {pick: {at: -2}}", "float64"),
        ("int64", "any", "{mean_pool: {}}", "float64"),
        ("int64", "2", "{pick: {at: 1}}", "int64"),
        ("int64", "2", "{softmax: {}}, {pick: {at: 1}}", "float64"),
    ] {
        let output = format!(
            "type: {kind}\n    dtype: {dtype}\n    shape: [batch, {row}]\n    postprocess: [{steps}]"
        );
        let changed = "type: text\n    dtype: float32\n    shape: [batch, 2]\n    postprocess: [{softmax: {}}, {argmax: {labels: [red, blue]}}]";
        let text = with(MODEL, &[(changed, &output)]);
        Manifest::parse(&text, "model.yaml").unwrap_or_else(|errors| panic!("{steps}: {errors}"));
    }
}

#[test]
fn profile() {
    let workflow = Workflow::parse(WORKFLOW, "workflow.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let cases: &[Case<'_>] = &[
        (&[("p90: 7ms", "p90: 5ms")], &["E0804"], "p90 is less than p75: 5ms and 6ms"),
        (&[("p90: 7ms", "p90: 7")], &["E0106"], "write `7ms` or `7s`"),
        (&[("[4ms, 6ms, 9ms]", "[4ms, 9ms, 6ms]")], &["E0804"], "not in order"),
        (&[("[4ms, 6ms, 9ms]", "[4ms]")], &["E0803"], "one point"),
        (&[("batch: 8", "batch: 1")], &["E0801"], "a batch of 1 is given twice"),
        (&[("batch: 8", "batch: 0")], &["E0803"], "1 or more"),
        (
            &[("load_time: 30ms", "after_pause: {pause: 20ms, times: {batch: 2, mean: 7ms}}")],
            &["E0803"],
            "with `batch: 1`",
        ),
        (&[("{worker_type: small", "{worker_type: smal")], &["E0802", "E0802"], "did you mean `smal`?"),
        (&[("how: limited", "how: measure")], &["E0114"], "did you mean `measured`?"),
        (&[("cores: 0.5", "cores: 0")], &["E0803"], "above 0"),
        (
            &[(
                "cores: 0.5",
                "overheads: {source: {mean: 1us, p50: 1us, p90: 2us, p99: 3us}, hand_over: {mean: 1us, p50: 2us, p90: 1us, \
                 p99: 3us}, frame: {mean: 1us, p50: 1us, p90: 2us, p99: 3us}, frame_per_mebibyte: 1ms, call: {mean: 1us, \
                 p50: 1us, p90: 2us, p99: 3us}}",
            )],
            &["E0804"],
            "the percentiles of `hand_over` do not rise",
        ),
        (
            &[("backend: rten, worker_type: small", "backend: rten, worker_type: medium")],
            &["E0801"],
            "given twice",
        ),
        (&[("output_per_input: 1", "output_per_input: -1")], &["E0803"], "0 or more"),
        (&[("to: pair, input: 1", "to: pair")], &["E0805"], "write `input: 1`"),
        (&[("{from: questions", "{from: question")], &["E0805"], "two ends of an edge"),
        (&[("interval: [50%, 58%]", "interval: [58%, 50%]")], &["E0803"], "holds the value"),
        (
            &[("operator: pair, worker_type", "operator: pairs, worker_type")],
            &["E0805"],
            "did you mean `pair`?",
        ),
        (
            &[("operator: pair, worker_type", "operator: pair, variant: x, worker_type")],
            &["E0805"],
            "remove `variant`",
        ),
        (&[("{answer: answerer-small, ", "{anser: answerer-small, ")], &["E0805"], "did you mean `answer`?"),
        (&[("name: vqa", "name: other")], &["E0807"], "this is `vqa`, with the same operators"),
        (
            &[("name: vqa", "name: other"), ("operator: pair, worker_type", "operator: pairs, worker_type")],
            &["E0805"],
            "this is `vqa`",
        ),
        (&[("{name: vqa}", "{name: vqa, digest: abc}")], &["E0803"], "not a sha256"),
        (
            &[("{name: vqa}", &format!("{{name: vqa, digest: {}}}", "a".repeat(64)))],
            &["E0807"],
            "have changed",
        ),
    ];
    for (changes, codes, words) in cases {
        let text = with(PROFILE, changes);
        let found = match ProfileFile::parse(&text, "profile.yaml") {
            Err(found) => found,
            Ok(file) => file.validate_against(&workflow),
        };
        expect(&found, codes, words);
    }
    let found =
        ProfileFile::parse(&with(PROFILE, &[("p90: 7ms", "p90: 5ms")]), "p.yaml").expect_err("p90 < p75");
    let places: Vec<_> = found.iter().map(|finding| finding.span.text()).collect();
    assert_eq!(places, [Some("5ms")], "{found}");
}
