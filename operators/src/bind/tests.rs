//! Tests of [`super::bind_workflow`] and of its two steps.
use super::*;
use crate::api::{Computation, Instance, OperatorError, SourceRead, Spread};
use crate::kind::{OperatorContext, OperatorKind};
use crate::registry::Role;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::SourceFile;
use tidemill_spec::types::{Column, ColumnType};
use tidemill_spec::value::Value;
use tidemill_spec::yaml;

const SOURCE: &str = "version: 1
name: test
sources:
  - {id: readings, kind: csv, key: site, rate: 40/s, options: {path: r.csv, columns: {site: text, n: int64, v: float64}}}
";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("r.csv"), "site,n,v\nnorth,1,0.5\nsouth,2,1.5\n").unwrap();
    std::fs::write(folder.path().join("truth.csv"), "site,answer\nnorth,1\n").unwrap();
    folder
}

fn workflow(base: &Path, rest: &str) -> Workflow {
    let text = format!("{SOURCE}{rest}");
    let tree = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap_or_else(|e| panic!("{e}"));
    let mut workflow: Workflow = tree.deserialize_into().unwrap_or_else(|e| panic!("{e}"));
    workflow.directory.0 = base.into();
    workflow
}

fn bind(base: &Path, rest: &str) -> Result<BoundWorkflow, Diagnostics> {
    bind_workflow(&workflow(base, rest), &Registry::builtin(), |_| Choice::default())
}

#[test]
fn a_diamond_in_any_order_of_lines() {
    let folder = folder();
    let bound = bind(
        folder.path(),
        "operators:
  - {id: pair, kind: join, inputs: [high, low], options: {key: site, within: 1s}}
  - {id: high, kind: filter, input: readings, options: {where: v > 1}}
  - {id: low, kind: map, input: readings, options: {columns: {w: n * 2}, keep: [site]}}
sinks:
  - {id: out, kind: jsonl, input: pair, options: {path: out.jsonl}, \
     ground_truth: {path: truth.csv, key: site, prediction: n, truth: answer}}
",
    )
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(bound.order, ["high", "low", "pair"]);
    assert_eq!(bound.inputs["pair"], ["high", "low"]);
    assert_eq!(bound.output("pair").unwrap().to_string(), "{site: text, n: int64, v: float64, w: int64}");
    assert_eq!(bound.operators["pair"].computation, Computation::Stateful);
    let source = &bound.sources["readings"];
    assert_eq!((source.key.as_deref(), source.rate_per_second), (Some("site"), Some(40.0)));
    assert_eq!(bound.sinks["out"].ground_truth.as_ref().unwrap().answers["north"], "1");
    assert_eq!(bound.output("nothing"), None);
}

#[test]
fn all_errors_are_reported_at_their_place_and_nobody_else_is_blamed() {
    let folder = folder();
    let errors = bind(
        folder.path(),
        "operators:
  - {id: a, kind: window, input: readings, options: {size: 1s, aggregates: [{function: sum, column: site}]}}
  - {id: behind, kind: filter, input: a, options: {where: nothing > 1}}
  - {id: b, kind: filtr, input: readings}
  - {id: c, kind: join, inputs: [readings], options: {key: site, within: 1s}}
  - {id: d, kind: filter, input: readings, options: {where: vv > 1}}
sinks:
  - {id: out, kind: jsonl, input: readings, options: {path: out.jsonl}}
  - {id: again, kind: csv, input: readings, options: {path: out.jsonl}}
  - {id: truth, kind: stdout, input: readings, ground_truth: {path: no.csv, key: site, prediction: v, truth: answer}}
",
    )
    .err()
    .unwrap();
    let found: Vec<_> = errors.iter().map(|e| (e.code, e.line().unwrap())).collect();
    assert_eq!(
        found,
        [
            ("E0601", 6),
            ("E0604", 8),
            ("E0603", 9),
            ("E0605", 10),
            ("E0611", 13),
            ("E0601", 14),
            ("E0610", 14)
        ],
        "{errors}"
    );
    let first = errors.iter().next().unwrap();
    assert!(first.message.contains("output of `readings` does not fit input 0 of `a`"), "{first}");
    assert!(first.render(false).contains("expected int64 or float64"));
    assert!(errors.iter().all(|e| e.help.is_some()), "{errors}");
}

