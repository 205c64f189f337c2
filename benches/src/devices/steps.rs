//! Calls of a published application, made on an emulated device: kernel launches are runs of its model, copies to the device
//! uploads, created objects tensors, and waits flushes and a read. A query is local, or reads a tensor that is already there.
use super::far_end::Connected;
use super::now;
use std::time::Duration;
use tidemill_device::call::HEAD;
use tidemill_device::device::{Device, ModelId, Run, TensorId};
use tidemill_device::value::{Element, Value};
use tidemill_replay::call::{Call, Class};

/// Uploads that the bytes of an inference go in, at most; the other launches are runs.
const UPLOADS: usize = 64;
/// Bytes beside the payload: element type and one dimension of a tensor; the input of a run; its output.
const TENSOR: usize = 10;
const INPUT: usize = 8;
const OUTPUT: usize = 12;

/// One call of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Local,
    Create,
    Upload,
    Run,
    /// A query that needs the device's answer.
    Query,
    /// Waits for the device; the last one reads an output.
    Wait,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    what: What,
    /// The program waits for an answer of a call that it could have posted.
    answered: bool,
}

/// The calls of one inference.
pub(super) struct Steps {
    steps: Vec<Step>,
    /// Time of the program before each call.
    gap: Duration,
    /// Bytes of each upload.
    upload: Vec<u8>,
    /// Milliseconds of each run.
    pub(super) run_ms: f64,
}

/// Processor time of messages, seconds each.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Software {
    /// At the client.
    pub(super) post: f64,
    /// At the proxy.
    pub(super) handle: f64,
}

impl Steps {
    /// Makes a sequence playable. Sizes and times of launches are put together, so that uploads carry all bytes and runs take all time.
    pub(super) fn of(trace: impl Iterator<Item = Call>) -> Self {
        let calls: Vec<Call> = trace.collect();
        let is_launch = |call: &&Call| call.kernel > 0.0;
        let launches = calls.iter().filter(is_launch).count();
        let each = launches.div_ceil(UPLOADS).max(2);
        let uploads = launches.div_ceil(each).max(1);
        let header = calls.iter().filter(|call| call.class.is_sent()).map(|call| call.payload);
        let header = header.fold(f64::INFINITY, f64::min);
        let bytes: f64 = calls.iter().filter(is_launch).map(|call| call.payload - header).sum();
        let kernels: f64 = calls.iter().map(|call| call.kernel).sum();
        let gap: f64 = calls.iter().map(|call| call.gap).sum();
        let mut launch = 0;
        let steps = calls.iter().map(|call| {
            let answered = call.class == Class::Sync;
            let what = match call.class {
                _ if call.kernel > 0.0 => {
                    launch += 1;
                    if (launch - 1) % each == 0 { What::Upload } else { What::Run }
                }
                Class::Local => What::Local,
                Class::Shadow => What::Create,
                Class::Sync if call.waits => What::Wait,
                Class::Sync | Class::Async => What::Query,
            };
            Step { what, answered }
        });
        Self {
            steps: steps.collect(),
            gap: Duration::from_secs_f64(gap / calls.len().max(1) as f64),
            upload: vec![7; (bytes / uploads as f64) as usize],
            run_ms: kernels * 1e3 / (launches - uploads).max(1) as f64,
        }
    }

    /// The calls as they are sent, for the models of their time.
    pub(super) fn calls(&self, software: Software) -> Vec<Call> {
        let last_run = self.last_run();
        let sent = |bytes: usize, messages: f64, class| Call {
            gap: self.gap.as_secs_f64(),
            payload: (bytes as f64) + HEAD as f64 * messages,
            serialise: software.post * messages,
            deserialise: software.handle * messages,
            ..Call::new(class)
        };
        let steps = self.steps.iter().enumerate().map(|(at, step)| {
            let (class, messages) = if step.answered { (Class::Sync, 2.0) } else { (Class::Async, 1.0) };
            let mut call = match step.what {
                What::Local => {
                    return Call { gap: self.gap.as_secs_f64(), ..Call::new(Class::Local) };
                }
                What::Create => sent(TENSOR, messages, if step.answered { class } else { Class::Shadow }),
                What::Upload => sent(TENSOR + self.upload.len(), messages, class),
                What::Run => {
                    let output = if at == last_run { OUTPUT } else { 0 };
                    Call { kernel: self.run_ms / 1e3, ..sent(INPUT + output, messages, class) }
                }
                What::Query => sent(0, 1.0, Class::Sync),
                What::Wait => Call { waits: true, ..sent(0, 1.0, Class::Sync) },
            };
            if call.class == Class::Sync {
                call.reply = (HEAD + TENSOR + 1) as f64;
            }
            call
        });
        steps.collect()
    }

    fn last_run(&self) -> usize {
        self.steps.iter().rposition(|step| step.what == What::Run).unwrap_or(usize::MAX)
    }

    /// Messages that are posted without a wait.
    pub(super) fn posted(&self) -> usize {
        let is_posted = |step: &&Step| !step.answered && step.what != What::Local;
        self.steps.iter().filter(is_posted).count()
    }

