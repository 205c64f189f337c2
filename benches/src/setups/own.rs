//! Figures of our own models on the machines of the publication: measured on 2 vCPU, predicted on the others.
use anyhow::Context;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::profile::{AfterPause, BatchTime, How, Machine, Profile, Service};
use tidemill_spec::units::{HourlyPrice, TimeSpan, TransferPrice};

/// The type of our measured machine with 2 vCPU (`examples/vqa/infrastructure.yaml`).
const MEASURED: &str = "large";
/// The published type with 2 vCPU.
const SMALLEST: &str = "cpu-1";
/// Our operators and the corresponding published ones.
const SAME: [(&str, &str); 3] =
    [("scene_features", "extract_image_feature"), ("speech", "speech_recognition"), ("answerer", "vqa")];

/// Returns the units per hour: 1 for 2 vCPU, 1.5 for 8 and 3 for a V100 are published; other sizes follow the power of
/// the number of processors through the first two, `(vcpu / 2)^0.2925`.
fn units(vcpu: Option<f64>) -> f64 {
    let power = 1.5f64.ln() / 4f64.ln();
    vcpu.map_or(3.0, |vcpu| (vcpu / 2.0).powf(power))
}

/// Units per GB between edge and cloud: 0.1 up, 0.3 down; the ends of the published range.
const UP: f64 = 0.1;
const DOWN: f64 = 0.3;
const GB: f64 = 1e9;

/// Replaces the prices with published units.
pub(super) fn price(infrastructure: &mut Infrastructure) {
    for worker in infrastructure.tiers.iter_mut().flat_map(|tier| &mut tier.workers.value) {
        worker.price.value = HourlyPrice(units(worker.vcpu.as_ref().map(|vcpu| vcpu.value)));
    }
    for link in &mut infrastructure.links {
        let price = if link.from.value == "edge" { UP } else { DOWN };
        link.price.value = TransferPrice(price / GB);
    }
}

/// Adds figures of the published machines: measured times on 2 vCPU, and on others these times the published ratio of
/// the corresponding operator to 2 vCPU (geometric mean over its models, 75th percentile).
pub(super) fn predicted(measured: &Profile, published: &Profile) -> anyhow::Result<Profile> {
    let mut profile = measured.clone();
    for machine in &published.machines {
        let worker_type = &machine.worker_type;
        profile.machines.push(Machine {
            source: Some(format!(
                "measured on 2 vCPU, by the published ratio of {worker_type} to {SMALLEST}"
            )),
            how: How::Predicted,
            ..machine.clone()
        });
        for (operator, same) in SAME {
            let factor = ratio(published, same, worker_type)?;
            let rows = measured.services.iter();
            let rows = rows.filter(|row| row.worker_type == MEASURED && row.operator == operator);
            let predicted: Vec<Service> = rows
                .map(|row| Service {
                    worker_type: worker_type.clone(),
                    how: if worker_type == SMALLEST { row.how } else { How::Predicted },
                    batches: row.batches.iter().map(|times| scaled(times, factor)).collect(),
                    after_pause: row
                        .after_pause
                        .as_ref()
                        .map(|after| AfterPause { times: scaled(&after.times, factor), ..after.clone() }),
                    ..row.clone()
                })
                .collect();
            anyhow::ensure!(!predicted.is_empty(), "the profile has no figures of {operator} on {MEASURED}");
            profile.services.extend(predicted);
        }
    }
    Ok(profile)
}

/// Describes the origin of the figures.
pub(super) fn notes(published: &Profile) -> anyhow::Result<Vec<String>> {
    let mut notes = vec![format!(
        "our models: prices in published units, 1 for 2 vCPU, 1.5 for 8, 3 for a V100, between and beyond (vcpu / 2)^0.2925: \
         {:.3} for 4, {:.3} for 16, {:.3} for 48; {UP} units/GB up, {DOWN} down",
        units(Some(4.0)),
        units(Some(16.0)),
        units(Some(48.0))
    )];
    for (operator, same) in SAME {
        let factors: anyhow::Result<Vec<String>> = published
            .machines
            .iter()
            .map(|machine| {
                Ok(format!("{} {:.4}", machine.worker_type, ratio(published, same, &machine.worker_type)?))
            })
            .collect();
        notes.push(format!("our models: times of {operator} on 2 vCPU (measured) x {}", factors?.join(", ")));
    }
    Ok(notes)
}

/// Returns the ratio of an operator's published time on a type of machine to that on 2 vCPU.
fn ratio(published: &Profile, operator: &str, worker_type: &str) -> anyhow::Result<f64> {
    let time = |service: &Service| Some(service.batches.first()?.p75?.0 as f64);
    let mut logs = Vec::new();
    for row in
        published.services.iter().filter(|row| row.operator == operator && row.worker_type == worker_type)
    {
        let smallest = published.service(operator, row.variant.as_deref(), None, SMALLEST);
        let smallest = smallest.with_context(|| format!("{operator} has no figures on {SMALLEST}"))?;
        if let (Some(here), Some(there)) = (time(row), time(smallest)) {
            logs.push((here / there).ln());
        }
    }
    anyhow::ensure!(!logs.is_empty(), "{operator} has no figures on {worker_type}");
    Ok((logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

fn scaled(times: &BatchTime, factor: f64) -> BatchTime {
    times.map(|time| TimeSpan((time.0 as f64 * factor).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_prices_are_kept() {
        assert!((units(Some(2.0)) - 1.0).abs() < 1e-12);
        assert!((units(Some(8.0)) - 1.5).abs() < 1e-12);
        assert!((units(None) - 3.0).abs() < 1e-12);
        assert!(units(Some(4.0)) > 1.0 && units(Some(4.0)) < 1.5 && units(Some(48.0)) < 3.0);
    }

    #[test]
    fn a_ratio_is_the_geometric_mean_over_models() {
        let row = |variant: &str, worker_type: &str, ms: u32| {
            format!(
                "  - {{operator: speech, variant: {variant}, worker_type: {worker_type}, how: published, \
                 batches: [{{batch: 1, p75: {ms}ms}}]}}\n"
            )
        };
        let rows = [("a", SMALLEST, 100), ("b", SMALLEST, 400), ("a", "cpu-2", 50), ("b", "cpu-2", 50)];
        let rows: String = rows.into_iter().map(|(variant, on, ms)| row(variant, on, ms)).collect();
        let text = format!(
            "version: 1\nworkflow: {{name: vqa}}\nmachines:\n  - {{worker_type: {SMALLEST}, how: published}}\n  \
             - {{worker_type: cpu-2, how: published}}\nservices:\n{rows}"
        );
        let profile = Profile::parse(&text, "profile.yaml").unwrap_or_else(|found| panic!("{found}"));
        let found = ratio(&profile, "speech", "cpu-2").expect("has figures");
        assert!((found - 0.25).abs() < 1e-12, "{found}: half and an eighth");
        assert!(ratio(&profile, "speech", "cpu-3").is_err());
    }
}
