//! Who has a state in a bucket, and whether they are still there.
//!
//! A bucket has no lock that ends with a process. So the manifest has a lease in it, which its holder renews. Whether it
//! has run out is not told from clocks, which two machines may have set differently: who wants the state watches it for
//! [`TERM`], and takes it if it was not renewed in that time. Nothing but convenience depends on that being right: every
//! write is a compare-and-swap, so of two that believe to have the state only one can write.
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;
use tidemill_state::Holder;

/// A lease that was not renewed for this time has run out.
pub const TERM: Duration = Duration::from_secs(15);

/// How often a lease is renewed: two renewals may fail.
pub(crate) const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// Who has a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// For people.
    pub(crate) holder: Holder,
    /// The holder as the machine knows it; none: the machine does not tell.
    pub(crate) process: Option<Process>,
}

/// A process of a machine, and no other one, whatever is started later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The machine since its last start.
    boot: String,
    /// Whose processes the number is one of: containers of one machine have numbers of their own.
    namespace: String,
    number: u32,
    /// When it was started, in ticks of the machine: numbers come again.
    started: u64,
}

impl Lease {
    /// Held by this process, from now on.
    pub(crate) fn of_this_process() -> Self {
        Self { holder: Holder::this_process(), process: Process::this() }
    }

    /// Whether the holder runs; none: this machine cannot tell.
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

/// When a process was started; none: there is none of this number, or it has ended and nobody has asked how.
fn started(number: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name of the program is in parentheses and may have some itself.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let has_ended = matches!(fields.first()?, &"Z" | &"X" | &"x");
    // `starttime` is field 22 of all, counted from 1; the state is field 3.
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
