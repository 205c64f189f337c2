//! Every error has its code, its place and its help.
mod models;

use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::workflow::Workflow;

const WORKFLOW: &str = include_str!("golden/workflow.yaml");
const INFRASTRUCTURE: &str = include_str!("golden/infrastructure.yaml");
const PLAN: &str = include_str!("golden/plan-two-workers.yaml");

/// Changes of a valid file, the resulting codes in order, and words of the message or help.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

/// Replaces text that must be there, so that a case cannot become empty unnoticed.
fn with(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "`{from}` is not in the file");
        text = text.replacen(from, to, 1);
    }
    text
}

/// Asserts the codes in order, and that each finding has a place and a help.
pub(crate) fn expect(found: &Diagnostics, codes: &[&str], words: &str) {
    let actual: Vec<&str> = found.iter().map(|d| d.code).collect();
    assert_eq!(actual, codes, "{found}");
    for diagnostic in found {
        assert!(diagnostic.help.is_some() && diagnostic.line().is_some(), "{diagnostic}");
        assert!(diagnostic.snippet().is_some_and(|line| !line.is_empty()), "{diagnostic}");
    }
    assert!(found.render(false).contains(words), "`{words}` is not in:\n{found}");
}

#[test]
fn workflow() {
    let cases: &[Case<'_>] = &[
        (&[("version: 1", "version: 2")], &["E0113"], "write `version: 1`"),
        (&[("rate: 40/s", "raet: 40/s")], &["E0103"], "did you mean `rate`?"),
        (&[("rate: 40/s", "rate: 40")], &["E0106"], "write `40/s`"),
        (&[("rate: 40/s", "rate: -40/s")], &["E0106"], "is negative"),
        (&[("rate: 40/s", "rate: 0/s")], &["E0211"], "above 0"),
        (&[("rate: 40/s", "rate: 40/s\n    journal: {size: 1MiB}")], &["E0211"], "write 64MiB or more"),
        (&[("rate: 40/s", "rate: 40/s\n    journal: {keep: 0s}")], &["E0211"], "such as `10min`"),
        (&[("rate: 40/s", "rate: 40/s\n    journal: {sise: 1GiB}")], &["E0103"], "did you mean `size`?"),
        (&[("rate: 40/s", "rate: 40/s\n    journal: {size: 1Gi}")], &["E0106"], "1GiB"),
        (&[("accuracy: 56.0%", "accuracy: 0.56")], &["E0106"], "write `56%`"),
        (&[("truth: answer}", "truth: answer, compare: absolute_error}")], &["E0213"], "which is no share"),
        (&[("below: 800ms", "below: 800mS")], &["E0106"], "did you mean `800ms`?"),
        (&[("p99", "99")], &["E0106"], "`p99`"),
        (&[("  - id: images\n", "  - id: Images 1\n")], &["E0115", "E0205"], "`images_1`"),
        (&[("id: questions", "id: images")], &["E0203", "E0205"], "the first one"),
        (&[("input: pair", "input: pairs")], &["E0205"], "did you mean `pair`?"),
        (
            &[("input: pair", "input: pаir")],
            &["E0205"],
            "can look like a to z: `а` (U+0430); did you mean `pair`?",
        ),
        (&[("input: pair", "input: answers")], &["E0209"], "is a sink"),
        (
            &[("input: images", "input: answer")],
            &["E0206"],
            "`pair` -> `answer` -> `image_features` -> `pair`",
        ),
        (
            &[("    input: pair\n", "    input: pair\n    inputs: [pair]\n")],
            &["E0204"],
            "both `input` and `inputs`",
        ),
        (&[("    input: pair\n", "")], &["E0208"], "has no inputs"),
        (
            &[("models/scene-features-large.yaml", "models/scene-features-small.yaml")],
            &["E0212"],
            "given twice",
        ),
        (&[("max_batch: 8", "max_batch: 0")], &["E0211"], "1 or more"),
        (&[("id: pair\n", "id: pair\n    device: gpu\n")], &["E0218"], "has no models"),
        (
            &[("id: answer\n", "id: answer\n    device: GPU\n")],
            &["E0115"],
            "write `cpu`, `proxy` or a kind of device",
        ),
        (&[("input: pair", "input: {from: pair, when_cut: wait}")], &["E0215"], "write `buffer` or `stop`"),
        (
            &[("input: pair", "input: {from: pair, when_cut: degrade}")],
            &["E0215"],
            "`degrade` needs the variant",
        ),
        (
            &[(
                "inputs: [image_features, recognise",
                "inputs: [{from: image_features, when_cut: {degrade: small}}, recognise",
            )],
            &["E0215"],
            "has no variant",
        ),
        (
            &[("    input: answer\n", "    input: {from: answer, when_cut: {degrade: small}}\n")],
            &["E0215"],
            "`answers` is a sink",
        ),
        (
            &[("input: pair", "input: {from: pair, when_cut: {degrade: {variant: small, after: 0s}}}")],
            &["E0215"],
            "`2s`",
        ),
        (
            &[("input: pair", "input: {from: pair, when_cut: {degrade: {variant: small, size: 1KiB}}}")],
            &["E0215"],
            "write 1MiB or more",
        ),
        (
            &[("input: pair", "input: {from: pair, freshness: latest, when_cut: {degrade: small}}")],
            &["E0215"],
            "`when_cut: degrade` keeps them",
        ),
        (&[("input: pair", "input: {from: pair, when_cut: {}}")], &["E0215"], "has one setting"),
        (
            &[("input: pair", "input: {from: pair, when_cut: {buffer: {size: 10KiB}}}")],
            &["E0215"],
            "write 1MiB or more",
        ),
        (&[("input: pair", "input: {from: pair, when_cut: {buffer: {time: 0s}}}")], &["E0215"], "`10min`"),
        (&[("input: pair", "input: {from: pair, when_cut: {buffer: {time: 10}}}")], &["E0106"], "`10s`"),
        (
            &[("input: pair", "input: {from: pair, when_cut: {bufer: {}}}")],
            &["E0215", "E0103"],
            "did you mean `buffer`?",
        ),
        (&[("input: pair", "input: {from: pair, when_cut: {stop: {after: 0s}}}")], &["E0215"], "`10s`"),
        (
            &[("input: pair", "input: {from: pair, freshness: latest, when_cut: buffer}")],
            &["E0215"],
            "`freshness: latest` drops waiting records",
        ),
        (&[("tick: 50ms", "tick: 0ms")], &["E0211"], "a tick of length 0"),
        (&[("run: {", "resources: {processors: 0}\nrun: {")], &["E0216"], "write 0.01 or more"),
        (&[("run: {", "resources: {memory: 1MiB}\nrun: {")], &["E0216"], "write 64MiB or more"),
        (
            &[("run: {", "resources: {mode: elastic, memory: 1GiB}\nrun: {")],
            &["E0216"],
            "add `processors: 1.5` to `resources`",
        ),
        (
            &[("run: {", "resources: {mode: elastic, processors: 1, memory: 1GiB, period: 2s}\nrun: {")],
            &["E0216"],
            "write 10ms to 1s",
        ),
        (&[("run: {", "resources: {mode: elastik}\nrun: {")], &["E0114"], "did you mean `elastic`?"),
        (
            &[("checkpoint_every: 20", "checkpoint_every: 99999999999999999999")],
            &["E0105"],
            "from 0 to 9223372036854775807, found the number `99999999999999999999`",
        ),
        (&[("checkpoint_every: 20", "checkpoint_every: 2e1")], &["E0105"], "found the number `2e1`"),
        (&[("checkpoint_every: 20", "checkpoint_every: 2.50")], &["E0105"], "found the number `2.50`"),
        (&[("rate: 40/s", "rate: 4e1/s")], &["E0106"], "write `40` for `4e1`"),
        (&[("rate: 40/s", "rate: 1e308/s")], &["E0106"], "write all digits, as in `40/s`"),
        (&[("tick: 50ms", "tick: 5E-2s")], &["E0106"], "write `0.05` for `5E-2`"),
        (&[("path: data/images", "path: ${NO_SUCH_VARIABLE}")], &["E0101"], "flow"),
        (
            &[("path: data/images", "path: \"${NO_SUCH_VARIABLE}\"")],
            &["E0110"],
            "${NO_SUCH_VARIABLE:-default}",
        ),
        (&[("path: data/images", "path: \"${no\"")], &["E0111"], "close it"),
        (&[("id: pair", "id: ${PAIR:-pair}")], &["E0112"], "cannot be in an id"),
        (&[("name: vqa", "name: vqa\nname: again")], &["E0107"], "given twice"),
        (&[("name: vqa\n", "")], &["E0104"], "missing key `name`"),
        (&[("sources:", "sources: [\n")], &["E0101"], "a `[` is not closed"),
    ];
    for (changes, codes, words) in cases {
        let text = with(WORKFLOW, changes);
        let found = match Workflow::parse(&text, "workflow.yaml") {
            Err(found) => found,
            Ok(_) => panic!("{changes:?} was accepted"),
        };
        expect(&found, codes, words);
    }
}

