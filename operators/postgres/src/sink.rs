//! The sink: rows wait in memory until the commit, which is one transaction.
//!
//! The transaction writes the rows and the epoch of the commit, in a row of [`COMMITS`] that belongs to this sink of this
//! run. A process that continues the run knows by it whether the last commit of its predecessor, which the state of the run
//! may not know of, took place; and a process that was believed dead and still runs changes nothing any more.
use crate::table::{COMMITS, Table};
use crate::writing::{Refused, write};
use arrow_array::RecordBatch;
use postgres::Client;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_operators::api::{CallOff, DeadLetter, OperatorError, Sink};
use tidemill_postgres::Address;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Settings of a sink.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The sink.
    pub(crate) id: String,
    pub(crate) address: Address,
    pub(crate) table: Table,
    /// Whether a missing table is made.
    pub(crate) create: bool,
    /// Attempts to commit while the server cannot be reached.
    pub(crate) attempts: u64,
}

/// State with which another process continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    /// Name of the row in [`COMMITS`].
    run: String,
    /// The last commit with rows.
    epoch: i64,
}

/// See the module.
pub(crate) struct PostgresSink {
    settings: Arc<Settings>,
    client: Option<Client>,
    epoch: u64,
    /// Rows since the last commit.
    waiting: Vec<RecordBatch>,
    /// The epochs of these batches.
    epochs: Vec<u64>,
    /// Rows of commits that the table does not take.
    letters: Vec<(u64, DeadLetter)>,
    token: Token,
    /// The last commit of an earlier process, which may be later than that of its token.
    ahead: i64,
    /// A commit whose answer was lost, with the rows that it left out.
    in_doubt: Option<(i64, Refused)>,
    /// Name of this process in [`COMMITS`].
    owner: String,
    called_off: Arc<AtomicBool>,
}

/// Why an attempt failed.
enum Failure {
    /// Another attempt can help.
    Passing(String),
    Lasting(String),
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        let text = tidemill_postgres::in_words(&error);
        let is_passing = match error.as_db_error() {
            None => true,
            // The server starts or stops, conflicts with another transaction, or lacks resources.
            Some(error) => {
                ["57", "40", "53", "08"].iter().any(|class| error.code().code().starts_with(class))
            }
        };
        if is_passing { Self::Passing(text) } else { Self::Lasting(text) }
    }
}

impl PostgresSink {
    /// Starts from nothing, or continues after the commit of a token.
    pub(crate) fn open(settings: &Arc<Settings>, token: Option<&[u8]>) -> Result<Self, OperatorError> {
        let token: Option<Token> = token.map(serde_json::from_slice).transpose().map_err(|error| {
            OperatorError::new(format!("the state of sink `{}` is damaged: {error}", settings.id))
        })?;
        let name = || name().map_err(|error| OperatorError::new(error.to_string()));
        let token = match token {
            Some(token) => token,
            None => Token { run: name()?, epoch: 0 },
        };
        let mut sink = Self {
            settings: Arc::clone(settings),
            client: None,
            epoch: 0,
            waiting: Vec::new(),
            epochs: Vec::new(),
            letters: Vec::new(),
            ahead: 0,
            in_doubt: None,
            owner: name()?,
            token,
            called_off: Arc::default(),
        };
        sink.ahead = sink.persist(Self::begin)?;
        Ok(sink)
    }

    fn place(&self) -> String {
        format!(
            "sink `{}`, table {} of {}",
            self.settings.id,
            self.settings.table.quoted(),
            self.settings.address
        )
    }

