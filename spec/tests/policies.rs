//! Policies of edges: mistakes with their place, printed files, and the plan with them.
use crate::errors::expect;
use proptest::prelude::*;
use std::path::PathBuf;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::{Plan, PlanFile};
use tidemill_spec::policies::{EdgePattern, InfrastructurePolicy, Policy, PolicySide, resolve};
use tidemill_spec::workflow::Workflow;

const WORKFLOW: &str = include_str!("golden/workflow.yaml");
const INFRASTRUCTURE: &str = include_str!("golden/infrastructure.yaml");

/// Policies of the workflow, as users write them.
const OWN: &str = "policies:
  - id: cap-cam3
    edge: images -> image_features
    rate_limit: {match: \"camera == 'cam3'\", rps: 5, burst: 10}
  - {edge: '* -> answers', side: receiver, encrypt: }
  - {edge: '*', rate_limit: {rps: 100.5, paths: [a, {b: '$${C}'}]}}
";

/// Policies of the infrastructure: one of another workflow, one of any, one with an id of the workflow.
const ADDED: &str = "policies:
  - {edge: cameras -> detect, workflow: other, rate_limit: {rps: 1}}
  - {edge: gateway -> *, side: receiver, log: {level: 2}}
  - {id: cap-cam3, edge: '*', workflow: vqa, encrypt: {}}
";

fn workflow(policies: &str) -> Result<Workflow, Diagnostics> {
    Workflow::parse(&format!("{WORKFLOW}{policies}"), "workflow.yaml")
}

fn infrastructure(policies: &str) -> Result<Infrastructure, Diagnostics> {
    Infrastructure::parse(&format!("{INFRASTRUCTURE}{policies}"), "infrastructure.yaml")
}

/// One policy, the resulting codes in order, words of the message or help, and what the first finding points at.
type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a str);

