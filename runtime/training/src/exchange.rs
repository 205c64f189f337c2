//! The sum over all ranks.
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tidemill_collective::client::{self, Buffer, Group};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::FailureKind;

/// Adds up numbers of all ranks.
pub trait Exchange {
    /// Returns the position of this rank among those that take part, and their number.
    fn share(&self) -> (usize, usize);

    /// Replaces the numbers by their sums over all ranks.
    ///
    /// # Errors
    /// A rank is lost, or the service that adds up.
    fn sum(&mut self, numbers: &mut [i64]) -> Result<(), ExchangeError>;
}

/// Why numbers were not added up.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The group says why.
    #[error("the ranks cannot add up their gradients: {0}")]
    Group(#[from] client::Error),
    /// Something else, in another implementation.
    #[error("the ranks cannot add up their gradients: {0}")]
    Other(#[from] io::Error),
}

impl ExchangeError {
    /// Whether a rank, its machine or its service is gone: the others can continue.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Group(client::Error::Failed(failure)) => failure.kind == FailureKind::Lost,
            Self::Group(client::Error::Broken(_)) => true,
            Self::Group(_) | Self::Other(_) => false,
        }
    }
}

/// One rank without others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Exchange for Alone {
    fn share(&self) -> (usize, usize) {
        (0, 1)
    }

    fn sum(&mut self, _numbers: &mut [i64]) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// A rank of a group of the transport service.
#[derive(Debug)]
pub struct Ranks {
    pub(crate) group: Group,
    buffer: Option<Buffer>,
    /// Buffers of parts, by length.
    pub(crate) buffers: BTreeMap<usize, Buffer>,
}

impl Ranks {
    /// Creates an exchange over a group that all ranks have joined.
    pub fn new(group: Group) -> Self {
        Self { group, buffer: None, buffers: BTreeMap::new() }
    }
}

impl Ranks {
    /// Continues with the ranks that are left, and those that have come back. Ranks keep their numbers.
    ///
    /// # Errors
    /// The service is gone, or ranks do not call this in time.
    pub fn continues(&mut self, deadline: Duration) -> Result<(), ExchangeError> {
        match self.group.shrink(deadline) {
            Err(client::Error::Broken(_)) => {
                let group = self.group.rejoin(deadline)?;
                *self = Self::new(group);
                Ok(())
            }
            result => Ok(result?),
        }
    }
}

impl Exchange for Ranks {
    fn share(&self) -> (usize, usize) {
        let members = self.group.members();
        let own = members.iter().position(|rank| *rank == self.group.rank()).unwrap_or(0);
        (own, members.len().max(1))
    }

    fn sum(&mut self, numbers: &mut [i64]) -> Result<(), ExchangeError> {
        let buffer = match self.buffer.take().filter(|buffer| buffer.len() == numbers.len()) {
            Some(buffer) => buffer,
            None => self.group.buffer(Element::I64, numbers.len())?,
        };
        buffer.write(0, numbers)?;
        self.group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
        buffer.read(0, numbers)?;
        self.buffer = Some(buffer);
        Ok(())
    }
}