#[test]
fn empty_workflows() {
    for text in ["", "# nothing\n", "[]", "version: 1\nname: a\nsources: []\nsinks: []\n"] {
        let found = Workflow::parse(text, "workflow.yaml").expect_err("nothing to run");
        assert!(found.has_errors() && found.iter().all(|d| d.line().is_some()), "{found}");
    }
    let found = Workflow::parse("version: 1\nname: a\nsources: []\nsinks: []\n", "w").expect_err("nothing");
    expect(&found, &["E0201", "E0202"], "no sources");
    let json = r#"{"version": 1, "name": "x", "sources": [], "sinks": []}"#;
    let found = Workflow::parse(json, "w").expect_err("nothing");
    let places: Vec<Option<usize>> = found.iter().map(|finding| finding.column()).collect();
    assert_eq!(places, [Some(29), Some(44)], "at the two keys: {found}");
}

/// Invalid in any file, reported with the key.
#[test]
fn numbers_that_are_not_finite() {
    for (written, words) in [
        (".nan", "`vcpu`: `.nan` is not a finite number"),
        (".inf", "`vcpu`: `.inf` is not a finite number"),
        ("-.inf", "`vcpu`: `-.inf` is not a finite number"),
        ("1e999", "`vcpu`: `1e999` is larger than the largest number"),
        ("[1, .nan]", "`vcpu`: `.nan` is not a finite number"),
    ] {
        let text = with(INFRASTRUCTURE, &[("vcpu: 2", &format!("vcpu: {written}"))]);
        let found = Infrastructure::parse(&text, "i.yaml").expect_err(written);
        expect(&found, &["E0105"], words);
    }
    let text = with(WORKFLOW, &[("name: vqa", "name: \".nan\"")]);
    assert!(Workflow::parse(&text, "w").is_err_and(|found| found.iter().all(|one| one.code == "E0115")));
}

