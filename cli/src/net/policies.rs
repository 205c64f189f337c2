//! `tidemill net policy`: policies on edges that run.
use super::asking::{Here, Host, Place, Workers};
use super::edges::{json, notes, some};
use crate::answer;
use crate::arguments::{
    AttachPolicyArguments, DetachPolicyArguments, KindsArguments, ListPoliciesArguments, OutputForm,
    PolicyVerb, SetPolicyArguments,
};
use crate::cluster;
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Map, Value, json as value};
use std::collections::BTreeSet;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::grouped;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{NET_POLICY_PREFIX, NetPolicy, NetPolicyOptions};
use tidemill_cluster::client::segment;
use tidemill_net::policy::kinds;
use tidemill_net::protocol::{PolicySpec, PolicyView, Request};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::SourceFile;
use tidemill_spec::yaml;

/// The policies of the controller.
const POLICIES: &str = "/v1/net/policies";

/// Runs a verb of `tidemill net policy`.
pub(crate) fn policy(verb: &PolicyVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        PolicyVerb::Ls(arguments) => list(arguments, terminal),
        PolicyVerb::Attach(arguments) => attach(arguments, terminal),
        PolicyVerb::Set(arguments) => set(arguments, terminal),
        PolicyVerb::Detach(arguments) => detach(arguments, terminal),
        PolicyVerb::Kinds(arguments) => show_kinds(arguments),
    }
}

/// Reads options, YAML or JSON.
fn options(text: &str) -> Result<Value, Diagnostics> {
    let value = yaml::parse(&SourceFile::new("OPTIONS", text))?;
    Ok(value.deserialize_into::<Option<Map<String, Value>>>()?.unwrap_or_default().into())
}

/// The name of a policy that was given none.
fn free(kind: &str, taken: &BTreeSet<&str>) -> String {
    let names = (1..).map(|number| format!("{kind}-{number}"));
    names.into_iter().find(|name| !taken.contains(name.as_str())).unwrap_or_else(|| kind.to_owned())
}

fn attach(arguments: &AttachPolicyArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    let mut edges = arguments.edge.clone();
    edges.workflow.clone_from(&arguments.workflow);
    let options = options(arguments.options.as_deref().unwrap_or_default())?;
    let of = |id: String| PolicySpec {
        id,
        edges: edges.clone(),
        side: arguments.side.into(),
        kind: arguments.kind.clone(),
        options: options.clone(),
    };
    let name = |taken: BTreeSet<&str>| arguments.id.clone().unwrap_or_else(|| free(&arguments.kind, &taken));
    match &mut place {
        Place::Here(here) => {
            let policies = here.list()?.policies;
            let spec = of(name(policies.iter().map(|policy| policy.spec.id.as_str()).collect()));
            here.ask(&Request::Attach(Box::new(spec.clone())))?;
            let now = find(here, &spec.id)?;
            if arguments.output == OutputForm::Json {
                json("policy", &now)?;
                return Ok(Exit::Success);
            }
            let is_of_calls = spec.edges.to.as_ref().is_some_and(|to| to.contains('/'));
            let looks_at = if is_of_calls { methods(now.edges) } else { count(now.edges) };
            terminal.note(&format!("policy {} looks at {looks_at} now", spec.id));
            if now.edges == 0 && is_of_calls {
                terminal.note(&format!(
                    "no service of this machine has methods `{}` now: `tidemill net ls`",
                    spec.edges
                ));
            } else if now.edges == 0 {
                terminal
                    .note(&format!("it will look at edges `{}` of programs that start later", spec.edges));
                if spec.edges.to.as_ref().is_some_and(|to| to.contains('.')) {
                    terminal.note("calls of a service are written with its methods: `* -> shop.Prices/*`");
                }
            }
        }
        Place::Workers(workers) => {
            let there = policies_of(workers)?;
            let policy = of(name(there.iter().map(|known| known.policy.id.as_str()).collect()));
            let wanted = NetPolicy { workers: workers.names.clone(), policy };
            let kept: NetPolicy =
                workers.controller.post(POLICIES, &wanted).map_err(|error| cluster::failure(&error))?;
            told(&kept, "is attached within seconds", arguments.output, terminal)?;
        }
    }
    Ok(Exit::Success)
}

fn count(edges: u64) -> String {
    if edges == 1 { "1 edge".to_owned() } else { format!("{} edges", grouped(edges)) }
}

fn methods(count: u64) -> String {
    if count == 1 { "calls of 1 method".to_owned() } else { format!("calls of {} methods", grouped(count)) }
}

/// A policy of the service of this machine.
fn find(here: &mut Here, id: &str) -> Result<PolicyView, Failure> {
    let policies = here.list()?.policies;
    let names: Vec<&str> = policies.iter().map(|policy| policy.spec.id.as_str()).collect();
    let missing = absent(id, &names);
    policies.into_iter().find(|policy| policy.spec.id == id).ok_or(missing)
}

