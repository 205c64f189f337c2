//! Files of a run beside its results and sources: every file is opened before the first record is read.
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
    /// `--epoch-log`.
    pub(super) epochs: Option<EpochFile>,
    /// `--metrics`.
    pub(super) metrics: Option<MetricsPort>,
    /// Content of the file in `--replay`.
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
        let written = [
            (&arguments.report, "`--report`"),
            (&arguments.report_json, "`--report-json`"),
            (&arguments.epoch_log, "`--epoch-log`"),
        ];
        let read = [
            (&arguments.replay, "`--replay`"),
            (&arguments.plan, "`--plan`"),
            (&arguments.infrastructure, "`--infra`"),
        ];
        let program = &prepared.program;
        check_written(&prepared.workflow, &program.sinks, &named(&read), &named(&written))?;
        let replay = arguments.replay.as_deref().map(|path| epoch_file::read(path, program)).transpose()?;
        let file = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
        let (page, report) = (file(&arguments.report)?, file(&arguments.report_json)?);
        let epochs =
            arguments.epoch_log.as_deref().map(|path| EpochFile::create(path, program)).transpose()?;
        let metrics = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
        Ok(Self { page, report, epochs, metrics, replay })
    }
}
