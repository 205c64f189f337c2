use super::*;
use crate::cgroup::{LEAST_QUOTA, Limits};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A simulated kernel.
#[derive(Default)]
struct Kernel {
    counters: Counters,
    working_set: u64,
    quota: Option<u64>,
    memory: Option<u64>,
    is_gone: bool,
    is_stuck: bool,
    kills: bool,
    refuses_memory_below: u64,
}

struct Fake {
    folder: PathBuf,
    kernel: Arc<Mutex<Kernel>>,
}

impl Fake {
    fn with<T>(&self, act: impl FnOnce(&mut Kernel) -> T) -> Result<T, GroupError> {
        let mut kernel = self.kernel.lock().unwrap();
        match kernel.is_gone {
            true => Err(GroupError::Gone { path: self.folder.clone() }),
            false => Ok(act(&mut kernel)),
        }
    }
}

impl Group for Fake {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn counters(&mut self) -> Result<Counters, GroupError> {
        self.with(|kernel| kernel.counters)
    }

    fn working_set(&mut self) -> Result<u64, GroupError> {
        self.with(|kernel| kernel.working_set)
    }

    fn limits(&self) -> Result<Limits, GroupError> {
        self.with(|kernel| Limits { quota: kernel.quota, period: 100_000, memory: kernel.memory })
    }

    fn found(&self) -> Result<Found, GroupError> {
        self.with(|_| Found::default())
    }

    fn set_quota(&mut self, quota: u64, _: u64) -> Result<(), GroupError> {
        assert!(quota >= LEAST_QUOTA, "the kernel takes no {quota}");
        self.with(|kernel| kernel.quota = Some(quota))
    }

    fn set_memory(&mut self, bytes: u64) -> Result<(), GroupError> {
        let path = self.folder.clone();
        self.with(|kernel| match bytes < kernel.refuses_memory_below {
            true => {
                let source = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
                Err(GroupError::Refused { path, value: bytes.to_string(), source })
            }
            false => {
                kernel.memory = Some(bytes);
                Ok(())
            }
        })?
    }

    fn trap(&mut self) -> Result<Option<OwnedFd>, GroupError> {
        Ok(None)
    }

    fn is_stuck(&self) -> Result<bool, GroupError> {
        self.with(|kernel| kernel.is_stuck)
    }

    fn let_kill(&mut self, yes: bool) -> Result<(), GroupError> {
        self.with(|kernel| kernel.kills = yes)
    }
}

type Kernels = Vec<Arc<Mutex<Kernel>>>;

fn agent(names: &[&str], options: Options) -> (Agent, Kernels) {
    let kernels: Kernels = names.iter().map(|_| Arc::default()).collect();
    let groups = names.iter().zip(&kernels).map(|(name, kernel)| {
        let fake = Fake { folder: PathBuf::from(*name), kernel: Arc::clone(kernel) };
        ((*name).to_owned(), Box::new(fake) as Box<dyn Group>)
    });
    let mut agent = Agent::new(options);
    let mut told = 0;
    agent.attach(groups.collect(), &mut |found| told = found.len()).unwrap();
    assert_eq!(told, names.len(), "what is found is told before it is changed");
    (agent, kernels)
}

#[test]
fn all_begin_with_an_even_share() {
    let (agent, kernels) = agent(&["a", "b"], Options::new(1.5, 600 << 20));
    for kernel in &kernels {
        let kernel = kernel.lock().unwrap();
        assert_eq!(kernel.quota, Some(75_000));
        assert_eq!(kernel.memory.unwrap() >> 20, 210, "seven tenths, between two");
    }
    assert_eq!(agent.snapshot().free_processors, 0.0);
    assert_eq!(agent.snapshot().free_memory_bytes >> 20, 180);
}

#[test]
fn one_that_has_ended_leaves_what_it_had() {
    let (mut agent, kernels) = agent(&["a", "b"], Options::new(1.0, 600 << 20));
    kernels[0].lock().unwrap().is_gone = true;
    agent.look();
    assert_eq!(agent.names().collect::<Vec<_>>(), ["b"]);
    assert!(agent.snapshot().free_processors >= 0.5);
}

