//! Inputs of the controller's planning, its plans, and the effect of another plan.
use super::asking::{ask, json};
use super::connect::client;
use super::submitting::send;
use crate::answer;
use crate::arguments::{OutputForm, ReplanArguments, ReplanChoice, SubmitArguments};
use crate::exit::Exit;
use crate::plan::diff;
use crate::table::{Side, Table, paragraph};
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{milliseconds, seconds};
use tidemill_app::listener::Listener;
use tidemill_app::planning::profile_in;
use tidemill_cluster::api::{
    BundleFile, InfrastructureView, MeasuredLinkView, Planning, Quota, Replan, ReplanRequest, ReplanView,
};
use tidemill_cluster::blobs::digest_of_file;
use tidemill_cluster::client::{Client, segment};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::units::Bandwidth;

/// Files by digest.
pub(super) type Files = BTreeMap<String, PathBuf>;

/// Returns the planning inputs of a submission, and its files; none: it has a plan, or all of it runs on one worker.
pub(super) fn planning(arguments: &SubmitArguments) -> anyhow::Result<Option<(Planning, Files)>> {
    let asked = &arguments.planning;
    if asked.profiles.is_empty() {
        if arguments.plan.is_some() || arguments.one_worker {
            return Ok(None);
        }
        let workflow = arguments.workflow.display();
        return Err(Failure::new(
            Kind::Usage,
            format!("there is no plan for {workflow}, and nothing to plan with"),
        )
        .with_help(format!(
            "measure its operators (`tidemill workers --infra > workers.yaml`, `tidemill profile \
                 {workflow} --infra workers.yaml --out profile`) and submit with `--profiles profile`; or \
                 submit a plan (`--plan FILE`); or run the whole workflow on one worker (`--one-worker`)"
        ))
        .into());
    }
    let mut files = Files::new();
    let mut sent = |path: &Path, name: String| -> anyhow::Result<BundleFile> {
        let (digest, bytes) =
            digest_of_file(path).map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
        files.insert(digest.clone(), path.to_owned());
        Ok(BundleFile { path: name, digest, bytes })
    };
    let mut profiles = Vec::new();
    for (number, path) in asked.profiles.iter().enumerate() {
        let file = profile_in(path);
        if !file.exists() {
            return Err(Failure::new(Kind::Configuration, format!("there is no profile {}", file.display()))
                .with_help(format!(
                    "create one: `tidemill profile {} --infra FILE --out {}`; `tidemill workers --infra` \
                     prints the workers that have joined as FILE",
                    arguments.workflow.display(),
                    path.display()
                ))
                .into());
        }
        profiles.push(sent(&file, format!("profile-{}.yaml", number + 1))?);
    }
    let infrastructure = asked.infrastructure.as_deref();
    let infrastructure =
        infrastructure.map(|path| sent(path, "infrastructure.yaml".to_owned())).transpose()?;
    let planning = Planning {
        profiles,
        infrastructure,
        slo: asked.slo.clone(),
        degrade: asked.degrade.clone(),
        max_utilization: asked.max_utilization,
        keep_idle: asked.keep_idle,
        time_limit_seconds: asked.time_limit.as_secs_f64(),
    };
    Ok(Some((planning, files)))
}

/// Without profiles there is no other plan that the run could change to. With `--plan` the command line itself asks for them.
pub(super) fn can_replan(arguments: &SubmitArguments) -> Result<(), Failure> {
    match arguments.one_worker && arguments.planning.replan == ReplanChoice::Auto {
        true => Err(Failure::new(Kind::Usage, "--replan auto: a run on one worker has no other plan")
            .with_help("plan it (`--profiles`) instead of `--one-worker`, or leave `--replan` out")),
        false => Ok(()),
    }
}

/// Returns the quota of a submission.
pub(super) fn quota(arguments: &SubmitArguments) -> Quota {
    Quota { processors: arguments.planning.processors, memory_bytes: arguments.planning.memory }
}

/// Returns the treatment of a better plan.
pub(super) fn replanning(arguments: &SubmitArguments) -> Replan {
    match arguments.planning.replan {
        ReplanChoice::Auto => Replan::Auto,
        ReplanChoice::Ask => Replan::Ask,
        ReplanChoice::Off => Replan::Off,
    }
}

/// Explains the plan of a run.
pub(super) fn explain(client: &Client, run: &str, terminal: &Terminal) -> anyhow::Result<()> {
    let view: ReplanView = ask(client.get(&format!("/v1/runs/{}/replan", segment(run))))?;
    view.explanation.iter().for_each(|line| terminal.note(line));
    Ok(())
}

/// Prints the workers as an infrastructure.
pub(super) fn infrastructure(client: &Client, terminal: &Terminal) -> anyhow::Result<Exit> {
    let view: InfrastructureView = ask(client.get("/v1/infrastructure"))?;
    view.notes.iter().for_each(|note| terminal.note(&format!("note: {note}")));
    let mut out = answer::out();
    out.write_all(view.yaml.as_bytes())?;
    Ok(Exit::Success)
}