fn absent(id: &str, names: &[&str]) -> Failure {
    let others = if names.is_empty() { "no other one".to_owned() } else { names.join(", ") };
    Failure::new(Kind::Missing, format!("there is no policy {id}")).with_help(format!("there is {others}"))
}

fn policies_of(workers: &Workers) -> Result<Vec<NetPolicy>, Failure> {
    workers.controller.get(POLICIES).map_err(|error| cluster::failure(&error))
}

/// A policy of the controller that is on the workers that were named, and on no others.
fn find_for(workers: &Workers, id: &str) -> Result<NetPolicy, Failure> {
    // As `net policy ls` shows it, and as the services have it.
    let id = id.strip_prefix(NET_POLICY_PREFIX).unwrap_or(id);
    let policies = policies_of(workers)?;
    let names: Vec<&str> = policies.iter().map(|policy| policy.policy.id.as_str()).collect();
    let missing = absent(id, &names);
    let found = policies.into_iter().find(|policy| policy.policy.id == id).ok_or(missing)?;
    if found.workers != workers.names {
        let (place, flags) = match &found.workers {
            None => ("all workers".to_owned(), "--all-workers".to_owned()),
            Some(names) => {
                (format!("worker {}", names.join(", ")), format!("--worker {}", names.join(" --worker ")))
            }
        };
        return Err(Failure::new(Kind::Usage, format!("policy {id} is one of {place}"))
            .with_help(format!("name all of its workers: `{flags}`")));
    }
    Ok(found)
}

fn told(policy: &NetPolicy, what: &str, form: OutputForm, terminal: &Terminal) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("policy", policy);
    }
    let place = match &policy.workers {
        None => "all workers, also those that join later".to_owned(),
        Some(names) => format!("worker {}", names.join(", ")),
    };
    terminal.note(&format!("policy {} {what} on {place}", policy.policy.id));
    Ok(())
}

fn set(arguments: &SetPolicyArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    let options = options(&arguments.options)?;
    match &mut place {
        Place::Here(here) => {
            let id = find(here, &arguments.id)?.spec.id;
            here.ask(&Request::Set { id: id.clone(), options })?;
            let now = find(here, &id)?;
            match arguments.output {
                OutputForm::Json => json("policy", &now)?,
                OutputForm::Table => terminal.note(&format!("policy {id} has other options now")),
            }
        }
        Place::Workers(workers) => {
            let found = find_for(workers, &arguments.id)?;
            let place = format!("{POLICIES}/{}", segment(&found.policy.id));
            let kept: NetPolicy = workers
                .controller
                .post(&place, &NetPolicyOptions { options })
                .map_err(|error| cluster::failure(&error))?;
            told(&kept, "has other options within seconds", arguments.output, terminal)?;
        }
    }
    Ok(Exit::Success)
}

fn detach(arguments: &DetachPolicyArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    match &mut Place::of(&arguments.services)? {
        Place::Here(here) => {
            let found = find(here, &arguments.id)?;
            here.ask(&Request::Detach { id: found.spec.id.clone() })?;
            match arguments.output {
                OutputForm::Json => json("policy", &found)?,
                OutputForm::Table => terminal.note(&format!("policy {} is detached", found.spec.id)),
            }
        }
        Place::Workers(workers) => {
            let found = find_for(workers, &arguments.id)?;
            let place = format!("{POLICIES}/{}", segment(&found.policy.id));
            let gone: NetPolicy =
                workers.controller.delete(&place).map_err(|error| cluster::failure(&error))?;
            told(&gone, "is detached within seconds", arguments.output, terminal)?;
        }
    }
    Ok(Exit::Success)
}