#[test]
fn what_goes_beyond_the_limits() {
    let said = |text: &str| {
        let found = Workflow::parse(text, "w.yaml").expect_err("beyond the limits");
        expect(&found, &["E0109"], "");
        found.render(false)
    };
    for deep in [
        "[".repeat(20_000),
        format!("a: {}", "{b: ".repeat(70)),
        (0..99).map(|n| " ".repeat(n) + "a:\n").collect(),
    ] {
        assert!(said(&deep).contains("nested more than 64 levels deep"), "{}", said(&deep));
    }
    let mut bomb = format!("a: &a [{}]\n", ["x"; 100].join(","));
    for (name, before) in [("b", "a"), ("c", "b"), ("d", "c")] {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", [format!("*{before}").as_str(); 20].join(",")));
    }
    assert!(said(&bomb).contains("aliases of this file repeat more than 100000 values"), "{}", said(&bomb));
}

/// A block of text ends with its last line, not at the start of the next key.
#[test]
fn blocks_of_text_are_shown_alone() {
    let text = "version: 1\nname: |\n  Two\n  lines\n\nsources: []\nsinks: []\n";
    let found = Workflow::parse(text, "w.yaml").expect_err("no name");
    let name = found.iter().find(|finding| finding.code == "E0115").unwrap_or_else(|| panic!("{found}"));
    assert_eq!(name.span.text(), Some("Two\n  lines"), "{found}");
}

