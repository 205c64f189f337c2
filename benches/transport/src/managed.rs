//! Calls through the transport service: programs, a service on each host, and loopback TCP between services.
//!
//! - A service is this program in another role: it runs [`tidemill_net::Service`] and nothing else.
//! - The payload lies in the heap that the client shares with its service, and is sent from there again and again, as that of
//!   a program that has its frame there. The other contenders copy theirs with every call, because they have no such place.
//! - [`Workload::Stream`] goes the other way: the product streams replies only. Its items are copied into the server's heap.
//! - [`Workload::Paired`] compares a policy with none in the same processes: see [`paired`].
use crate::contender::{Contender, Gate, Running, Serve, listening};
use crate::drive::{Caller, Failure, Role};
use crate::load::{Filter, Latencies, Load, Outcome, SMALL, Scenario, Workload};
use crate::process::{Child, Room};
use anyhow::{Context, ensure};
use bytes::Bytes;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tidemill_net::edge_name::EdgePattern;
use tidemill_net::protocol::{PolicySpec, Request, Side};
use tidemill_rpc::schema::{FlatReader, FlatWriter, Invalid, Message};
use tidemill_rpc::{BoxFuture, Channel, Code, Incoming, Net, Replies, Response, Status};

/// All rows.
pub fn rows() -> Vec<Box<dyn Contender>> {
    let ways = [Way::Two, Way::TwoWithNone, Way::One, Way::TwoWithQos];
    ways.into_iter().map(|way| -> Box<dyn Contender> { Box::new(Managed(way)) }).collect()
}

/// Services and policies that a call goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The service of the client, loopback TCP, the service of the server.
    Two,
    /// The same, with the policy `none` at the client's service.
    TwoWithNone,
    /// One service, to which both belong.
    One,
    /// As [`Way::Two`], with the policy `qos` at the client's service.
    TwoWithQos,
}

struct Managed(Way);

const SERVICE: &str = "bench.Echo";
const PROTO: &str = r#"
syntax = "proto3";
package bench;
message Data { string role = 1; uint64 count = 2; bytes payload = 3; }
service Echo {
  rpc Unary(Data) returns (Data);
  rpc Stream(Data) returns (stream Data);
}
"#;
const UNARY: u32 = 0;
const STREAM: u32 = 1;

/// The schema, compiled once in a process.
fn schema() -> &'static [u8] {
    static SCHEMA: OnceLock<Vec<u8>> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("bench.proto"), PROTO).expect("it is written");
        let set = protox::compile(["bench.proto"], [folder.path()]).expect("it is right");
        prost::Message::encode_to_vec(&set)
    })
}

/// The one message, for requests and replies.
#[derive(Debug, Clone, Default, PartialEq)]
struct Data {
    role: String,
    count: u64,
    payload: Bytes,
}

impl Message for Data {
    const NAME: &'static str = "bench.Data";
    const FIELDS: usize = 3;

    fn write(&self, to: &mut FlatWriter<'_>) {
        to.implicit(0, &self.role);
        to.implicit(1, &self.count);
        to.implicit(2, &self.payload);
    }

    fn read(from: &FlatReader<'_>) -> Result<Self, Invalid> {
        Ok(Self { role: from.implicit(0)?, count: from.implicit(1)?, payload: from.implicit(2)? })
    }
}

/// A server, or a service of a chain.
#[derive(Clone)]
struct Echo {
    next: Option<Channel>,
}

impl tidemill_rpc::Service for Echo {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn descriptors(&self) -> &'static [u8] {
        schema()
    }

    fn call(&self, method: u32, call: Incoming) -> BoxFuture<'static, ()> {
        let next = self.next.clone();
        Box::pin(async move {
            let request: tidemill_rpc::Request<Data> = match call.request() {
                Ok(request) => request,
                Err(status) => return call.fail(status),
            };
            if method == STREAM {
                let replies: Replies<Data> = call.replies();
                for _ in 0..request.message.count {
                    let payload = request.message.payload.clone();
                    if replies.send(Data { count: 1, payload, ..Data::default() }).await.is_err() {
                        return;
                    }
                }
                return call.end(Ok(()));
            }
            let reply: Result<Response<Data>, Status> = match next {
                Some(next) => {
                    let payload = request.message.payload;
                    next.unary(UNARY, Data { count: 1, payload, ..Data::default() }.into()).await
                }
                None => {
                    let payload = Bytes::from_static(&[9; SMALL]);
                    Ok(Data { count: 1, payload, ..Data::default() }.into())
                }
            };
            call.reply(reply).await;
        })
    }
}

/// A client: a program of its own for its service.
#[derive(Clone)]
struct RpcCaller {
    channel: Channel,
    /// The payload in the heap of this program.
    payload: Rc<RefCell<Bytes>>,
}

