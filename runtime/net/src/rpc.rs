//! Calls between programs: `tidemill_rpc` is their side.
//!
//! The service reads a message where its program put it, marshals it once (the parts are written to the other host, or copied into the
//! memory that the other program reads), and checks it by its schema after that copy, which no program can change. Policies look before.
//!
//! - `end`: rings and heaps of a program; `wire`: the connection of a binding with the service of another host.
//! - `board`: programs, what they serve and what they are bound to; `calling`: calls between them; `remote`: those of other hosts.
mod board;
mod calling;
mod end;
mod judging;
mod letter;
mod listing;
mod remote;
mod schemas;
mod wire;

pub(crate) use board::{Calls, Context};
pub(crate) use remote::{Dial, Dialled};
