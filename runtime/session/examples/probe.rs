//! Sends numbered messages at a steady rate over a transport and writes when each was due and when it came:
//! `benches/experiments/paths.py` breaks paths meanwhile.
//!
//!     probe receive --listen session://fibre=10.77.1.2:7001,lte=10.77.2.2:7001 --out received
//!     probe send --to session://fibre=10.77.1.2:7001,lte=10.77.2.2:7001 --every-ms 5 --bytes 1024 --seconds 20 --out sent
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use tidemill_link::transport::{Address, Class, Stream};

fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn wait(descriptor: std::os::fd::BorrowedFd<'_>) -> Result<(), Box<dyn Error>> {
    let timeout = Duration::from_secs(60).try_into()?;
    match poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&timeout))? {
        0 => Err("nothing came for a minute".into()),
        _ => Ok(()),
    }
}

/// The messages of a stream, of which the first eight bytes are the number and the next four the length.
fn receive(mut stream: Box<dyn Stream>, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let (line, mut bytes, mut room) = (stream.line(), Vec::new(), vec![0; 64 << 10]);
    loop {
        match stream.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(count) => bytes.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(line.readable())?,
            Err(error) => return Err(error.into()),
        }
        let now = nanoseconds();
        while bytes.len() >= 12 {
            let number = u64::from_le_bytes(bytes[..8].try_into()?);
            let length = u32::from_le_bytes(bytes[8..12].try_into()?) as usize;
            if bytes.len() < length {
                break;
            }
            bytes.drain(..length);
            out.write_all(format!("{number} {now}\n").as_bytes())?;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    tidemill_session::install()?;
    if std::env::var_os("PROBE_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .init();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let verb = arguments.first().cloned().unwrap_or_default();
    let values: BTreeMap<&str, &str> = arguments
        .get(1..)
        .unwrap_or(&[])
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[name, value]| (name.as_str(), value.as_str()))
        .collect();
    let value = |name: &str| values.get(name).copied().ok_or_else(|| format!("{name} is missing"));
    let mut out = File::create(value("--out")?)?;
    if verb == "receive" {
        let address: Address = value("--listen")?.parse()?;
        let acceptor = address.transport()?.listen(address.place())?;
        println!("listens");
        wait(acceptor.readable())?;
        let mut stream = acceptor.accept()?;
        stream.classify(Class::Control);
        receive(stream, &mut out)?;
        out.flush()?;
        return Ok(());
    }
    if verb != "send" {
        return Err(
            "probe receive --listen ADDRESS --out FILE, or probe send --to ADDRESS --every-ms N --bytes N \
                    --seconds N --out FILE"
                .into(),
        );
    }
    let address: Address = value("--to")?.parse()?;
    let every = Duration::from_secs_f64(value("--every-ms")?.parse::<f64>()? / 1000.0).as_nanos() as u64;
    let (length, seconds): (usize, f64) = (value("--bytes")?.parse()?, value("--seconds")?.parse()?);
    let mut stream = address.transport()?.dial(address.place(), Duration::from_secs(10))?;
    stream.classify(Class::Control);
    let line = stream.line();
    let (begun, mut message) = (nanoseconds(), vec![0; length.max(12)]);
    let length = (message.len() as u32).to_le_bytes();
    message[8..12].copy_from_slice(&length);
    for number in 0..(seconds * 1e9) as u64 / every {
        let due = begun + number * every;
        std::thread::sleep(Duration::from_nanos(due.saturating_sub(nanoseconds())));
        message[..8].copy_from_slice(&number.to_le_bytes());
        let mut left = message.as_slice();
        while !left.is_empty() {
            match stream.write(&[IoSlice::new(left)]) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => match line.writable() {
                    Some(writable) => wait(writable)?,
                    None => {
                        let _ = poll(&mut [PollFd::from_borrowed_fd(line.readable(), PollFlags::OUT)], None)?;
                    }
                },
                Err(error) => return Err(error.into()),
            }
        }
        out.write_all(format!("{number} {due}\n").as_bytes())?;
    }
    out.flush()?;
    for path in address.transport()?.paths() {
        println!("{}", serde_json::to_string(&path)?);
    }
    drop(stream);
    // Until everything is acknowledged, or nothing more can be.
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}
