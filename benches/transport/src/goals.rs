//! The project's goals beside what was measured. The bench never fails on them.
use crate::harness::{Case, Row};
use crate::load::Workload;
use crate::report::{Figure, MEAN, P50, P99, PER_PROCESSOR, PROCESSOR, median};
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

const GOALS: &[Goal] = &[
    goal("64 B: p50 below tonic", LATENCY, ["tidemill", "tonic"], P50, 1.0, false),
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
            let Some(other) = of_case().find(|row| row.contender == goal.other) else { continue };
            for own in of_case().filter(|row| row.contender.starts_with(goal.own)) {
                let pairs = own.samples.iter().zip(&other.samples);
                let ratio = median(pairs.map(|(own, other)| (goal.figure)(own) / (goal.figure)(other)));
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
    let _ = writeln!(
        text,
        "\nNot compared here: p50 of 96 us in absolute terms, policies alone, small calls beside bulk with classes and \
without, and an edge through two services: they need Tidemill's own rows."
    );
}
