//! `tidemill profile fit`: compares a profile with this machine, and corrects it if necessary.
use super::measure::{Line, ended};
use super::{prepare, written};
use crate::arguments::{DeviceCertificateArguments, FitArguments, OutputForm};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::milliseconds;
use tidemill_app::listener::Listener;
use tidemill_app::output_file::OutputFile;
use tidemill_inference::backend::library;
use tidemill_profiler::fit::TOLERANCE;
use tidemill_profiler::{Fit, Options};
use tidemill_spec::infrastructure::Infrastructure;

/// Records of each source for measuring: enough for the largest batch.
const SAMPLES: usize = 32;

/// Compares, and writes the corrected profile.
pub(super) fn fit(arguments: &FitArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let profile = super::read(&arguments.profile)?;
    let infrastructure = Infrastructure::load(&arguments.infra)?;
    let (subject, _) = prepare::subject(&arguments.workflow, &[], terminal)?;
    let found = profile.validate_against(&subject.workflow);
    if found.has_errors() {
        return Err(found.into());
    }
    terminal.warnings(&found);
    if !found.is_empty() {
        terminal.note("measured only times: accuracies, ratios and sizes are those of the profile");
    }
    let target = arguments.out.as_deref().map(OutputFile::create).transpose()?;
    let scratch = tempfile::tempdir()?;
    let options = Options {
        samples: SAMPLES,
        budget: Duration::ZERO, // a fit measures what it has to
        factors: BTreeMap::new(),
        devices: Vec::new(),
        cache: library::cache_folder().unwrap_or_else(|| scratch.path().to_owned()).join("outputs"),
        state: scratch.path().join("state"),
        program: prepare::program(&DeviceCertificateArguments::default())?,
        host: prepare::host(terminal),
    };
    interrupt.is_watched();
    let mut line = Line::new(*terminal, arguments.output);
    let result = tidemill_profiler::fit(
        &subject,
        &infrastructure,
        &options,
        &profile,
        &mut |stage| line.show(&stage),
        &|| interrupt.is_wanted(),
    );
    line.finish();
    let found = match result {
        Ok(found) => found,
        Err(error) => {
            return ended(error, "nothing was written; the same command starts from the beginning", terminal);
        }
    };
    let Some(fit) = found else {
        let message = format!(
            "{}: this machine cannot measure any of its times: no worker type of {} has times of a model and backend that are available here",
            arguments.profile.display(),
            arguments.infra.display()
        );
        return Err(Failure::new(Kind::Configuration, message)
            .with_help("measure a profile of this machine with `tidemill profile WORKFLOW --infra FILE`")
            .into());
    };
    if let Some(target) = target {
        let devices = super::devices::kinds(&infrastructure);
        let mut fitting = match fit.fits() {
            true => profile,
            false => fit.corrected(&profile, &options.host.cpu, &devices),
        };
        // A change of the workflow was reported; the new profile is for the present one.
        fitting.workflow.name.clone_from(&subject.workflow.name.value);
        fitting.workflow.digest = Some(subject.workflow.profiled_digest());
        let text = written(&fitting)?;
        target.write(|out| out.write_all(text.as_bytes()))?;
    }
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => table(&fit, arguments, &mut out)?,
        OutputForm::Json => writeln!(out, "{:#}", document(&fit, arguments))?,
    }
    out.flush()?;
    Ok(Exit::Success)
}

fn document(fit: &Fit, arguments: &FitArguments) -> Value {
    let comparisons = fit.comparisons.iter().map(|one| {
        json!({
            "operator": one.operator, "variant": one.variant, "backend": one.backend,
            "profile_seconds": one.profiled / 1e9, "here_seconds": one.measured / 1e9,
        })
    });
    let apart =
        fit.apart().into_iter().map(|(operator, (least, largest))| (operator, json!([least, largest])));
    let apart: serde_json::Map<String, Value> = apart.collect();
    json!({
        "version": 1, "profile": arguments.profile.display().to_string(), "fits": fit.fits(),
        "factors": fit.factors, "apart": apart, "overall": fit.overall,
        "out": arguments.out.as_ref().map(|file| file.display().to_string()),
        "comparisons": comparisons.collect::<Vec<_>>(),
    })
}

fn table(fit: &Fit, arguments: &FitArguments, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("operator", Side::Left),
        ("model", Side::Left),
        ("backend", Side::Left),
        ("profile p50", Side::Right),
        ("here p50", Side::Right),
        ("times", Side::Right),
    ]);
    for one in &fit.comparisons {
        table.row([
            one.operator.clone(),
            one.variant.clone(),
            one.backend.clone(),
            milliseconds(one.profiled / 1e6),
            milliseconds(one.measured / 1e6),
            format!("{:.2}", one.ratio()),
        ]);
    }
    table.write(out)?;
    let factors: Vec<String> =
        fit.factors.iter().map(|(operator, factor)| format!("{operator} {factor:.2}")).collect();
    match fit.fits() {
        true => writeln!(
            out,
            "{} fits this machine: no time differs by more than a factor of {TOLERANCE}",
            arguments.profile.display()
        )?,
        false => writeln!(
            out,
            "{} does not fit this machine: its times are multiplied by {} and marked as predicted",
            arguments.profile.display(),
            factors.join(", ")
        )?,
    }
    for (operator, (least, largest)) in fit.apart() {
        writeln!(
            out,
            "{operator}: its models take {least:.2} to {largest:.2} times as long as in the profile, which \
             differs by a factor of {:.2}; one factor for all is imprecise: `tidemill profile` measures \
             them",
            largest / least
        )?;
    }
    match &arguments.out {
        Some(file) => writeln!(out, "profile for this machine: {}", file.display()),
        None if fit.fits() => Ok(()),
        None => writeln!(out, "`--out FILE` writes the corrected profile"),
    }
}
