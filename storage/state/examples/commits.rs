//! Measures the time of commits on the disk of a folder: 200 of one object of 1000 bytes.
//!
//! `cargo run --release -p tidemill-state --example commits NEW_FOLDER`

use std::path::Path;

use tidemill_state::{Content, Identity, Manifest, ObjectReference, StageState, State};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: commits NEW_FOLDER")?;
    let mut state = State::in_folder(Path::new(&folder))?;
    let operators = [("count".to_owned(), tidemill_state::Digest(1))].into();
    let identity =
        Identity { workflow_name: "commits".to_owned(), operators, plan: tidemill_state::Digest(2) };
    let mut times = Vec::new();
    for number in 1..=200u64 {
        let object = vec![number as u8; 1000];
        let reference = ObjectReference::new(number, "count", Content::Snapshot { epoch: number }, &object);
        let objects = vec![(reference.name.clone(), object)];
        let mut manifest = Manifest { checkpoint: number, epoch: number, ..Manifest::new(identity.clone()) };
        let stage = StageState { objects: vec![reference] };
        manifest.stages.insert("count".to_owned(), stage);
        #[allow(clippy::disallowed_methods, reason = "a measurement of the disk, not engine time")]
        let start = std::time::Instant::now();
        state.commit(manifest, objects)?;
        times.push(start.elapsed());
    }
    times.sort();
    println!("200 commits: median {:?}, p99 {:?}, longest {:?}", times[100], times[197], times[199]);
    Ok(())
}
