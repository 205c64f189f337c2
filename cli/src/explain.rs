//! `tidemill explain`: the reasons for a plan.
mod asking;
mod devices;
mod given;
mod proofs;

use crate::arguments::{ExplainArguments, OutputForm};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::plan::relaxed::{GiveWay, give_way};
use crate::plan::{Planned, dollars, status_word};
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use asking::{Asked, Section, Subject, asked};
use given::Given;
use proofs::{percentile_text, price_text, unproven};
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::expectation::{FIRST_SEED, expectation};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::milliseconds;
use tidemill_app::planning::{Case, tell};
use tidemill_app::waits::{is_of_latency, violations};
use tidemill_app::weak_figures::{WeakFigure, weak_figures, weak_lines, weak_value};
use tidemill_optimizer::assemble::{Assembly, Options, assemble};
use tidemill_optimizer::check::check;
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::explain::{
    Binding, Explanation, LevelChange, OtherPercentile, PercentileCost, Reason, Rejected,
};
use tidemill_optimizer::physical::solution_of;
use tidemill_optimizer::planner::SearchLimits;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Hosting, Outcome, RouteClass, Solution, Status};
use tidemill_optimizer::waits::with_least_waits;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::units::Percentile;

/// Percentiles under which the problem is planned again.
const PERCENTILES: [f64; 2] = [50.0, 90.0];

/// Time for all further searches, as a part of the time limit.
const PART_OF_TIME: f64 = 0.5;

/// Indentation of a section's lines.
const INDENT: &str = "  ";

/// Content of the explanation.
struct Story<'a> {
    case: &'a Case,
    assembly: &'a Assembly,
    best: &'a Outcome,
    given: Option<&'a Given>,
    asked: Asked,
    /// If there is no best plan: the changes that make one possible.
    give_way: Option<&'a GiveWay>,
    /// Figures that are weak, of the given plan, else of the best.
    weak: Vec<WeakFigure>,
}