#[test]
fn texts_are_compared_as_a_whole() {
    let folder = folder();
    let sink = |truth: &str, columns: &str| {
        bind(
            folder.path(),
            &format!(
                "operators:\n  - {{id: said, kind: map, input: readings, options: {{columns: {{{columns}}}}}}}\nsinks:\n  - {{id: out, kind: stdout, \
                 input: said, ground_truth: {{path: truth.csv, key: site, prediction: text, truth: answer, {truth}}}}}\n"
            ),
        )
    };
    let columns = "site: site, text: site, place: n";
    let bound =
        sink("compare: characters, order: place", columns).unwrap_or_else(|errors| panic!("{errors}"));
    let truth = bound.sinks["out"].ground_truth.as_ref().unwrap();
    assert!(truth.texts.is_some() && truth.tracks.is_none() && truth.answers.is_empty());
    for (truth, columns, message) in [
        ("order: place", columns, "`order` joins texts"),
        ("compare: characters, boxes: text", columns, "tracks have no characters"),
        ("compare: characters, order: text", columns, "text"),
        ("compare: characters", "site: site, text: n", "text"),
    ] {
        let errors = sink(truth, columns).err().unwrap().to_string();
        assert!(errors.contains(message), "{errors}");
    }
}

#[test]
fn measures_have_predictions_of_their_types() {
    use crate::measures::Measure;
    let folder = folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("judged.csv", "site,answer,kind\nnorth,1.5,true\nsouth,2,0\n");
    write("boxes.jsonl", "{\"site\": \"north\", \"boxes\": [[0, 0, 1, 1, 3]]}\n");
    write("r.jsonl", "");
    let sink = |truth: &str| {
        let text = format!(
            "version: 1\nname: test\nsources:\n  - id: seen\n    kind: jsonl\n    options:\n      path: r.jsonl\n      columns:\n        \
             site: text\n        v: float64\n        best: tensor<int64>[3]\n        boxes: tensor<float32>[4, 6]\n\
             sinks:\n  - {{id: out, kind: stdout, input: seen, ground_truth: {{key: site, {truth}}}}}\n"
        );
        let tree = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap_or_else(|e| panic!("{e}"));
        let mut workflow: Workflow = tree.deserialize_into().unwrap_or_else(|e| panic!("{e}"));
        workflow.directory.0 = folder.path().into();
        bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default())
    };
    let csv = "path: judged.csv";
    for (truth, measure) in [
        (format!("{csv}, prediction: best, truth: answer, top_k: 3"), Measure::Leading(3)),
        (format!("{csv}, prediction: site, truth: answer, compare: classes"), Measure::Classes),
        (format!("{csv}, prediction: v, truth: answer, compare: absolute_error"), Measure::Numbers),
        (format!("{csv}, prediction: v, truth: kind, compare: auc"), Measure::Ranks),
    ] {
        let bound = sink(&truth).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(bound.sinks["out"].ground_truth.as_ref().unwrap().measure, measure);
    }
    let words = sink(&format!("{csv}, prediction: site, truth: answer, compare: words")).unwrap();
    assert!(words.sinks["out"].ground_truth.as_ref().unwrap().texts.is_some());
    let boxes = "path: boxes.jsonl, prediction: boxes, truth: boxes, compare: average_precision";
    let boxes = sink(boxes).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(matches!(boxes.sinks["out"].ground_truth.as_ref().unwrap().measure, Measure::Boxes(_)));
    for (truth, message) in [
        (format!("{csv}, prediction: best, truth: answer, top_k: 4"), "one dimension of 4 or more"),
        (format!("{csv}, prediction: site, truth: answer, top_k: 1"), "a tensor of text or whole numbers"),
        (format!("{csv}, prediction: best, truth: answer, top_k: 0"), "`top_k` is 0"),
        (
            format!("{csv}, prediction: best, truth: answer, top_k: 2, compare: classes"),
            "`top_k` compares answers",
        ),
        (format!("{csv}, prediction: best, truth: answer"), "text, int64 or bool"),
        (
            format!("{csv}, prediction: v, truth: kind, compare: absolute_error"),
            "the answer `true` of key `north` is not a number",
        ),
        (
            format!("{csv}, prediction: v, truth: answer, compare: auc"),
            "the answer `1.5` of key `north` is not true or false",
        ),
        (
            format!("{csv}, prediction: v, truth: answer, compare: average_precision"),
            "a tensor of floats `[most, 6]`",
        ),
        (
            format!("{csv}, prediction: boxes, truth: answer, compare: average_precision"),
            "is not a .jsonl file",
        ),
        (
            "path: boxes.jsonl, prediction: boxes, truth: box, compare: average_precision".to_owned(),
            "there is no field `box`",
        ),
    ] {
        let errors = sink(&truth).err().unwrap();
        assert!(errors.to_string().contains(message), "{truth}: {errors}");
    }
}