    /// Tries until it succeeds, fails for good, or the server was away for too long.
    fn persist<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, OperatorError> {
        let mut tried = 0;
        loop {
            tried += 1;
            match attempt(self) {
                Ok(done) => {
                    if tried > 1 {
                        tracing::info!("{}: the server is back", self.place());
                    }
                    return Ok(done);
                }
                Err(Failure::Lasting(text)) => {
                    return Err(OperatorError::new(format!("{}: {text}", self.place())));
                }
                Err(Failure::Passing(text)) => {
                    self.client = None;
                    if tried >= self.settings.attempts || self.called_off.load(Ordering::Acquire) {
                        return Err(OperatorError::new(format!("{}: {text}", self.place())));
                    }
                    if tried == 1 {
                        tracing::warn!("{}: {text}; trying again", self.place());
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let connected = self.settings.address.connect().map_err(|error| match error.is_passing() {
                true => Failure::Passing(error.to_string()),
                false => Failure::Lasting(error.to_string()),
            })?;
            self.client = Some(connected);
        }
        self.client.as_mut().ok_or_else(|| Failure::Passing("there is no connection".into()))
    }

    /// Makes the tables that are missing, and becomes the owner of the row in [`COMMITS`]. Returns the last commit.
    fn begin(&mut self) -> Result<i64, Failure> {
        let settings = Arc::clone(&self.settings);
        let (Token { run, epoch }, owner) = (self.token.clone(), self.owner.clone());
        let client = self.client()?;
        let mut all = client.transaction()?;
        // Two sinks that start at once would both make it.
        all.execute("SELECT pg_advisory_xact_lock(hashtext($1))", &[&COMMITS])?;
        all.batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS {COMMITS} (run text PRIMARY KEY, sink text NOT NULL, owner text NOT NULL, \
             epoch bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())"
        ))?;
        let found = all.query_one("SELECT to_regclass($1) IS NOT NULL", &[&settings.table.quoted()])?;
        if settings.create && !found.get::<_, bool>(0) {
            all.batch_execute(&settings.table.creation())?;
        }
        let own = format!(
            "INSERT INTO {COMMITS} (run, sink, owner, epoch) VALUES ($1, $2, $3, 0) \
             ON CONFLICT (run) DO UPDATE SET owner = EXCLUDED.owner RETURNING epoch"
        );
        let found: i64 = all.query_one(&own, &[&run, &settings.id, &owner])?.get(0);
        if found < epoch {
            return Err(Failure::Lasting(format!(
                "it has lost rows that the state of the run knows of (commit {epoch}, found {found}): restore the \
                 database as it was, or start from the beginning with `tidemill state reset`"
            )));
        }
        all.commit()?;
        Ok(found)
    }

    /// Writes the rows; returns those that the table does not take.
    fn try_commit(&mut self, epoch: i64) -> Result<Refused, Failure> {
        let settings = Arc::clone(&self.settings);
        let (waiting, run, owner) = (self.waiting.clone(), self.token.run.clone(), self.owner.clone());
        let in_doubt = self.in_doubt.clone().filter(|(known, _)| *known == epoch);
        let client = self.client()?;
        let mut all = client.transaction()?;
        let known = format!("SELECT owner, epoch FROM {COMMITS} WHERE run = $1 FOR UPDATE");
        let Some(known) = all.query_opt(&known, &[&run])? else {
            return Err(Failure::Lasting(format!("somebody has deleted the row of this run in {COMMITS}")));
        };
        if known.get::<_, &str>(0) != owner {
            return Err(Failure::Lasting("another process of the run writes there now".into()));
        }
        if let Some((_, refused)) = in_doubt
            && known.get::<_, i64>(1) == epoch
        {
            // The answer was lost.
            return Ok(refused);
        }
        let refused = write(&mut all, &settings.table, &waiting)?;
        all.execute(&format!("UPDATE {COMMITS} SET epoch = $2, at = now() WHERE run = $1"), &[&run, &epoch])?;
        let committed = all.commit();
        self.in_doubt = committed.is_err().then(|| (epoch, refused.clone()));
        committed?;
        Ok(refused)
    }

    /// Returns which rows of a commit of the predecessor the table does not take: its dead letters may be lost. Changes nothing.
    fn try_again(&mut self) -> Result<Refused, Failure> {
        let (settings, waiting) = (Arc::clone(&self.settings), self.waiting.clone());
        let mut all = self.client()?.transaction()?;
        let refused = write(&mut all, &settings.table, &waiting)?;
        all.rollback()?;
        Ok(refused)
    }

    fn forget(&mut self) {
        self.waiting.clear();
        self.epochs.clear();
    }
}

impl Sink for PostgresSink {
    fn at_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.waiting.push(batch.clone());
        self.epochs.push(self.epoch);
        Ok(())
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        // The predecessor has committed these rows, up to an epoch that is not the end, which a longer run moves.
        let is_there = epoch <= self.ahead && self.ahead != i64::MAX;
        let mut refused = Vec::new();
        if !self.waiting.is_empty() && !is_there {
            refused = self.persist(|sink| sink.try_commit(epoch))?;
            self.token.epoch = epoch;
            self.ahead = self.ahead.min(epoch);
        } else if is_there {
            if !self.waiting.is_empty() {
                refused = self.persist(Self::try_again)?;
            }
            self.token.epoch = epoch.max(self.token.epoch);
        }
        for ((batch, row), detail) in refused {
            let letter = DeadLetter::of_row(&self.waiting[batch], row, "refused", detail);
            self.letters.push((self.epochs[batch], letter));
        }
        self.forget();
        Ok(())
    }

    fn take_dead_letters(&mut self) -> Vec<(u64, DeadLetter)> {
        std::mem::take(&mut self.letters)
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.forget();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.forget();
        // Nobody continues it. What stays is one row, if the server is away now.
        let (run, owner) = (self.token.run.clone(), self.owner.clone());
        if let Ok(client) = self.client()
            && let Err(error) = client
                .execute(&format!("DELETE FROM {COMMITS} WHERE run = $1 AND owner = $2"), &[&run, &owner])
        {
            tracing::debug!("the row of {COMMITS} stays: {error}");
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        serde_json::to_vec(&self.token).map(Some).map_err(|error| OperatorError::new(error.to_string()))
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.forget();
        Ok(())
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn call_off(&self) -> Option<CallOff> {
        let called_off = Arc::clone(&self.called_off);
        Some(Arc::new(move || called_off.store(true, Ordering::Release)))
    }
}

/// A name that no other run has.
fn name() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