async fn bind(net: &Net, at: &str) -> anyhow::Result<Channel> {
    let at: &[&str] = if at == HERE { &[] } else { &[at] };
    Ok(net.bind_at(SERVICE, schema(), at).await?)
}

impl RpcCaller {
    async fn connect(socket: &str, at: &str) -> anyhow::Result<Self> {
        let net = Net::connect_to(Path::new(socket), "client").await?;
        Ok(Self { channel: bind(&net, at).await?, payload: Rc::default() })
    }

    async fn own(&self, payload: &Bytes) -> Result<Bytes, Status> {
        let kept = self.payload.borrow().clone();
        if kept.len() == payload.len() {
            return Ok(kept);
        }
        let mut room = self.channel.room(payload.len()).await?;
        room.copy_from_slice(payload);
        let own = room.freeze();
        self.payload.replace(own.clone());
        Ok(own)
    }

    async fn unary(&self, payload: Bytes, role: Role) -> Result<Data, Status> {
        let payload = self.own(&payload).await?;
        let role = role.text().unwrap_or_default().to_owned();
        Ok(self.channel.unary(UNARY, Data { role, count: 1, payload }.into()).await?.message)
    }
}

impl Caller for RpcCaller {
    async fn call(&self, payload: Bytes, role: Role) -> Result<usize, Failure> {
        match self.unary(payload, role).await {
            Ok(reply) => Ok(reply.payload.len()),
            Err(status) if status.code == Code::PermissionDenied => Err(Failure::Refused),
            Err(status) => Err(Failure::Broken(status.to_string())),
        }
    }

    async fn stream(&self, payload: Bytes, count: u64) -> Result<u64, Failure> {
        let broken = |status: Status| Failure::Broken(status.to_string());
        let payload = self.own(&payload).await.map_err(broken)?;
        let (request, mut received) = (Data { count, payload, ..Data::default() }, 0);
        let mut stream = self.channel.streaming::<_, Data>(STREAM, request.into()).await.map_err(broken)?;
        while let Some(item) = stream.next().await.map_err(broken)? {
            received += item.count;
        }
        Ok(received)
    }
}

/// The word for an address: the server belongs to the same service.
const HERE: &str = "here";
/// Part of a process of this contender, in [`Serve::more`].
const AS_SERVICE: &str = "service";
/// The policy.
const POLICY: &str = "bench";