#[test]
fn no_file_is_written_twice_or_written_and_read() {
    let folder = folder();
    std::os::unix::fs::symlink(folder.path().join("r.csv"), folder.path().join("link.csv")).unwrap();
    let truth = "ground_truth: {path: truth.csv, key: site, prediction: n, truth: answer}";
    let sinks = |lines: &[(&str, &str)], rest: &str| {
        let sinks = lines.iter().enumerate().map(|(i, (path, more))| {
            format!("  - {{id: s{i}, kind: jsonl, input: readings, options: {{path: {path}}}{more}}}\n")
        });
        let found = bind(folder.path(), &format!("sinks:\n{}{rest}", sinks.collect::<String>()));
        found.err().map_or(String::new(), |errors| errors.to_string())
    };
    std::fs::hard_link(folder.path().join("r.csv"), folder.path().join("hard.csv")).unwrap();
    for path in ["r.csv", "link.csv", "hard.csv", "./new/../r.csv"] {
        assert!(sinks(&[(path, "")], "").contains("source `readings` reads it"), "{path}");
    }
    assert!(sinks(&[("truth.csv", &format!(", {truth}"))], "").contains("the ground truth of `s0`"));
    let twice = sinks(&[("new/a/x", ""), ("new/b/../a/./x", "")], "");
    assert!(twice.contains("sink `s1` cannot write") && twice.contains("sink `s0` writes it too"), "{twice}");
    let letters = sinks(&[("x", "")], "run: {dead_letters: new/../x}\n");
    assert!(letters.contains("`dead_letters` cannot write"), "{letters}");
    assert_eq!(sinks(&[("/dev/null", ""), ("/dev/null", ""), ("x", "")], "run: {dead_letters: y}\n"), "");
}

#[test]
fn circles_and_loose_ends() {
    let folder = folder();
    let errors = bind(
        folder.path(),
        "operators:
  - {id: a, kind: filter, input: b, options: {where: v > 1}}
  - {id: b, kind: filter, input: a, options: {where: v > 1}}
sinks:
  - {id: out, kind: stdout, input: reedings}
",
    )
    .err()
    .unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0608", "E0608"]);
    assert!(errors.iter().any(|e| e.help.as_deref() == Some("did you mean `readings`?")), "{errors}");
}

#[test]
fn what_only_models_use_is_refused_elsewhere() {
    let folder = folder();
    let found = bind(
        folder.path(),
        "operators:\n  - {id: high, kind: filter, input: readings, options: {where: 'true'},\n     \
         backend: rten,\n     batching: {max_batch: 4}}\n\
         sinks: [{id: out, kind: stdout, input: high}]",
    );
    let errors: Vec<Diagnostic> = found.err().unwrap().into_iter().collect();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0613", "E0613"], "{errors:?}");
    assert!(errors[0].message.contains("`backend` has no effect on kind `filter`"), "{}", errors[0]);
    assert!(errors[1].line() > errors[0].line(), "each at its own line");
}

#[test]
fn keys_must_be_columns() {
    let folder = folder();
    for (key, code) in [("sight", "E0605"), ("v", "E0601")] {
        let text = SOURCE.replace("key: site", &format!("key: {key}"));
        let tree = yaml::parse(&SourceFile::new(
            "w.yaml",
            format!("{text}sinks: [{{id: o, kind: stdout, input: readings}}]\n"),
        ));
        let mut workflow: Workflow = tree.unwrap().deserialize_into().unwrap();
        workflow.directory.0 = folder.path().into();
        let errors = bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default()).err().unwrap();
        assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), [code]);
    }
}

