//! Prints how long schedules take to compute, and of how many trees they are, by the size of the group.
use std::io::{self, Write};
use std::time::Instant;
use tidemill_hints::schedule::{Goal, schedule};
use tidemill_hints::tree::Tree;
use tidemill_random::Random;

#[expect(clippy::disallowed_methods, reason = "what is measured is real time")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "| machines | racks | goal | median time | trees |\n|---:|---:|---|---:|---:|")?;
    let mut random = Random::of_seed(1);
    for machines in [8, 16, 32, 64, 128] {
        let racks: Vec<usize> = (0..machines).map(|machine| machine / 6).collect();
        let tree = Tree::of(&racks);
        for (name, goal) in [("all-reduce", Goal::AllReduce), ("broadcast", Goal::Broadcast { root: 0 })] {
            let mut found: Vec<_> = (0..15)
                .map(|_| {
                    let rates: Vec<f64> = (0..tree.links()).map(|_| random.uniform(0.4, 1.0)).collect();
                    let begun = now();
                    let parts = schedule(&tree, &rates, goal).map_or(0, |found| found.parts.len());
                    (begun.elapsed(), parts)
                })
                .collect();
            found.sort_unstable();
            let (time, parts) = found[found.len() / 2];
            writeln!(out, "| {machines} | {} | {name} | {time:.1?} | {parts} |", tree.racks().len())?;
        }
    }
    Ok(())
}
