//! Printed values are read back equal.
use proptest::prelude::*;
use tidemill_spec::infrastructure::{
    Accelerator, Architecture, Device, Direction, Host, Infrastructure, Link, NetworkPath, PathRule,
    SourcePlace, Tier, WorkerType,
};
use tidemill_spec::manifest::{Dimension, Initial, LoopState, Manifest, Postprocess, Preprocess};
use tidemill_spec::plan::{Freshness, LatencyBasis, Plan, Predicted, PredictedValue};
use tidemill_spec::profile::Profile;
use tidemill_spec::span::{Located, SourceFile};
use tidemill_spec::units::{
    Bandwidth, Bytes, HourlyPrice, Percent, Percentile, Rate, SoundLength, TimeSpan, TransferPrice,
};
use tidemill_spec::value::{Entry, Node, Text, Value};
use tidemill_spec::workflow::{CutBuffer, CutDegrade, CutStop, Input, WhenCut, Workflow};
use tidemill_spec::yaml;

/// Whole numbers of all sizes, round ones more often than chance gives them.
fn whole() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..10_000u64,
        (0..1_000u64, 0..14u32).prop_map(|(n, e)| n * 10u64.pow(e)),
        (0..1_000u64, 0..50u32).prop_map(|(n, e)| n << e)
    ]
}

/// Non-negative numbers.
fn real() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1e12, 0.0..1.0, (0..100_000u32).prop_map(|n| f64::from(n) / 1000.0)]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,20}",
        any::<String>().prop_map(|text| text.replace(['\u{F8FE}', '\0'], "")),
        prop::sample::select(vec![
            "",
            "null",
            "~",
            "yes",
            "no",
            "true",
            "0x1f",
            "1e3",
            ".5",
            "1_000",
            "- a",
            "a: b",
            "# a",
            " a ",
            "a\nb",
            "\n",
            "|",
            ">",
            "&a",
            "*a",
            "!t",
            "%d",
            "@a",
            "`",
            "'",
            "\"",
            "{",
            "[",
            "${A}",
            "$${A}",
            "$$${",
            "<<",
            "é",
            "\u{85}",
            "\u{2028}",
            "\t",
            "\u{FEFF}a",
            "---",
            "...",
            "1:30",
            "2001-01-01",
            "0o7",
            "+1",
            ".inf",
            ".nan",
        ])
        .prop_map(str::to_string),
    ]
}

fn id() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_-]{0,12}"
}

