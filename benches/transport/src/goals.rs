//! The project's goals beside what was measured. The bench never fails on them.
use crate::harness::{Case, Row};
use crate::load::{Filter, Workload};
use crate::report::{Figure, MEAN, P50, P99, PER_PROCESSOR, PROCESSOR, median, more};
use std::fmt::Write;

/// A goal: a figure of Tidemill's against that of another contender.
struct Goal {
    what: &'static str,
    /// The cases that it is about.
    is_about: fn(&Case) -> bool,
    /// Part of the names of Tidemill's rows, and of those that they are compared with.
    own: &'static str,
    other: &'static str,
    figure: Figure,
    /// Tidemill's figure divided by the other's is at most this, or at least.
    bound: f64,
    at_least: bool,
}

fn is(case: &Case, workload: Workload, services: usize) -> bool {
    let scenario = &case.scenario;
    scenario.workload == workload && scenario.services == services && case.clients == 1 && !case.roles
}

const LATENCY: fn(&Case) -> bool = |case| is(case, Workload::Latency, 1);
const CHAIN: fn(&Case) -> bool = |case| is(case, Workload::Latency, 5);
const MEDIUM: fn(&Case) -> bool = |case| is(case, Workload::Good8k, 1);
const LARGE: fn(&Case) -> bool = |case| is(case, Workload::Good1m, 1);
const CHANNEL: fn(&Case) -> bool = |case| matches!(case.scenario.workload, Workload::Channel(_));

/// One with the fields in their order.
const fn goal(
    what: &'static str,
    is_about: fn(&Case) -> bool,
    [own, other]: [&'static str; 2],
    figure: Figure,
    bound: f64,
    at_least: bool,
) -> Goal {
    Goal { what, is_about, own, other, figure, bound, at_least }
}

/// Compared with nothing: the bound is the figure's own.
const ABSOLUTE: &str = "";

const GOALS: &[Goal] = &[
    goal("64 B: p50 below tonic", LATENCY, ["tidemill", "tonic"], P50, 1.0, false),
    goal("64 B: p50 in us", LATENCY, ["tidemill", ABSOLUTE], P50, 96.0, false),
    goal("64 B: half of tonic's processor time", LATENCY, ["tidemill", "tonic"], PROCESSOR, 0.5, false),
    goal(
        "8 KiB: 2.5x HAProxy, by processor time",
        MEDIUM,
        ["tidemill", "tonic + HAProxy x2"],
        PER_PROCESSOR,
        2.5,
        true,
    ),
    goal("8 KiB: as tonic, by processor time", MEDIUM, ["tidemill", "tonic"], PER_PROCESSOR, 1.0, true),
    goal(
        "1 MiB: 80 % of raw TCP, by processor time",
        LARGE,
        ["tidemill", "raw TCP"],
        PER_PROCESSOR,
        0.8,
        true,
    ),
    goal("chain: half the mean of nginx", CHAIN, ["tidemill", "tonic + nginx x2"], MEAN, 0.5, false),
    goal("chain: half the p99 of nginx", CHAIN, ["tidemill", "tonic + nginx x2"], P99, 0.5, false),
    goal("chain: half the mean of HAProxy", CHAIN, ["tidemill", "tonic + HAProxy x2"], MEAN, 0.5, false),
    goal("chain: half the p99 of HAProxy", CHAIN, ["tidemill", "tonic + HAProxy x2"], P99, 0.5, false),
    goal(
        "channel, waiting: p50 at most twice iceoryx2's",
        CHANNEL,
        ["tidemill-shm, waiting", "iceoryx2, waiting"],
        P50,
        2.0,
        false,
    ),
    goal(
        "channel, polling: p50 at most twice iceoryx2's",
        CHANNEL,
        ["tidemill-shm, polling", "iceoryx2, polling"],
        P50,
        2.0,
        false,
    ),
];

/// Writes the table of goals. Ratios are medians of those within a round.
pub fn write(cases: &[Case], rows: &[Row], text: &mut String) {
    text.push_str("\n### Goals\n\n| goal | case | row | bound | measured | |\n|---|---|---|--:|--:|---|\n");
    for goal in GOALS {
        let sign = if goal.at_least { ">=" } else { "<=" };
        let mut is_measured = false;
        for (number, case) in cases.iter().enumerate().filter(|(_, case)| (goal.is_about)(case)) {
            let of_case = || rows.iter().filter(|row| row.case == number && !row.samples.is_empty());
            let other = of_case().find(|row| row.contender == goal.other);
            if other.is_none() && goal.other != ABSOLUTE {
                continue;
            }
            for own in of_case().filter(|row| row.contender.starts_with(goal.own)) {
                let figures = own.samples.iter().map(goal.figure);
                let ratio = match other {
                    Some(other) => {
                        median(figures.zip(&other.samples).map(|(own, other)| own / (goal.figure)(other)))
                    }
                    None => median(figures),
                };
                let is_met = if goal.at_least { ratio >= goal.bound } else { ratio <= goal.bound };
                let verdict = if is_met { "met" } else { "**missed**" };
                let (what, case, own) = (goal.what, &case.what, &own.contender);
                let _ = writeln!(
                    text,
                    "| {what} | {case} | {own} | {sign} {} | {ratio:.2} | {verdict} |",
                    goal.bound
                );
                is_measured = true;
            }
        }
        if !is_measured {
            let _ = writeln!(text, "| {} | | | {sign} {} | | not measured |", goal.what, goal.bound);
        }
    }
    write_pairs(cases, rows, text);
    text.push_str(
        "\nNot compared here: small calls beside bulk with classes and without (see their table), and an edge through two \
services, which has no row yet.\n",
    );
}

/// Bounds of the cost of policies: the filter, calls in flight, what it costs, and the bound.
const COSTS: &[(Filter, usize, &str, &str, f64)] = &[
    (Filter::Null, 1, "null policy: us more at p50", "p50_us", 1.0),
    (Filter::Limiter, 128, "limiter: % more time a call, 128 in flight", "calls_percent", 1.0),
    (Filter::Limiter, 128, "limiter: % more processor time, 128 in flight", "processor_percent", 1.0),
    (Filter::Acl, 128, "ACL: % more time a call, 128 in flight", "calls_percent", 6.0),
    (Filter::Acl, 128, "ACL: % more processor time, 128 in flight", "processor_percent", 6.0),
];

/// Policies against none. A bound within the interval is neither met nor missed.
fn write_pairs(cases: &[Case], rows: &[Row], text: &mut String) {
    for (filter, in_flight, what, name, bound) in COSTS {
        let is_about = |row: &&Row| {
            let scenario = &cases[row.case].scenario;
            scenario.filter == *filter && scenario.workload == Workload::Paired(*in_flight)
        };
        let Some(row) = rows.iter().filter(|row| !row.samples.is_empty()).find(is_about) else {
            let _ = writeln!(text, "| {what} | | | <= {bound} | | not measured |");
            continue;
        };
        let of = |suffix: &str| median(row.samples.iter().map(|of| more(of, &format!("{name}{suffix}"))));
        let (value, low, high) = (of(""), of("_low"), of("_high"));
        let verdict = match (low <= *bound, high <= *bound) {
            (_, true) => "met",
            (false, false) => "**missed**",
            (true, false) => "not resolved",
        };
        let (case, own) = (&cases[row.case].what, &row.contender);
        let _ = writeln!(
            text,
            "| {what} | {case} | {own} | <= {bound} | {value:.2} ({low:.2} to {high:.2}) | {verdict} |"
        );
    }
}
