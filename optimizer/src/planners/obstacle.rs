//! Explains why there is no plan: an obstacle to every plan, or to every plan of a planner that is restricted to some
//! tiers.
use super::{cloud_only, edge_only, selection};
use crate::problem::{Operator, Problem, Producer};

/// An obstacle to every plan that a planner considers.
#[derive(Debug, Clone, PartialEq)]
pub enum Obstacle {
    /// No variant of an operator runs on the allowed workers.
    NoWorker {
        /// The operator.
        operator: usize,
    },
    /// No link leads from the records to an allowed location of an operator.
    NoLink {
        /// The operator.
        operator: usize,
        /// The sender of the records.
        producer: Producer,
        /// Locations of the records.
        from: Vec<usize>,
        /// Locations where the operator may run.
        to: Vec<usize>,
    },
    /// All records of an operator must meet on one worker, and none can be reached from all their locations.
    Meeting {
        /// The operator.
        operator: usize,
        /// Locations that the records come from.
        from: Vec<usize>,
    },
    /// The variants that run on the allowed workers are not accurate enough together, in percent.
    Accuracy {
        /// The level.
        wanted: f64,
    },
    /// The work needs more workers than available, even with each at its quickest and completely filled.
    Workers {
        /// Share of the usable time of all workers; more than 1.
        load: f64,
    },
    /// The links to the allowed workers carry less than the sources send.
    Bandwidth {
        /// Bytes per second that are sent.
        needed: f64,
        /// Bytes per second that are carried.
        carried: f64,
    },
}

/// Returns the obstacle for a planner, by its name, that found no plan. None: no simple explanation.
pub fn obstacle(planner: &str, problem: &Problem) -> Option<Obstacle> {
    let allowed = match planner {
        "cloud-only" => cloud_only::highest_tier(problem),
        "edge-only" => edge_only::tiers_of_sources(problem),
        "best-fit" | "first-fit" => vec![true; problem.worker_classes.len()],
        _ => return meeting(problem, &vec![true; problem.worker_classes.len()]),
    };
    if let Some(meeting) = meeting(problem, &allowed) {
        return Some(meeting);
    }
    if let Err(obstacle) = reached(problem, &allowed) {
        return Some(obstacle);
    }
    let Some(variants) = selection::most_accurate(problem, &allowed) else {
        return problem.limits.accuracy.map(|wanted| Obstacle::Accuracy { wanted });
    };
    let problem = &*problem.at(&variants);
    let load = load(problem, &allowed, &variants);
    if load > 1.0 {
        return Some(Obstacle::Workers { load });
    }
    let (needed, carried) = from_sources(problem, &allowed)?;
    (needed > carried).then_some(Obstacle::Bandwidth { needed, carried })
}

/// Locations with a worker of an allowed class that runs an operator.
fn able(problem: &Problem, allowed: &[bool], operator: &Operator) -> Vec<usize> {
    let runs = |location: &usize| {
        let here = |class: usize| problem.worker_classes[class].location == *location;
        let mut classes = (0..allowed.len()).filter(|class| allowed[*class] && here(*class));
        classes.any(|class| {
            problem.worker_classes[class].count > 0
                && (operator.weightless || operator.variants.iter().any(|v| !v.modes[class].is_empty()))
        })
    };
    (0..problem.locations.len()).filter(runs).collect()
}

/// The first operator whose records must meet and cannot.
fn meeting(problem: &Problem, allowed: &[bool]) -> Option<Obstacle> {
    let mut origins: Vec<usize> =
        problem.sources.iter().flat_map(|source| &source.locations).map(|(at, _)| *at).collect();
    origins.sort_unstable();
    origins.dedup();
    // By origin and operator, the possible locations of its records; none: it has no records from there.
    let mut at: Vec<Vec<Option<Vec<usize>>>> = vec![Vec::new(); origins.len()];
    for (index, operator) in problem.operators.iter().enumerate() {
        let able = able(problem, allowed, operator);
        for (origin, at) in origins.iter().zip(&mut at) {
            let mut reached: Option<Vec<usize>> = None;
            for edge in problem.inputs_of(index) {
                let from = match problem.edges[edge].from {
                    Producer::Source(source) => {
                        let mut locations = problem.sources[source].locations.iter();
                        locations.any(|(location, _)| location == origin).then(|| vec![*origin])
                    }
                    Producer::Operator(producer) => at[producer].clone(),
                };
                let Some(from) = from else { continue };
                let here = reached.get_or_insert_with(|| able.clone());
                here.retain(|&to| from.iter().any(|&from| problem.route(from, to).is_some()));
            }
            at.push(reached);
        }
        let from: Vec<usize> = (0..origins.len()).filter(|origin| at[*origin][index].is_some()).collect();
        let reached = || from.iter().filter_map(|origin| at[*origin][index].as_ref());
        let is_apart =
            !reached().any(Vec::is_empty) && !able.iter().any(|to| reached().all(|all| all.contains(to)));
        if operator.on_one_worker && is_apart {
            return Some(Obstacle::Meeting {
                operator: index,
                from: from.into_iter().map(|origin| origins[origin]).collect(),
            });
        }
    }
    None
}

