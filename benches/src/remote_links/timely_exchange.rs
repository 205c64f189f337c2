//! The bytes of the links through timely's own exchange between two processes, one worker each.
use super::far_end::Place;
use super::{VOLUME, WINDOW, now};
use anyhow::{Context, anyhow, ensure};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::Path;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::{CommunicationConfig, Config, WorkerConfig};

/// Bytes serialized in one piece: a vector would be serialized byte by byte.
#[derive(Clone)]
struct Whole(Vec<u8>);

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Whole;

            fn expecting(&self, text: &mut std::fmt::Formatter) -> std::fmt::Result {
                text.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Whole, E> {
                Ok(Whole(bytes.to_vec()))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Whole, E> {
                Ok(Whole(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// Measures the GB/s from the first process to the second, from the first record until all are known to have arrived.
fn carry(process: usize, addresses: Vec<String>, width: usize) -> anyhow::Result<f64> {
    let communication =
        CommunicationConfig::Cluster { threads: 1, process, addresses, report: false, zerocopy: false };
    let config = Config { communication, worker: WorkerConfig::default() };
    let guards = timely::execute(config, move |worker| {
        let mut input = InputHandle::<u64, CapacityContainerBuilder<Vec<Whole>>>::new();
        let probe = ProbeHandle::new();
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .exchange(|_: &Whole| 1)
                .inspect(|bytes: &Whole| assert!(!bytes.0.is_empty()))
                .probe_with(&probe);
        });
        if worker.index() == 1 {
            drop(input);
            while !probe.done() {
                worker.step_or_park(None);
            }
            return 0.0;
        }
        let times = VOLUME / width;
        // As many bytes in flight as our channels allow.
        let ahead = (WINDOW / width).max(1);
        let begin = now();
        for number in 0..times {
            input.send(Whole(vec![7u8; width]));
            input.advance_to(number as u64 + 1);
            worker.step();
            while number >= ahead && probe.less_than(&((number - ahead) as u64)) {
                worker.step();
            }
        }
        drop(input);
        while !probe.done() {
            worker.step();
        }
        (times * width) as f64 / begin.elapsed().as_secs_f64() / 1e9
    });
    let guards = guards.map_err(|error| anyhow!("timely does not start: {error}"))?;
    let rates = guards.join().into_iter().map(|rate| rate.map_err(|error| anyhow!("timely: {error}")));
    rates.sum()
}

/// Does the work of the second process: `WIDTH NEAR FAR`.
pub(crate) fn serve(task: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = task.split(' ').collect();
    let [width, near, far] = parts.as_slice() else { return Err(anyhow!("not a task: {task}")) };
    carry(1, vec![(*near).to_owned(), (*far).to_owned()], width.parse()?).map(drop)
}

/// Measures the exchange between this process and one at the place.
pub(super) fn measure(place: &Place, folder: &Path, width: usize) -> anyhow::Result<f64> {
    // A port that was free a moment ago; timely takes addresses, not sockets.
    let free = std::net::TcpListener::bind((place.near.as_str(), 0))?.local_addr()?.port();
    let far = if place.namespace.is_some() { 4101 } else { free_port()? };
    let (near, far) = (format!("{}:{free}", place.near), format!("{}:{far}", place.far));
    let mut command = place.command(folder)?;
    command.args(["timely-far-end", "--far-end", &format!("{width} {near} {far}")]);
    let mut child = command.spawn().context("cannot start the second process")?;
    let rate = carry(0, vec![near, far], width);
    if rate.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    ensure!(status.success(), "the second process of timely ended with {status}");
    rate
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