    /// Plays them over a session: seconds of all, and of those in which the program posted. `batch`: calls that go together; with 1 each
    /// is posted at once.
    pub(super) fn play(&self, to: &Connected, batch: usize) -> anyhow::Result<(f64, f64)> {
        let last_run = self.last_run();
        let (mut made, mut output, mut held) = (Vec::new(), None, 0);
        let known = to.lane().upload(Element::Uint8, &[1], &[1])?;
        to.flush()?;
        let mut lane = to.lane();
        let (begin, mut posting) = (now(), Duration::ZERO);
        for (at, step) in self.steps.iter().enumerate() {
            compute(self.gap);
            let posts = now();
            match step.what {
                What::Local => {
                    std::hint::black_box(to.snapshot().share);
                    continue;
                }
                What::Create => made.push(lane.create(Element::Uint8, &[1])?),
                What::Upload => {
                    made.push(lane.upload(Element::Uint8, &[self.upload.len()], &self.upload)?);
                }
                What::Run if at == last_run => output = lane.run(to.model, &[known], &[0])?.pop(),
                What::Run => drop(lane.run(to.model, &[known], &[])?),
                What::Query | What::Wait => {}
            }
            let pending = match (step.what, output) {
                (What::Wait, Some(output)) => lane.read(output)?,
                (What::Wait, None) => lane.flush()?,
                _ if step.answered => lane.read(known)?,
                _ => {
                    held += 1;
                    if held >= batch {
                        lane.send()?;
                        held = 0;
                    }
                    posting += posts.elapsed();
                    continue;
                }
            };
            lane.send()?;
            held = 0;
            pending.wait()?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        made.push(known);
        made.extend(output);
        lane.free(&made)?;
        drop(lane);
        to.flush()?;
        Ok((seconds, posting.as_secs_f64()))
    }

    /// Plays them on a device of this process: seconds.
    pub(super) fn play_here(&self, device: &mut dyn Device, model: ModelId) -> anyhow::Result<f64> {
        let last_run = self.last_run();
        let known = TensorId(0);
        device.upload(known, Value::new(Element::Uint8, vec![1], vec![1])?)?;
        let mut output = None;
        let begin = now();
        for (at, step) in self.steps.iter().enumerate() {
            compute(self.gap);
            let tensor = TensorId(at as u64 + 1);
            match step.what {
                What::Local => {
                    std::hint::black_box(model);
                }
                What::Create => device.create(tensor, Element::Uint8, &[1])?,
                What::Upload => {
                    let value = Value::new(Element::Uint8, vec![self.upload.len()], self.upload.clone())?;
                    device.upload(tensor, value)?;
                }
                What::Run => {
                    let outputs = if at == last_run { vec![(0, tensor)] } else { Vec::new() };
                    output = output.or(outputs.first().map(|(_, tensor)| *tensor));
                    std::hint::black_box(device.run(&Run { model, inputs: vec![known], outputs })?);
                }
                What::Query => drop(device.read(known)?),
                What::Wait => match output {
                    Some(output) => drop(device.read(output)?),
                    None => device.flush()?,
                },
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        (0..=self.steps.len() as u64).for_each(|tensor| device.free(TensorId(tensor)));
        Ok(seconds)
    }
}

/// Uses the processor, as the program does between its calls.
fn compute(time: Duration) {
    let begin = now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::devices::far_end::{Host, Way};
    use tidemill_replay::published::Application;
    use tidemill_replay::trace::{Design, Times, Trace};

    fn steps(design: Design) -> Steps {
        let application = Application::RESNET;
        Steps::of(Trace::new(&application, design, Times::on(&application, &application.v100)))
    }

    #[test]
    fn the_calls_that_are_sent_have_the_counts_bytes_and_times_of_the_trace() {
        let application = Application::RESNET;
        let calls = steps(Design::Locality).calls(Software::default());
        let count = |class| calls.iter().filter(|call| call.class == class).count() as u64;
        let counts = application.optimised;
        assert_eq!(count(Class::Async) + count(Class::Shadow), counts.posted);
        assert_eq!((count(Class::Local), count(Class::Sync)), (counts.local, counts.sync));
        assert_eq!(steps(Design::Locality).posted() as u64, counts.posted);
        let bytes: f64 = calls.iter().map(|call| call.payload).sum();
        let messages = (counts.posted + counts.sync) as f64 * 60.0;
        assert!((bytes / (application.a100.bytes() + messages) - 1.0).abs() < 0.02, "{bytes}");
        let kernels: f64 = calls.iter().map(|call| call.kernel).sum();
        assert!((kernels / (application.v100.local * 5.6 / 5.8) - 1.0).abs() < 1e-6, "{kernels}");
        let all = steps(Design::Base).calls(Software::default());
        assert!(all.iter().all(|call| call.class == Class::Sync));
    }

    #[test]
    fn a_trace_plays_on_a_device_here_and_over_a_session() {
        let steps = steps(Design::Locality);
        let host = Host::new(steps.run_ms).unwrap();
        let (mut device, model) = host.here().unwrap();
        let before = device.memory();
        assert!(steps.play_here(device.as_mut(), model).unwrap() >= 0.0056);
        assert_eq!(device.memory(), before, "it leaves nothing");
        let connected = host.connect(Way::Socket).unwrap();
        let (seconds, posting) = steps.play(&connected, 1).unwrap();
        assert!(seconds >= 0.0056 && posting > 0.0 && posting < seconds);
    }
}
