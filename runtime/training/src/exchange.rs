//! The sum over all ranks.
use std::io;
use tidemill_collective::client::{self, Buffer, Group};
use tidemill_collective::element::{Element, Reduction};

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
    group: Group,
    buffer: Option<Buffer>,
}

impl Ranks {
    /// Creates an exchange over a group that all ranks have joined.
    pub fn new(group: Group) -> Self {
        Self { group, buffer: None }
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
