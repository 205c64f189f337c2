//! Measures the time of commits to a bucket: 200 of one object of 1000 bytes. Then checks 50 times that only one of
//! four processes that take the state at once gets it; a service whose conditional writes fail is reported here.
//!
//! `cargo run --release -p tidemill-bucket --example bucket_commits s3://BUCKET/NEW_PREFIX`, with the variables AWS_*

use tidemill_bucket::{Address, Bucket, Settings};
use tidemill_state::{Content, Digest, Identity, Manifest, ObjectReference, StageState, State, StoreError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address = std::env::args().nth(1).ok_or("usage: commits s3://BUCKET/NEW_PREFIX")?.parse()?;
    let settings = Settings::of_environment();
    let mut state = State::open(Box::new(Bucket::open(&address, &settings)?))?;
    let operators = [("count".to_owned(), Digest(1))].into();
    let identity = Identity { workflow_name: "commits".to_owned(), operators, plan: Digest(2) };
    let first = state.manifest().map_or(0, |manifest| manifest.checkpoint) + 1;
    let mut times = Vec::new();
    for number in first..first + 200 {
        let object = vec![number as u8; 1000];
        let reference = ObjectReference::new(number, "count", Content::Snapshot { epoch: number }, &object);
        let objects = vec![(reference.name.clone(), object)];
        let mut manifest = Manifest { checkpoint: number, epoch: number, ..Manifest::new(identity.clone()) };
        manifest.stages.insert("count".to_owned(), StageState { objects: vec![reference] });
        #[allow(clippy::disallowed_methods, reason = "a measurement of the service, not engine time")]
        let start = std::time::Instant::now();
        state.commit(manifest, objects)?;
        times.push(start.elapsed());
    }
    drop(state);
    times.sort();
    println!("200 commits: median {:?}, p99 {:?}, longest {:?}", times[100], times[197], times[199]);
    for round in 0..50 {
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Bucket::open(&address, &settings))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let got = taken.iter().filter(|taken| taken.is_ok()).count();
        let other = taken.iter().find_map(|taken| match taken {
            Err(StoreError::Locked { .. }) | Ok(_) => None,
            Err(error) => Some(error.to_string()),
        });
        if got != 1 || other.is_some() {
            return Err(format!("round {round}: {got} of 4 got the state ({other:?})").into());
        }
    }
    println!("of 4 that take the state at once, one gets it: 50 of 50 times");
    Ok(())
}