/// Explains.
pub(crate) fn explain(arguments: &ExplainArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let case = Case::load(&arguments.workflow, &arguments.planning.options(), terminal)?;
    let mut assembly = case.assemble()?;
    tell(&assembly.notes, terminal);
    let best = tidemill_app::planned::planned(&case, &mut assembly, &Exact, terminal)?;
    let problem = &assembly.problem;
    let given = match &arguments.plan {
        None => None,
        Some(file) => {
            let file = PlanFile::load(file)?;
            let found = file.validate_against(&case.workflow);
            if found.has_errors() {
                return Err(found.into());
            }
            // With the checkpoints of the plan, not those of a new one.
            let options =
                Options { checkpoint_every: Some(file.plan.checkpoint_every), ..case.options.clone() };
            let own = assemble(&case.inputs(), &options)?;
            let solution = solution_of(&case.inputs(), &own, &file.plan).map_err(|error| {
                Failure::new(Kind::Configuration, format!("the plan is not for these files: {error}"))
                    .with_help("give the infrastructure and the profiles of the plan, or plan again")
            })?;
            // A plan does not say which waits it allows: those that its workers keep count.
            let solution = with_least_waits(&own.problem, &solution);
            let planned = Planned::new(&case, &own, &solution)?;
            let mut violations = violations(&own.problem, &planned);
            let basis = file.plan.predicted.as_ref().map(|predicted| predicted.latency_basis);
            let expected = basis.filter(|basis| !basis.is_guaranteed()).map(|_| {
                violations.retain(|violation| !is_of_latency(violation));
                expectation(&case, &own, &planned.solution, &planned.plan, FIRST_SEED)
            });
            Some(Given { assembly: own, planned, violations, expected })
        }
    };
    let known = given.as_ref().map(|given| &given.planned.solution);
    let best = or_known(problem, best, known, case.limits.gap);
    let give_way = give_way(&case, &assembly, &best, &Exact)?;
    let weak = match (&given, &best.solution) {
        (Some(given), _) => weak_figures(&case, &given.planned.plan),
        (None, Some(solution)) => weak_figures(&case, &Planned::new(&case, &assembly, solution)?.plan),
        (None, None) => Vec::new(),
    };
    let wall_seconds = case.limits.wall_seconds.map(|seconds| PART_OF_TIME * seconds);
    let subject = Subject {
        problem: problem.clone(),
        best: best.clone(),
        rate: assembly.rate,
        percentiles: if best.solution.is_some() { percentiles(&case) } else { Vec::new() },
        limits: SearchLimits { wall_seconds, ..case.limits },
    };
    let story = Story {
        case: &case,
        assembly: &assembly,
        best: &best,
        given: given.as_ref(),
        asked: asked(subject, &interrupt, *terminal)?,
        give_way: give_way.as_ref(),
        weak,
    };
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => story.write_table(&mut out)?,
        OutputForm::Json => {
            serde_json::to_writer_pretty(&mut out, &story.document())?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    match story.asked.is_interrupted {
        true => Ok(Exit::Interrupted),
        false => Ok(verdict(given.as_ref().map(Given::is_broken), best.solution.is_some())),
    }
}

/// Returns the plan of a search, or a known plan that meets the levels and costs less, which a search may miss.
fn or_known(problem: &Problem, best: Outcome, known: Option<&Solution>, gap: f64) -> Outcome {
    let Some(solution) = known else { return best };
    let Ok(total) = cost(problem, solution).map(|cost| cost.total()) else { return best };
    let is_found = best.cost.is_some_and(|least| least <= total * (1.0 + 1e-9));
    if is_found || !check(problem, solution).is_empty() {
        return best;
    }
    let bound = best.bound.unwrap_or(0.0).min(total);
    debug_assert!(
        best.bound.is_none_or(|bound| bound <= total * (1.0 + 1e-6)),
        "a plan below the proven bound: {best:?}"
    );
    let own_gap = Outcome::gap_between(total, bound);
    let status = if own_gap <= gap + 1e-9 { Status::Optimal } else { Status::Feasible };
    let (cost, bound, gap) = (Some(total), Some(bound), Some(own_gap));
    Outcome { status, solution: Some(solution.clone()), cost, bound, gap, ..best }
}

/// Returns the verdict on the given plan, if there is one: it may meet the levels although no best one was found in time.
fn verdict(given_is_broken: Option<bool>, has_best: bool) -> Exit {
    match given_is_broken.unwrap_or(!has_best) {
        true => Exit::No,
        false => Exit::Success,
    }
}

/// The message of a search without a plan: it denies the existence of one only if that is proven.
fn nothing_found(status: Status, is_proven: bool) -> &'static str {
    match (is_proven, status) {
        (true, _) => "no plan keeps all service levels",
        (false, Status::TimeLimited) => {
            "no plan found within the time limit; a longer `--time-limit` may help"
        }
        (false, _) => "no plan found, which is no proof that there is none",
    }
}

/// Whether two plans with equal variants share the work alike.
fn is_same(a: &Solution, b: &Solution) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let hosts_alike = |(a, b): (&Hosting, &Hosting)| {
        (a.operator, a.worker, a.location, a.mode) == (b.operator, b.worker, b.location, b.mode)
            && near(a.share, b.share)
    };
    let routes_alike = |(a, b): (&RouteClass, &RouteClass)| {
        (&a.sources, &a.hostings) == (&b.sources, &b.hostings) && near(a.share, b.share)
    };
    let is_as_long = a.hostings.len() == b.hostings.len() && a.classes.len() == b.classes.len();
    a.workers == b.workers
        && is_as_long
        && a.hostings.iter().zip(&b.hostings).all(hosts_alike)
        && a.classes.iter().zip(&b.classes).all(routes_alike)
}

/// The problem when another percentile is guaranteed.
fn percentiles(case: &Case) -> Vec<OtherPercentile> {
    let others = PERCENTILES.into_iter().filter(|percentile| *percentile != case.options.percentile.0);
    let other = |percentile: f64| {
        let options = Options { percentile: Percentile(percentile), ..case.options.clone() };
        let problem = assemble(&case.inputs(), &options).ok().map(|assembly| assembly.problem);
        OtherPercentile { percentile, problem }
    };
    others.map(other).collect()
}