#[test]
fn a_repeated_source_starts_again_and_seeks_into_any_lap() {
    let folder = folder();
    let mut workflow = workflow(folder.path(), "sinks: [{id: out, kind: stdout, input: readings}]\n");
    workflow.sources[0].repeat = true;
    let bound = bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default()).unwrap();
    let mut reader = (bound.sources["readings"].make)().unwrap();
    let next = |reader: &mut Box<dyn crate::api::Source>| match reader.read(1, 1 << 20).unwrap() {
        SourceRead::Rows { payload, .. } => crate::record::int64(payload.column(1)).unwrap().value(0),
        other => panic!("a repeated source has no end: {other:?}"),
    };
    let values: Vec<i64> = (0..5).map(|_| next(&mut reader)).collect();
    assert_eq!(values, [1, 2, 1, 2, 1]);
    let position = reader.position();
    assert!(position.0.starts_with("2/"), "{}", position.0);
    let mut other = (bound.sources["readings"].make)().unwrap();
    other.seek(&position).unwrap();
    assert_eq!(next(&mut other), 2);
    assert_eq!(next(&mut reader), 2);
    assert_eq!(other.position(), reader.position());
}

/// A kind with variants: the variant's name is the type of its output column.
struct Model;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl OperatorKind for Model {
    fn kind(&self) -> &'static str {
        "model"
    }
    fn summary(&self) -> &'static str {
        "For tests."
    }
    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Nothing)
    }
    fn facts(&self) -> OperatorFacts {
        OperatorFacts { computation: Computation::Inference, ..OperatorFacts::DEFAULT }
    }
    fn bind(
        &self,
        context: &OperatorContext<'_>,
        _: &[InputPort],
        _: &Value,
    ) -> Result<BoundOperator, Diagnostics> {
        let variant = context.variant.unwrap_or(&context.variants[0].value);
        let column = if variant.contains("text") { ColumnType::Text } else { ColumnType::Int64 };
        Ok(BoundOperator {
            id: context.id.value.clone(),
            kind: format!("{variant} {}", context.backend.unwrap_or("none")),
            output: StreamType::new([Column::new("answer", column)]),
            computation: Computation::Inference,
            spread: Spread::Any,
            model: None,
            make: Arc::new(|| -> Result<Instance, OperatorError> { Err(OperatorError::new("for tests")) }),
        })
    }
}

#[test]
fn variants_are_chosen_and_must_agree() {
    let folder = folder();
    let mut registry = Registry::builtin();
    registry.register_operator(Model);
    assert!(registry.kinds().iter().any(|k| k.role == Role::Operator && k.kind == "model"));
    let text = "operators: [{id: m, kind: model, input: readings, variants: [small, large], backend: rten}]
sinks: [{id: out, kind: stdout, input: m}]\n";
    let workflow_of = |text: &str| workflow(folder.path(), text);
    let bound = bind_workflow(&workflow_of(text), &registry, |_| Choice::default()).unwrap();
    assert_eq!(bound.operators["m"].kind, "small rten");
    let large = Choice { variant: Some("large".into()), backend: Some("ort".into()) };
    assert_eq!(bound.bind_operator("m", &large, Step::Open).unwrap().kind, "large ort");
    let chosen = bind_workflow(&workflow_of(text), &registry, |id| match id {
        "m" => large.clone(),
        _ => Choice::default(),
    });
    assert_eq!(chosen.unwrap().operators["m"].kind, "large ort");
    let other = Choice { variant: Some("text-model".into()), backend: None };
    assert_eq!(
        bound.bind_operator("m", &other, Step::Open).err().unwrap().iter().next().unwrap().code,
        "E0602"
    );
    assert_eq!(
        bound.bind_operator("mm", &large, Step::Open).err().unwrap().iter().next().unwrap().code,
        "E0608"
    );
    let disagree = workflow_of(&text.replace("large", "text"));
    let errors = bind_workflow(&disagree, &registry, |_| Choice::default()).err().unwrap();
    let error = errors.iter().next().unwrap();
    assert_eq!((errors.len(), error.code, error.line()), (1, "E0602", Some(5)), "{errors}");
    assert!(error.message.contains("{answer: text}") && error.message.contains("{answer: int64}"), "{error}");
}

/// Both are reported at once, so that the user need not start again after providing the file.
#[test]
fn a_file_that_is_missing_hides_no_mistake_behind_it() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("r.csv")).unwrap();
    let rest = "operators: [{id: high, kind: filter, input: readings, options: {where: w > 1}}]
sinks: [{id: out, kind: stdout, input: high}]
";
    let found = bind(folder.path(), rest).err().unwrap();
    let told: Vec<&str> = found.iter().map(|error| error.message.as_str()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("r.csv") && told[1].contains('w'), "{told:?}");
}