/// Independent mistakes anywhere in a file are all reported, in the order of the file.
#[test]
fn all_errors_at_once() {
    let text = with(
        WORKFLOW,
        &[
            ("rate: 40/s", "rate: 40"),
            ("kind: wav_directory", "kindd: wav_directory"),
            ("max_batch: 8", "max_batch: many"),
            ("    input: pair\n", "    input: pair\n    inputs: [pair]\n    on_panic: restrat\n"),
            ("percentile: p99", "percentile: 99"),
            ("tick: 50ms", "tock: 50ms"),
        ],
    );
    let found = Workflow::parse(&text, "workflow.yaml").expect_err("six mistakes");
    let lines: Vec<Option<usize>> = found.iter().map(|d| d.line()).collect();
    assert!(lines.is_sorted(), "{found}");
    expect(
        &found,
        &["E0106", "E0104", "E0103", "E0105", "E0114", "E0106", "E0103"],
        "did you mean `restart`?",
    );
}

#[test]
fn infrastructure() {
    let cases: &[Case<'_>] = &[
        (&[("price: 0.02 $/h", "price: -0.02 $/h")], &["E0106"], "is negative"),
        (&[("price: 0.02 $/h", "price: 0.02")], &["E0106"], "write `0.02 $/h`"),
        (&[("price: 0.02 $/h", "price: 0.02 $/d")], &["E0106"], "per hour"),
        (&[("price: 0.1 $/GiB", "price: -0.1 $/GiB")], &["E0106"], "is negative"),
        (&[("price: 0.1 $/GiB", "price: 0.1 $/Gib")], &["E0106"], "GiB"),
        (&[("memory: 2GiB", "memory: 2")], &["E0106"], "write `2MiB`"),
        (&[("memory: 2GiB", "memory: 0B")], &["E0307"], "memory"),
        (&[("vcpu: 2", "vcpu: 0")], &["E0307"], "above 0"),
        (&[("count: 2", "count: 0")], &["E0307"], "1 or more"),
        (&[("count: 2", "count: -2")], &["E0105"], "not negative"),
        (&[("count: 2", "count: two")], &["E0105"], "a whole number"),
        (
            &[("count: 2", "count: 4000000000000")],
            &["E0105"],
            "from 0 to 4294967295, found the number `4000000000000`",
        ),
        (&[("id: hub", "id: edge")], &["E0302", "E0305", "E0305", "E0305"], "the first one"),
        (&[("[north, south]", "[north, north]")], &["E0308", "E0310"], "given twice"),
        (&[("type: accelerated", "type: large")], &["E0304", "E0309"], "`count`"),
        (&[("type: medium", "type: small")], &["E0309"], "other properties"),
        (&[("share: 50%", "share: 0%")], &["E0318"], "above 0%"),
        (&[("share: 50%", "share: 150%")], &["E0106"], "100%"),
        (&[("kind: gpu-t4", "kind: gpu-t4, count: 0")], &["E0318"], "1 or more"),
        (&[("kind: gpu-t4", "kind: proxy")], &["E0318"], "another name"),
        (&[("kind: gpu-t4", "kind: GPU")], &["E0115"], "`gpu`"),
        (&[("example:7440", "example")], &["E0318"], "`hub.local:7440`"),
        (&[("devices: [", "devices: [{kind: gpu-t4}, ")], &["E0318"], "`count`"),
        (&[("count: 2", "count: 2, names: [a]")], &["E0313"], "a name for each machine"),
        (&[("to: cloud", "to: clod")], &["E0305"], "did you mean `cloud`?"),
        (&[("from: hub, to: cloud", "from: hub, to: edge")], &["E0306"], "already a link"),
        (&[("bandwidth: 1Gbps", "bandwidth: 0bps")], &["E0307"], "bandwidth"),
        (&[("bandwidth: 1Gbps", "bandwidth: 1GBps")], &["E0106"], "did you mean `1Gbps`?"),
        (&[("image_source, tier: edge", "image_source, tier: egde")], &["E0305"], "did you mean `edge`?"),
        (&[("location: north", "location: nroth")], &["E0310"], "did you mean `north`?"),
        (&[("id: speech_source", "id: image_source")], &["E0311"], "given twice"),
        (&[("{tier: hub,", "{tier: hbu,")], &["E0305"], "did you mean `hub`?"),
        (&[("location: south, host", "location: suoth, host")], &["E0310"], "did you mean `south`?"),
        (&[("location: south, host", "host")], &["E0310"], "add `location: north`"),
        (&[("{tier: hub,", "{tier: cloud,")], &["E0314"], "one machine"),
        (&[("ssh://deploy@", "deploy@")], &["E0315"], "ssh://USER@MACHINE"),
        (&[("address: hub.example", "address: https://hub.example")], &["E0315"], "10.0.0.7"),
        (&[("architecture: arm64", "paths: [{id: lte}]")], &["E0316"], "`interface: eth0`"),
        (&[("architecture: arm64", "architecture: arm")], &["E0114"], "`amd64`, `arm64`"),
        (&[("direction: both", "direction: back")], &["E0114"], "`forward`, `both`"),
        (
            &[("workers:\n      - {type: medium, vcpu: 8, memory: 16GiB, price: $0.17/h}", "workers: []")],
            &["E0303"],
            "no workers",
        ),
    ];
    for (changes, codes, words) in cases {
        let text = with(INFRASTRUCTURE, changes);
        let found = Infrastructure::parse(&text, "i.yaml").expect_err(&format!("{changes:?}"));
        expect(&found, codes, words);
    }
    let found = Infrastructure::parse("version: 1\nname: a\ntiers: []\n", "i.yaml").expect_err("no tiers");
    expect(&found, &["E0301"], "has no tiers");
}

