//! Files of a run beside its results and sources: every file is opened before the first record is read.
use super::recording::{log_to_read, log_to_write};
use crate::arguments::RunArguments;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidemill_app::epoch_file::{self, EpochFile};
use tidemill_app::metrics::MetricsPort;
use tidemill_app::output_file::OutputFile;
use tidemill_app::preparation::Prepared;
use tidemill_engine::EpochLog;
use tidemill_operators::bind::files::check_written;

/// The files and the port of a run.
pub(super) struct Outputs {
    /// `--report`.
    pub(super) page: Option<OutputFile>,
    /// `--report-json`.
    pub(super) report: Option<OutputFile>,
    /// `--epoch-log`, or that of a recording.
    pub(super) epochs: Option<EpochFile>,
    /// `--metrics`.
    pub(super) metrics: Option<MetricsPort>,
    /// Content of the file in `--replay`, or of that of its recording.
    pub(super) replay: Option<BTreeMap<String, EpochLog>>,
}

impl Outputs {
    /// Opens all files and ports of the arguments.
    ///
    /// # Errors
    /// Files that cannot be read or written, that are named twice or that belong to a source or sink; a port in use.
    pub(super) fn open(arguments: &RunArguments, prepared: &Prepared) -> anyhow::Result<Self> {
        fn named<'a>(of: &[(&'a Option<PathBuf>, &'a str)]) -> Vec<(&'a Path, &'a str)> {
            of.iter().filter_map(|(path, who)| Some((path.as_deref()?, *who))).collect()
        }
        let (to_read, to_write) = (log_to_read(arguments), log_to_write(arguments));
        let written = [
            (&arguments.report, "`--report`"),
            (&arguments.report_json, "`--report-json`"),
            (&to_write, if arguments.record.is_some() { "`--record`" } else { "`--epoch-log`" }),
        ];
        let read = [
            (&to_read, "`--replay`"),
            (&arguments.plan, "`--plan`"),
            (&arguments.infrastructure, "`--infra`"),
        ];
        let program = &prepared.program;
        check_written(&prepared.workflow, &program.sinks, &named(&read), &named(&written))?;
        let replay = to_read.as_deref().map(|path| epoch_file::read(path, program)).transpose()?;
        let file = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
        let (page, report) = (file(&arguments.report)?, file(&arguments.report_json)?);
        let epochs = to_write.as_deref().map(|path| EpochFile::create(path, program)).transpose()?;
        let metrics = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
        Ok(Self { page, report, epochs, metrics, replay })
    }
}
