//! Bytes of messages between hosts, leaders and tenants. Each field has 8 bytes, little endian.
//!
//! ```
//! use tidemill_hints::message::{Entry, entries, read_entries};
//! // A host with ten machines, two directions each: 800 bytes each period.
//! let report: Vec<Entry> = (0..20).map(|link| Entry { link, ..Entry::default() }).collect();
//! let bytes = entries(&report);
//! assert_eq!(bytes.len(), 800);
//! assert_eq!(read_entries(&bytes)?, report);
//! # Ok::<(), tidemill_hints::message::MessageError>(())
//! ```
use crate::estimate::Load;
use crate::tree::{Link, Tree};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const FIELD: usize = 8;
/// Bytes of what a host says of a link.
pub const ENTRY: usize = 5 * FIELD;
/// Bytes of what a tenant gets of a link.
pub const LINK: usize = 3 * FIELD;
/// Bytes before the entries of an [`Aggregate`], and before the links of hints (only the age).
pub const HEADER: usize = 3 * FIELD;

/// The report of a host about the link of a machine, one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The link: twice the number of the machine in its rack, and 1 more for the direction to it.
    pub link: u64,
    /// Objects that use it, an average.
    pub sharers: f64,
    /// Its use, a rate.
    pub used: f64,
    /// Those of them that cross the end of the rack.
    pub crossing_sharers: f64,
    /// The use by those.
    pub crossing_used: f64,
}

/// The report of a leader about its rack, to other leaders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The rack.
    pub rack: u64,
    /// Counts the messages of this leader.
    pub number: u64,
    /// Age of its oldest entry.
    pub age: Duration,
    /// The links of its machines.
    pub entries: Vec<Entry>,
}

/// The hints of a tenant: the links of its tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Hints {
    /// Its machines and their racks.
    pub tree: Tree,
    /// Loads by the numbers of links.
    pub loads: Vec<Load>,
    /// Age of the oldest figure.
    pub age: Duration,
}

/// A reason why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It has a wrong length.
    #[error("a message has {found} bytes, which {expected}")]
    Length {
        /// Its length.
        found: usize,
        /// The length that is right.
        expected: &'static str,
    },
    /// A figure is not a number from 0.
    #[error("a message has a figure that is not a number from 0")]
    Figure,
    /// A number names no link or rack.
    #[error("a message has the number {0}, which names no link or rack")]
    Number(u64),
}

/// Writes what a host reports.
pub fn entries(entries: &[Entry]) -> Vec<u8> {
    let fields = entries.iter().flat_map(|entry| {
        let figures = [entry.sharers, entry.used, entry.crossing_sharers, entry.crossing_used];
        std::iter::once(entry.link).chain(figures.map(f64::to_bits))
    });
    bytes(fields)
}

/// Reads what [`entries`] wrote.
pub fn read_entries(bytes: &[u8]) -> Result<Vec<Entry>, MessageError> {
    if !bytes.len().is_multiple_of(ENTRY) {
        return Err(MessageError::Length { found: bytes.len(), expected: "is no multiple of 40" });
    }
    let entry = |chunk: &[u8]| {
        let at = |place| figure(field(chunk, place));
        Ok(Entry {
            link: field(chunk, 0),
            sharers: at(1)?,
            used: at(2)?,
            crossing_sharers: at(3)?,
            crossing_used: at(4)?,
        })
    };
    bytes.chunks_exact(ENTRY).map(entry).collect()
}

impl Aggregate {
    /// Writes it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut written = bytes([self.rack, self.number, micros(self.age)].into_iter());
        written.extend(entries(&self.entries));
        written
    }

    /// Reads what [`Self::bytes`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else {
            return Err(MessageError::Length { found: bytes.len(), expected: "is less than its header" });
        };
        let [rack, number, age] = [0, 1, 2].map(|place| field(header, place));
        Ok(Self { rack, number, age: Duration::from_micros(age), entries: read_entries(rest)? })
    }
}

