//! Traces: the jobs of the past, or of a simulation, as a table (docs/jobs.md).
use crate::models;
use crate::simulator::TracedJob;
use crate::table::{Column, Table, column, read};
use crate::{Job, Resources, Time};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use tidemill_spec::diagnostic::{Diagnostics, nearest};

/// Columns of a trace; the second name of a meaning is that of the traces published with Tiresias, whose times are plain seconds.
const COLUMNS: &[Column] = &[
    column("job", "job's id"),
    column("job_id", "job's id"),
    column("user", "user"),
    column("kind", "kind"),
    column("tasks", "tasks"),
    column("num_gpu", "tasks"),
    column("slots", "slots"),
    column("submitted", "submission"),
    column("submit_time", "submission"),
    column("duration", "duration"),
    column("checkpoint", "checkpoint"),
    column("resume", "resume"),
    column("preemptible", "preemptible"),
    column("model", "model"),
    column("model_name", "model"),
    column("skew", "skew"),
    column("iterations", ""),
    column("interval", ""),
];

/// Cost of a preemption where a trace gives none.
///
/// The default sum, 60 s, is what Tiresias measured: 13,724 s for 221 preemptions, 17,425 s for 297, 18,057 s for 316 (Gu, 2021, section
/// 3.5.2.4). How it divides into the two parts is our assumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Time to write a checkpoint. Default: 20s.
    pub checkpoint: Time,
    /// Time to load it again. Default: 40s.
    pub resume: Time,
}

impl Default for Costs {
    fn default() -> Self {
        Self { checkpoint: Time::of_seconds(20), resume: Time::of_seconds(40) }
    }
}

/// The jobs of a trace in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The jobs.
    pub jobs: Vec<TracedJob>,
}

impl Trace {
    /// Reads a trace; preemptions have the default [`Costs`].
    ///
    /// # Errors
    /// All findings, with line and column.
    pub fn parse(text: &str, name: &str) -> Result<Self, Diagnostics> {
        Self::parse_with(text, name, Costs::default())
    }

    /// Reads the trace of a file, as [`Trace::parse_with`].
    ///
    /// # Errors
    /// As [`Trace::parse_with`], or the file cannot be read.
    pub fn load(path: &Path, costs: Costs) -> Result<Self, Diagnostics> {
        Self::parse_with(&read(path)?, &path.display().to_string(), costs)
    }

    /// Reads a trace; `costs` apply where it gives none.
    ///
    /// ```
    /// use tidemill_jobs::trace::{Costs, Trace};
    /// let own = "job,tasks,submitted,duration,checkpoint\ntrain,4,0s,2h,90s\n";
    /// let published = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,8,30,133,vgg11,147,23\n";
    /// assert_eq!(Trace::parse_with(own, "a.csv", Costs::default())?.jobs[0].checkpoint.seconds(), 90.0);
    /// let job = &Trace::parse_with(published, "b.csv", Costs::default())?.jobs[0];
    /// assert_eq!((job.job.tasks, job.work.seconds(), job.job.skew), (8, 147.0, Some(0.773)));
    /// let wrong = Trace::parse("job,tasks,submitted,duration\na,1,0s,120\n", "c.csv").unwrap_err().to_string();
    /// assert!(wrong.contains("`120` has no unit") && wrong.contains("c.csv:2:8"), "{wrong}");
    /// # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
    /// ```
    ///
    /// # Errors
    /// All findings, with line and column.
    pub fn parse_with(text: &str, name: &str, costs: Costs) -> Result<Self, Diagnostics> {
        let mut table = Table::parse(text, name, COLUMNS)?;
        let is_published = ["job_id", "num_gpu", "submit_time"].iter().any(|column| table.has(column));
        table.require("job's id", "add a column `job`");
        table.require("submission", "add a column `submitted` with times such as `90s`");
        table.require("duration", "add a column `duration` with times such as `2h`");
        let mut ids = BTreeSet::new();
        let jobs = table.rows(|row| {
            let id = row.needed("job's id")?;
            if !ids.insert(id.text.clone()) {
                return Err(id.wrong(format!("a second job `{}`", id.text), "give each job an id of its own"));
            }
            let tasks = row.cell("tasks").map_or(Ok(1), |cell| cell.count(1))?;
            let slots = row.cell("slots").map_or(Ok(1), |cell| cell.count(1))?;
            let submission = row.needed("submission")?;
            let submitted = submission.time(submission.column == "submit_time")?;
            let duration = row.needed("duration")?;
            let work = duration.time(is_published)?;
            if work == Time::ZERO {
                return Err(duration.wrong("a job of no duration", "write a time such as `2min`"));
            }
            let time = |meaning, default| row.cell(meaning).map_or(Ok(default), |cell| cell.time(false));
            let checkpoint = time("checkpoint", costs.checkpoint)?;
            let resume = time("resume", costs.resume)?;
            let is_preemptible = match row.cell("preemptible") {
                None => true,
                Some(cell) => match cell.text.as_str() {
                    "yes" | "true" => true,
                    "no" | "false" => false,
                    other => return Err(cell.wrong(format!("`{other}` is neither yes nor no"), "write `yes` or `no`")),
                },
            };
            let of_model = match row.cell("model") {
                None => None,
                Some(cell) => match models::skew(&cell.text) {
                    // Models of other traces have no published skew.
                    None if is_published => None,
                    None => {
                        let names = models::SKEWS.iter().map(|(name, _)| *name);
                        let help = nearest(&cell.text, names).map_or_else(
                            || "leave it empty, and give the skew in a column `skew`".to_owned(),
                            |near| format!("did you mean `{near}`? Else leave it empty, and give the skew in a column `skew`"),
                        );
                        return Err(cell.wrong(format!("no skew is known of the model `{}`", cell.text), help));
                    }
                    known => known,
                },
            };
            let skew = row.cell("skew").map(|cell| cell.number(1.0)).transpose()?;
            let text = |meaning| row.cell(meaning).map(|cell| cell.text.clone()).unwrap_or_default();
            let job = Job {
                user: text("user"),
                kind: text("kind"),
                is_preemptible,
                duration: Some(work),
                skew: skew.or(of_model),
                checkpoint_within: checkpoint.max(Job::CHECKPOINT_WITHIN),
                ..Job::new(id.text.clone(), tasks, Resources::of_slots(u64::from(slots)), submitted)
            };
            Ok(TracedJob { job, work, checkpoint, resume })
        })?;
        Ok(Self { jobs })
    }