proptest! {
    #[test]
    fn units(n in whole(), x in real(), percentile in 0.001..99.999f64) {
        prop_assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
        prop_assert_eq!(TimeSpan(n).to_string().parse(), Ok(TimeSpan(n)));
        prop_assert_eq!(Bandwidth(n).to_string().parse(), Ok(Bandwidth(n)));
        for length in [SoundLength::Samples(n), SoundLength::Time(TimeSpan(n))] {
            prop_assert_eq!(length.to_string().parse(), Ok(length));
        }
        prop_assert_eq!(Rate(x).to_string().parse(), Ok(Rate(x)));
        prop_assert_eq!(HourlyPrice(x).to_string().parse(), Ok(HourlyPrice(x)));
        prop_assert_eq!(Percentile(percentile).to_string().parse(), Ok(Percentile(percentile)));
        let percent = Percent(x.min(100.0));
        prop_assert_eq!(percent.to_string().parse(), Ok(percent));
        for per in [1.0, 1e9, 1e6, f64::from(1 << 30)] {
            let price = TransferPrice(x / per);
            prop_assert_eq!(price.to_string().parse(), Ok(price));
        }
    }

    /// No text makes a unit panic, and errors always have a correction.
    #[test]
    fn any_text_as_unit(text in prop_oneof![text(), "[-$]?[0-9]{0,40}[.]?[0-9]{0,40} ?[$/a-zA-Z%]{0,6}"]) {
        let refusals = [
            text.parse::<Bytes>().err(), text.parse::<TimeSpan>().err(), text.parse::<Bandwidth>().err(),
            text.parse::<Rate>().err(), text.parse::<Percent>().err(), text.parse::<Percentile>().err(),
            text.parse::<HourlyPrice>().err(), text.parse::<TransferPrice>().err(),
            text.parse::<SoundLength>().err(),
        ];
        for refusal in refusals.into_iter().flatten() {
            prop_assert!(!refusal.help.is_empty());
        }
    }

    #[test]
    fn values(value in tree()) {
        let printed = yaml::print(&value).expect("prints");
        let again = yaml::parse(&SourceFile::new("printed", printed.as_str()));
        prop_assert_eq!(again.as_ref(), Ok(&value), "{}", printed);
    }

    #[test]
    fn workflow(ids in prop::collection::hash_set(id(), 6), tick in 1..u64::MAX, rate in real(), path in text(),
                freshness in freshness(), when_cut in when_cut(), options in map(), batch in 1..1000u32) {
        // A buffer contradicts a freshness policy that drops records.
        let is_meant = |cut: &WhenCut| cut.kept().is_none() || freshness.is_none();
        let when_cut = when_cut.filter(is_meant).map(Located::from);
        let mut ids = ids.into_iter();
        let mut workflow = golden_workflow();
        let mut next = || ids.next().expect("six ids");
        let (source, operator, sink) = (next(), next(), next());
        workflow.sources.truncate(1);
        workflow.sources[0].id = source.clone().into();
        workflow.sources[0].rate = Some(Rate(rate + 0.5).into());
        workflow.operators.truncate(1);
        workflow.operators[0].id = operator.clone().into();
        workflow.operators[0].inputs = vec![Input { from: source.into(), freshness, when_cut }];
        workflow.operators[0].variants = vec![path.clone().into()];
        workflow.operators[0].batching.as_mut().expect("has batching").max_batch = batch.into();
        workflow.operators[0].options = options;
        workflow.sinks[0].id = sink.into();
        workflow.sinks[0].input = Input { from: operator.into(), freshness: None, when_cut: None };
        workflow.run.tick = TimeSpan(tick).into();
        workflow.run.dead_letters = Some(path.into());
        let printed = workflow.to_yaml().expect("prints");
        let again = Workflow::parse(&printed, "printed");
        prop_assert_eq!(again.as_ref(), Ok(&workflow), "{}", printed);
        prop_assert_eq!(again.map(|again| again.digest()), Ok(workflow.digest()));
    }

    #[test]
    fn infrastructure(name in text(), ids in prop::collection::hash_set(id(), 3), price in real(), n in 1..u32::MAX,
                      memory in 1..u64::MAX, delay in whole(), vcpu in prop::option::of(0.001..1000.0f64), both: bool) {
        let ids: Vec<String> = ids.into_iter().collect();
        let worker = |worker_type: &String| WorkerType {
            worker_type: worker_type.as_str().into(),
            count: n.into(),
            vcpu: vcpu.map(Located::from),
            memory: Some(Bytes(memory).into()),
            accelerators: vec![Accelerator { accelerator_type: name.clone().into(), count: n.into(), memory: None }],
            devices: vec![Device {
                kind: "gpu".into(),
                count: n.into(),
                memory: Some(Bytes(memory).into()),
                share: Some(Percent(price % 100.0).into()).filter(|share: &Located<Percent>| share.0 > 0.0),
                price: Some(HourlyPrice(price).into()),
                remotable: both,
                address: both.then(|| "hub.local:7440".into()),
                spares: Vec::new(),
            }],
            price: HourlyPrice(price).into(),
            names: Vec::new(),
            locations: Vec::new(),
            busy: Some(Percent(price % 100.0).into()),
        };
        let tier = |id: &String| Tier {
            id: id.as_str().into(),
            locations: vec![id.as_str().into()],
            workers: ids.iter().map(worker).collect::<Vec<_>>().into(),
        };
        let infrastructure = Infrastructure {
            version: 1.into(),
            name: "name".into(),
            tiers: ids.iter().map(tier).collect(),
            links: vec![Link {
                from: ids[0].as_str().into(),
                to: ids[1].as_str().into(),
                price: TransferPrice(price / 1e9).into(),
                bandwidth: Some(Bandwidth(memory).into()),
                delay: TimeSpan(delay).into(),
                direction: if both { Direction::Both } else { Direction::Forward },
            }],
            sources: vec![SourcePlace {
                id: "images".into(),
                tier: ids[0].as_str().into(),
                location: both.then(|| ids[0].as_str().into()),
            }],
            policies: Vec::new(),
            hosts: vec![Host {
                tier: ids[1].as_str().into(),
                location: Some(ids[1].as_str().into()),
                host: both.then(|| "ssh://someone@machine.example:2222".into()),
                address: (!both).then(|| "fd00::7".into()),
                only_dials: both,
                paths: vec![NetworkPath {
                    id: "lte".to_owned().into(),
                    interface: Some("wwan0".to_owned().into()),
                    address: None,
                    price: None,
                }],
                path_rule: PathRule::Cheapest,
                architecture: both.then_some(Architecture::Arm64),
            }],
        };
        let printed = infrastructure.to_yaml().expect("prints");
        let again = Infrastructure::parse(&printed, "printed");
        prop_assert_eq!(again, Ok(infrastructure), "{}", printed);
    }

    #[test]
    fn plan(share in 0.001..0.999f64, tick in 1..u64::MAX, n in 1..u32::MAX, freshness in freshness(), expected: bool,
            budget in 1..u64::MAX, x in real(), digest in "[0-9a-f]{63}[a-f]", group in "[a-z][a-z0-9_@./-]{0,9}") {
        let mut plan = Plan::parse(include_str!("golden/plan-two-workers.yaml"), "golden").expect("is right");
        (plan.tick, plan.plan_version, plan.checkpoint_every) = (TimeSpan(tick), u64::from(n), u64::from(n));
        plan.workflow.digest = Some(digest.clone());
        plan.profiles = vec![digest];
        (plan.classes[0].share, plan.classes[1].share) = (share, 1.0 - share);
        (plan.stages[2].share, plan.stages[3].share) = (share, 1.0 - share);
        plan.stages[0].slot_group = group;
        (plan.stages[0].partitions, plan.stages[0].max_batch) = (n, n);
        (plan.stages[0].byte_budget, plan.stages[0].batching_budget) = (Bytes(budget), TimeSpan(tick));
        plan.edges[0].freshness = freshness;
        plan.edges[0].bytes_per_record = Some(Bytes(budget));
        plan.predicted = Some(Predicted {
            rate: Some(PredictedValue { value: Rate(x), from: Some(Rate(x)), to: None }),
            mean: Some(PredictedValue { value: TimeSpan(tick), from: None, to: None }),
            p50: None,
            p90: None,
            p99: Some(PredictedValue { value: TimeSpan(tick), from: None, to: Some(TimeSpan(budget)) }),
            latency_at: expected.then(|| "answers".to_owned()),
            latency_basis: if expected { LatencyBasis::Expected } else { LatencyBasis::Guaranteed },
            cost: Some(PredictedValue { value: HourlyPrice(x), from: None, to: None }),
            accuracy: Some(PredictedValue { value: Percent(share), from: None, to: None }),
            utilization: [("edge-0".to_owned(), Percent(share))].into(),
        });
        let printed = plan.to_yaml().expect("prints");
        let again = Plan::parse(&printed, "printed");
        prop_assert_eq!(again, Ok(plan), "{}", printed);
    }

    #[test]
    fn profile(words in prop::collection::vec(text(), 5), n in 1..u64::MAX, x in real(), times in prop::collection::vec(whole(), 2..40)) {
        let mut profile = Profile::parse(include_str!("golden/profile.yaml"), "golden").expect("is right");
        let mut times: Vec<TimeSpan> = times.into_iter().map(TimeSpan).collect();
        times.sort();
        profile.workflow.name = words[0].clone();
        profile.machines[0].cpu = Some(words[1].clone());
        profile.machines[0].cores = Some(x + 0.001);
        profile.services[0].variant = Some(words[2].clone());
        profile.services[0].batches[0].points = times;
        profile.services[0].peak_memory = Some(Bytes(n));
        profile.ratios[0].output_per_input = x;
        profile.messages[0].bytes_per_record = Bytes(n);
        profile.messages[0].variants.insert(words[3].clone(), words[4].clone());
        let accuracy = profile.accuracy.as_mut().expect("has one");
        accuracy.metric = words[4].clone();
        accuracy.models[0].value = x;
        let printed = profile.to_yaml().expect("prints");
        let again = Profile::parse(&printed, "printed");
        prop_assert_eq!(again, Ok(profile), "{}", printed);
    }

    #[test]
    fn values_in_rows(value in tree()) {
        prop_assume!(matches!(value.node, Node::Map(_)));
        let printed = yaml::print_in_rows(&value).expect("prints");
        let again = yaml::parse(&SourceFile::new("printed", printed.as_str()));
        // A float without a fraction is printed as a whole number: compares values, not their text.
        let plain = |value: &Value| numbers(serde_json::to_value(value).expect("is data"));
        prop_assert_eq!(again.as_ref().map(plain), Ok(plain(&value)), "{}", printed);
    }

    #[test]
    fn manifest(description in text(), labels in prop::collection::vec(text(), 2), alphabet in text(), n in 1..i32::MAX as u32,
                constant in -1e9..1e9f64, x in 0.0..1e9f64) {
        let mut manifest = Manifest::parse(include_str!("golden/model.yaml"), "golden").expect("is right");
        manifest.description = description.clone();
        manifest.licence = description;
        manifest.parameters = Some(u64::from(n));
        manifest.inputs[2].preprocess =
            vec![Located::from(Preprocess::Characters {
                alphabet: format!("a{alphabet}"),
                length: Some(n),
                first: n,
                padding: 0,
                unknown: None,
                one_hot: false,
            })];
        manifest.inputs[2].shape = vec![Dimension::Batch, Dimension::Fixed(n)].into();
        manifest.outputs[1].postprocess = vec![Located::from(Postprocess::Argmax {
            labels,
            labels_file: None,
            labels_metadata: None,
        })];
        let repeat = manifest.repeat.as_mut().expect("has a loop");
        repeat.states = vec![LoopState { input: "i".into(), output: "o".into(), initial: Initial::Constant(constant) }];
        let metric = manifest.metric.as_mut().expect("has a metric");
        (metric.value, metric.interval) = (x.into(), (x, x).into());
        let printed = manifest.to_yaml().expect("prints");
        let again = Manifest::parse(&printed, "printed");
        prop_assert_eq!(again, Ok(manifest), "{}", printed);
    }
}

