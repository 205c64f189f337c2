//! A leading controller: its reads, and its writes during its term.
use crate::address::Address;
use crate::candidate::{STANDSTILL, StandsBy, others};
use crate::error::{PostgresError, in_words};
use crate::schema;
use postgres::error::Severity;
use postgres::{Client, Transaction};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of checking with the server that the lock is still held.
const LOOK: Duration = Duration::from_millis(500);
/// A leader without an answer for this time gives the lead up, before the server gives it to another one.
const ANSWER: Duration = Duration::from_secs(3);
/// Most idle connections for writes and reads.
const KEPT: usize = 4;

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<'a> {
    /// Kind of row: names are unique within a kind.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The new content; none: deletes the row.
    pub bytes: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    /// Sets the content of a row.
    pub fn put(kind: &'a str, name: &'a str, bytes: &'a [u8]) -> Self {
        Self { kind, name, bytes: Some(bytes) }
    }

    /// Deletes a row; a missing one is fine.
    pub fn delete(kind: &'a str, name: &'a str) -> Self {
        Self { kind, name, bytes: None }
    }
}

#[derive(Debug, Default)]
struct Fate {
    is_over: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Fate {
    fn end(&self, reason: &str) {
        let mut told = locked(&self.reason);
        if told.is_none() {
            tracing::warn!("giving up the lead: {reason}");
            *told = Some(reason.to_owned());
        }
        self.is_over.store(true, Ordering::Release);
    }
}

/// The lead, see the module. Dropping it gives the lead up.
pub struct Lead {
    address: Address,
    term: i64,
    fate: Arc<Fate>,
    idle: Mutex<Vec<Client>>,
    /// The thread that holds the lock, and the channel that ends it.
    holder: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead").field("term", &self.term).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lead {
    pub(crate) fn new(address: &Address, lock: Client, term: i64) -> Result<Self, PostgresError> {
        let fate = Arc::new(Fate::default());
        let (ending, ended) = channel();
        let mut lock = lock;
        let seen = Arc::clone(&fate);
        let hold = move || {
            loop {
                match ended.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
                if seen.is_over.load(Ordering::Acquire) {
                    return;
                }
                if let Err(error) = lock.is_valid(ANSWER) {
                    return seen
                        .end(&format!("the connection that holds its lock is gone ({})", in_words(&error)));
                }
            }
        };
        let holder = std::thread::Builder::new().name("tm-lead".into()).spawn(hold);
        let holder = holder.map_err(|error| PostgresError::Server {
            place: address.to_string(),
            reason: format!("cannot start the thread that holds the lock: {error}"),
        })?;
        let idle = Mutex::default();
        let holder = Mutex::new(Some((ending, holder)));
        Ok(Self { address: address.clone(), term, fate, idle, holder })
    }

    /// Returns the number of the term: the leaders so far, including this one.
    pub fn term(&self) -> i64 {
        self.term
    }

    /// Returns the place, for messages.
    pub fn place(&self) -> String {
        self.address.to_string()
    }

    /// Returns why it leads no more, where that is known; none: as far as it knows, it leads.
    pub fn ended(&self) -> Option<String> {
        let is_over = self.fate.is_over.load(Ordering::Acquire);
        is_over.then(|| locked(&self.fate.reason).clone().unwrap_or_else(|| "its term is over".to_owned()))
    }

    /// Gives the lead up at once.
    pub fn give_up(&self) {
        let holder = locked(&self.holder).take();
        if let Some((ending, holder)) = holder {
            let mut reason = locked(&self.fate.reason);
            reason.get_or_insert_with(|| "it was given up".to_owned());
            drop(reason);
            self.fate.is_over.store(true, Ordering::Release);
            drop(ending);
            let _ = holder.join(); // what it panicked of was told
        }
    }

