//! Measures a leader's writes: `cargo run -p tidemill-postgres --example writes -- postgres://...`, in its own schema,
//! which is not removed.
use std::error::Error;
use std::time::{Duration, Instant};
use tidemill_postgres::{Announcement, Candidate, Change, Lead, Standing};

const WRITES: usize = 300;
const PART: usize = 1 << 20;
const PARTS: usize = 64;

#[expect(clippy::disallowed_methods, reason = "what is measured is real time")]
fn now() -> Instant {
    Instant::now()
}

fn lead(candidate: &Candidate) -> Result<(Lead, Duration), Box<dyn Error>> {
    let begun = now();
    loop {
        if let Standing::Leads(lead) = candidate.stand()? {
            return Ok((*lead, begun.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn told(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!("{what}: median {:.2} ms, p99 {:.2} ms, most {:.2} ms", at(0.5), at(0.99), at(1.0));
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("name a server: postgres://...")?.parse()?;
    let candidate = |name: &str| {
        Candidate::new(&address, Announcement { name: name.to_owned(), address: name.to_owned() })
    };
    let (a, b) = (candidate("a:1")?, candidate("b:1")?);
    let (first, _) = lead(&a)?;
    for (what, rows, bytes) in
        [("one row of 1 KB", 1, 1_000), ("ten rows of 1 KB", 10, 1_000), ("one row of 100 KB", 1, 100_000)]
    {
        let value = vec![b'x'; bytes];
        let names: Vec<String> = (0..rows).map(|n| n.to_string()).collect();
        let mut times = Vec::new();
        for _ in 0..WRITES {
            let begun = now();
            let changes: Vec<Change<'_>> =
                names.iter().map(|name| Change::put("measured", name, &value)).collect();
            first.write(&changes)?;
            times.push(begun.elapsed());
        }
        told(what, times);
    }
    let begun = now();
    let part: Vec<u8> = (0..PART).map(|n| ((n * n) >> 3) as u8).collect();
    for number in 0..PARTS {
        first.write(&[Change::put("measured", &format!("part {number}"), &part)])?;
    }
    println!("{PARTS} parts of 1 MiB written: {:.1} MiB/s", PARTS as f64 / begun.elapsed().as_secs_f64());
    let begun = now();
    for number in 0..PARTS {
        first.get("measured", &format!("part {number}"))?.ok_or("it is gone")?;
    }
    println!("and read: {:.1} MiB/s", PARTS as f64 / begun.elapsed().as_secs_f64());
    first.clear("measured")?;
    drop(first);
    let mut times = Vec::new();
    for round in 0..20 {
        let next = if round % 2 == 0 { &b } else { &a };
        let (leads, time) = lead(next)?;
        times.push(time);
        drop(leads);
    }
    told("the next one leads after the one before has let go", times);
    Ok(())
}