#[test]
fn what_can_be_read_only_once_is_read_once() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let found = |sources: &str, on_panic: &str| {
        let text = format!(
            "version: 1\nname: test\nsources: [{sources}]\noperators: [{{id: all, kind: filter, input: a, \
             options: {{where: n > 0}}, on_panic: {on_panic}}}]\nsinks: [{{id: out, kind: stdout, input: all}}]\n"
        );
        let tree = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
        let mut workflow: Workflow = tree.deserialize_into().unwrap();
        workflow.directory.0 = folder.path().into();
        let bound = bind_workflow(&workflow, &Registry::builtin(), |_| Choice::default());
        bound.map_err(|errors| errors.iter().map(|e| (e.code, e.message.clone())).collect::<Vec<_>>())
    };
    let source = |id: &str, path: &str, more: &str| {
        format!("{{id: {id}, kind: jsonl{more}, options: {{path: {path}, columns: {{n: int64}}}}}}")
    };
    // Binding does not wait for a writer.
    let bound = found(&source("a", "pipe", ""), "stop").ok().unwrap();
    let make = &bound.sources["a"].make;
    // Only the first reader would get all of it.
    let (writer, reader) =
        (std::thread::spawn(move || std::fs::write(pipe, "{\"n\": 1}\n")), make().unwrap());
    assert!(!reader.replayable());
    assert!(make().err().unwrap().message.contains("can be read only once, but is needed a second time"));
    drop(reader);
    drop(writer.join().unwrap());
    let real = folder.path().canonicalize().unwrap();
    let pipe = format!("the pipe `{}`", real.join("pipe").display());
    for (sources, on_panic, message) in [
        (
            source("a", "pipe", ", repeat: true"),
            "stop",
            format!("source `a` cannot repeat {pipe}: it can be read only once"),
        ),
        (
            format!("{}, {}", source("a", "pipe", ""), source("b", "./pipe", "")),
            "stop",
            format!("sources `a` and `b` both read {pipe}: each would get only a part of the records"),
        ),
        (
            source("a", "pipe", ""),
            "restart",
            format!(
                "`all` has `on_panic: restart`, but source `a` reads {pipe}, which cannot be read again after a restart"
            ),
        ),
    ] {
        assert_eq!(found(&sources, on_panic).err().unwrap(), [("E0614", message)]);
    }
}

/// A folder without any file.
fn nothing_here() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn check_only(base: &Path, registry: &Registry, rest: &str) -> Result<Checked, Diagnostics> {
    check(&workflow(base, rest), registry, |_| Choice::default())
}

const JUDGED: &str = "operators:
  - {id: high, kind: filter, input: readings, options: {where: v > 1}}
  - {id: counted, kind: window, input: high, options: {size: 1s, group_by: [site], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: out, kind: jsonl, input: high, options: {path: out.jsonl}, ground_truth: {path: truth.csv, key: site, prediction: n, truth: answer}}
  - {id: table, kind: csv, input: counted, options: {path: counted.csv}}
";

#[test]
fn a_check_gives_all_types_and_says_what_only_opening_shows() {
    let folder = nothing_here();
    let checked = check_only(folder.path(), &Registry::builtin(), JUDGED).unwrap_or_else(|e| panic!("{e}"));
    let bound = checked.bound();
    assert_eq!(bound.output("readings").unwrap().to_string(), "{site: text, n: int64, v: float64}");
    assert_eq!(bound.output("high").unwrap().to_string(), "{site: text, n: int64, v: float64}");
    assert!(bound.output("counted").unwrap().to_string().contains("n: int64"));
    assert_eq!(bound.sources["readings"].promise(), crate::api::SourcePromise::Replayable);
    assert_eq!(bound.sinks["out"].files, [folder.path().join("out.jsonl")]);
    let truth = bound.sinks["out"].ground_truth.as_ref().unwrap();
    assert!(truth.answers.is_empty() && truth.key == "site");
    let told: Vec<(&str, &str)> =
        checked.unopened().iter().map(|one| (one.id.as_str(), one.text.as_str())).collect();
    let [("readings", source), ("out", truth)] = told[..] else { panic!("{told:?}") };
    assert!(
        source.contains("`r.csv` was not checked") && source.contains("its first line names"),
        "{source}"
    );
    assert!(truth.contains("ground truth of `out`: `truth.csv` was not checked"), "{truth}");
    assert!(checked.unopened().iter().all(|one| !one.hides_types && one.place.source().is_some()));
    // A part that was only checked does not run.
    let error = (bound.sources["readings"].make)().err().unwrap();
    assert!(error.message.contains("not opened here"), "{error}");
}

#[test]
fn a_check_finds_what_is_wrong_in_the_workflow_itself() {
    let folder = nothing_here();
    let rest = JUDGED.replace("v > 1", "vv > 1").replace("prediction: n", "prediction: m");
    let errors = check_only(folder.path(), &Registry::builtin(), &rest).err().unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0605"], "{errors}");
    let rest = JUDGED.replace("prediction: n", "prediction: m");
    let errors = check_only(folder.path(), &Registry::builtin(), &rest).err().unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0605"], "{errors}");
    let rest = JUDGED.replace(", truth: answer", "");
    let errors = check_only(folder.path(), &Registry::builtin(), &rest).err().unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0610"], "{errors}");
    let rest = JUDGED.replace("counted.csv", "r.csv");
    let errors = check_only(folder.path(), &Registry::builtin(), &rest).err().unwrap();
    assert!(errors.to_string().contains("source `readings` reads it"), "{errors}");
}

#[test]
fn only_what_is_here_is_opened() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("truth.csv")).unwrap();
    let checked = check_only(folder.path(), &Registry::builtin(), JUDGED).unwrap();
    let opened = checked.open(|part| matches!(part, Part::Source(_))).unwrap_or_else(|e| panic!("{e}"));
    assert!((opened.sources["readings"].make)().is_ok());
    checked.compare(&opened).unwrap();
    let errors = checked.open(|part| !matches!(part, Part::Source(_))).err().unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0610"], "{errors}");
    std::fs::write(folder.path().join("r.csv"), "site,n\n").unwrap();
    let errors = checked.open(|part| matches!(part, Part::Source(_))).err().unwrap();
    assert_eq!(errors.iter().map(|e| e.code).collect::<Vec<_>>(), ["E0609"], "{errors}");
    assert!(errors.to_string().contains("does not name the declared column `v`"), "{errors}");
}