#[test]
fn a_carrier_that_earlier_versions_wrote_is_read_and_not_written() {
    let text = include_str!("golden/plan-two-workers.yaml");
    let former = text.replace(", to: pair,", ", to: pair, link: memfd,");
    assert_ne!(former, text);
    let (plan, expected) = (Plan::parse(&former, "former"), Plan::parse(text, "golden"));
    let (plan, expected) = (plan.expect("is read"), expected.expect("is right"));
    assert_eq!(plan, expected);
    assert!(!plan.to_yaml().expect("prints").contains("link"));
    let mut json = serde_json::to_value(&plan).expect("JSON");
    json["edges"][0]["link"] = "in_process".into();
    assert_eq!(serde_json::from_value::<Plan>(json).expect("is read"), expected);
}

/// All numbers as floats.
fn numbers(tree: serde_json::Value) -> serde_json::Value {
    match tree {
        serde_json::Value::Number(n) => serde_json::json!(n.as_f64()),
        serde_json::Value::Array(items) => items.into_iter().map(numbers).collect(),
        serde_json::Value::Object(map) => map.into_iter().map(|(key, value)| (key, numbers(value))).collect(),
        other => other,
    }
}

fn golden_workflow() -> Workflow {
    Workflow::parse(include_str!("golden/workflow.yaml"), "golden").expect("is right")
}