impl Story<'_> {
    fn problem(&self) -> &Problem {
        &self.assembly.problem
    }

    fn explanation(&self) -> &Explanation {
        &self.asked.explanation
    }

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let (workflow, infrastructure) = (&self.case.workflow.name, &self.case.infrastructure.name);
        if let Some(given) = self.given {
            self.write_given(given, out)?;
        }
        let Some(cost) = self.best.cost else {
            let text = nothing_found(self.best.status, self.give_way.is_some());
            writeln!(out, "{workflow} on {infrastructure}: {text}\n")?;
            return self.give_way.map_or(Ok(()), |give_way| give_way.write(self.case, self.assembly, out));
        };
        let status = status_word(self.best.status);
        let best = if self.given.is_some() { "the best plan, " } else { "" };
        writeln!(
            out,
            "{workflow} on {infrastructure}: {best}{}/s for {}, {status}\n",
            self.assembly.rate,
            dollars(cost)
        )?;
        if !self.is_left_out(Section::Binding) {
            writeln!(out, "binding limits")?;
            for binding in &self.explanation().binding {
                writeln!(out, "  {}", self.binding(binding))?;
            }
            if self.explanation().binding.is_empty() && self.explanation().questions > 0 {
                writeln!(out, "  nothing: every limit has room")?;
            }
        }
        if !self.is_left_out(Section::Prices) {
            writeln!(out, "\ncost of slightly higher levels")?;
            let mut table =
                Table::new(&[("change", Side::Left), ("price", Side::Right), ("changes", Side::Left)]);
            for price in &self.explanation().prices {
                table.row([change(price.change), price_text(price), self.changed(price.after.as_ref())]);
            }
            indented(&table, out)?;
        }
        for (index, price) in self.explanation().losses.iter().enumerate() {
            if index == 0 {
                writeln!(out, "\nlosses of workers")?;
            }
            let changed = self.changed(price.after.as_ref());
            let changed = if changed.is_empty() { changed } else { format!(" (without it: {changed})") };
            writeln!(out, "  {}{changed}", proofs::losses_text(price))?;
        }
        if !self.is_left_out(Section::Rejected) {
            self.write_rejected(out)?;
        }
        self.write_devices(out)?;
        if !self.is_left_out(Section::Percentiles) {
            writeln!(out, "\ncost by the guaranteed percentile of service times")?;
            let percentile = self.problem().limits.percentile;
            let own = PercentileCost { percentile, cost: Some(cost), least: cost, is_cut: false };
            let others = self.explanation().percentiles.iter();
            let mut rows: Vec<PercentileCost> = others.copied().chain([own]).collect();
            rows.sort_by(|a, b| a.percentile.total_cmp(&b.percentile));
            for row in rows {
                let mark = if row.percentile == percentile { "  (this plan)" } else { "" };
                writeln!(out, "  p{}  {}{mark}", row.percentile, percentile_text(&row))?;
            }
        }
        for line in proofs::limits_of_proof(&self.asked, self.problem()) {
            writeln!(out, "\n{line}")?;
        }
        let weak = weak_lines(&self.weak);
        if !weak.is_empty() {
            writeln!(out)?;
        }
        weak.iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// Whether Ctrl-C came before a section had anything to say.
    fn is_left_out(&self, section: Section) -> bool {
        self.asked.left_out(self.problem()).contains(&section)
    }

    fn write_rejected(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nrejected plans")?;
        let mut table =
            Table::new(&[("cost", Side::Right), ("because", Side::Left), ("variants", Side::Left)]);
        for rejected in &self.explanation().rejected {
            let reason = format!("{}{}", self.reason(rejected), unproven(rejected.cost, rejected.least));
            table.row([dollars(rejected.cost), reason, self.variants(&rejected.solution)]);
        }
        let explanation = self.explanation();
        match explanation.rejected.is_empty() {
            true if explanation.open.is_empty() => writeln!(out, "  none: these are the only variants")?,
            true => {}
            false => indented(&table, out)?,
        }
        explanation.open.iter().try_for_each(|open| writeln!(out, "  {}", proofs::open_text(*open)))
    }

    fn binding(&self, binding: &Binding) -> String {
        let problem = self.problem();
        let class = |class: usize| {
            let facts = &problem.worker_classes[class];
            format!("`{}` in {}", facts.worker_type, problem.locations[facts.location].name)
        };
        match binding {
            Binding::Utilization { class: index, workers, used } => format!(
                "{}: {workers} in use, the busiest at {:.1} % of the limit ({})",
                class(*index),
                used * 100.0,
                problem.limits.max_utilization
            ),
            Binding::Count { class: index, count: 1 } => format!("{}: the only one is in use", class(*index)),
            Binding::Count { class: index, count } => format!("{}: all {count} are in use", class(*index)),
            Binding::Bandwidth { from, to, used } => format!(
                "the link from {} to {}: {:.1} % full",
                problem.locations[*from].name,
                problem.locations[*to].name,
                used * 100.0
            ),
            Binding::Accuracy { slack } => {
                format!("accuracy: {slack:.2} points above the level, and cheaper variants are below it")
            }
            Binding::Latency { seconds, limit } => {
                format!("latency: {} of {}", milliseconds(seconds * 1e3), milliseconds(limit * 1e3))
            }
        }
    }

    /// Differences of a plan from the best: variants, else numbers of workers.
    fn changed(&self, after: Option<&Solution>) -> String {
        let (Some(before), Some(after)) = (&self.best.solution, after) else { return String::new() };
        self.between(before, after)
    }

    /// Differences of the second of two plans: variants, and numbers of workers.
    fn between(&self, before: &Solution, after: &Solution) -> String {
        let problem = self.problem();
        let mut all = Vec::new();
        for (index, operator) in problem.operators.iter().enumerate() {
            let (old, new) = (before.variants[index], after.variants[index]);
            if old != new {
                let id = |m: usize| operator.variants[m].id.as_str();
                all.push(format!("{}: {} -> {}", operator.id, id(old), id(new)));
            }
        }
        for (index, class) in problem.worker_classes.iter().enumerate() {
            let count =
                |solution: &Solution| solution.workers.iter().filter(|used| used.class == index).count();
            let (old, new) = (count(before), count(after));
            if old != new {
                let place = &problem.locations[class.location].name;
                all.push(format!("{} in {place}: {old} -> {new}", class.worker_type));
            }
        }
        if all.is_empty() && is_same(before, after) {
            return "none: this plan keeps it".to_owned();
        }
        if all.is_empty() { "shares only".to_owned() } else { all.join(", ") }
    }

    /// Points by which a plan is less accurate than the best, if it is.
    fn less_accurate(&self, than_best: &Solution) -> Option<f64> {
        let accuracy = |solution: &Solution| self.problem().accuracy_of(&solution.variants);
        let points = accuracy(self.best.solution.as_ref()?)? - accuracy(than_best)?;
        (points >= 0.005).then_some(points)
    }

    fn variants(&self, solution: &Solution) -> String {
        let chosen = self.problem().operators.iter().zip(&solution.variants);
        let with_models = chosen.filter(|(operator, _)| self.case.models.contains_key(&operator.id));
        let ids: Vec<&str> = with_models.map(|(operator, &m)| operator.variants[m].id.as_str()).collect();
        ids.join(", ")
    }

    fn reason(&self, rejected: &Rejected) -> String {
        let problem = self.problem();
        match rejected.reason {
            // Other models were tried with waits that the search for the plan did not reach.
            Reason::Dearer(more) if more < -5e-5 => {
                format!("{} less: the search for a plan missed this", dollars(-more))
            }
            Reason::Dearer(more) if more < 5e-5 => match self.less_accurate(&rejected.solution) {
                Some(points) => format!("as much, {points:.2} points less accurate"),
                None => "as much".to_owned(),
            },
            Reason::Dearer(more) => format!("{} more", dollars(more)),
            Reason::Accuracy(found) => format!(
                "accuracy {} below {} %",
                found.map_or_else(|| "not known, so".to_owned(), |found| format!("{found:.2} %")),
                problem.limits.accuracy.unwrap_or_default()
            ),
            Reason::Latency(seconds) => {
                let limit_seconds =
                    problem.limits.latency.iter().map(|limit| limit.seconds).fold(f64::INFINITY, f64::min);
                let (idle, limit) = (milliseconds(seconds * 1e3), milliseconds(limit_seconds * 1e3));
                // Without waiting it would meet the limit: then waiting violates it.
                match seconds < limit_seconds {
                    true => format!("latency {idle} with idle workers; with waiting above {limit}"),
                    false => format!("latency {idle} with idle workers, limit {limit}"),
                }
            }
        }
    }

    fn document(&self) -> Value {
        let prices = self.explanation().prices.iter().map(|price| {
            json!({
                "change": change(price.change),
                "least": price.price.map(|(low, _)| low),
                "most": price.price.map(|(_, high)| high),
                "is_cut": price.is_cut,
                "is_impossible": price.is_impossible,
                "what_changes": self.changed(price.after.as_ref()),
            })
        });
        let rejected = self.explanation().rejected.iter().map(|rejected| {
            json!({
                "cost": rejected.cost,
                "least": rejected.least,
                "is_cut": rejected.is_cut,
                "because": self.reason(rejected),
                "variants": self.variants(&rejected.solution),
            })
        });
        let losses = self.explanation().losses.iter().map(|price| {
            json!({
                "survived": price.survived,
                "instead": price.instead,
                "least": price.price.map(|(low, _)| low),
                "most": price.price.map(|(_, high)| high),
                "unit": "$/h",
                "what_changes": self.changed(price.after.as_ref()),
            })
        });
        let given = self.given.map(|given| self.given_value(given));
        let percentiles = self.explanation().percentiles.iter().map(|of| {
            let least = of.least.is_finite().then_some(of.least);
            json!({"percentile": of.percentile, "cost": of.cost, "least": least, "is_cut": of.is_cut})
        });
        let mut document = json!({
            "version": 1,
            "workflow": self.case.workflow.name.value,
            "status": status_word(self.best.status),
            "cost": self.best.cost,
            "bound": self.best.bound.filter(|bound| bound.is_finite()),
            "given": given,
            "weak_figures": weak_value(&self.weak),
            "binding": self.explanation().binding.iter().map(|b| self.binding(b)).collect::<Vec<_>>(),
            "prices": prices.collect::<Vec<_>>(),
            "losses": losses.collect::<Vec<_>>(),
            "rejected": rejected.collect::<Vec<_>>(),
            "devices": self.explanation().devices.iter().map(|reason| self.device_value(reason)).collect::<Vec<_>>(),
            "percentiles": percentiles.collect::<Vec<_>>(),
            "relaxations": [],
            "effort": proofs::effort_value(&self.asked, self.problem()),
        });
        for (key, value) in self.give_way.iter().flat_map(|give_way| give_way.values(self.assembly)) {
            document[key] = value;
        }
        document
    }
}

