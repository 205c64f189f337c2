//! A rank of a group, for `benches/experiments/collectives.py`: the counterpart of the programs in `benches/experiments/two_racks`.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example member -- SOCKET GROUP RANK RANKS PRIORITY
//! ```
//!
//! It joins, and carries out what it reads, line by line, until standard input ends. It answers each line with one of JSON:
//!
//! | line | does | answer |
//! |---|---|---|
//! | `all-reduce UNMEASURED BYTES:ITERATIONS...` | sums f32, each time after a barrier | `bytes` and `seconds` of each size |
//! | `broadcast UNMEASURED BYTES:ITERATIONS...` | the same with broadcasts of rank 0 | the same |
//! | `job BYTES COMPUTE_MS SECONDS ITERATIONS` | computes, which is a pause, and sums, until the time is over or the number is done; 0: no limit | the beginning, since the epoch of Unix, and the duration of each sum, in seconds |
//!
//! Every element of every result is compared with the exact one; a wrong one ends the program with an error.
#![expect(clippy::disallowed_methods, reason = "it measures real time")]
use serde_json::{Value, json};
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_collective::client::{Buffer, Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::topology::Priority;

type Failure = Box<dyn Error>;

/// Values of a buffer repeat after this many elements.
const CYCLE: usize = 251;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, name, rank, ranks, priority] = &arguments[..] else {
        return Err("arguments: SOCKET GROUP RANK RANKS bulk|normal|high".into());
    };
    let priority = match priority.as_str() {
        "bulk" => Priority::Bulk,
        "normal" => Priority::Normal,
        "high" => Priority::High,
        other => return Err(format!("{other} is no priority: write bulk, normal or high").into()),
    };
    let options = JoinOptions {
        service: socket.into(),
        priority,
        ..JoinOptions::new(name, rank.parse()?, ranks.parse()?)
    };
    let member = Member { group: Group::join(&options)?, rank: rank.parse()?, ranks: ranks.parse()? };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lines() {
        writeln!(out, "{}", member.work(&line?)?)?;
        out.flush()?;
    }
    Ok(())
}

struct Member {
    group: Group,
    rank: usize,
    ranks: usize,
}

impl Member {
    fn work(&self, line: &str) -> Result<Value, Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [operation @ ("all-reduce" | "broadcast"), unmeasured, ref sizes @ ..] => {
                let mut rows = Vec::with_capacity(sizes.len());
                for size in sizes {
                    let (bytes, iterations) = size.split_once(':').ok_or("a size is BYTES:ITERATIONS")?;
                    let bytes: usize = bytes.parse()?;
                    let is_broadcast = operation == "broadcast";
                    let seconds =
                        self.timed(is_broadcast, bytes, unmeasured.parse()?, iterations.parse()?)?;
                    rows.push(json!({"bytes": bytes, "seconds": seconds}));
                }
                Ok(Value::from(rows))
            }
            ["job", bytes, compute, seconds, iterations] => {
                let compute = Duration::from_millis(compute.parse()?);
                let seconds = Duration::from_secs_f64(seconds.parse()?);
                Ok(json!(self.job(bytes.parse()?, compute, seconds, iterations.parse()?)?))
            }
            _ => Err(format!("`{line}` is no work, or its arguments are others").into()),
        }
    }

    /// The value of an element of this rank. Sums of all ranks are whole numbers that f32 has exactly.
    fn value(of: usize, round: usize, at: usize) -> f32 {
        ((of + 1) * (round % 7 + 1) + at % CYCLE) as f32
    }

    fn values(of: usize, round: usize, length: usize) -> Vec<f32> {
        (0..length).map(|at| Self::value(of, round, at)).collect()
    }

    /// Compares the first elements of a buffer with the exact sums, or with the values of rank 0.
    fn check(&self, buffer: &Buffer, length: usize, round: usize, is_broadcast: bool) -> Result<(), Failure> {
        let mut found = vec![0.0_f32; length];
        buffer.read(0, &mut found)?;
        let from = if is_broadcast { 1 } else { self.ranks };
        let exact: Vec<f32> = (0..CYCLE.min(length))
            .map(|at| (0..from).map(|rank| Self::value(rank, round, at)).sum())
            .collect();
        let wrong =
            found.iter().enumerate().find(|(at, found)| found.to_bits() != exact[at % CYCLE].to_bits());
        match wrong {
            Some((at, found)) => {
                Err(format!("element {at} of round {round} is {found}, not {}", exact[at % CYCLE]).into())
            }
            None => Ok(()),
        }
    }

    /// Returns how long each operation took, in seconds.
    fn timed(
        &self,
        is_broadcast: bool,
        bytes: usize,
        unmeasured: usize,
        iterations: usize,
    ) -> Result<Vec<f64>, Failure> {
        let length = (bytes / 4).max(1);
        let buffer = self.group.buffer(Element::F32, length)?;
        let barrier = self.group.buffer(Element::F32, 1)?;
        let mut taken = Vec::with_capacity(iterations);
        for round in 0..unmeasured + iterations {
            buffer.write(0, &Self::values(self.rank, round, length))?;
            self.group.all_reduce(&barrier, Reduction::Sum)?.wait()?;
            let begun = Instant::now();
            if is_broadcast {
                self.group.broadcast(&buffer, 0)?.wait()?;
            } else {
                self.group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
            }
            if round >= unmeasured {
                taken.push(begun.elapsed().as_secs_f64());
            }
            self.check(&buffer, length, round, is_broadcast)?;
        }
        Ok(taken)
    }

    /// Returns when each operation began and how long it took, in seconds. Rank 0 says by an element when it is over.
    fn job(
        &self,
        bytes: usize,
        compute: Duration,
        most: Duration,
        iterations: usize,
    ) -> Result<Vec<[f64; 2]>, Failure> {
        let length = (bytes / 4).max(1);
        let buffer = self.group.buffer(Element::F32, length + 1)?;
        let barrier = self.group.buffer(Element::F32, 1)?;
        self.group.all_reduce(&barrier, Reduction::Sum)?.wait()?;
        let started = Instant::now();
        let mut operations = Vec::new();
        for round in 0.. {
            buffer.write(0, &Self::values(self.rank, round, length))?;
            let is_last = self.rank == 0
                && ((iterations > 0 && round + 1 >= iterations)
                    || (!most.is_zero() && started.elapsed() >= most));
            buffer.write(length, &[if is_last { 1.0_f32 } else { 0.0 }])?;
            std::thread::sleep(compute);
            let at = SystemTime::now().duration_since(UNIX_EPOCH)?;
            let begun = Instant::now();
            self.group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
            operations.push([at.as_secs_f64(), begun.elapsed().as_secs_f64()]);
            let mut over = [0.0_f32];
            buffer.read(length, &mut over)?;
            self.check(&buffer, length, round, false)?;
            if over[0] > 0.5 {
                break;
            }
        }
        Ok(operations)
    }
}
