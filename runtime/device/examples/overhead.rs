//! Times one inference on a device here, in a proxy over a Unix socket, and in a proxy that shares memory.
//!
//! ```text
//! overhead [ROUNDS] [MICROSECONDS OF A RUN]
//! ```
//!
//! The three take turns in each round, so that what else the machine does meets all of them. An inference uploads a
//! float32 tensor of 3x224x224, runs a model that adds its values, and reads 1000 floats. The device copies the input once,
//! as a back end does.
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{
    Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::emulated::artifact_of;
use tidemill_device::memory::Placed;
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::session::Session;
use tidemill_device::store::Store;
use tidemill_device::value::{Element, Value};

type AnyError = Box<dyn std::error::Error>;

/// Argument with which the program is the proxy, with its connection as standard input.
const PROXY: &str = "--proxy";
const SHAPE: [usize; 4] = [1, 3, 224, 224];
const OUTPUTS: usize = 1000;

/// Adds floats, and computes at least this long.
struct Adder {
    lasts: Duration,
    tensors: HashMap<TensorId, Vec<u8>>,
}

#[expect(clippy::disallowed_methods, reason = "real time is measured")]
fn now() -> Instant {
    Instant::now()
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|float| f32::from_le_bytes(*float))
}

impl Device for Adder {
    fn create(&mut self, tensor: TensorId, _: Element, shape: &[usize]) -> Result<(), DeviceError> {
        self.tensors.insert(tensor, vec![0; 4 * shape.iter().product::<usize>()]);
        Ok(())
    }
    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.tensors.insert(tensor, value.bytes().to_vec());
        Ok(())
    }
    fn upload_placed(&mut self, tensor: TensorId, placed: &Placed) -> Result<(), DeviceError> {
        let mut bytes = vec![0; placed.bytes()];
        placed.copy_to(&mut bytes);
        self.tensors.insert(tensor, bytes);
        Ok(())
    }
    fn load(&mut self, _: ModelId, _: &Loadable) -> Result<(), DeviceError> {
        Ok(())
    }
    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let began = now();
        let mut sum = 0.0;
        for input in &run.inputs {
            let values = self.tensors.get(input).ok_or(DeviceError::NoTensor(input.0))?;
            sum += floats(values).sum::<f32>();
        }
        while began.elapsed() < self.lasts {
            std::hint::spin_loop();
        }
        let result = sum.to_le_bytes().repeat(OUTPUTS);
        run.outputs.iter().for_each(|(_, output)| drop(self.tensors.insert(*output, result.clone())));
        Ok(began.elapsed())
    }
    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        let values = self.tensors.get(&tensor).ok_or(DeviceError::NoTensor(tensor.0))?;
        Value::new(Element::Float32, vec![1, values.len() / 4], values.clone())
            .map_err(|error| DeviceError::Value(error.to_string()))
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn free(&mut self, tensor: TensorId) {
        self.tensors.remove(&tensor);
    }
    fn unload(&mut self, _: ModelId) {}
    fn memory(&self) -> u64 {
        0
    }
}

struct Adders(Duration);

impl Opener for Adders {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        Snapshot { name: "adder".to_owned(), window: limits.window, ..Snapshot::default() }
    }
    fn open(&self, _: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Adder { lasts: self.0, tensors: HashMap::new() }))
    }
}

fn proxy(lasts: Duration) -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut store = Store::open(&folder.path().join("models"), 1 << 20)?;
    let place = folder.path().join("session");
    Ok(serve(Carrier::of_socket(socket)?, &Adders(lasts), &mut Everybody::default(), &mut store, &place)?)
}

/// A session with a new process.
struct Proxied {
    session: Session,
    model: ModelId,
}

impl Proxied {
    fn start(shares: bool, microseconds: u64) -> Result<Self, AnyError> {
        let (ours, theirs) = UnixStream::pair()?;
        Command::new(std::env::current_exe()?)
            .args([PROXY, &microseconds.to_string()])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let carrier = Carrier::of_socket(ours)?;
        let carrier = if shares { carrier } else { carrier.without_memory() };
        let session = Session::open(carrier, "example", "overhead")?;
        let model = session.load(&artifact_of("adder", b"x", 1, 1), |_| Ok(Box::new(&b"x"[..])))?;
        Ok(Self { session, model })
    }

    fn infer(&self, input: &[u8]) -> Result<Option<f32>, AnyError> {
        let mut lane = self.session.lane();
        let tensor = lane.upload(Element::Float32, &SHAPE, input)?;
        let outputs = lane.run(self.model, &[tensor], &[0])?;
        let pending = lane.read(outputs[0])?;
        lane.free(&[tensor, outputs[0]])?;
        drop(lane);
        Ok(floats(pending.wait()?.value()?.bytes()).next())
    }
}

fn infer_here(device: &mut dyn Device, input: &[u8]) -> Result<Option<f32>, AnyError> {
    let (tensor, output) = (TensorId(1), TensorId(2));
    device.upload(tensor, Value::new(Element::Float32, SHAPE.to_vec(), input.to_vec())?)?;
    device.run(&Run { model: ModelId(1), inputs: vec![tensor], outputs: vec![(0, output)] })?;
    let value = device.read(output)?;
    device.free(tensor);
    device.free(output);
    Ok(floats(value.bytes()).next())
}

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    if arguments.first().is_some_and(|first| first == PROXY) {
        return proxy(Duration::from_micros(number(1, 0)?));
    }
    let (rounds, microseconds) = (number(0, 2000)?, number(1, 0)?);
    let mut here = Adders(Duration::from_micros(microseconds)).open(&Limits::default())?;
    let socket = Proxied::start(false, microseconds)?;
    let shared = Proxied::start(true, microseconds)?;
    let values = (0..SHAPE.iter().product()).flat_map(|at: usize| (at as f32).to_le_bytes());
    let input: Vec<u8> = values.collect();
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..rounds {
        let mut results = [None; 3];
        for (way, result) in results.iter_mut().enumerate() {
            let began = now();
            *result = match way {
                0 => infer_here(&mut *here, &input)?,
                1 => socket.infer(&input)?,
                _ => shared.infer(&input)?,
            };
            times[way].push(began.elapsed());
        }
        if results != [results[0]; 3] {
            return Err(format!("the results differ: {results:?}").into());
        }
    }
    println!("{rounds} rounds, runs of at least {microseconds} us, in us");
    println!("way      median     p99  median over here");
    let mut median_here = 0.0;
    for (name, times) in ["here", "socket", "memory"].into_iter().zip(&mut times) {
        times.sort();
        let at =
            |part: usize| times.get(times.len() * part / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6);
        if name == "here" {
            median_here = at(50);
        }
        println!("{name:8} {:6.0}  {:6.0}  {:+.0}", at(50), at(99), at(50) - median_here);
    }
    let mut empty = Vec::new();
    for _ in 0..rounds {
        let began = now();
        shared.session.flush()?;
        empty.push(began.elapsed());
    }
    empty.sort();
    println!("round trip without a tensor: median {:.0}", empty[empty.len() / 2].as_secs_f64() * 1e6);
    println!("shared memory: {:?}", shared.session.traffic());
    Ok(())
}
