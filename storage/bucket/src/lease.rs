//! The holder of a state in a bucket, and whether it is alive.
//!
//! A bucket has no lock that ends with a process. So the manifest contains a lease, which its holder renews. Expiry
//! does not depend on clocks, which may differ between machines: a process that wants the state watches the lease for
//! [`TERM`], and takes it if it was not renewed in that time. Only convenience depends on that being right: every write
//! is a compare-and-swap, so of two processes that believe to have the state only one can write.
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;
use tidemill_state::Holder;

/// A lease not renewed for this time has expired.
pub const TERM: Duration = Duration::from_secs(15);

/// Interval of renewals: two may fail.
pub(crate) const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// The holder of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// For messages.
    pub(crate) holder: Holder,
    /// The holder as its machine identifies it; none: unavailable.
    pub(crate) process: Option<Process>,
}

/// A process of a machine, unique over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The machine since its last boot.
    boot: String,
    /// Namespace of the number: containers of one machine have their own numbers.
    namespace: String,
    number: u32,
    /// Start time in ticks of the machine, because numbers are reused.
    started: u64,
}

impl Lease {
    /// Creates a lease of this process, from now on.
    pub(crate) fn of_this_process() -> Self {
        Self { holder: Holder::this_process(), process: Process::this() }
    }

    /// Whether the holder runs; none: this machine cannot know.
    pub(crate) fn is_alive(&self) -> Option<bool> {
        let (of, this) = (self.process.as_ref()?, Process::this()?);
        let is_here = of.boot == this.boot && of.namespace == this.namespace;
        is_here.then(|| started(of.number) == Some(of.started))
    }
}

impl Process {
    fn this() -> Option<Self> {
        let number = std::process::id();
        Some(Self {
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned(),
            namespace: fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned(),
            number,
            started: started(number)?,
        })
    }
}

/// Start time of a process; none: it does not exist, or is a zombie.
fn started(number: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name of the program is in parentheses and may contain some.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let has_ended = matches!(fields.first()?, &"Z" | &"X" | &"x");
    // `starttime` is field 22, counted from 1; the state is field 3.
    if has_ended { None } else { fields.get(19)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let mut lease = Lease::of_this_process();
        assert_eq!(lease.is_alive(), Some(true));
        let process = lease.process.as_mut().expect("a machine that tells");
        (process.number, process.started) = (child.id(), started(child.id()).expect("it runs"));
        assert_eq!(lease.is_alive(), Some(true));
        child.kill().expect("it can be killed");
        while lease.is_alive() == Some(true) {
            std::thread::yield_now();
        }
        child.wait().expect("it has ended");
        assert_eq!(lease.is_alive(), Some(false));
    }

    #[test]
    fn another_process_of_the_same_number_is_not_the_holder() {
        let mut lease = Lease::of_this_process();
        lease.process.as_mut().expect("a machine that tells").started += 1;
        assert_eq!(lease.is_alive(), Some(false));
        lease.process.as_mut().expect("a machine that tells").boot.push('x');
        assert_eq!(lease.is_alive(), None);
        lease.process = None;
        assert_eq!(lease.is_alive(), None);
    }
}