#[test]
fn memory_is_given_before_it_runs_out_and_taken_back() {
    let (mut agent, kernels) = agent(&["a", "b"], Options::new(1.0, 600 << 20));
    let limit = |at: usize| kernels[at].lock().unwrap().memory.unwrap() >> 20;
    {
        let mut kernel = kernels[0].lock().unwrap();
        kernel.counters.memory = 205 << 20;
        kernel.working_set = 205 << 20;
    }
    agent.look();
    assert_eq!((limit(0), limit(1)), (230, 210));
    // Unused cached files are no reason.
    kernels[1].lock().unwrap().counters.memory = 209 << 20;
    agent.look();
    assert_eq!(limit(1), 210);
    // b is idle: its quota is taken before a gets nothing.
    for _ in 0..20 {
        let mut kernel = kernels[0].lock().unwrap();
        let full = kernel.memory.unwrap() - (1 << 20);
        (kernel.counters.memory, kernel.working_set) = (full, full);
        drop(kernel);
        agent.look();
    }
    assert_eq!((limit(0), limit(1)), (550, 50));
    assert_eq!(agent.snapshot().members[0].grants, 17);
}

#[test]
fn when_the_cap_is_used_up_the_kernel_ends_a_process_once() {
    let (mut agent, kernels) = agent(&["a"], Options::new(1.0, 100 << 20));
    {
        let mut kernel = kernels[0].lock().unwrap();
        (kernel.counters.memory, kernel.working_set, kernel.is_stuck) = (100 << 20, 100 << 20, true);
        kernel.memory = Some(100 << 20);
    }
    for _ in 0..3 {
        agent.look();
    }
    assert!(kernels[0].lock().unwrap().kills);
    {
        let mut kernel = kernels[0].lock().unwrap();
        (kernel.counters.memory, kernel.working_set, kernel.is_stuck) = (10 << 20, 10 << 20, false);
        kernel.counters.killed = 1;
    }
    agent.look();
    assert!(!kernels[0].lock().unwrap().kills, "the next time it waits again");
    assert_eq!(agent.snapshot().members[0].killed, 1);
}

#[test]
fn memory_that_cannot_be_taken_back_stays_counted() {
    let (mut agent, kernels) = agent(&["a", "b"], Options::new(1.0, 600 << 20));
    kernels[0].lock().unwrap().refuses_memory_below = 200 << 20;
    let used = agent.working_sets();
    let orders = agent.allocator.reclaim(&used);
    agent.apply(orders);
    let kept = kernels[0].lock().unwrap().memory.unwrap();
    assert_eq!((kept >> 20, agent.allocator.limits("a").unwrap().1), (210, kept));
    assert_eq!((agent.snapshot().refused, kernels[1].lock().unwrap().memory), (1, Some(50 << 20)));
}

#[test]
fn a_dry_run_writes_nothing() {
    let (mut agent, kernels) = agent(&["a"], Options { dry_run: true, ..Options::new(1.0, 600 << 20) });
    agent.look();
    let kernel = kernels[0].lock().unwrap();
    assert_eq!((kernel.quota, kernel.memory), (None, None));
    assert!(agent.snapshot().is_dry_run);
}

#[test]
fn what_is_too_much_is_refused_and_nothing_changes() {
    let (mut agent, _kernels) = agent(&["a"], Options::new(1.0, 100 << 20));
    let kernel = Arc::new(Mutex::new(Kernel { working_set: 500 << 20, ..Kernel::default() }));
    let fake = Fake { folder: "big".into(), kernel: Arc::clone(&kernel) };
    let told = agent.attach(vec![("big".into(), Box::new(fake))], &mut |_| {}).unwrap_err().to_string();
    assert!(told.contains("use 500 MiB of memory, but the total is 100 MiB"), "{told}");
    assert_eq!(agent.names().count(), 1);
    assert_eq!(kernel.lock().unwrap().memory, None);
}