/// Lists the links between workers.
pub(super) fn links(client: &Client, form: OutputForm) -> anyhow::Result<Exit> {
    let links: Vec<MeasuredLinkView> = ask(client.get("/v1/links"))?;
    if form == OutputForm::Json {
        json("links", &links)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("from", Side::Left),
        ("to", Side::Left),
        ("delay", Side::Right),
        ("rate", Side::Right),
        ("in use", Side::Right),
        ("known by", Side::Left),
        ("nominal", Side::Right),
        ("hint", Side::Right),
        ("plans use", Side::Right),
        ("by", Side::Left),
        ("measured", Side::Right),
        ("probes take", Side::Right),
        ("because", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for link in &links {
        let rate = |bits: f64| Bandwidth((bits / 1e5).round() as u64 * 100_000).to_string();
        table.row([
            link.from.clone(),
            link.to.clone(),
            milliseconds(link.delay_seconds * 1e3),
            link.bits_per_second.map_or_else(String::new, rate),
            if link.sent_bits_per_second > 0.0 { rate(link.sent_bits_per_second) } else { String::new() },
            link.shown_by.map_or_else(String::new, |source| source.to_string()),
            link.nominal_bits_per_second.map_or_else(String::new, rate),
            link.hint.map_or_else(String::new, |hint| rate(hint.bits_per_second)),
            link.planned_bits_per_second.map_or_else(String::new, rate),
            link.planned_by.map_or_else(String::new, |source| source.to_string()),
            format!("{} ago", seconds(link.age_seconds)),
            format!("{:.2} %", 100.0 * link.probing),
            link.planned_because.clone(),
        ]);
    }
    match links.is_empty() {
        true => {
            writeln!(answer::out(), "nothing measured yet: workers start to measure within some seconds")?
        }
        false => table.write(&mut answer::out())?,
    }
    Ok(Exit::Success)
}

/// Looks whether another plan is better for a run, shows what it would change, and has the run change to it.
pub(crate) fn replan(arguments: &ReplanArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let path = format!("/v1/runs/{}/replan", segment(&arguments.run));
    let plan = arguments.plan.as_ref().map(PlanFile::load).transpose()?.map(|file| file.plan);
    let file = arguments.infrastructure.as_deref().map(|path| sent_infrastructure(&client, path, terminal));
    let infrastructure = file.transpose()?;
    let may_ask = std::io::stdin().is_terminal() && arguments.output == OutputForm::Table;
    if arguments.apply && !arguments.yes && !may_ask {
        return Err(Failure::new(Kind::Usage, "no terminal to ask whether to change the plan")
            .with_help(format!(
                "show the difference first (`tidemill change {} --dry-run`), then change with `--yes`",
                arguments.run
            ))
            .into());
    }
    // Applies the proposal that was shown.
    let shown: ReplanView = match (arguments.show, arguments.apply, &plan) {
        (true, ..) => ask(client.get(&path))?,
        (false, true, None) if infrastructure.is_none() => {
            let known: ReplanView = ask(client.get(&path))?;
            match known.proposal.is_some() {
                true => known,
                false => ask(client.post(&path, &ReplanRequest::default()))?,
            }
        }
        (false, ..) => ask(client.post(&path, &ReplanRequest { plan, apply: false, infrastructure }))?,
    };
    if let (Some(file), Some(proposal)) = (&arguments.out, &shown.proposal) {
        let text = proposal.plan.to_yaml()?;
        std::fs::write(file, text)
            .map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", file.display())))?;
    }
    if !arguments.apply {
        show(&shown, arguments.output)?;
        return Ok(Exit::Success);
    }
    let Some(proposal) = &shown.proposal else {
        show(&shown, arguments.output)?;
        return Ok(Exit::No);
    };
    if arguments.output == OutputForm::Table {
        show(&shown, arguments.output)?;
    }
    if !arguments.yes && !is_wanted(&arguments.run)? {
        terminal.note("nothing changed");
        return Ok(Exit::No);
    }
    let request = ReplanRequest { plan: Some(proposal.plan.clone()), apply: true, infrastructure: None };
    let done: ReplanView = ask(client.post(&path, &request))?;
    match arguments.output {
        OutputForm::Json => json("replan", &done)?,
        OutputForm::Table => {
            terminal.note(&format!("run {} changes its plan: see `tidemill events`", arguments.run))
        }
    }
    Ok(Exit::Success)
}

/// Sends the infrastructure for further planning of a run. It is read here first, so that errors name its line.
fn sent_infrastructure(client: &Client, path: &Path, terminal: &Terminal) -> anyhow::Result<BundleFile> {
    Infrastructure::load(path)?;
    let (digest, bytes) =
        digest_of_file(path).map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    send(client, &Files::from([(digest.clone(), path.to_owned())]), terminal)?;
    Ok(BundleFile { path: "infrastructure.yaml".to_owned(), digest, bytes })
}

fn is_wanted(run: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stderr();
    write!(out, "change the plan of run {run}? [y/N] ")?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn show(view: &ReplanView, form: OutputForm) -> anyhow::Result<()> {
    if form == OutputForm::Json {
        return json("replan", view);
    }
    let mut out = answer::out();
    for line in &view.explanation {
        paragraph(&mut out, line)?;
    }
    if let Some(decision) = &view.decision {
        paragraph(&mut out, decision)?;
    }
    match &view.proposal {
        None => writeln!(out, "the controller proposes no other plan (replan: {})", view.replan)?,
        Some(proposal) => {
            paragraph(&mut out, &format!("proposed {}: {}", proposal.time, proposal.reason))?;
            let changes = diff::changes(&view.current, &proposal.plan);
            match changes.is_empty() {
                true => writeln!(out, "the plans are equivalent")?,
                false => diff::write(&mut out, &changes)?,
            }
        }
    }
    Ok(())
}