#[test]
fn plan() {
    let workflow = Workflow::parse(WORKFLOW, "workflow.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let cases: &[Case<'_>] = &[
        (
            &[("id: second", "id: first")],
            &["E0401", "E0402", "E0402", "E0402", "E0402", "E0402"],
            "given twice",
        ),
        (&[("worker: second", "worker: secnd")], &["E0402"], "did you mean `second`?"),
        (&[("share: 0.3\n    route", "share: 0.2\n    route")], &["E0403"], "add up to 0.9"),
        (&[("id: 1\n", "id: 2\n")], &["E0404"], "class 1 is expected"),
        (&[("      pair: pair\n", "")], &["E0414"], "no class sends"),
        (
            &[("image_features: image_features@second", "image_features: image_features@secnd")],
            &["E0406"],
            "did you mean `image_features@second`?",
        ),
        (
            &[("image_features: image_features@second", "image_features: pair")],
            &["E0407"],
            "belongs to `pair`",
        ),
        (&[("  - {from: pair, to: answer}\n", "")], &["E0408"], "add `- {from: pair, to: answer}`"),
        (&[("to: pair, input: 1", "to: pair")], &["E0408", "E0409"], "write `input: 1`"),
        (&[("{from: pair, to: answer}", "{from: pair, to: anwser}")], &["E0409"], "did you mean `answer`?"),
        (
            &[("{from: pair, to: answer}", "{from: pair, to: answer}\n  - {from: pair, to: answer}")],
            &["E0415"],
            "given twice",
        ),
        (&[("share: 0.7\n    max_batch", "share: 0.6\n    max_batch")], &["E0410"], "write `share: 0.7`"),
        (&[("name: vqa", "name: other")], &["E0411"], "this is `vqa`"),
        (
            &[("{name: vqa}", &format!("{{name: vqa, digest: {}}}", "a".repeat(64)))],
            &["E0411"],
            "has changed",
        ),
        (&[("{name: vqa}", "{name: vqa, digest: abc}")], &["E0413"], "not a sha256"),
        (&[("variant: speech-small, ", "")], &["E0412"], "names no variant"),
        (&[("operator: pair,", "operator: pair, variant: x,")], &["E0412"], "has no models"),
        (&[("partitions: 2", "partitions: 0")], &["E0413"], "1 or more"),
        (&[("share: 0.7\n    max_batch", "share: 1.7\n    max_batch")], &["E0413"], "at most 1"),
        (&[("tick: 20ms", "tick: 0ms")], &["E0413"], "length 0"),
        (&[("tick: 20ms", "tick: 20")], &["E0106"], "write `20ms` or `20s`"),
        (
            &[("variant: speech-small, ", "variant: speech-small, device: 'device:hub/gpu', ")],
            &["E0420"],
            "does not exist",
        ),
        (
            &[("stages:", "devices: [{id: gpu, kind: gpu, worker: hub, address: hub}]\nstages:")],
            &["E0420"],
            "`HOST:PORT`",
        ),
        (
            &[(
                "stages:",
                "devices: [{id: gpu, kind: gpu, worker: hub}, {id: gpu, kind: gpu, worker: hub}]\nstages:",
            )],
            &["E0401"],
            "given twice",
        ),
        (&[("id: first", "id: First")], &["E0115", "E0402", "E0402", "E0402"], "ids start with"),
    ];
    for (changes, codes, words) in cases {
        let text = with(PLAN, changes);
        let found = match PlanFile::parse(&text, "plan.yaml") {
            Err(found) => found,
            Ok(file) => file.validate_against(&workflow),
        };
        expect(&found, codes, words);
    }
}