#[test]
fn opening_that_finds_something_else_than_was_checked_is_told() {
    let folder = nothing_here();
    let rest = "sinks: [{id: out, kind: jsonl, input: readings, options: {path: out.jsonl}}]\n";
    let checked = check_only(folder.path(), &Registry::builtin(), rest).unwrap();
    let pipe = folder.path().join("r.csv");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let opened = checked.open(|_| true).unwrap_or_else(|e| panic!("{e}"));
    let errors = checked.compare(&opened).err().unwrap();
    let error = errors.iter().next().unwrap();
    assert_eq!((errors.len(), error.code, error.line()), (1, "E0616", Some(4)), "{errors}");
    assert!(
        error.message.contains("was checked as a file") && error.message.contains("reads the pipe"),
        "{error}"
    );
    assert!(error.help.as_ref().unwrap().contains("`stream: until_end`"), "{error}");
}

/// The manifest of one variant is a file, that of the other is not.
#[test]
fn what_stands_behind_a_manifest_that_is_not_here_is_not_judged() {
    let folder = nothing_here();
    let mut registry = Registry::builtin();
    registry.register_operator(Model);
    let rest = "operators:
  - {id: m, kind: model, input: readings, variants: [small, large]}
  - {id: some, kind: filter, input: m, options: {where: answer > 1}}
sinks: [{id: out, kind: stdout, input: some}]\n";
    let ids = |checked: &Checked| -> Vec<(String, bool)> {
        let all = checked.unopened().iter().filter(|one| one.id != "readings");
        all.map(|one| (one.id.clone(), one.hides_types)).collect()
    };
    let checked = check_only(folder.path(), &registry, rest).unwrap_or_else(|e| panic!("{e}"));
    assert!(checked.bound().operators.is_empty() && checked.bound().sinks.is_empty());
    let hidden = |id: &str| (id.to_owned(), true);
    assert_eq!(ids(&checked), [hidden("m"), hidden("m"), hidden("some"), hidden("out")]);
    std::fs::write(folder.path().join("large"), "").unwrap();
    let checked = check_only(folder.path(), &registry, rest).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(checked.bound().operators["m"].kind, "large none", "by the one that is here");
    assert_eq!(checked.bound().output("some").unwrap().to_string(), "{answer: int64}");
    assert_eq!(ids(&checked), [("m".to_owned(), false), ("m".to_owned(), false)]);
    let made = (checked.bound().operators["m"].make)().err().unwrap();
    assert!(made.message.contains("not opened here"), "{made}");
}