/// Checks that the mistakes are found, each at its place in the last line of the file.
fn check(cases: &[Case<'_>], read: impl Fn(&str) -> Option<Diagnostics>) {
    for (policy, codes, words, place) in cases {
        let found =
            read(&format!("policies: [{policy}]\n")).unwrap_or_else(|| panic!("{policy} was accepted"));
        expect(&found, codes, words);
        let first = found.iter().next().expect("there is one");
        // The span of a map also has what follows it in the line.
        assert!(
            first.span.text().is_some_and(|text| text.starts_with(place)),
            "{:?} {first}",
            first.span.text()
        );
    }
}

#[test]
fn mistakes_in_a_workflow() {
    let code = &["E0217"][..];
    let cases: &[Case<'_>] = &[
        ("{edge: imges -> pair, log: }", code, "did you mean `images`?", "imges"),
        ("{edge: 'images -> image_featurs', log: }", code, "did you mean `image_features`?", "image_featurs"),
        ("{edge: x -> y, log: }", &["E0217", "E0217"], "sources and operators: `images`", "x"),
        ("{edge: '* -> images', log: }", code, "`images` is a source and has no input", "images"),
        ("{edge: answers -> *, log: }", code, "`answers` is a sink and has no output", "answers"),
        ("{edge: answer -> pair, log: }", code, "write `pair -> answer`", "answer -> pair"),
        (
            "{edge: images -> pair, log: }",
            code,
            "edges to `pair`: `image_features -> pair`, `recognise_speech -> pair`",
            "images -> pair",
        ),
        ("{edge: images, log: }", code, "`images` is no edge", "images"),
        ("{edge: images => pair, log: }", code, "alone all edges", "images => pair"),
        ("{edge: Images -> pair, log: }", code, "for example `images`", "Images -> pair"),
        ("{edge: *, log: }", &["E0101"], "needs quotes", "*"),
        ("{edge: * -> pair, log: }", &["E0101"], "write `\"* -> pair\"`", "* -> pair"),
        ("{edge: 4, log: }", &["E0105"], "expected text", "4"),
        ("{log: {level: 1}}", &["E0104"], "add `edge:`", "{log: {level: 1}}"),
        ("{edge: '*'}", code, "the policy has no kind", "{edge: '*'}"),
        ("{edge: '*', log: , encrypt: }", code, "one kind, but this one has `log` and `encrypt`", "encrypt"),
        ("{edge: '*', log: , sied: receiver}", code, "did you mean `side`?", "sied"),
        ("{edge: '*', sied: receiver, log: }", code, "did you mean the key `side`?", "receiver"),
        ("{edge: '*', side: reciever, log: }", &["E0114"], "did you mean `receiver`?", "reciever"),
        ("{edge: '*', rate_limit: 5}", code, "a map, found a whole number", "5"),
        ("{edge: '*', rate_limit: [5]}", code, "write `rate_limit: {...}`", "[5]"),
        ("{edge: '*', Rate Limit: }", code, "`Rate Limit` is no kind of policy", "Rate Limit"),
        ("{edge: '*', workflow: vqa, log: }", code, "leave `workflow` out", "workflow"),
        ("{id: Cap, edge: '*', log: }", &["E0115"], "for example `cap`", "Cap"),
        ("{id: a, edge: '*', log: }, {id: a, edge: '*', log: }", code, "`a` is given twice", "a"),
        ("{edge: '*', log: {key: '${KEY}'}}", &["E0112"], "cannot be in a policy", "'${KEY}'"),
        ("{edge: '*', log: {key: '${KEY'}}", &["E0111"], "close it", "'${KEY'"),
        ("{edge: '*', rate_limit: {rps: 1, rps: 2}}", &["E0107"], "given twice", "rps"),
        ("all", &["E0105"], "expected a map such as `{edge: cameras -> detect", "all"),
        // Independent mistakes are all found.
        (
            "{edge: x, side: both, a: 1, b: }, {edge: y, c: }",
            &["E0217", "E0114", "E0217", "E0217"],
            "`y` is no edge",
            "x",
        ),
    ];
    check(cases, |policies| workflow(policies).err());
    let long = "x".repeat(65);
    let found =
        workflow(&format!("policies: [{{id: {long}, edge: '*', {long}: }}]")).expect_err("is too long");
    expect(&found, &["E0217", "E0217"], "write 64 characters at most");
}

#[test]
fn mistakes_in_an_infrastructure() {
    let code = &["E0317"][..];
    let cases: &[Case<'_>] = &[
        ("{edge: images, log: }", code, "`images` is no edge", "images"),
        ("{edge: '*'}", code, "the policy has no kind", "{edge: '*'}"),
        ("{edge: '*', log: , encrypt: }", code, "write `encrypt` as a policy of its own", "encrypt"),
        ("{edge: '*', log: , workflw: vqa}", code, "did you mean `workflow`?", "workflw"),
        ("{edge: '*', log: 1}", code, "`log: {}` without options", "1"),
        ("{edge: '*', LOG: }", code, "`LOG` is no kind of policy", "LOG"),
        ("{id: a, edge: '*', log: }, {id: a, edge: '*', log: }", code, "`a` is given twice", "a"),
        ("{edge: '*', workflow: VQA, log: }", &["E0115"], "for example `vqa`", "VQA"),
    ];
    check(cases, |policies| infrastructure(policies).err());
    // Its edges may be of workflows that it does not know.
    infrastructure("policies: [{edge: nobody -> knows, log: }]").unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn mistakes_in_a_plan() {
    let plan = include_str!("golden/plan-policies.yaml");
    for (from, to, code, words, line) in [
        ("id: encrypt-1", "id: cap-cam3", "E0401", "the policy `cap-cam3` is given twice", "cap-cam3"),
        ("  to: answers\n  side", "  to: '*'\n  side", "E0115", "leave `to` out", "'*'"),
        ("kind: log", "kind: Log", "E0115", "for example `log`", "Log"),
        ("side: receiver", "side: sendr", "E0114", "did you mean `sender`?", "sendr"),
    ] {
        assert!(plan.contains(from), "{from}");
        let found = PlanFile::parse(&plan.replacen(from, to, 1), "plan.yaml").expect_err(to);
        expect(&found, &[code], words);
        assert_eq!(found.iter().next().and_then(|first| first.span.text()), Some(line));
    }
}

#[test]
fn positions_of_options_are_kept() {
    let workflow = workflow(OWN).unwrap_or_else(|errors| panic!("{errors}"));
    let rps = workflow.policies[0].options.get("rps").expect("is there");
    assert_eq!(rps.span.text(), Some("5"));
    assert_eq!(rps.span.line(), workflow.policies[0].kind.span.line());
    let planned = &resolve(&workflow, None)[0];
    assert_eq!(planned.options.get("rps").and_then(|rps| rps.span.line()), rps.span.line());
}

#[test]
fn policies_change_the_digest_of_a_workflow_and_no_policies_do_not() {
    let digest = |policies: &str| workflow(policies).unwrap_or_else(|errors| panic!("{errors}")).digest();
    assert_eq!(digest(""), digest("policies: []\n"));
    assert_ne!(digest(""), digest(OWN));
    assert_eq!(
        digest("policies: [{edge: '*', log: }]"),
        digest("policies: [{edge: '* -> *', log: {}, side: sender}]")
    );
}

/// `UPDATE_GOLDEN=1` rewrites the plan.
#[test]
fn the_plan_has_the_policies_of_both() {
    let workflow = workflow(OWN).unwrap_or_else(|errors| panic!("{errors}"));
    let infrastructure = infrastructure(ADDED).unwrap_or_else(|errors| panic!("{errors}"));
    let one = Plan::parse(include_str!("golden/plan-one-worker.yaml"), "golden").expect("is right");
    let plan = Plan { policies: resolve(&workflow, Some(&infrastructure)), ..one.clone() };
    assert!(plan.validate_against(&workflow).is_empty());
    let schema = "# yaml-language-server: $schema=../../schemas/plan.schema.json\n";
    let text = format!("{schema}{}", plan.to_yaml().expect("prints"));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plan-policies.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("the folder can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
    assert_eq!(Plan::parse(&golden, "golden"), Ok(plan.clone()));
    // Plans of earlier versions have none, and plans without any are written as before.
    assert!(!one.to_yaml().expect("prints").contains("policies"));
    let json = serde_json::to_value(&plan).expect("is JSON");
    assert_eq!(serde_json::from_value::<Plan>(json).expect("is read"), plan);
}

fn end() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[a-z][a-z0-9_-]{0,9}")
}

fn policy(kind: &str) -> impl Strategy<Value = Policy> + use<> {
    let kind = kind.to_owned();
    let edge = (end(), end()).prop_map(|(from, to)| EdgePattern { from, to });
    (edge, crate::round_trip::map(), any::<bool>()).prop_map(move |(edge, options, sends)| Policy {
        id: None,
        edge: edge.into(),
        side: if sends { PolicySide::Sender } else { PolicySide::Receiver },
        kind: kind.clone().into(),
        options,
    })
}

proptest! {
    #[test]
    fn printed_policies_are_read_back_equal(first in policy("rate_limit"), second in policy("k-2"), id in "[a-z]{1,5}",
                                            of in prop::option::of("[a-z]{1,5}")) {
        let mut infrastructure = infrastructure("").expect("is right");
        let second = Policy { id: Some(id.into()), ..second };
        infrastructure.policies = vec![
            InfrastructurePolicy { workflow: of.map(Into::into), policy: first.clone() },
            InfrastructurePolicy { workflow: None, policy: second.clone() },
        ];
        let printed = infrastructure.to_yaml().expect("prints");
        let again = Infrastructure::parse(&printed, "printed");
        prop_assert_eq!(again.as_ref(), Ok(&infrastructure), "{}", printed);
        let mut workflow = workflow("").expect("is right");
        let any = |policy| Policy { edge: EdgePattern::default().into(), ..policy };
        workflow.policies = vec![any(first), any(second)];
        let printed = workflow.to_yaml().expect("prints");
        let again = Workflow::parse(&printed, "printed");
        prop_assert_eq!(again.as_ref(), Ok(&workflow), "{}", printed);
        prop_assert_eq!(again.map(|again| again.digest()), Ok(workflow.digest()));
        let mut plan = Plan::parse(include_str!("golden/plan-two-workers.yaml"), "golden").expect("is right");
        plan.policies = resolve(&workflow, Some(&infrastructure));
        let printed = plan.to_yaml().expect("prints");
        prop_assert_eq!(Plan::parse(&printed, "printed"), Ok(plan), "{}", printed);
    }
}
