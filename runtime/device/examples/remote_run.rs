//! Times runs of a model on an emulated device, here and elsewhere, for `benches/experiments/requirements.py`.
//!
//! ```text
//! remote_run here MILLISECONDS UP DOWN RUNS      a device in this process, whose runs take this time
//! remote_run at ADDRESS UP DOWN RUNS WINDOW      the device of `tidemill device serve --backend emulated --listen ADDRESS`
//! ```
//!
//! A run uploads UP bytes, runs the model and reads DOWN bytes; WINDOW of them are outstanding. Prints a line of JSON with seconds:
//! the median of a run, and the time between the ends of two runs.
use std::collections::VecDeque;
use std::time::Instant;
use tidemill_device::device::{Artifact, Limits, Loadable, ModelId, Opener, Run, TensorId};
use tidemill_device::dial;
use tidemill_device::emulated::{Emulated, ModelTimes, Profile, artifact_of};
use tidemill_device::session::{Pending, Session};
use tidemill_device::value::{Element, Value};
use tidemill_link::remote::{Address, Security};

type AnyError = Box<dyn std::error::Error>;

/// Content of the model.
const MODEL: &[u8] = b"a model";
/// Runs before the first that counts: the connection becomes fast.
const WARM_UP: usize = 5;

#[expect(clippy::disallowed_methods, reason = "real time is measured")]
fn now() -> Instant {
    Instant::now()
}

/// Lets sleeps of this thread end when they are due.
fn exact_timers() {
    let thread = std::fs::read_link("/proc/thread-self").ok();
    if let Some(number) = thread.as_deref().and_then(|path| path.file_name()) {
        // Without it they are some 50 us late.
        let _ = std::fs::write(std::path::Path::new("/proc").join(number).join("timerslack_ns"), "1");
    }
}

fn emulated(run_ms: f64) -> Emulated {
    let others = ModelTimes { run_ms, ..ModelTimes::default() };
    Emulated::new(Profile { others, ..Profile::default() })
}

/// A model whose output has this number of bytes.
fn model(down: usize) -> Artifact {
    let options = serde_json::json!({"outputs": [{"element": "uint8", "row": [down]}]});
    Artifact { options, ..artifact_of("model", MODEL, 1, 1) }
}

/// Seconds of each run in this process.
fn here(run_ms: f64, up: usize, down: usize, runs: usize) -> Result<Vec<f64>, AnyError> {
    exact_timers();
    let mut device = emulated(run_ms).open(&Limits::default())?;
    let loadable = Loadable { artifact: model(down), path: "none".into() };
    device.load(ModelId(1), &loadable)?;
    let input = vec![7; up];
    let mut seconds = Vec::new();
    for number in 0..(runs + WARM_UP) as u64 {
        let (upload, output) = (TensorId(2 * number + 2), TensorId(2 * number + 3));
        let begin = now();
        device.upload(upload, Value::new(Element::Uint8, vec![1, up], input.clone())?)?;
        device.run(&Run { model: ModelId(1), inputs: vec![upload], outputs: vec![(0, output)] })?;
        device.read(output)?;
        seconds.push(begin.elapsed().as_secs_f64());
        device.free(upload);
        device.free(output);
    }
    Ok(seconds.split_off(WARM_UP))
}

/// Posts one run.
fn post(session: &Session, model: ModelId, input: &[u8]) -> Result<(Instant, Pending), AnyError> {
    let begin = now();
    let mut lane = session.lane();
    let upload = lane.upload(Element::Uint8, &[1, input.len()], input)?;
    let outputs = lane.run(model, &[upload], &[0])?;
    let pending = lane.read(outputs[0])?;
    lane.free(&[upload, outputs[0]])?;
    Ok((begin, pending))
}

/// Seconds of each run on the device at this address, and between the ends of two.
fn at(
    address: &str,
    up: usize,
    down: usize,
    runs: usize,
    window: usize,
) -> Result<(Vec<f64>, f64), AnyError> {
    let address: Address = address.parse()?;
    let session = dial::open(&address, &Security::none(), "default", "remote_run")?;
    let loaded = session.load(&model(down), |_| Ok(Box::new(MODEL)))?;
    session.flush()?;
    let input = vec![7; up];
    let (mut outstanding, mut seconds) = (VecDeque::new(), Vec::new());
    let (mut posted, mut counted) = (0, now());
    while seconds.len() < runs + WARM_UP {
        while outstanding.len() < window && posted < runs + WARM_UP {
            outstanding.push_back(post(&session, loaded, &input)?);
            posted += 1;
        }
        let Some((begin, pending)) = outstanding.pop_front() else { break };
        pending.wait()?;
        seconds.push(begin.elapsed().as_secs_f64());
        if seconds.len() == WARM_UP {
            counted = now();
        }
    }
    let measured = seconds.split_off(WARM_UP);
    let interval = counted.elapsed().as_secs_f64() / measured.len().max(1) as f64;
    Ok((measured, interval))
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), AnyError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (mut seconds, interval) = match words[..] {
        ["here", run_ms, up, down, runs] => {
            let seconds = here(run_ms.parse()?, up.parse()?, down.parse()?, runs.parse()?)?;
            let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
            (seconds, mean)
        }
        ["at", address, up, down, runs, window] => {
            let window: usize = window.parse()?;
            at(address, up.parse()?, down.parse()?, runs.parse()?, window.max(1))?
        }
        _ => return Err("usage: remote_run here|at ..., see the source".into()),
    };
    let median = median(&mut seconds);
    println!("{}", serde_json::json!({"runs": seconds.len(), "run": median, "interval": interval}));
    Ok(())
}
