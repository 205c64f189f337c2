//! Rows into the table, within a transaction. Rows that the server refuses for their values are found by halving, so that
//! the others arrive.
use crate::rows::{Place, flaw, key_of, last_of_each_key, parameter};
use crate::table::Table;
use arrow_array::RecordBatch;
use postgres::types::ToSql;
use postgres::{Statement, Transaction};
use std::collections::HashSet;

/// Rows of one statement.
const ROWS: usize = 1000;

/// Rows that the table does not take, with the finding.
pub(crate) type Refused = Vec<(Place, String)>;

/// Whether another row may be taken: the values are wrong (22), break a constraint (23), or are too long for an index.
fn is_of_values(error: &postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        let code = error.code().code();
        code.starts_with("22") || code.starts_with("23") || code == "54000"
    })
}

struct Writer<'a, 'c> {
    all: &'a mut Transaction<'c>,
    statement: Statement,
    table: &'a Table,
    batches: &'a [RecordBatch],
    refused: Refused,
}

/// Writes the last row of each key that the table takes; returns those that it does not take, in order.
///
/// # Errors
/// The server fails for another cause than the values of rows.
pub(crate) fn write(
    all: &mut Transaction<'_>,
    table: &Table,
    batches: &[RecordBatch],
) -> Result<Refused, postgres::Error> {
    let statement = all.prepare(&table.upsert())?;
    let places = || {
        let all = batches.iter().enumerate();
        all.flat_map(|(index, batch)| (0..batch.num_rows()).map(move |row| (index, row)))
    };
    let flaws: Refused = places().filter_map(|place| Some((place, flaw(table, batches, place)?))).collect();
    let mut left_out: HashSet<Place> = flaws.iter().map(|(place, _)| *place).collect();
    let rows = last_of_each_key(table, batches, &left_out);
    let mut writer = Writer { all, statement, table, batches, refused: Vec::new() };
    for rows in rows.chunks(ROWS) {
        writer.write(rows)?;
    }
    if !writer.refused.is_empty() {
        // An earlier row of the same key takes the place.
        let mut open: HashSet<Vec<u8>> =
            writer.refused.iter().map(|(place, _)| key_of(table, batches, *place)).collect();
        left_out.extend(writer.refused.iter().map(|(place, _)| *place));
        let earlier: Vec<Place> = places().filter(|place| !left_out.contains(place)).collect();
        for place in earlier.into_iter().rev() {
            let key = key_of(table, batches, place);
            if open.contains(&key) && writer.write(&[place])? {
                open.remove(&key);
            }
        }
    }
    let mut refused = writer.refused;
    refused.extend(flaws);
    refused.sort_by_key(|(place, _)| *place);
    Ok(refused)
}

impl Writer<'_, '_> {
    /// Writes rows of different keys. Returns whether all were taken.
    fn write(&mut self, rows: &[Place]) -> Result<bool, postgres::Error> {
        self.all.batch_execute("SAVEPOINT tidemill")?;
        let columns = self.table.columns.iter();
        let values: Vec<Box<dyn ToSql + Sync>> =
            columns.map(|column| parameter(column, self.batches, rows)).collect();
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(AsRef::as_ref).collect();
        let error = match self.all.execute(&self.statement, &values) {
            Ok(_) => {
                self.all.batch_execute("RELEASE SAVEPOINT tidemill")?;
                return Ok(true);
            }
            Err(error) if is_of_values(&error) => error,
            Err(error) => return Err(error),
        };
        self.all.batch_execute("ROLLBACK TO SAVEPOINT tidemill; RELEASE SAVEPOINT tidemill")?;
        match rows {
            [] => {}
            [place] => self.refused.push((*place, tidemill_postgres::in_words(&error))),
            _ => {
                let (one, other) = rows.split_at(rows.len() / 2);
                self.write(one)?;
                self.write(other)?;
            }
        }
        Ok(false)
    }
}
