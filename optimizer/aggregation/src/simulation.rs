//! A service over hours of arrivals: how many aggregators it has, beside the servers that the jobs would have had.
use crate::service::{Job, JobId, LOSS_LIMIT, Service, ServiceError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A job that arrives, and leaves after a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// When it arrives.
    pub at: Duration,
    /// How long it stays.
    pub length: Duration,
    /// The parameter servers that its user asks for.
    pub servers: usize,
    /// The job.
    pub job: Job,
}

/// How a service is simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The time between two attempts to release aggregators; they are added at once.
    pub period: Duration,
    /// The part of its speed that a job may lose.
    pub loss_limit: f64,
    /// The time between two samples.
    pub interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { period: minute, loss_limit: LOSS_LIMIT, interval: minute }
    }
}

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// When.
    pub at: Duration,
    /// The servers that the jobs ask for.
    pub demanded: usize,
    /// The aggregators.
    pub allocated: usize,
}

/// The results of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Every interval.
    pub samples: Vec<Sample>,
    /// The time of aggregators, as a part of the time of the servers that jobs asked for, taken from 1.
    pub saving: f64,
    /// The most aggregators for each server that jobs ask for, over all samples with jobs.
    pub worst: f64,
    /// The largest loss of speed of a job, by the model.
    pub most_loss: f64,
    /// Tensors that moved from one aggregator to another.
    pub moves: usize,
}

impl Report {
    /// Returns the part of the samples with jobs, between two moments, in which there are fewer aggregators than servers asked for. A single
    /// job has as many: look at the time while jobs arrive.
    pub fn below(&self, from: Duration, to: Duration) -> f64 {
        let during =
            self.samples.iter().filter(|sample| sample.at >= from && sample.at <= to && sample.demanded > 0);
        let (all, fewer) = during.fold((0.0, 0.0), |(all, fewer), sample| {
            (all + 1.0, fewer + f64::from(u8::from(sample.allocated < sample.demanded)))
        });
        if all > 0.0 { fewer / all } else { 0.0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Exit(usize),
    Period,
    Sample,
    Arrival(usize),
}

/// Simulates a service from the first arrival to the last exit. The time to profile jobs, and feedback from measured speeds, are left out.
///
/// # Errors
/// As for [`Service::admit`].
pub fn simulate(arrivals: &[Arrival], options: Options) -> Result<Report, ServiceError> {
    let mut service = Service::with_loss_limit(options.loss_limit)?;
    let mut events: BTreeMap<(Duration, Event), ()> = BTreeMap::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        events.insert((arrival.at, Event::Arrival(index)), ());
        events.insert((arrival.at + arrival.length, Event::Exit(index)), ());
    }
    let (Some(first), Some(last)) =
        (events.keys().next().map(|key| key.0), events.keys().last().map(|key| key.0))
    else {
        return Ok(Report { samples: Vec::new(), saving: 0.0, worst: 0.0, most_loss: 0.0, moves: 0 });
    };
    let step = |interval: Duration| interval.max(Duration::from_millis(1));
    events.insert((first + step(options.period), Event::Period), ());
    events.insert((first, Event::Sample), ());

    let (mut demanded, mut changed, mut moves, mut most_loss) = (0usize, false, 0, 0.0f64);
    let (mut asked, mut used, mut before) = (0.0, 0.0, first);
    let mut samples = Vec::new();
    while let Some(((now, event), ())) = events.pop_first() {
        let elapsed = (now - before).as_secs_f64();
        asked += elapsed * demanded as f64;
        used += elapsed * service.aggregators() as f64;
        before = now;
        match event {
            Event::Arrival(index) => {
                service.admit(JobId(index as u64), arrivals[index].job.clone())?;
                demanded += arrivals[index].servers;
                most_loss = service.jobs().filter_map(|job| service.loss(job)).fold(most_loss, f64::max);
            }
            Event::Exit(index) => {
                moves += service.exit(JobId(index as u64))?.len();
                demanded -= arrivals[index].servers;
                changed = true;
            }
            Event::Period => {
                if changed {
                    moves += service.scale_in().1.len();
                    changed = false;
                }
                if now < last {
                    events.insert((now + step(options.period), Event::Period), ());
                }
            }
            Event::Sample => {
                samples.push(Sample { at: now, demanded, allocated: service.aggregators() });
                if now < last {
                    events.insert((now + step(options.interval), Event::Sample), ());
                }
            }
        }
    }
    let busy: Vec<&Sample> = samples.iter().filter(|sample| sample.demanded > 0).collect();
    let worst =
        busy.iter().map(|sample| sample.allocated as f64 / sample.demanded as f64).fold(0.0, f64::max);
    let saving = if asked > 0.0 { 1.0 - used / asked } else { 0.0 };
    Ok(Report { samples, saving, worst, most_loss, moves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{ALEXNET, Shape, VGG19, arrivals};

    fn together(shape: Shape, jobs: u64) -> (usize, Report) {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let arrivals: Vec<Arrival> = (0..jobs)
            .map(|job| Arrival { at: minutes(job), length: minutes(30), servers: 2, job: shape.job(2, 2) })
            .collect();
        let report = simulate(&arrivals, Options::default()).unwrap();
        let most = report.samples.iter().map(|sample| sample.allocated).max().unwrap();
        (most, report)
    }

    /// A4: four jobs with two servers each.
    #[test]
    fn published_jobs_share_few_aggregators() {
        let (most, report) = together(VGG19, 4);
        assert_eq!(most, 2, "8 servers become 2");
        assert_eq!(report.most_loss, 0.0);
        let (most, _) = together(ALEXNET, 4);
        assert!((2..=6).contains(&most), "{most}");
        let (most, _) = together(VGG19, 1);
        assert_eq!(most, 2);
    }

    #[test]
    fn aggregators_are_released_at_the_next_period() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let job = Arrival { at: minutes(0), length: minutes(30), servers: 2, job: VGG19.job(2, 2) };
        let report = simulate(&[job], Options { period: minutes(7), ..Options::default() }).unwrap();
        let last = report.samples.last().unwrap();
        assert_eq!((last.at, last.demanded, last.allocated), (minutes(30), 0, 2));
        assert!((report.saving + 5.0 / 30.0).abs() < 1e-9, "35 minutes for 30: {}", report.saving);
    }

    /// A6: at least 40 % less time of servers, and fewer of them in 99 % of the minutes.
    #[test]
    fn random_arrivals_need_fewer_aggregators() {
        let arrivals = arrivals(1, 300, Duration::from_secs(20));
        let report = simulate(&arrivals, Options::default()).unwrap();
        let below = report.below(arrivals[10].at, arrivals[299].at);
        assert!(report.saving >= 0.4, "{}", report.saving);
        assert!(below >= 0.99, "{below}");
        assert!(report.most_loss < LOSS_LIMIT);
    }

    #[test]
    fn no_arrivals_are_no_time() {
        assert!(simulate(&[], Options::default()).unwrap().samples.is_empty());
    }
}
