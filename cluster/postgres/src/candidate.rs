//! A controller that can become the leader.
use crate::address::Address;
use crate::error::{PostgresError, in_words};
use crate::lead::Lead;
use crate::schema;
use postgres::Client;
use postgres::error::SqlState;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A leader inactive for this time loses the lead: the server ends its session, and with that the lock.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(6);
/// Time that a new leader waits for writes of the previous one. That one does not lead any more: its writes are not
/// confirmed.
const PATIENCE_WITH_WRITES: Duration = Duration::from_secs(3);
/// Other controllers not seen for this time are not listed.
const SEEN: Duration = Duration::from_secs(10);

/// Ends sessions within a write: only these hold the row of the leader.
fn end_writes(schema: &str) -> String {
    format!(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowShareLock' AND granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND relation = '{schema}.leader'::regclass AND pid <> pg_backend_pid()"
    )
}

/// A controller's announcement to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Its identity: host and port by which it is reached.
    pub name: String,
    /// Its address, for users, workers and the other controllers.
    pub address: String,
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Number of the leader's term.
    pub term: i64,
    /// See [`Announcement`].
    pub name: String,
    /// See [`Announcement`].
    pub address: String,
}

/// A standby controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandsBy {
    /// Its address.
    pub address: String,
    /// Time since it was last seen.
    pub silent: Duration,
}

/// State of a candidate.
#[derive(Debug)]
pub enum Standing {
    /// It leads from now on.
    Leads(Box<Lead>),
    /// Another one leads, or none at the moment.
    StandsBy(Option<Leader>),
}

/// A candidate, see the module. It takes the lead when it is free.
pub struct Candidate {
    address: Address,
    announcement: Announcement,
    connection: Mutex<Option<Client>>,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("announcement", &self.announcement).finish_non_exhaustive()
    }
}

impl Candidate {
    /// Connects, and creates the tables if they are missing.
    ///
    /// # Errors
    /// The server cannot be reached, or is unusable.
    pub fn new(address: &Address, announcement: Announcement) -> Result<Self, PostgresError> {
        let connection = schema::open(address)?;
        Ok(Self { address: address.clone(), announcement, connection: Mutex::new(Some(connection)) })
    }

    /// Takes the lead if it is free; else returns the leader, and announces itself. To be called repeatedly while it
    /// stands by.
    ///
    /// # Errors
    /// The server cannot be reached: the next call connects again.
    pub fn stand(&self) -> Result<Standing, PostgresError> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut client = match held.take() {
            Some(client) if !client.is_closed() => client,
            _ => schema::open(&self.address)?,
        };
        match self.try_to_lead(&mut client) {
            Ok(Some(term)) => Ok(Standing::Leads(Box::new(Lead::new(&self.address, client, term)?))),
            Ok(None) => {
                let leader = self.look(&mut client)?;
                *held = Some(client);
                Ok(Standing::StandsBy(leader))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a row, without leading.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Vec<u8>>, PostgresError> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &mut *held {
            Some(client) if !client.is_closed() => client,
            held => held.insert(schema::open(&self.address)?),
        };
        let rows =
            format!("SELECT bytes FROM {}.rows WHERE kind = $1 AND name = $2", self.address.quoted_schema());
        let row = client.query_opt(&rows, &[&kind, &name]).map_err(|error| self.server(&error))?;
        Ok(row.map(|row| row.get(0)))
    }

    fn server(&self, error: &postgres::Error) -> PostgresError {
        PostgresError::Server { place: self.address.to_string(), reason: in_words(error) }
    }

    /// The term, if it leads now.
    fn try_to_lead(&self, client: &mut Client) -> Result<Option<i64>, PostgresError> {
        let schema = self.address.quoted_schema();
        let server = |error: postgres::Error| self.server(&error);
        let name = self.address.schema_name();
        let lock = format!("SELECT pg_try_advisory_lock(hashtextextended('tidemill leader {name}', 0))");
        let is_ours: bool = client.query_one(&lock, &[]).map_err(server)?.get(0);
        if !is_ours {
            return Ok(None);
        }
        // A machine without power sends nothing, and a stopped process keeps its connection.
        let standstill = STANDSTILL.as_millis();
        client
            .batch_execute(&format!(
                "SET idle_session_timeout = {standstill}; SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1;
                 SET tcp_keepalives_count = 3; SET tcp_user_timeout = {standstill}; SET statement_timeout = {standstill}"
            ))
            .map_err(server)?;
        // Unfinished writes of the previous leader hold the row. One that was stopped within a write never finishes.
        let taken = format!(
            "UPDATE {schema}.leader SET term = term + 1, name = $1, address = $2, since = now() RETURNING term"
        );
        let Announcement { name, address } = &self.announcement;
        let patience = PATIENCE_WITH_WRITES.as_millis();
        client.batch_execute(&format!("SET lock_timeout = {patience}")).map_err(server)?;
        let term = match client.query_one(&taken, &[name, address]) {
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                client.batch_execute(&end_writes(schema)).map_err(server)?;
                client.query_one(&taken, &[name, address])
            }
            term => term,
        };
        let term: i64 = term.map_err(server)?.get(0);
        client.batch_execute("SET lock_timeout = 0").map_err(server)?;
        client
            .execute(&format!("DELETE FROM {schema}.controllers WHERE name = $1"), &[name])
            .map_err(server)?;
        Ok(Some(term))
    }

    /// Returns the leader; announces itself to the others.
    fn look(&self, client: &mut Client) -> Result<Option<Leader>, PostgresError> {
        let schema = self.address.quoted_schema();
        let server = |error: postgres::Error| self.server(&error);
        let shown = format!(
            "INSERT INTO {schema}.controllers (name, address) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET address = excluded.address, seen = now()"
        );
        let Announcement { name, address } = &self.announcement;
        client.execute(&shown, &[name, address]).map_err(server)?;
        let row = client.query_one(&format!("SELECT term, name, address FROM {schema}.leader"), &[]);
        let row = row.map_err(server)?;
        let leader = Leader { term: row.get(0), name: row.get(1), address: row.get(2) };
        // The leader is another one: if the row names this one, this one has just lost the lead.
        Ok(Some(leader).filter(|leader| leader.term > 0 && leader.name != *name))
    }
}

/// Standby controllers seen recently.
pub(crate) fn others(client: &mut Client, schema: &str) -> Result<Vec<StandsBy>, postgres::Error> {
    let rows = client.query(
        &format!(
            "SELECT address, extract(epoch FROM now() - seen)::float8 FROM {schema}.controllers
             WHERE seen > now() - make_interval(secs => $1) ORDER BY name"
        ),
        &[&SEEN.as_secs_f64()],
    )?;
    let of = |row: &postgres::Row| StandsBy {
        address: row.get(0),
        silent: Duration::from_secs_f64(row.get::<_, f64>(1).max(0.0)),
    };
    Ok(rows.iter().map(of).collect())
}
