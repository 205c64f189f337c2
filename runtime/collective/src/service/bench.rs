//! Ranks of a benchmark, which are threads of the service.
use super::{Event, Up, now};
use crate::client::{Error, Group};
use crate::element::{Element, Reduction};
use crate::peers::{Key, ToConductor};
use crate::protocol::{Bench, Measured, NO_USER};
use crate::topology::Priority;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::thread::Builder;
use std::time::Duration;

/// Time until all ranks are there.
const JOINING: Duration = Duration::from_secs(30);
/// Operations before the first one that is measured.
const WARM: usize = 3;

/// Starts the ranks that this service has.
pub(super) fn run(group: &str, ranks: &[u32], bench: &Bench, up: &Up) {
    for rank in ranks.iter().copied() {
        let (group, bench, up) = (group.to_owned(), bench.clone(), up.clone());
        let work = move || {
            let outcome = measure(&group, rank, &bench, &up);
            if rank == 0 {
                let outcome = outcome.map_err(|error| error.to_string());
                up.send(ToConductor::Measured { group, outcome });
            }
        };
        if let Err(error) = Builder::new().name("tm-group-bench".into()).spawn(work) {
            tracing::error!("a rank of a benchmark has no thread: {error}");
        }
    }
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    let position = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(position.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// Joins as a program does, without the way by the door.
fn join(group: &str, rank: u32, size: u32, up: &Up) -> Result<Group, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (own, socket) = pair.map_err(std::io::Error::from)?;
    let key = Key { user: NO_USER, name: group.to_owned() };
    let priority = Priority::default();
    let _ = up.0.send(Event::Join { key, rank, size, priority, deadline: JOINING, socket });
    Group::over(own, rank, size)
}

fn measure(group: &str, rank: u32, bench: &Bench, up: &Up) -> Result<Measured, Error> {
    let group = join(group, rank, bench.ranks, up)?;
    let length = usize::try_from(bench.bytes / 4).unwrap_or(usize::MAX).max(1);
    let buffer = group.buffer(Element::F32, length)?;
    // Zeros stay zeros however often they are added. Rank 0 says with its last element when it is over.
    let last = length - 1;
    let until = now() + Duration::from_millis(bench.time_ms);
    let mut times = Vec::new();
    for round in 0.. {
        let is_last = rank == 0 && round >= WARM && now() >= until;
        buffer.write(last, &[if is_last { 1.0_f32 } else { 0.0 }])?;
        let begun = now();
        group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
        if round >= WARM {
            times.push(now().saturating_duration_since(begun).as_secs_f64() * 1e6);
        }
        let mut word = [0.0_f32];
        buffer.read(last, &mut word)?;
        if word[0] > 0.5 {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(Measured {
        ranks: bench.ranks,
        hosts: 0,
        bytes: length as u64 * 4,
        operations: times.len() as u64,
        p50_us: percentile(&times, 0.5),
        p99_us: percentile(&times, 0.99),
        copy_us: if rank == 0 { copy(length * 4) } else { 0.0 },
    })
}

/// Median time of a copy of as many bytes.
fn copy(bytes: usize) -> f64 {
    let (from, mut into) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    let time = |_| {
        let begun = now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut into);
        now().saturating_duration_since(begun).as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..9).map(time).collect();
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.5)
}
