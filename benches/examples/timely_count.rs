//! The job of `benches/peers` written by hand on timely dataflow: counts of rows by key in tumbling windows of a
//! minute, from a CSV file to a CSV file. Nothing survives a crash.
//!
//! `timely_count INPUT OUTPUT [WORKERS]`
#![allow(clippy::expect_used, reason = "a program for measurements")]
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::sync::{Arc, Mutex};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::{Input, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};

const SIZE: u64 = 60_000;
/// Rows between two steps of the dataflow.
const BATCH: u64 = 10_000;

type Row = (u64, String, u64);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let input = arguments.next().expect("the file of rows");
    let output = arguments.next().expect("the file of counts");
    let workers: usize = arguments.next().map_or(1, |text| text.parse().expect("a number of workers"));
    let config = if workers > 1 { timely::Config::process(workers) } else { timely::Config::thread() };
    let file = File::create(output).expect("the output can be written");
    let written = Arc::new(Mutex::new(BufWriter::new(file)));
    let result = timely::execute(config, move |worker| {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut handle = InputHandle::new();
        let probe = ProbeHandle::new();
        let written = Arc::clone(&written);
        // A timestamp is the number of a window: once it is past, the window is complete.
        worker.dataflow::<u64, _, _>(|scope| {
            let hash = move |(_, key): &(u64, String)| hasher.hash_one(key);
            scope
                .input_from(&mut handle)
                .unary_frontier(Exchange::new(hash), "count", |_, _| {
                    let mut counts: HashMap<u64, HashMap<String, u64>> = HashMap::new();
                    let mut waiting = Vec::new();
                    move |(input, frontier), output| {
                        input.for_each(|time, rows: &mut Vec<(u64, String)>| {
                            let of_window = counts.entry(*time.time()).or_insert_with(|| {
                                waiting.push(time.retain(0));
                                HashMap::new()
                            });
                            for (_, key) in rows.drain(..) {
                                *of_window.entry(key).or_default() += 1;
                            }
                        });
                        waiting.retain(|time| {
                            if frontier.less_equal(time.time()) {
                                return true;
                            }
                            let window = *time.time();
                            let mut session = output.session(time);
                            for (key, n) in counts.remove(&window).into_iter().flatten() {
                                session.give((window * SIZE, key, n));
                            }
                            false
                        });
                    }
                })
                .unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(Pipeline, "write", |_, _| {
                    move |input, _| {
                        input.for_each(|_, rows: &mut Vec<Row>| {
                            let mut file = written.lock().expect("no worker panics");
                            for (start, key, n) in rows.drain(..) {
                                writeln!(file, "{key},{start},{n}").expect("space for the output");
                            }
                            file.flush().expect("space for the output");
                        });
                    }
                })
                .probe_with(&probe);
        });
        if worker.index() == 0 {
            let mut reader =
                BufReader::with_capacity(1 << 20, File::open(&input).expect("the input is there"));
            let mut line = String::new();
            reader.read_line(&mut line).expect("a header");
            let (mut rows, mut window) = (0, 0);
            loop {
                line.clear();
                if reader.read_line(&mut line).expect("rows") == 0 {
                    break;
                }
                let (key, at) = line.trim_end().split_once(',').expect("two columns");
                let at: u64 = at.parse().expect("a number");
                if at / SIZE > window {
                    window = at / SIZE;
                    handle.advance_to(window);
                }
                handle.send((at, key.to_owned()));
                rows += 1;
                if rows % BATCH == 0 {
                    worker.step();
                    // Stay at most one window ahead of the workers.
                    while window > 0 && probe.less_than(&(window - 1)) {
                        worker.step();
                    }
                }
            }
        }
    });
    result.expect("the dataflow runs");
}
