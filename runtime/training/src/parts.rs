//! Parts that ranks give each other: tables, examples and the state of experts.
use crate::exchange::{Alone, Exchange, ExchangeError, Ranks};
use std::time::Duration;
use tidemill_collective::client::Buffer;
use tidemill_collective::element::Element;

/// Gives parts to other ranks. Positions are those of [`Exchange::share`].
pub trait Parts: Exchange {
    /// Returns the numbers of the ranks that take part, ascending.
    fn members(&self) -> Vec<u32>;

    /// Returns the ranks that there were at the beginning.
    fn size(&self) -> u32;

    /// Returns the lists of all ranks, which have the same length.
    ///
    /// # Errors
    /// A rank is lost.
    fn gather(&mut self, own: &[i64]) -> Result<Vec<Vec<i64>>, ExchangeError>;

    /// Gives a list to each rank, and returns those that the others give to this one. `longest` is the same at all ranks, and no list
    /// is longer.
    ///
    /// # Errors
    /// A rank is lost.
    fn swap(&mut self, lists: Vec<Vec<i64>>, longest: usize) -> Result<Vec<Vec<i64>>, ExchangeError>;

    /// Replaces numbers by those of the rank at this position.
    ///
    /// # Errors
    /// A rank is lost.
    fn spread(&mut self, from: usize, numbers: &mut [i64]) -> Result<(), ExchangeError>;

    /// Continues with the ranks that are left, and those that have come back.
    ///
    /// # Errors
    /// The service that introduces ranks is gone.
    fn continues(&mut self, deadline: Duration) -> Result<(), ExchangeError>;
}

impl Parts for Alone {
    fn members(&self) -> Vec<u32> {
        vec![0]
    }

    fn size(&self) -> u32 {
        1
    }

    fn gather(&mut self, own: &[i64]) -> Result<Vec<Vec<i64>>, ExchangeError> {
        Ok(vec![own.to_vec()])
    }

    fn swap(&mut self, lists: Vec<Vec<i64>>, _longest: usize) -> Result<Vec<Vec<i64>>, ExchangeError> {
        Ok(lists)
    }

    fn spread(&mut self, _from: usize, _numbers: &mut [i64]) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn continues(&mut self, _deadline: Duration) -> Result<(), ExchangeError> {
        Ok(())
    }
}

impl Ranks {
    /// Lends a buffer of this length.
    fn with_buffer<T>(
        &mut self,
        length: usize,
        act: impl FnOnce(&mut Self, &Buffer) -> Result<T, ExchangeError>,
    ) -> Result<T, ExchangeError> {
        let buffer = match self.buffers.remove(&length) {
            Some(buffer) => buffer,
            None => self.group.buffer(Element::I64, length)?,
        };
        let result = act(self, &buffer);
        self.buffers.insert(length, buffer);
        result
    }
}

impl Parts for Ranks {
    fn members(&self) -> Vec<u32> {
        self.group.members()
    }

    fn size(&self) -> u32 {
        self.group.size()
    }

    fn gather(&mut self, own: &[i64]) -> Result<Vec<Vec<i64>>, ExchangeError> {
        let (position, ranks) = self.share();
        self.with_buffer(ranks * own.len(), |ranks, buffer| {
            buffer.write(position * own.len(), own)?;
            ranks.group.all_gather(buffer)?.wait()?;
            Ok(buffer.to_vec::<i64>()?.chunks(own.len().max(1)).map(<[i64]>::to_vec).collect())
        })
    }

    fn swap(&mut self, lists: Vec<Vec<i64>>, longest: usize) -> Result<Vec<Vec<i64>>, ExchangeError> {
        // A list has its length before it. Few lengths of buffers are used, so that most exchanges need no new memory.
        let (_, ranks) = self.share();
        let each = (longest + 1).next_power_of_two();
        self.with_buffer(ranks * each, |group, buffer| {
            for (position, list) in lists.iter().enumerate().take(ranks) {
                if list.len() > longest {
                    let text = format!("a list of {} numbers, and {longest} are the most", list.len());
                    return Err(ExchangeError::Other(std::io::Error::other(text)));
                }
                buffer.write(position * each, &[list.len() as i64])?;
                buffer.write(position * each + 1, list)?;
            }
            group.group.all_to_all(buffer)?.wait()?;
            let mut received = Vec::with_capacity(ranks);
            for position in 0..ranks {
                let mut length = [0i64];
                buffer.read(position * each, &mut length)?;
                let length = usize::try_from(length[0]).ok().filter(|length| *length < each);
                let wrong = || std::io::Error::other("a list of another rank has an impossible length");
                let mut list = vec![0i64; length.ok_or_else(wrong)?];
                buffer.read(position * each + 1, &mut list)?;
                received.push(list);
            }
            Ok(received)
        })
    }

    fn spread(&mut self, from: usize, numbers: &mut [i64]) -> Result<(), ExchangeError> {
        let (position, _) = self.share();
        let root = self.members().get(from).copied().unwrap_or_default();
        self.with_buffer(numbers.len(), |ranks, buffer| {
            if position == from {
                buffer.write(0, numbers)?;
            }
            ranks.group.broadcast(buffer, root)?.wait()?;
            Ok(buffer.read(0, numbers)?)
        })
    }

    fn continues(&mut self, deadline: Duration) -> Result<(), ExchangeError> {
        Self::continues(self, deadline)
    }
}

/// The bits of numbers, to be moved.
pub(crate) fn bits(numbers: &[f64]) -> impl Iterator<Item = i64> + '_ {
    numbers.iter().map(|number| number.to_bits() as i64)
}

/// Numbers from their bits.
pub(crate) fn numbers(bits: &[i64]) -> Vec<f64> {
    bits.iter().map(|bits| f64::from_bits(*bits as u64)).collect()
}