impl Hints {
    /// Writes what changes: number, sharers and residual of each link.
    pub fn links(&self) -> Vec<u8> {
        let fields = self
            .loads
            .iter()
            .enumerate()
            .flat_map(|(id, load)| [id as u64, load.sharers.to_bits(), load.residual.to_bits()]);
        bytes(fields)
    }

    /// Writes what stays: the number of machines, the rack of each and the total of each link.
    pub fn topology(&self) -> Vec<u8> {
        let machines = self.tree.machines();
        let racks = (0..machines).map(|machine| self.tree.rack_of(machine) as u64);
        let totals = self.loads.iter().map(|load| load.total.to_bits());
        bytes(std::iter::once(machines as u64).chain(racks).chain(totals))
    }

    /// Reads what [`Self::topology`] wrote. All links are idle.
    pub fn read_topology(bytes: &[u8]) -> Result<Self, MessageError> {
        let wrong = MessageError::Length { found: bytes.len(), expected: "does not fit its machines" };
        if bytes.is_empty() || !bytes.len().is_multiple_of(FIELD) {
            return Err(wrong);
        }
        let (machines, fields) = (field(bytes, 0), bytes.len() / FIELD);
        if machines >= fields as u64 {
            return Err(wrong);
        }
        let machines = machines as usize;
        let racks: Vec<u64> = (1..=machines).map(|place| field(bytes, place)).collect();
        let tree = Tree::of(&racks);
        if let Some(machine) = (0..machines).find(|machine| tree.rack_of(*machine) as u64 != racks[*machine])
        {
            return Err(MessageError::Number(racks[machine]));
        }
        if fields != 1 + machines + tree.links() {
            return Err(wrong);
        }
        let totals = (1 + machines..fields).map(|place| figure(field(bytes, place)));
        let loads = totals.map(|total| total.map(Load::idle)).collect::<Result<_, _>>()?;
        Ok(Self { tree, loads, age: Duration::ZERO })
    }

    /// Takes over what [`Self::links`] wrote.
    pub fn update(&mut self, bytes: &[u8], age: Duration) -> Result<(), MessageError> {
        if bytes.len() != self.loads.len() * LINK {
            return Err(MessageError::Length { found: bytes.len(), expected: "does not fit its links" });
        }
        let mut loads = self.loads.clone();
        for chunk in bytes.chunks_exact(LINK) {
            let id = field(chunk, 0);
            let place = usize::try_from(id).ok().filter(|id| *id < loads.len());
            let load = &mut loads[place.ok_or(MessageError::Number(id))?];
            load.sharers = figure(field(chunk, 1))?;
            load.residual = figure(field(chunk, 2))?;
        }
        (self.loads, self.age) = (loads, age);
        Ok(())
    }

    /// Returns the rate of each link, by its number, as if nothing used it.
    pub fn totals(&self) -> Vec<f64> {
        self.loads.iter().map(|load| load.total).collect()
    }

    /// Returns what `own` objects would get on each link, by its number. Guarantees hold on the links of machines.
    pub fn rates(&self, own: f64, guarantee: crate::estimate::Guarantee) -> Vec<f64> {
        let rate = |(id, load): (usize, &Load)| {
            let at_machine = matches!(self.tree.link(id), Some(Link::Machine(..)));
            let guarantee = if at_machine { guarantee } else { crate::estimate::Guarantee::None };
            crate::estimate::bandwidth(*load, own, guarantee)
        };
        self.loads.iter().enumerate().map(rate).collect()
    }
}

fn micros(age: Duration) -> u64 {
    u64::try_from(age.as_micros()).unwrap_or(u64::MAX)
}

fn bytes(fields: impl Iterator<Item = u64>) -> Vec<u8> {
    fields.flat_map(u64::to_le_bytes).collect()
}