    /// Changes rows, all of them or none, if the term is unchanged. They are durable on return.
    ///
    /// # Errors
    /// [`PostgresError::Deposed`] where another one leads, [`PostgresError::Lost`] where the server could not be
    /// reached: the lead is given up then, because it is unknown whether the rows were changed.
    /// [`PostgresError::Unfit`] where the server rejects the change, [`PostgresError::Server`] where it could not be
    /// reached before anything was sent: nothing was changed.
    pub fn write(&self, changes: &[Change<'_>]) -> Result<(), PostgresError> {
        let mut client = self.client()?;
        let mut written = self.write_with(&mut client, changes);
        if matches!(written, Err(Failed::Before(_))) {
            // A kept connection may have ended meanwhile.
            client = self.connect()?;
            written = self.write_with(&mut client, changes);
        }
        match written {
            Ok(None) => {
                self.keep(client);
                Ok(())
            }
            Ok(Some(found)) => {
                self.fate.end(&format!("another controller leads (term {found})"));
                Err(PostgresError::Deposed { own: self.term, found })
            }
            Err(Failed::Before(error)) => Err(self.server(&error)),
            Err(Failed::Within(error)) if is_refusal(&error) => {
                Err(PostgresError::Unfit { place: self.place(), reason: in_words(&error) })
            }
            Err(Failed::Within(error)) => Err(self.lost(&error)),
        }
    }

    /// Returns the present term if it is another one.
    fn write_with(&self, client: &mut Client, changes: &[Change<'_>]) -> Result<Option<i64>, Failed> {
        let schema = self.address.quoted_schema();
        let mut transaction = client.transaction().map_err(Failed::Before)?;
        // Held until the commit: a new leader waits for that.
        let term = format!("SELECT term FROM {schema}.leader FOR SHARE");
        let found: i64 = transaction.query_one(&term, &[])?.get(0);
        if found != self.term {
            transaction.rollback()?;
            return Ok(Some(found));
        }
        apply(&mut transaction, schema, changes)?;
        transaction.commit()?;
        Ok(None)
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Vec<u8>>, PostgresError> {
        let text =
            format!("SELECT bytes FROM {}.rows WHERE kind = $1 AND name = $2", self.address.quoted_schema());
        self.read(|client| Ok(client.query_opt(&text, &[&kind, &name])?.map(|row| row.get(0))))
    }

    /// Reads all rows of a kind, by name.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn all(&self, kind: &str) -> Result<Vec<(String, Vec<u8>)>, PostgresError> {
        let text = format!(
            "SELECT name, bytes FROM {}.rows WHERE kind = $1 ORDER BY name",
            self.address.quoted_schema()
        );
        self.read(|client| {
            let rows = client.query(&text, &[&kind])?;
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        })
    }

    /// Reads the names of all rows of a kind.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn names(&self, kind: &str) -> Result<Vec<String>, PostgresError> {
        let text =
            format!("SELECT name FROM {}.rows WHERE kind = $1 ORDER BY name", self.address.quoted_schema());
        self.read(|client| Ok(client.query(&text, &[&kind])?.iter().map(|row| row.get(0)).collect()))
    }

    /// Reads the kinds with this prefix.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn kinds(&self, beginning: &str) -> Result<Vec<String>, PostgresError> {
        let text = format!(
            "SELECT DISTINCT kind FROM {}.rows WHERE starts_with(kind, $1) ORDER BY kind",
            self.address.quoted_schema()
        );
        self.read(|client| Ok(client.query(&text, &[&beginning])?.iter().map(|row| row.get(0)).collect()))
    }

    /// Deletes all rows of a kind.
    ///
    /// # Errors
    /// As [`Lead::write`].
    pub fn clear(&self, kind: &str) -> Result<(), PostgresError> {
        let names = self.names(kind)?;
        let changes: Vec<Change<'_>> = names.iter().map(|name| Change::delete(kind, name)).collect();
        if changes.is_empty() { Ok(()) } else { self.write(&changes) }
    }

    /// Lists the other, standby controllers.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn others(&self) -> Result<Vec<StandsBy>, PostgresError> {
        self.read(|client| others(client, self.address.quoted_schema()))
    }

    fn read<T>(&self, read: impl Fn(&mut Client) -> Result<T, postgres::Error>) -> Result<T, PostgresError> {
        let mut client = self.client()?;
        let mut found = read(&mut client);
        if found.as_ref().is_err_and(|error| !is_refusal(error)) {
            // A kept connection may have ended meanwhile.
            client = self.connect()?;
            found = read(&mut client);
        }
        let found = found.map_err(|error| self.server(&error))?;
        self.keep(client);
        Ok(found)
    }

    fn server(&self, error: &postgres::Error) -> PostgresError {
        PostgresError::Server { place: self.place(), reason: in_words(error) }
    }

    /// A kept connection, or a new one.
    fn client(&self) -> Result<Client, PostgresError> {
        let kept = {
            let mut idle = locked(&self.idle);
            std::iter::from_fn(|| idle.pop()).find(|client| !client.is_closed())
        };
        match kept {
            Some(client) if self.ended().is_none() => Ok(client),
            _ => self.connect(),
        }
    }

