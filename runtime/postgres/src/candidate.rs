//! A controller that would lead.
use crate::address::Address;
use crate::error::{PostgresError, in_words};
use crate::lead::Lead;
use crate::schema;
use postgres::Client;
use postgres::error::SqlState;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A leader that stands still for so long loses the lead: the server ends its session, and with that the lock.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(6);
/// So long a leader waits for what the one before it is writing. It does not lead any more: what it writes then is not confirmed.
const PATIENCE_WITH_WRITES: Duration = Duration::from_secs(3);
/// Another controller that was not seen for so long is not told of.
const SEEN: Duration = Duration::from_secs(10);

/// Ends the sessions that are within a write: those that hold the row of the leader, and nobody else does.
fn end_writes(schema: &str) -> String {
    format!(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowShareLock' AND granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND relation = '{schema}.leader'::regclass AND pid <> pg_backend_pid()"
    )
}

/// How a controller shows itself to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// What distinguishes it from the others: by what host and port it is reached.
    pub name: String,
    /// Where it is reached, for people, workers and the other controllers.
    pub address: String,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Counts the leaders.
    pub term: i64,
    /// See [`Announcement`].
    pub name: String,
    /// See [`Announcement`].
    pub address: String,
}

/// A controller that stands by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandsBy {
    /// Where it is reached.
    pub address: String,
    /// When it was seen last.
    pub silent: Duration,
}

/// What a candidate is now.
#[derive(Debug)]
pub enum Standing {
    /// It leads from now on.
    Leads(Box<Lead>),
    /// Another one leads, or nobody does for the moment.
    StandsBy(Option<Leader>),
}

/// See the module. It takes the lead when nobody has it.
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
    /// Connects, and makes the tables where there are none.
    ///
    /// # Errors
    /// The server is not reached, or cannot be used.
    pub fn new(address: &Address, announcement: Announcement) -> Result<Self, PostgresError> {
        let connection = schema::open(address)?;
        Ok(Self { address: address.clone(), announcement, connection: Mutex::new(Some(connection)) })
    }

    /// Takes the lead if nobody has it; else says who does, and shows itself. To be called again and again while it stands by.
    ///
    /// # Errors
    /// The server is not reached: the next call connects again.
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

    /// A row, without leading.
    ///
    /// # Errors
    /// The server is not reached.
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
        // A machine that loses its power says nothing, and a process that is stopped keeps its connection.
        let standstill = STANDSTILL.as_millis();
        client
            .batch_execute(&format!(
                "SET idle_session_timeout = {standstill}; SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1;
                 SET tcp_keepalives_count = 3; SET tcp_user_timeout = {standstill}; SET statement_timeout = {standstill}"
            ))
            .map_err(server)?;
        // Writes under way of the leader before hold the row until they are done. One that was stopped within a write never is.
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

    /// Who leads; shows itself to the others.
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
        // The one that leads is another one: where it is told that it is this one, this one has just lost the lead.
        Ok(Some(leader).filter(|leader| leader.term > 0 && leader.name != *name))
    }
}

/// Who stands by, and was seen of late.
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