/// A field of a message that is long enough.
fn field(bytes: &[u8], place: usize) -> u64 {
    let mut value = [0; FIELD];
    value.copy_from_slice(&bytes[place * FIELD..(place + 1) * FIELD]);
    u64::from_le_bytes(value)
}

fn figure(bits: u64) -> Result<f64, MessageError> {
    let value = f64::from_bits(bits);
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(MessageError::Figure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Guarantee;
    use proptest::prelude::*;

    fn hints(racks: &[usize]) -> Hints {
        let tree = Tree::of(racks);
        let load = |id: usize| Load { total: 10.0 + id as f64, residual: 5.0, sharers: id as f64 };
        Hints { loads: (0..tree.links()).map(load).collect(), tree, age: Duration::from_millis(150) }
    }

    #[test]
    fn messages_have_the_published_sizes() {
        // 100 machines in 10 racks.
        let racks: Vec<usize> = (0..100).map(|machine| machine / 10).collect();
        assert_eq!(hints(&racks).links().len(), 5_280);
        // A host of ten machines, and a rack of twenty such hosts.
        let entry = |link| Entry { link, ..Entry::default() };
        let host: Vec<Entry> = (0..20).map(entry).collect();
        assert_eq!(entries(&host).len(), 800);
        let rack = Aggregate { entries: (0..400).map(entry).collect(), ..Aggregate::default() };
        assert_eq!(rack.bytes().len() - HEADER, 16_000);
        // What all of a thousand racks send each 100 ms: 1.28 Gbit/s, 0.26 % of 500 Gbit/s.
        let bits = 1_000 * (rack.bytes().len() - HEADER) * 8 * 10;
        assert_eq!(bits, 1_280_000_000);
        assert_eq!((bits as f64 / 500e9 * 1e4).round(), 26.0);
    }

    #[test]
    fn hints_are_read_as_written() {
        let known = hints(&[0, 0, 1, 2, 1]);
        let mut read = Hints::read_topology(&known.topology()).expect("it is a topology");
        assert_eq!((&read.tree, read.totals()), (&known.tree, known.totals()));
        assert_eq!(read.loads[3], Load::idle(13.0));
        read.update(&known.links(), known.age).expect("it fits");
        assert_eq!(read, known);
        let rates = read.rates(1.0, Guarantee::AtLeast(9.0));
        assert_eq!(rates[2], 9.0, "a machine has its guarantee");
        assert_eq!(rates[read.tree.id(Link::Rack(0, crate::tree::Direction::Up))], 5.0, "a rack has none");
    }

    #[test]
    fn broken_messages_are_rejected() {
        assert!(matches!(read_entries(&[0; 41]), Err(MessageError::Length { .. })));
        assert!(matches!(Aggregate::read(&[0; 23]), Err(MessageError::Length { .. })));
        let negative = Entry { used: -1.0, ..Entry::default() };
        assert_eq!(read_entries(&entries(&[negative])), Err(MessageError::Figure));
        let mut known = hints(&[0, 1]);
        let before = known.clone();
        let mut links = known.links();
        links[0] = 200;
        assert_eq!(known.update(&links, Duration::ZERO), Err(MessageError::Number(200)));
        assert!(known.update(&links[1..], Duration::ZERO).is_err());
        assert_eq!(known, before, "nothing is taken over of it");
        let mut topology = known.topology();
        topology[8] = 1;
        assert_eq!(Hints::read_topology(&topology), Err(MessageError::Number(1)), "the first rack is 0");
        topology[0..8].fill(255);
        assert!(Hints::read_topology(&topology).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Hints::read_topology(&bytes);
            if let Ok(read) = read_entries(&bytes) {
                prop_assert_eq!(entries(&read), bytes.clone());
            }
            if let Ok(read) = Aggregate::read(&bytes) {
                prop_assert_eq!(read.bytes(), bytes);
            }
        }
    }
}