    /// Returns the trace as a table; [`Trace::parse`] reads it.
    pub fn to_csv(&self) -> String {
        let mut text =
            "job,user,kind,tasks,slots,submitted,duration,checkpoint,resume,preemptible,skew\n".to_owned();
        for TracedJob { job, work, checkpoint, resume } in &self.jobs {
            let skew = job.skew.map(|skew| skew.to_string()).unwrap_or_default();
            let preemptible = if job.is_preemptible { "yes" } else { "no" };
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{work},{checkpoint},{resume},{preemptible},{skew}",
                job.id, job.user, job.kind, job.tasks, job.demand.slots, job.submitted
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, cluster};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-d0-9,#\\n\\r .eé_xsmin-]{0,120}", header in any::<bool>()) {
            let text = if header { format!("job,submitted,duration,skew\n{text}") } else { text };
            if let Ok(trace) = Trace::parse(&text, "t.csv") {
                prop_assert_eq!(Trace::parse(&trace.to_csv(), "again.csv").unwrap(), trace);
            }
            let _ = History::parse(&format!("service\n{text}"), "h.csv");
            let _ = cluster::parse(&format!("machines,slots\n{text}"), "c.csv");
        }
    }

    fn wrong(text: &str) -> String {
        Trace::parse(text, "t.csv").unwrap_err().to_string()
    }

    #[test]
    fn mistakes_have_their_place_and_a_correction() {
        let text = wrong("job,taks,submitted,duration\na,1,0s,1s\n");
        assert!(text.contains("unknown column `taks`") && text.contains("t.csv:1:5"), "{text}");
        assert!(text.contains("did you mean `tasks`?"), "{text}");
        let text = wrong("job,tasks,duration\na,1,1s\n");
        assert!(
            text.contains("no column for the submission") && text.contains("add a column `submitted`"),
            "{text}"
        );
        let text = wrong("job,tasks,submitted,duration\n# a comment\n\na,0,0s,1s\nb,1,0s\na,1,5 s,0s\n");
        assert!(text.contains("`0` is no whole number of 1 or more") && text.contains("t.csv:4:3"), "{text}");
        assert!(text.contains("3 cells; the header has 4") && text.contains("t.csv:5:1"), "{text}");
        assert!(text.contains("a second job `a`"), "{text}");
        assert!(wrong("job,submitted,duration\na,0s,0s\n").contains("a job of no duration"));
        assert!(wrong("job,submitted,duration\n").contains("no line after the header"));
        assert!(wrong("# nothing\n").contains("has no header"));
        assert!(
            wrong("job,job_id,submitted,duration\na,b,0s,1s\n").contains("a second column for the job's id")
        );
        assert!(wrong("job,submitted,duration,model\na,0s,1s,vgg17\n").contains("did you mean `vgg"));
        assert!(wrong("job,submitted,duration,preemptible\na,0s,1s,maybe\n").contains("write `yes` or `no`"));
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let text = "job,user,kind,tasks,slots,submitted,duration,checkpoint,resume,preemptible,skew\n\
                    a,ann,command,4,2,90s,2h,1s,2s,no,0.5\nb,,,1,1,0s,1.5s,20s,40s,yes,\n";
        let trace = Trace::parse(text, "t.csv").unwrap();
        assert_eq!(Trace::parse(&trace.to_csv(), "again.csv").unwrap(), trace);
        let job = &trace.jobs[0];
        assert_eq!((job.job.user.as_str(), job.job.is_preemptible, job.resume), ("ann", false, Time(2000)));
    }

    #[test]
    fn a_published_trace_may_have_other_models() {
        let text =
            "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,2,0.5,10,secret,60,3\r\n";
        let trace = Trace::parse(text, "t.csv").unwrap();
        assert_eq!((trace.jobs[0].job.skew, trace.jobs[0].job.submitted), (None, Time(500)));
    }
}
