//! The tables.
use crate::address::Address;
use crate::error::{PostgresError, in_words};
use postgres::Client;

/// Version of the tables.
const FORMAT: i32 = 1;
/// The oldest server that ends idle sessions (`idle_session_timeout`).
const OLDEST: i32 = 140_000;

/// A connection with existing tables.
pub(crate) fn open(address: &Address) -> Result<Client, PostgresError> {
    let mut client = address.connect()?;
    prepare(&mut client, address)?;
    Ok(client)
}

fn prepare(client: &mut Client, address: &Address) -> Result<(), PostgresError> {
    let place = || address.to_string();
    let server = |error: postgres::Error| PostgresError::Server { place: place(), reason: in_words(&error) };
    let unfit = |reason: String| PostgresError::Unfit { place: place(), reason };
    let (schema, name) = (address.quoted_schema(), address.schema_name());
    let row = client.query_one(
        "SELECT current_setting('server_version_num')::int, to_regclass($1)::text, to_regnamespace($2)::text",
        &[&format!("{schema}.leader"), &schema],
    );
    let row = row.map_err(server)?;
    let (version, there): (i32, Option<String>) = (row.get(0), row.get(1));
    if version < OLDEST {
        return Err(unfit(format!("it is PostgreSQL {}, but 14 or newer is needed", version / 10_000)));
    }
    if there.is_none() {
        // The owner of the schema alone may not even request an existing one.
        let make = match row.get::<_, Option<String>>(2) {
            Some(_) => String::new(),
            None => format!("CREATE SCHEMA IF NOT EXISTS {schema};"),
        };
        // Several controllers may start at once: one creates the tables, and the others wait for it.
        let made = client.batch_execute(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('tidemill tables {name}', 0));
             {make}
             CREATE TABLE IF NOT EXISTS {schema}.leader (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), format int NOT NULL,
                 term bigint NOT NULL, name text NOT NULL, address text NOT NULL, since timestamptz NOT NULL DEFAULT now());
             INSERT INTO {schema}.leader (format, term, name, address) VALUES ({FORMAT}, 0, '', '') ON CONFLICT DO NOTHING;
             CREATE TABLE IF NOT EXISTS {schema}.rows (kind text NOT NULL, name text NOT NULL, bytes bytea NOT NULL, PRIMARY KEY (kind, name));
             ALTER TABLE {schema}.rows ALTER COLUMN bytes SET STORAGE EXTERNAL;
             CREATE TABLE IF NOT EXISTS {schema}.controllers (name text PRIMARY KEY, address text NOT NULL, seen timestamptz NOT NULL DEFAULT now());
             COMMIT"
        ));
        made.map_err(|error| match error.as_db_error() {
            Some(_) => unfit(format!(
                "cannot create its tables ({}): let the role own the database, or create the schema {name} for it",
                in_words(&error)
            )),
            None => server(error),
        })?;
    }
    let format: i32 =
        client.query_one(&format!("SELECT format FROM {schema}.leader"), &[]).map_err(server)?.get(0);
    match format {
        FORMAT => Ok(()),
        other => Err(unfit(format!(
            "its tables have format {other}, but this program writes {FORMAT}: use the program that created them"
        ))),
    }
}