fn freshness() -> impl Strategy<Value = Option<Freshness>> {
    prop::sample::select(vec![
        None,
        Some(Freshness::Block),
        Some(Freshness::DropOldest),
        Some(Freshness::Latest),
    ])
}

fn when_cut() -> impl Strategy<Value = Option<WhenCut>> {
    let buffer = (1..u64::MAX, 1..u64::MAX).prop_map(|(size, time)| {
        let size = Some(Bytes(size.max(CutBuffer::LEAST_SIZE.0)).into());
        WhenCut::Buffer(CutBuffer { size, time: Some(TimeSpan(time).into()) })
    });
    let stop = (1..u64::MAX).prop_map(|after| WhenCut::Stop(CutStop { after: Some(TimeSpan(after).into()) }));
    let degrade = (text(), prop::option::of(1..u64::MAX), 1..u64::MAX).prop_map(|(variant, after, time)| {
        let after = after.map(|after| TimeSpan(after).into());
        let time = after.is_some().then(|| TimeSpan(time).into());
        WhenCut::Degrade(CutDegrade { after, time, ..CutDegrade::new(variant) })
    });
    let short =
        prop::sample::select(vec![WhenCut::Buffer(CutBuffer::default()), WhenCut::Stop(CutStop::default())]);
    prop::option::of(prop_oneof![buffer, stop, degrade, short])
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Node::Null),
        any::<bool>().prop_map(Node::Bool),
        any::<i64>().prop_map(Node::Integer),
        (-1e15..1e15f64).prop_map(Node::Float),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Node::Float),
        text().prop_map(|text| Node::Text(Text::from(text.as_str()))),
    ];
    let node = leaf.prop_map(Value::from);
    node.prop_recursive(4, 24, 4, |inner| {
        let entry = (text(), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| Value::from(Node::List(items))),
            prop::collection::vec(entry, 0..4).prop_map(|entries| Value::from(Node::Map(unique(entries)))),
        ]
    })
}

/// Options: a map with free texts, but without `${` in keys.
pub(crate) fn map() -> impl Strategy<Value = Value> {
    prop::collection::vec(("[a-z_]{1,8}", tree()), 0..4)
        .prop_map(|entries| Value::from(Node::Map(unique(entries))))
        .prop_filter("variables in keys are refused", |value| !format!("{value:?}").contains("${"))
}

fn unique(entries: Vec<(String, Value)>) -> Vec<Entry> {
    let mut seen = std::collections::HashSet::new();
    let fresh = entries.into_iter().filter(|(key, _)| key != "<<" && seen.insert(key.clone()));
    fresh.map(|(key, value)| Entry { key: key.into(), value }).collect()
}