fn change(change: LevelChange) -> String {
    match change {
        LevelChange::Rate(more) => format!("+{more}/s"),
        LevelChange::Accuracy(more) => format!("+{more} point of accuracy"),
        LevelChange::Latency(less) => format!("-{} ms", less * 1e3),
    }
}

fn indented(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    table.write_beside(INDENT.len(), &mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        writeln!(out, "{INDENT}{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_optimizer::planner::Planner;

    #[test]
    fn a_known_plan_that_the_search_did_not_come_to_is_the_best() {
        let problem = (1..).map(tidemill_problems::small_problem_with_latency);
        let planned = problem.map(|problem| {
            let outcome = Exact.plan(&problem, &SearchLimits::default()).unwrap();
            (problem, outcome)
        });
        let (problem, outcome) = planned.into_iter().find(|(_, outcome)| outcome.solution.is_some()).unwrap();
        let none = Outcome { bound: Some(0.0), ..Outcome::infeasible("exact", false) };
        let found = or_known(&problem, none, outcome.solution.as_ref(), 1e-6);
        assert_eq!((found.status, found.cost.is_some()), (Status::Feasible, true));
        assert_eq!(found.solution, outcome.solution);
        let same = or_known(&problem, outcome.clone(), outcome.solution.as_ref(), 1e-6);
        assert_eq!((same.status, same.cost), (outcome.status, outcome.cost));
    }

    #[test]
    fn a_search_that_ran_out_of_time_proves_nothing() {
        assert_eq!(nothing_found(Status::Infeasible, true), "no plan keeps all service levels");
        let told = nothing_found(Status::TimeLimited, false);
        assert!(told.contains("time limit") && !told.contains("keeps"), "{told}");
        assert!(nothing_found(Status::Infeasible, false).contains("no proof"));
    }

    #[test]
    fn a_given_plan_is_judged_by_itself() {
        assert_eq!((verdict(Some(false), false), verdict(Some(false), true)), (Exit::Success, Exit::Success));
        assert_eq!((verdict(Some(true), true), verdict(Some(true), false)), (Exit::No, Exit::No));
        assert_eq!((verdict(None, true), verdict(None, false)), (Exit::Success, Exit::No));
    }
}