/// Whether records reach every operator on some allowed class.
fn reached(problem: &Problem, allowed: &[bool]) -> Result<(), Obstacle> {
    let mut at: Vec<Vec<usize>> = Vec::new();
    for (index, operator) in problem.operators.iter().enumerate() {
        let able = able(problem, allowed, operator);
        if able.is_empty() {
            return Err(Obstacle::NoWorker { operator: index });
        }
        let mut reached = able.clone();
        for edge in problem.inputs_of(index) {
            let producer = problem.edges[edge].from;
            let from: Vec<usize> = match producer {
                Producer::Source(source) => {
                    problem.sources[source].locations.iter().map(|(at, _)| *at).collect()
                }
                Producer::Operator(producer) => at[producer].clone(),
            };
            reached.retain(|&to| from.iter().any(|&from| problem.route(from, to).is_some()));
            if reached.is_empty() {
                return Err(Obstacle::NoLink { operator: index, producer, from, to: able });
            }
        }
        at.push(reached);
    }
    Ok(())
}

/// Least share of the time of all allowed workers that the operators need.
fn load(problem: &Problem, allowed: &[bool], variants: &[usize]) -> f64 {
    let quickest = |operator: usize| {
        let modes = problem.operators[operator].variants[variants[operator]].modes.iter().zip(allowed);
        let modes = modes.filter(|(_, allowed)| **allowed).flat_map(|(modes, _)| modes);
        modes.map(|mode| mode.seconds_per_record).reduce(f64::min).unwrap_or(0.0)
    };
    let work: f64 = (0..variants.len()).map(|v| problem.operators[v].rate * quickest(v)).sum();
    let classes = problem.worker_classes.iter().zip(allowed).filter(|(_, allowed)| **allowed);
    let workers: f64 = classes.map(|(class, _)| f64::from(class.count)).sum();
    work / (workers * problem.limits.max_utilization)
}

/// Bytes per second that leave the sources, and the most that the links to the allowed classes carry. None: no limit.
fn from_sources(problem: &Problem, allowed: &[bool]) -> Option<(f64, f64)> {
    let classes = problem.worker_classes.iter().zip(allowed).filter(|(_, allowed)| **allowed);
    let mut to: Vec<usize> = classes.map(|(class, _)| class.location).collect();
    to.sort_unstable();
    to.dedup();
    let mut from: Vec<usize> =
        problem.sources.iter().flat_map(|source| &source.locations).map(|(at, _)| *at).collect();
    from.sort_unstable();
    from.dedup();
    let mut carried = 0.0;
    for (&from, &to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
        if let Some(route) = problem.route(from, to) {
            carried += route.bandwidth?;
        }
    }
    let is_source = |edge: &&crate::problem::Edge| matches!(edge.from, Producer::Source(_));
    let needed = problem.edges.iter().filter(is_source).map(|edge| edge.rate * edge.bytes[0]).sum();
    Some((needed, carried))
}

