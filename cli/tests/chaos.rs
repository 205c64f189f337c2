//! A run in several processes with constant faults: processes are killed, connections are cut, workers are suspended. The
//! outputs must not show it. `benches/experiments/chaos.sh` has many more of these.
mod connections;
mod place;
mod trial;
mod watch;

use std::fmt::Write as _;
use std::time::Instant;
use tidemill_random::Random;
use trial::{Fault, Findings, Trial};

#[expect(clippy::disallowed_methods, reason = "how long people wait is real time")]
fn now() -> Instant {
    Instant::now()
}

/// Size of a campaign.
struct Campaign {
    seed: u64,
    /// Rows of the left source, in each run; 4000 per second.
    rows: usize,
    faults_per_run: usize,
    /// Required number of kills, and of cuts.
    kills: usize,
    cuts: usize,
}

impl Campaign {
    /// Disturbs run after run, until the required number is reached.
    fn run(mut self) -> Findings {
        if !connections::can_be_cut() {
            println!("no connection is cut, because the system gives out no descriptors here");
            self.cuts = 0;
        }
        let (mut random, mut findings) = (Random::of_seed(self.seed), Findings::default());
        let expected = place::undisturbed(self.rows);
        let most = 4 * (self.kills + self.cuts) / self.faults_per_run + 10;
        for number in 0.. {
            let (kills, cuts) = (findings.count(Fault::is_kill), findings.count(Fault::is_cut));
            if kills >= self.kills && cuts >= self.cuts {
                break;
            }
            assert!(number < most, "only {kills} kills and {cuts} cuts happened in {number} runs");
            let seed = random.draw();
            println!("run {number}, seed {seed}: {kills} kills, {cuts} cuts so far");
            let mut random = Random::of_seed(seed);
            let first = random.below(Fault::ALL.len());
            let in_turn = (0..self.faults_per_run).map(|n| Fault::ALL[(first + n) % Fault::ALL.len()]);
            let mut faults: Vec<Fault> = in_turn.filter(|fault| self.cuts > 0 || !fault.is_cut()).collect();
            for at in (1..faults.len()).rev() {
                faults.swap(at, random.below(at + 1));
            }
            Trial::new(self.rows, &mut random, &mut findings).run(&faults, &expected);
        }
        findings
    }
}

/// Rows of a table: faults, their number, and the time without new rows.
fn table(findings: &Findings) -> String {
    let mut text = "| event | times | first new row after it: p50 | p95 | worst |\n".to_owned();
    text.push_str("|---|--:|--:|--:|--:|\n");
    for (fault, count) in &findings.happened {
        let mut times = findings.times.get(fault).cloned().unwrap_or_default();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get(((times.len().max(1) - 1) as f64 * share).round() as usize);
        let told = |time: Option<&f64>| time.map_or("none".to_owned(), |time| format!("{time:.0} ms"));
        let [p50, p95, worst] = [0.5, 0.95, 1.0].map(|share| told(at(share)));
        writeln!(text, "| {} | {count} | {p50} | {p95} | {worst} |", fault.name()).unwrap();
    }
    text
}

#[test]
fn faults_change_nothing() {
    let campaign = Campaign { seed: 1, rows: 12_000, faults_per_run: 9, kills: 4, cuts: 3 };
    let findings = campaign.run();
    println!("{}", table(&findings));
}

/// With `TIDEMILL_PROCESS_CHAOS=SEED` these faults, else others each time; `TIDEMILL_PROCESS_CHAOS_REPORT` is a file for
/// the table.
#[test]
#[ignore = "long: make test-long"]
fn many_faults_change_nothing() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("TIDEMILL_PROCESS_CHAOS").unwrap_or_else(|| {
        use std::hash::{BuildHasher, Hasher};
        std::hash::RandomState::new().build_hasher().finish()
    });
    let count = number("TIDEMILL_PROCESS_CHAOS_COUNT").unwrap_or(100) as usize;
    println!("seed {seed}");
    let campaign = Campaign { seed, rows: 32_000, faults_per_run: 21, kills: count, cuts: count };
    let begin = now();
    let findings = campaign.run();
    let (kills, cuts) = (findings.count(Fault::is_kill), findings.count(Fault::is_cut));
    let text = format!(
        "{}\n{kills} kills, and {cuts} cuts of {} connections, {} of them when all rows were there and the run was not over, with seed \
         {seed} in {:.0} s. {} times the run gave up, said \
         so, and was continued by the same command:\n\n{}",
        table(&findings),
        findings.connections,
        findings.at_end,
        begin.elapsed().as_secs_f64(),
        findings.gave_up.len(),
        findings.gave_up.iter().map(|said| format!("- `{said}`\n")).collect::<String>()
    );
    println!("{text}");
    if let Ok(path) = std::env::var("TIDEMILL_PROCESS_CHAOS_REPORT") {
        std::fs::write(path, text).unwrap();
    }
}