fn list(arguments: &ListPoliciesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    if arguments.output == OutputForm::Json {
        match &mut place {
            Place::Here(here) => json("policies", &here.list()?.policies)?,
            Place::Workers(workers) => json("workers", &workers.views()?)?,
        }
        return Ok(Exit::Success);
    }
    let hosts = place.look()?;
    notes(&hosts, terminal);
    let rows: Vec<[String; 13]> = hosts.iter().flat_map(rows).collect();
    if rows.is_empty() {
        terminal.note("there is no policy: `tidemill net policy attach` attaches one");
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[
        ("host", Side::Left),
        ("id", Side::Left),
        ("kind", Side::Left),
        ("options", Side::Left),
        ("edges", Side::Left),
        ("workflow", Side::Left),
        ("now", Side::Right),
        ("side", Side::Left),
        ("by", Side::Left),
        ("frames", Side::Right),
        ("rows rejected", Side::Right),
        ("held and cut", Side::Right),
        ("problem", Side::Left),
    ]);
    rows.into_iter().for_each(|cells| table.row(cells));
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

/// The policies of a host: those that its service has, and those that the controller wants there.
fn rows(host: &Host) -> Vec<[String; 13]> {
    let of = |spec: &PolicySpec, view: Option<&PolicyView>, problem: Option<String>| {
        let counts = view.map(|view| view.counts);
        [
            host.worker.clone().unwrap_or_default(),
            spec.id.clone(),
            spec.kind.clone(),
            spec.options.to_string(),
            spec.edges.to_string(),
            spec.edges.workflow.clone().unwrap_or_default(),
            view.map_or_else(String::new, |view| grouped(view.edges)),
            value!(spec.side).as_str().unwrap_or_default().to_owned(),
            view.map_or_else(|| "controller".to_owned(), |view| view.by.clone()),
            counts.map_or_else(String::new, |counts| grouped(counts.frames)),
            counts.map_or_else(String::new, |counts| grouped(counts.rejected)),
            counts.map_or_else(String::new, |counts| {
                let parts = [(counts.held, "held"), (counts.cuts, "cuts")];
                let parts = parts.map(|(count, what)| (some(count), what));
                let parts = parts.iter().filter(|(count, _)| !count.is_empty());
                parts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
            }),
            problem.unwrap_or_default(),
        ]
    };
    let there: Vec<&PolicyView> = host.listing.iter().flat_map(|listing| &listing.policies).collect();
    let mut rows = Vec::new();
    for view in &there {
        let own = view.spec.id.strip_prefix(NET_POLICY_PREFIX).unwrap_or_default();
        let problem = view.problem.clone().or_else(|| host.problems.get(own).cloned());
        rows.push(of(&view.spec, Some(view), problem));
    }
    for wanted in &host.wanted {
        let id = format!("{NET_POLICY_PREFIX}{}", wanted.policy.id);
        if !there.iter().any(|view| view.spec.id == id) {
            let why = host.problems.get(&wanted.policy.id).cloned();
            let spec = PolicySpec { id, ..wanted.policy.clone() };
            rows.push(of(&spec, None, Some(why.unwrap_or_else(|| "not attached yet".to_owned()))));
        }
    }
    rows
}

fn show_kinds(arguments: &KindsArguments) -> anyhow::Result<Exit> {
    if arguments.output == OutputForm::Json {
        let kinds = kinds().iter().map(|kind| {
            let example: Value = serde_json::from_str(kind.example).unwrap_or_else(|_| kind.example.into());
            value!({"name": kind.name, "help": kind.help, "example": example})
        });
        json("kinds", &kinds.collect::<Vec<_>>())?;
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[("kind", Side::Left), ("effect", Side::Left), ("example", Side::Left)]);
    for kind in kinds() {
        table.row([kind.name, kind.help, kind.example].map(str::to_owned));
    }
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_net::edge_name::EdgePattern;
    use tidemill_net::protocol::Side as HostSide;

    #[test]
    fn options_are_yaml_or_json() {
        for text in ["{rps: 5, burst: 10}", r#"{"rps": 5, "burst": 10}"#, "rps: 5\nburst: 10"] {
            assert_eq!(options(text).unwrap(), value!({"rps": 5, "burst": 10}), "{text}");
        }
        assert_eq!(options("").unwrap(), value!({}));
        for text in ["5", "[a]", "{rps: 5", "{rps: 5, rps: 6}"] {
            assert!(options(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_policy_without_a_name_gets_a_free_one() {
        assert_eq!(free("log", &BTreeSet::new()), "log-1");
        assert_eq!(free("log", &BTreeSet::from(["log-1", "log-3"])), "log-2");
    }

    fn spec(id: &str) -> PolicySpec {
        PolicySpec {
            id: id.into(),
            edges: EdgePattern::parse("cameras -> *").unwrap(),
            side: HostSide::Receiver,
            kind: "rate_limit".into(),
            options: value!({"rps": 5}),
        }
    }

    #[test]
    fn policies_that_are_wanted_and_not_there_are_listed_with_the_reason() {
        let mut host = super::super::rates::tests::host(1.0, Vec::new());
        let there = PolicyView {
            spec: spec("cluster-cap"),
            by: "user 0".into(),
            edges: 2,
            counts: Default::default(),
            problem: None,
        };
        host.listing.as_mut().unwrap().policies.push(there);
        let wanted = |id: &str| NetPolicy { workers: None, policy: spec(id) };
        host.wanted = vec![wanted("cap"), wanted("late"), wanted("wrong")];
        host.problems.insert("wrong".into(), "no such column".into());
        let shown: Vec<(String, String)> =
            rows(&host).into_iter().map(|row| (row[1].clone(), row[12].clone())).collect();
        let expected =
            [("cluster-cap", ""), ("cluster-late", "not attached yet"), ("cluster-wrong", "no such column")];
        assert_eq!(shown, expected.map(|(id, problem)| (id.to_owned(), problem.to_owned())));
        assert_eq!(rows(&host)[0][7], "receiver");
    }
}