impl Obstacle {
    /// Describes the obstacle.
    pub fn text(&self, problem: &Problem) -> String {
        let places = |places: &[usize]| {
            let names: Vec<&str> =
                places.iter().map(|place| problem.locations[*place].name.as_str()).collect();
            names.join(", ")
        };
        match self {
            Self::NoWorker { operator } => {
                format!(
                    "no variant of `{}` runs on the workers that the planner uses",
                    problem.operators[*operator].id
                )
            }
            Self::NoLink { operator, producer, from, to } => {
                let producer = match producer {
                    Producer::Source(source) => &problem.sources[*source].id,
                    Producer::Operator(operator) => &problem.operators[*operator].id,
                };
                format!(
                    "no link leads from {}, where the records of `{producer}` are, to {}, where `{}` can \
                     run; a tier between them does not forward records",
                    places(from),
                    places(to),
                    problem.operators[*operator].id
                )
            }
            Self::Meeting { operator, from } => format!(
                "all records of `{}` meet on one worker, but no worker has links from all of {}; link them, \
                 or, if it groups or joins, give its sources that column as their `key`",
                problem.operators[*operator].id,
                places(from)
            ),
            Self::Accuracy { wanted } => {
                format!(
                    "the variants that run on the workers that the planner uses are not {wanted} % accurate"
                )
            }
            Self::Workers { load } => {
                format!("the most accurate variants need {load:.1} times the available workers")
            }
            Self::Bandwidth { needed, carried } => format!(
                "the sources send {:.1} Mbps, but the links to the workers that the planner uses carry {:.1}",
                needed * 8.0 / 1e6,
                carried * 8.0 / 1e6
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem, small_problem};
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::{best_fit::BestFit, cloud_only::CloudOnly, edge_only::EdgeOnly};

    fn published(rate: f64) -> Problem {
        published_vqa_problem(rate, 56.0, PublishedSetting::Shared)
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        assert_eq!(obstacle("cloud-only", &published(20.0)), None);
        assert_eq!(obstacle("exact", &published(1e6)), None);
        let Some(Obstacle::Workers { load }) = obstacle("cloud-only", &published(2000.0)) else {
            panic!("not the workers")
        };
        assert!(load > 10.0, "{load}");
        let accurate = Problem {
            limits: crate::problem::Limits { accuracy: Some(99.0), ..Default::default() },
            ..published(1.0)
        };
        assert_eq!(obstacle("best-fit", &accurate), Some(Obstacle::Accuracy { wanted: 99.0 }));

        let mut unlinked = published(20.0);
        unlinked.routes[0][1] = None;
        let found = obstacle("cloud-only", &unlinked).expect("no link");
        assert!(
            matches!(&found, Obstacle::NoLink { operator: 0, from, to, .. } if (from, to) == (&vec![0], &vec![1])),
            "{found:?}"
        );
        assert!(
            found.text(&unlinked).starts_with("no link leads from edge, where"),
            "{}",
            found.text(&unlinked)
        );

        let mut narrow = published(20.0);
        narrow.routes[0][1].as_mut().expect("a route").bandwidth = Some(1e5);
        assert!(matches!(obstacle("cloud-only", &narrow), Some(Obstacle::Bandwidth { .. })));

        let mut apart = published(20.0);
        apart.operators[0].on_one_worker = true;
        assert_eq!(obstacle("exact", &apart), None);
        let far = apart.locations.len();
        apart.locations.push(crate::problem::Location { name: "island".into(), tier: 0 });
        apart.routes.iter_mut().for_each(|routes| routes.push(None));
        apart.routes.push(vec![None; far + 1]);
        apart.routes[far][far] = Some(crate::problem::Route::default());
        let class = crate::problem::WorkerClass { location: far, ..apart.worker_classes[0].clone() };
        apart.worker_classes.push(class);
        for variant in apart.operators.iter_mut().flat_map(|operator| &mut operator.variants) {
            variant.modes.push(variant.modes[0].clone());
        }
        let here = apart.sources[0].locations[0].0;
        apart.sources.iter_mut().for_each(|source| source.locations = vec![(here, 0.5), (far, 0.5)]);
        assert_eq!(obstacle("exact", &apart), Some(Obstacle::Meeting { operator: 0, from: vec![here, far] }));

        let mut idle = published(20.0);
        for variant in &mut idle.operators[1].variants {
            variant.modes.iter_mut().for_each(Vec::clear);
        }
        assert_eq!(obstacle("edge-only", &idle), Some(Obstacle::NoWorker { operator: 1 }));
    }

    /// A problem with a plan has no obstacle.
    #[test]
    fn what_has_a_plan_has_no_obstacle() {
        let planners: [&dyn Planner; 3] = [&CloudOnly, &EdgeOnly, &BestFit];
        let (mut plans, mut told) = (0, 0);
        for seed in 1..=300 {
            let problem = small_problem(seed);
            for planner in planners {
                let outcome = planner.plan(&problem, &SearchLimits::default()).expect("takes it");
                let found = obstacle(planner.name(), &problem);
                told += usize::from(found.is_some());
                if outcome.solution.is_some() {
                    plans += 1;
                    assert_eq!(found, None, "seed {seed}, {}", planner.name());
                }
            }
        }
        assert!(plans > 100 && told > 100, "{plans} plans, {told} obstacles");
    }
}
