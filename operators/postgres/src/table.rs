//! The table: its statements, and what it must be like.
use postgres::Client;
use tidemill_spec::types::ColumnType;

/// The table in which each sink records its last commit.
pub(crate) const COMMITS: &str = "tidemill_commits";

/// A column that is written.
#[derive(Debug, Clone)]
pub(crate) struct SinkColumn {
    pub(crate) name: String,
    /// Its place among the columns of the stream.
    pub(crate) index: usize,
    pub(crate) column_type: ColumnType,
    pub(crate) is_key: bool,
}

/// Types of PostgreSQL for a column: the one that a table is made with, and others that it may have.
pub(crate) fn types_of(column_type: &ColumnType) -> Option<(&'static str, &'static [&'static str])> {
    Some(match column_type {
        ColumnType::Int64 => ("bigint", &["numeric"]),
        ColumnType::Float64 => ("double precision", &[]),
        ColumnType::Bool => ("boolean", &[]),
        ColumnType::Text => ("text", &["character varying"]),
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => ("bytea", &[]),
        ColumnType::Tensor { .. } => return None,
    })
}

/// The table that a sink writes.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// Its schema, or none for the first of the search path.
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
    pub(crate) columns: Vec<SinkColumn>,
}

/// A name in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Table {
    /// Its name in SQL.
    pub(crate) fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(&self.name)),
            None => quoted(&self.name),
        }
    }

    fn names(&self, chosen: impl Fn(&SinkColumn) -> bool) -> Vec<String> {
        self.columns.iter().filter(|column| chosen(column)).map(|column| quoted(&column.name)).collect()
    }

    fn keys(&self) -> String {
        self.names(|column| column.is_key).join(", ")
    }

    /// The statement that makes it.
    pub(crate) fn creation(&self) -> String {
        let column = |column: &SinkColumn| {
            let name = types_of(&column.column_type).map_or("text", |(name, _)| name);
            format!("{} {name}", quoted(&column.name))
        };
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        format!("CREATE TABLE {} ({}, PRIMARY KEY ({}))", self.quoted(), columns.join(", "), self.keys())
    }

    /// The statement that writes rows, given an array of values for each column.
    pub(crate) fn upsert(&self) -> String {
        let arrays = self.columns.iter().enumerate().map(|(index, column)| {
            let name = types_of(&column.column_type).map_or("text", |(name, _)| name);
            format!("${}::{name}[]", index + 1)
        });
        let arrays: Vec<String> = arrays.collect();
        let others = self.names(|column| !column.is_key);
        let otherwise = if others.is_empty() {
            "NOTHING".to_owned()
        } else {
            let values: Vec<String> = others.iter().map(|name| format!("{name} = EXCLUDED.{name}")).collect();
            format!("UPDATE SET {}", values.join(", "))
        };
        format!(
            "INSERT INTO {} ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO {otherwise}",
            self.quoted(),
            self.names(|_| true).join(", "),
            arrays.join(", "),
            self.keys(),
        )
    }

    /// Whether it exists.
    pub(crate) fn exists(&self, client: &mut Client) -> Result<bool, postgres::Error> {
        let row = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&self.quoted()])?;
        Ok(row.get(0))
    }

    /// Compares it with the columns of the stream; returns a finding with advice.
    pub(crate) fn finding(&self, client: &mut Client) -> Result<Option<(String, String)>, postgres::Error> {
        let found = client.query(
            "SELECT attname::text, format_type(atttypid, NULL), attnotnull AND NOT atthasdef AND attidentity = '' \
             FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            &[&self.quoted()],
        )?;
        let found: Vec<(String, String, bool)> =
            found.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        for column in &self.columns {
            let Some((best, others)) = types_of(&column.column_type) else { continue };
            let name = quoted(&column.name);
            let Some((_, has, _)) = found.iter().find(|(known, ..)| *known == column.name) else {
                return Ok(Some((
                    format!("the table {} has no column `{}`", self.quoted(), column.name),
                    format!(
                        "add it with `ALTER TABLE {} ADD COLUMN {name} {best}`, or name the columns to write in `columns`",
                        self.quoted()
                    ),
                )));
            };
            if has != best && !others.contains(&has.as_str()) {
                return Ok(Some((
                    format!(
                        "the column `{}` of the table {} is {has}, but the stream has {} there",
                        column.name,
                        self.quoted(),
                        column.column_type
                    ),
                    format!("make it {best}, or convert it by a `map` before the sink"),
                )));
            }
        }
        let needed = |(name, _, is_needed): &&(String, String, bool)| {
            *is_needed && !self.columns.iter().any(|column| column.name == *name)
        };
        if let Some((name, ..)) = found.iter().find(needed) {
            return Ok(Some((
                format!(
                    "the column `{name}` of the table {} needs a value, and the stream has no column of that name",
                    self.quoted()
                ),
                "give it a default, or let the stream have the column".into(),
            )));
        }
        let unique = client.query(
            "SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_index JOIN pg_attribute \
             ON attrelid = indrelid AND attnum = ANY (indkey) WHERE indrelid = to_regclass($1) AND indisunique \
             AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid",
            &[&self.quoted()],
        )?;
        let mut keys: Vec<&str> =
            self.columns.iter().filter(|column| column.is_key).map(|column| column.name.as_str()).collect();
        keys.sort_unstable();
        let is_unique = unique.iter().any(|row| row.get::<_, Vec<String>>(0) == keys);
        Ok((!is_unique).then(|| {
            (
                format!("the table {} may have several rows with the same {}", self.quoted(), self.keys()),
                format!("add `ALTER TABLE {} ADD PRIMARY KEY ({})`", self.quoted(), self.keys()),
            )
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn statements_quote_all_names() {
        let column = |name: &str, index, column_type, is_key| SinkColumn {
            name: name.into(),
            index,
            column_type,
            is_key,
        };
        let table = Table {
            schema: Some("plant".into()),
            name: "a\"b".into(),
            columns: vec![
                column("select", 0, ColumnType::Text, true),
                column("n", 1, ColumnType::Int64, false),
            ],
        };
        assert_eq!(
            table.creation(),
            "CREATE TABLE \"plant\".\"a\"\"b\" (\"select\" text, \"n\" bigint, PRIMARY KEY (\"select\"))"
        );
        assert_eq!(
            table.upsert(),
            "INSERT INTO \"plant\".\"a\"\"b\" (\"select\", \"n\") SELECT * FROM unnest($1::text[], $2::bigint[]) \
             ON CONFLICT (\"select\") DO UPDATE SET \"n\" = EXCLUDED.\"n\""
        );
        let keys_only = Table { columns: table.columns[..1].to_vec(), ..table };
        assert!(keys_only.upsert().ends_with("DO NOTHING"));
    }
}