/// An operator that no class routes.
#[test]
fn plan_without_an_operator() {
    let workflow = Workflow::parse(WORKFLOW, "workflow.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let text = with(
        PLAN,
        &[
            ("  - {id: answers, operator: answers, worker: second}\n", ""),
            ("      answers: answers\n", ""),
            ("  - {from: answer, to: answers}\n", ""),
        ],
    );
    let file = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    expect(&file.validate_against(&workflow), &["E0405", "E0405"], "add a stage of `answers`");
    let text = with(PLAN, &[("{id: pair, operator: pair,", "{id: pears, operator: pairs,")])
        .replace("pair: pair", "pairs: pears");
    let text = text.replace("to: pair", "to: pears").replace("from: pair", "from: pears");
    let file = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    expect(&file.validate_against(&workflow), &["E0412", "E0405", "E0405"], "did you mean `pair`?");
}

/// A plan for another workflow gives one error, not all that follow from it.
#[test]
fn a_plan_of_another_workflow_is_one_error() {
    let workflow = Workflow::parse(WORKFLOW, "workflow.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let check = |changes: &[(&str, &str)]| {
        let text = with(PLAN, changes).replace("pair", "pears");
        let file = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        file.validate_against(&workflow)
    };
    let found = check(&[("name: vqa", "name: other")]);
    let said = "the plan is for the workflow `other`, this is `vqa`; the plan has no stage of `pair`, and stages of \
                `pears`, which the workflow does not have";
    expect(&found, &["E0411"], said);
    expect(&found, &["E0411"], "`tidemill plan workflow.yaml --infra FILE --profiles FILE --out PLAN`");
    let digest = format!("{{name: vqa, digest: {}}}", "a".repeat(64));
    let found = check(&[("{name: vqa}", &digest)]);
    expect(&found, &["E0411"], "has changed since the plan was made: the plan has no stage of `pair`");
}

#[test]
fn rendering_shows_the_place() {
    let text = with(WORKFLOW, &[("rate: 40/s", "rate: 40")]);
    let found = Workflow::parse(&text, "workflow.yaml").expect_err("no unit");
    let expected = "\
error[E0106]: `40` has no unit
 --> workflow.yaml:9:11
  |
9 |     rate: 40
  |           ^^
  |
  = help: write `40/s`";
    assert_eq!(found.render(false), expected);
    let json = serde_json::to_value(&found).expect("diagnostics are data");
    assert_eq!(
        json,
        serde_json::json!([{
            "code": "E0106", "severity": "error", "message": "`40` has no unit", "file": "workflow.yaml",
            "line": 9, "column": 11, "snippet": "    rate: 40", "help": "write `40/s`"
        }])
    );
    assert!(found.render(true).contains('\u{1b}'));
}
