//! `repeat: true`: a source that starts again at its end, lap after lap, without end.
//!
//! Works on every source; the position is the lap and the position within it. A source without a single record ends (it
//! would spin otherwise). Event times repeat too: a source with an event time column should not be repeated before windows
//! or joins, because the second lap is late for them.
//!
//! ```
//! use std::sync::Arc;
//! use tidemill_operators::api::{MakeSource, OperatorError, Source, SourcePosition, SourceRead};
//! use tidemill_operators::sources::repeat::repeated;
//! struct Empty;
//! impl Source for Empty {
//!     fn read(&mut self, _: usize, _: usize) -> Result<SourceRead, OperatorError> { Ok(SourceRead::End) }
//!     fn position(&self) -> SourcePosition { SourcePosition("0".into()) }
//!     fn seek(&mut self, _: &SourcePosition) -> Result<(), OperatorError> { Ok(()) }
//! }
//! let make: MakeSource = Arc::new(|| Ok(Box::new(Empty)));
//! let mut source = repeated(make)().unwrap();
//! assert_eq!(source.position().0, "0/0");
//! assert!(matches!(source.read(1, 1), Ok(SourceRead::End)));
//! ```
use crate::api::{MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use std::sync::Arc;

/// Makes readers that start again at the end.
pub fn repeated(make: MakeSource) -> MakeSource {
    Arc::new(move || {
        let inner = make()?;
        let start = inner.position();
        Ok(Box::new(Repeat { inner, start, lap: 0 }) as Box<dyn Source>)
    })
}

struct Repeat {
    inner: Box<dyn Source>,
    start: SourcePosition,
    lap: u64,
}

impl Source for Repeat {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        match self.inner.read(rows, bytes)? {
            SourceRead::End if self.inner.position() == self.start => Ok(SourceRead::End),
            SourceRead::End => {
                self.inner.seek(&self.start)?;
                self.lap += 1;
                self.inner.read(rows, bytes)
            }
            read => Ok(read),
        }
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(format!("{}/{}", self.lap, self.inner.position().0))
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let parts = position.0.split_once('/').and_then(|(lap, inner)| Some((lap.parse().ok()?, inner)));
        let Some((lap, inner)) = parts else {
            return Err(OperatorError::new(format!(
                "`{}` is not a position of a repeated source",
                position.0
            )));
        };
        self.inner.seek(&SourcePosition(inner.to_owned()))?;
        self.lap = lap;
        Ok(())
    }

    fn replayable(&self) -> bool {
        self.inner.replayable()
    }
}