/// Kind and options of a filter's policy.
fn policy(filter: Filter) -> Option<(&'static str, &'static str)> {
    match filter {
        Filter::None => None,
        Filter::Null => Some(("none", "{}")),
        Filter::Limiter => Some(("rate_limit", "{}")),
        Filter::Acl => Some(("acl", r#"{"deny_if": "role != 'reader'"}"#)),
    }
}

fn attach(client: &mut tidemill_net::Client, (kind, options): (&str, &str)) -> anyhow::Result<()> {
    let edges = EdgePattern::parse(&format!("* -> {SERVICE}/*")).map_err(|why| anyhow::anyhow!("{why}"))?;
    let (id, kind) = (POLICY.to_owned(), kind.to_owned());
    let options = serde_json::from_str(options)?;
    client.ask(&Request::Attach(Box::new(PolicySpec { id, edges, side: Side::Sender, kind, options })))?;
    Ok(())
}

fn detach(client: &mut tidemill_net::Client) -> anyhow::Result<()> {
    client.ask(&Request::Detach { id: POLICY.into() })?;
    Ok(())
}

/// A service in a process of its own.
struct Host {
    child: Child,
    socket: PathBuf,
    address: String,
}

impl Managed {
    fn host(&self, room: &Room, at: &str, namespace: Option<&str>) -> anyhow::Result<Host> {
        let folder = room.path("net");
        std::fs::create_dir_all(&folder)?;
        let order = Serve {
            listen: folder.display().to_string(),
            next: Some(at.to_owned()),
            more: AS_SERVICE.into(),
        };
        let (child, address) = room.server(&self.name(), &order, namespace)?;
        Ok(Host { child, socket: folder.join("net.sock"), address })
    }
}

impl Contender for Managed {
    fn name(&self) -> String {
        match self.0 {
            Way::Two => "tidemill",
            Way::TwoWithNone => "tidemill + none",
            Way::One => "tidemill, one service",
            Way::TwoWithQos => "tidemill + qos",
        }
        .into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok("of this repository".into())
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        let is_qos = matches!(scenario.workload, Workload::Qos(..));
        !matches!(scenario.workload, Workload::Channel(_))
            && match self.0 {
                Way::Two => true,
                Way::TwoWithNone => scenario.filter == Filter::None && !is_qos && !scenario.is_paired(),
                Way::One => {
                    scenario.filter == Filter::None
                        && scenario.services == 1
                        && scenario.link.is_none()
                        && !scenario.is_paired()
                }
                Way::TwoWithQos => is_qos,
            }
    }

    /// Place 0 has the client, place n server n; each has a service.
    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let link = scenario.link.as_ref();
        let (here, there) = (link.map(|link| link.client.as_str()), link.map(|link| link.server.as_str()));
        let ip = link.map_or("127.0.0.1", |link| link.address.as_str());
        let first = self.host(room, "127.0.0.1:0", here)?;
        let mut processes = Vec::new();
        let (mut next, mut first_address) = (None, HERE.to_owned());
        for _ in 0..scenario.services {
            let of_its_own = match self.0 {
                Way::One => None,
                _ => Some(self.host(room, &format!("{ip}:0"), there)?),
            };
            let host = of_its_own.as_ref().unwrap_or(&first);
            let order = Serve { listen: host.socket.display().to_string(), next, ..Serve::default() };
            processes.push(room.server(&self.name(), &order, there)?.0);
            if let Some(host) = of_its_own {
                first_address = host.address.clone();
                processes.push(host.child);
            }
            next = Some(first_address.clone());
        }
        let policy = match self.0 {
            Way::TwoWithNone => Some(("none", "{}")),
            Way::TwoWithQos => Some(("qos", r#"{"small_bytes": "1KiB"}"#)),
            _ if scenario.is_paired() => None,
            _ => policy(scenario.filter),
        };
        if let Some(policy) = policy {
            attach(&mut tidemill_net::Client::connect(&first.socket, 0)?, policy)?;
        }
        let target = format!("{} {first_address}", first.socket.display());
        processes.push(first.child);
        let numbers: Vec<String> = processes.iter().map(|child| child.number().to_string()).collect();
        Ok(Running { target: format!("{target} {}", numbers.join(",")), processes })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        if order.more == AS_SERVICE {
            return run_service(Path::new(&order.listen), order.next.as_deref().unwrap_or("127.0.0.1:0"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let net = Net::connect_to(Path::new(&order.listen), "server").await?;
            let next = match &order.next {
                Some(at) => Some(bind(&net, at).await?),
                None => None,
            };
            let _serving = net.serve(Echo { next }).await?;
            listening(&order.listen);
            std::future::pending().await
        })
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        let words: Vec<&str> = target.split(' ').collect();
        let [socket, at, processes] = words[..] else { anyhow::bail!("a target of another kind: {target}") };
        if let Workload::Paired(in_flight) = load.workload {
            let mut all = vec![std::process::id()];
            all.extend(processes.split(',').filter_map(|number| number.parse::<u32>().ok()));
            return paired(load, in_flight, (socket, at), &all, gate);
        }
        crate::drive::run(load, gate, || RpcCaller::connect(socket, at))
    }
}

fn run_service(folder: &Path, public: &str) -> anyhow::Result<()> {
    let options = tidemill_net::Options {
        socket: folder.join("net.sock"),
        folder: folder.to_owned(),
        public: Some(tidemill_link::remote::Address::new("tcp", public)),
        security: tidemill_link::remote::Security::none(),
        on_upgrade: None,
        on_panic: None,
    };
    let service = tidemill_net::Service::start(options)?;
    listening(service.public().context("it is not public")?);
    loop {
        std::thread::park();
    }
}

/// Seconds of a slice: short, so that both sides of a pair have the same machine.
const SLICE: f64 = 0.025;

/// One slice.
struct Slice {
    p50: f64,
    mean: f64,
    calls_per_s: f64,
    processor_us: f64,
    calls: u64,
    refused: u64,
    errors: u64,
}

/// Compares a policy with none: the same client, server and services, with the policy attached and detached between short
/// slices, in the order `- + + -`. Nothing is in flight between slices. Reported are medians of the differences within pairs,
/// with the interval that has the true median with a confidence of 95 %. With [`Filter::None`], both sides are alike: what comes
/// out is what this way of measuring cannot see.
fn paired(
    load: &Load,
    in_flight: usize,
    (socket, at): (&str, &str),
    processes: &[u32],
    gate: &mut Gate,
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let caller = RpcCaller::connect(socket, at).await?;
        let mut client = tidemill_net::Client::connect(Path::new(socket), 0)?;
        slice(&caller, load, in_flight, load.warmup, processes).await;
        gate.pass()?;
        let started = Instant::now();
        let mut pairs: Vec<[Slice; 2]> = Vec::new();
        while started.elapsed().as_secs_f64() < load.seconds {
            let first_is_on = pairs.len() % 2 == 1;
            let mut both = Vec::new();
            for is_on in [first_is_on, !first_is_on] {
                match policy(load.filter).filter(|_| is_on) {
                    Some(policy) => attach(&mut client, policy)?,
                    // The other side asks something, too.
                    None => drop(client.ask(&Request::List)?),
                }
                // What was not warm after the change is not measured.
                slice(&caller, load, in_flight, SLICE / 5.0, processes).await;
                both.push(slice(&caller, load, in_flight, SLICE, processes).await);
                if is_on && load.filter != Filter::None {
                    detach(&mut client)?;
                }
            }
            if first_is_on {
                both.swap(0, 1);
            }
            pairs.extend(<[Slice; 2]>::try_from(both).ok());
        }
        ensure!(pairs.len() > 5, "only {} pairs", pairs.len());
        Ok(compared(&pairs, started))
    })
}

async fn slice(caller: &RpcCaller, load: &Load, in_flight: usize, seconds: f64, processes: &[u32]) -> Slice {
    let (latencies, counts) =
        (Rc::new(RefCell::new(Latencies::default())), Rc::new(RefCell::new([0_u64; 3])));
    let (before, started) = (processor_time(processes), Instant::now());
    let deadline = started + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..in_flight)
        .map(|number| {
            let (caller, latencies, counts) = (caller.clone(), latencies.clone(), counts.clone());
            let is_acl = load.filter == Filter::Acl;
            let payload = Bytes::from_static(&[7; SMALL]);
            let mut turn = number * 37;
            tokio::task::spawn_local(async move {
                while Instant::now() < deadline {
                    turn += 1;
                    let role = if is_acl && turn.is_multiple_of(100) { Role::Intruder } else { Role::Reader };
                    let since = Instant::now();
                    let result = caller.call(payload.clone(), role).await;
                    let of = match result {
                        Ok(_) => 0,
                        Err(Failure::Refused) => 1,
                        Err(Failure::Broken(_)) => 2,
                    };
                    counts.borrow_mut()[of] += 1;
                    if of == 0 {
                        let time = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        latencies.borrow_mut().add(time);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    let (seconds, processor) = (started.elapsed().as_secs_f64(), processor_time(processes) - before);
    let [calls, refused, errors] = *counts.borrow();
    let all = (calls + refused).max(1) as f64;
    let mut of = Outcome::default();
    latencies.borrow().write_to(&mut of);
    Slice {
        p50: of.p50,
        mean: of.mean,
        calls_per_s: all / seconds,
        processor_us: processor * 1e6 / all,
        calls,
        refused,
        errors,
    }
}

/// Processor time of all threads in seconds, in steps of nanoseconds.
fn processor_time(processes: &[u32]) -> f64 {
    let tasks = processes.iter().flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
    let times = tasks.flatten().flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e9
}

/// The median and the bounds of the interval that has the true one with a confidence of 95 %, by the order of the values.
fn interval(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let (middle, reach) = (count / 2.0, 0.98 * count.sqrt());
    let at = |place: f64| values[(place.max(0.0) as usize).min(values.len() - 1)];
    [f64::midpoint(at(middle), at((count - 1.0) / 2.0)), at(middle - reach), at(middle + reach)]
}

fn compared(pairs: &[[Slice; 2]], started: Instant) -> Outcome {
    let mut outcome = Outcome { seconds: started.elapsed().as_secs_f64(), ..Outcome::default() };
    for slice in pairs.iter().flatten() {
        outcome.calls += slice.calls;
        outcome.refused += slice.refused;
        outcome.errors += slice.errors;
    }
    outcome.bytes = outcome.calls * SMALL as u64;
    let mut say = |name: &str, value: f64| {
        outcome.more.insert(name.to_owned(), value);
    };
    say("pairs", pairs.len() as f64);
    let differences: [(&str, fn(&[Slice; 2]) -> f64); 4] = [
        ("p50_us", |[without, with]| with.p50 - without.p50),
        ("mean_us", |[without, with]| with.mean - without.mean),
        ("calls_percent", |[without, with]| (without.calls_per_s / with.calls_per_s - 1.0) * 100.0),
        ("processor_percent", |[without, with]| (with.processor_us / without.processor_us - 1.0) * 100.0),
    ];
    for (name, difference) in differences {
        let [median, low, high] = interval(pairs.iter().map(difference).collect());
        say(name, median);
        say(&format!("{name}_low"), low);
        say(&format!("{name}_high"), high);
    }
    let [p50, ..] = interval(pairs.iter().map(|[without, _]| without.p50).collect());
    let [rate, ..] = interval(pairs.iter().map(|[without, _]| without.calls_per_s).collect());
    let [processor, ..] = interval(pairs.iter().map(|[without, _]| without.processor_us).collect());
    say("without_p50_us", p50);
    say("without_calls_per_s", rate);
    say("without_processor_us", processor);
    outcome.p50 = p50;
    outcome
}
