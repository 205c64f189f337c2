//! Describes the levels that have to give up something if there is no plan.
use crate::figures::{dollars, milliseconds};
use crate::planning::Case;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::explain::{Relaxation, Relaxed};

/// Returns a line for people: the relaxed level, and the text to write instead.
pub fn in_words(case: &Case, assembly: &Assembly, relaxation: &Relaxation) -> String {
    let problem = &assembly.problem;
    match &relaxation.relaxed {
        Relaxed::Rate { factor } => {
            let (from, to) = (assembly.rate, down(assembly.rate * factor));
            format!("rate: {to}/s instead of {from}/s (`--slo rate={to}/s`)")
        }
        Relaxed::Accuracy { from, to } => {
            let to = down(*to);
            format!("accuracy: {to} % instead of {from} % (`--slo accuracy={to}`)")
        }
        Relaxed::Latency { from, to } => {
            let percentile = problem.limits.latency.first().map_or(99.0, |limit| limit.percentile);
            let to = (to * 1e3).ceil();
            format!(
                "latency: p{percentile} below {to} ms instead of {} (`--slo latency=p{percentile}:{to}ms`)",
                milliseconds(from * 1e3)
            )
        }
        Relaxed::Utilization { from, to } => {
            let to = up(*to).min(1.0);
            format!("utilization: workers busy up to {to} instead of {from} (`--max-utilization {to}`)")
        }
        Relaxed::Bandwidth { factor } => format!("bandwidth: {} times as much on all links", up(*factor)),
        Relaxed::ReturnTraffic => {
            "traffic to a lower tier, at its price (`--return-traffic priced`)".to_owned()
        }
        Relaxed::Survive { from, to } => {
            format!("survival: {to} lost workers at a time instead of {from} (`--slo survive={to}`)")
        }
        Relaxed::Workers(missing) => {
            let all = missing.iter().map(|missing| {
                let class = &problem.worker_classes[missing.class];
                let place = &problem.locations[class.location].name;
                format!("{} more `{}` in {place}", missing.count, class.worker_type)
            });
            let price: f64 =
                missing.iter().map(|m| f64::from(m.count) * problem.worker_classes[m.class].price).sum();
            let file =
                case.infrastructure.name.span.source().map_or("the infrastructure", |file| file.name());
            let all: Vec<String> = all.collect();
            format!("workers: {}, {} together (`count` in {file})", all.join(", "), dollars(price))
        }
    }
}

/// Rounds down to two decimals.
fn down(value: f64) -> f64 {
    (value * 100.0 + 1e-9).floor() / 100.0
}

/// Rounds up to three decimals.
fn up(value: f64) -> f64 {
    (value * 1000.0 - 1e-9).ceil() / 1000.0
}