    /// A new connection, while it leads.
    fn connect(&self) -> Result<Client, PostgresError> {
        if let Some(reason) = self.ended() {
            return Err(PostgresError::Lost { own: self.term, reason });
        }
        let mut client = schema::open(&self.address)?;
        // Waiting longer than the lock lasts is pointless.
        let limit = format!("SET lock_timeout = {}", STANDSTILL.as_millis());
        client.batch_execute(&limit).map_err(|error| self.server(&error))?;
        Ok(client)
    }

    fn keep(&self, client: Client) {
        let mut idle = locked(&self.idle);
        if idle.len() < KEPT {
            idle.push(client);
        }
    }

    fn lost(&self, error: &postgres::Error) -> PostgresError {
        let reason = format!("a write was not confirmed ({})", in_words(error));
        self.fate.end(&reason);
        PostgresError::Lost { own: self.term, reason }
    }
}

/// The stage at which a write failed.
enum Failed {
    /// Before anything was sent.
    Before(postgres::Error),
    /// Later, perhaps within the commit.
    Within(postgres::Error),
}

impl From<postgres::Error> for Failed {
    fn from(error: postgres::Error) -> Self {
        Self::Within(error)
    }
}

/// Whether the server has rejected a request in a session that continues: it was not executed. An end of the session
/// (FATAL), or of all of them (PANIC), may be within a commit. 08 are errors of the connection.
fn is_refusal(error: &postgres::Error) -> bool {
    error.as_db_error().is_some_and(|told| {
        told.parsed_severity() == Some(Severity::Error) && !told.code().code().starts_with("08")
    })
}

/// Most rows put with one statement, and their bytes unless a single row has more: the server accepts no message of a
/// gigabyte.
const TOGETHER: usize = 256;
const BYTES_TOGETHER: usize = 64 << 20;

/// Divides changes, in order, into one piece per statement.
fn pieces<'a, 'b>(mut changes: &'a [Change<'b>]) -> impl Iterator<Item = &'a [Change<'b>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |change: &&Change<'_>| {
            bytes += change.bytes.map_or(0, <[u8]>::len);
            bytes <= BYTES_TOGETHER
        };
        let count = changes.iter().take(TOGETHER).take_while(fits).count().max(1);
        let (piece, rest) = changes.split_at_checked(count)?;
        changes = rest;
        Some(piece)
    })
}

fn apply(
    transaction: &mut Transaction<'_>,
    schema: &str,
    changes: &[Change<'_>],
) -> Result<(), postgres::Error> {
    let put = format!(
        "INSERT INTO {schema}.rows (kind, name, bytes) SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])
         ON CONFLICT (kind, name) DO UPDATE SET bytes = excluded.bytes"
    );
    let delete = format!(
        "DELETE FROM {schema}.rows USING unnest($1::text[], $2::text[]) AS gone(kind, name)
         WHERE rows.kind = gone.kind AND rows.name = gone.name"
    );
    for changes in pieces(changes) {
        let gone: Vec<&Change<'_>> = changes.iter().filter(|change| change.bytes.is_none()).collect();
        if !gone.is_empty() {
            let kinds: Vec<&str> = gone.iter().map(|change| change.kind).collect();
            let names: Vec<&str> = gone.iter().map(|change| change.name).collect();
            transaction.execute(&delete, &[&kinds, &names])?;
        }
        let there: Vec<(&str, &str, &[u8])> =
            changes.iter().filter_map(|change| Some((change.kind, change.name, change.bytes?))).collect();
        if !there.is_empty() {
            let kinds: Vec<&str> = there.iter().map(|(kind, ..)| *kind).collect();
            let names: Vec<&str> = there.iter().map(|(_, name, _)| *name).collect();
            let bytes: Vec<&[u8]> = there.iter().map(|(.., bytes)| *bytes).collect();
            transaction.execute(&put, &[&kinds, &names, &bytes])?;
        }
    }
    Ok(())
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_bounded_by_rows_and_by_bytes() {
        let large = vec![0; 40 << 20];
        let huge = vec![0; BYTES_TOGETHER + 1];
        let counts = |changes: &[Change<'_>]| pieces(changes).map(<[_]>::len).collect::<Vec<_>>();
        let put = |bytes| Change::put("state", "x", bytes);
        assert_eq!(counts(&[]), []);
        assert_eq!(counts(&[put(&large), put(&large), put(&huge), put(&[]), put(&large)]), [1, 1, 1, 2]);
        let small: Vec<_> = (0..2 * TOGETHER + 3).map(|_| Change::delete("state", "x")).collect();
        assert_eq!(counts(&small), [TOGETHER, TOGETHER, 3]);
    }
}
