//! Answers to workers and to people.
use super::map::{Job, Stage};
use super::report::{self, Report};
use super::{Key, Master, MasterError, State, digest, is_of};
use crate::tensor::Spec;
use crate::wire::{self, Nothing, Phase};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_aggregation::JobId;
use tidemill_rpc::{Code, Request, Response, Status};

/// The longest name of a job.
const MOST_NAME: usize = 100;

fn places(job: &Job) -> wire::Places {
    wire::Places { aggregators: job.places.clone(), started: job.started }
}

fn unknown(job: &str) -> Status {
    Status::new(Code::NotFound, format!("there is no job {job}; `tidemill agg jobs` lists them"))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl State {
    fn of(&self, request: &wire::LocateRequest) -> Result<&Job, Status> {
        let job = self.map.jobs.get(&request.job).ok_or_else(|| unknown(&request.job))?;
        if is_of(job, &request.token) {
            return Ok(job);
        }
        Err(Status::new(Code::PermissionDenied, format!("the token is not that of job {}", request.job)))
    }

    async fn join(&mut self, join: wire::JoinRequest) -> Result<wire::Places, Status> {
        let specs: Vec<Spec> = serde_json::from_str(&join.specs)
            .map_err(|error| Status::invalid_argument(format!("the tensors: {error}")))?;
        if let Some(job) = self.map.jobs.get_mut(&join.job) {
            if job.digest != digest(&join.token) {
                let text = format!(
                    "another job has the name {}: use another name, or end that one by `tidemill agg remove {}`",
                    join.job, join.job
                );
                return Err(Status::new(Code::AlreadyExists, text));
            }
            if job.specs != specs || job.workers != join.workers {
                let text = format!(
                    "job {} has {} workers and {} tensors; worker {} has others",
                    join.job,
                    job.workers,
                    job.specs.len(),
                    join.worker
                );
                return Err(Status::new(Code::FailedPrecondition, text));
            }
            job.left.remove(&join.worker);
            return Ok(places(job));
        }
        if join.job.is_empty() || join.job.len() > MOST_NAME || specs.is_empty() || join.workers == 0 {
            let text = format!("a job has a name of 1 to {MOST_NAME} bytes, workers and tensors");
            return Err(Status::invalid_argument(text));
        }
        specs
            .iter()
            .try_for_each(Spec::check)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.add(join, specs).await.map_err(MasterError::status)
    }

    async fn add(&mut self, join: wire::JoinRequest, specs: Vec<Spec>) -> Result<wire::Places, MasterError> {
        let mut at: Vec<String> = Vec::new();
        let stage = if self.options.fixed.is_some() {
            at.extend(self.map.aggregators.iter().cloned());
            Stage::Fixed("the aggregators are fixed".to_owned())
        } else {
            let spread = (join.spread.max(1) as usize).min(specs.len());
            for _ in 0..spread {
                at.push(self.start().await?);
            }
            Stage::Profiled
        };
        let id = self.map.new_job();
        let places: Vec<String> =
            at.iter().cycle().skip(id as usize % at.len().max(1)).take(specs.len()).cloned().collect();
        let job = Job {
            id,
            digest: digest(&join.token).to_vec(),
            workers: join.workers,
            spread: join.spread.max(1),
            specs,
            stage,
            started: false,
            left: BTreeSet::new(),
            places,
            moves: BTreeMap::new(),
        };
        let answer = self::places(&job);
        let mut expected: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (tensor, place) in (0..).zip(&job.places) {
            expected.entry(place.clone()).or_default().push(tensor);
        }
        self.map.jobs.insert(join.job.clone(), job);
        self.write()?;
        for (at, tensors) in expected {
            if let Err(status) = self.expect(&join.job, &tensors, &at).await {
                self.remove(&join.job).await?;
                return Err(status.into());
            }
        }
        Ok(answer)
    }

    async fn leave(&mut self, leave: &wire::LocateRequest) -> Result<(), Status> {
        // The reply to one that has left may have been lost.
        if !self.map.jobs.contains_key(&leave.job) {
            return Ok(());
        }
        self.of(leave)?;
        let Some(job) = self.map.jobs.get_mut(&leave.job) else { return Ok(()) };
        job.left.insert(leave.worker);
        if job.left.len() < job.workers as usize {
            return Ok(());
        }
        self.remove(&leave.job).await.map_err(MasterError::status)
    }

    fn wish(&mut self, wish: &wire::MoveRequest) -> Result<(), Status> {
        if !self.map.aggregators.contains(&wish.to) {
            let names: Vec<&str> = self.map.aggregators.iter().map(String::as_str).collect();
            let text = format!("there is no aggregator {}; there are: {}", wish.to, names.join(", "));
            return Err(Status::new(Code::NotFound, text));
        }
        let to = self.map.of_name(&wish.to).map(tidemill_aggregation::AggregatorId);
        let job = self.map.jobs.get_mut(&wish.job).ok_or_else(|| unknown(&wish.job))?;
        let count = u32::try_from(job.specs.len()).unwrap_or(u32::MAX);
        if let Some(tensor) = wish.tensor.filter(|tensor| *tensor >= count) {
            let text = format!("job {} has tensors 0 to {}, and no {tensor}", wish.job, count - 1);
            return Err(Status::new(Code::NotFound, text));
        }
        let wished = wish.tensor.map_or(0..count, |tensor| tensor..tensor + 1);
        if let Some(tensor) = wished.clone().find(|tensor| job.moves.contains_key(tensor)) {
            let text = format!("tensor {tensor} of {} moves already", wish.job);
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        if job.stage == Stage::Placed {
            let to = to.ok_or_else(|| {
                let text = format!("{} measures a job: move the tensor later, or to another one", wish.to);
                Status::new(Code::FailedPrecondition, text)
            })?;
            for tensor in wished.clone() {
                let moved = self.map.service.relocate(JobId(job.id), tensor as usize, to);
                moved.map_err(|error| Status::new(Code::FailedPrecondition, error.to_string()))?;
            }
        }
        for tensor in wished {
            if job.places.get(tensor as usize).is_some_and(|place| *place != wish.to) {
                job.moves.insert(tensor, wish.to.clone());
            }
        }
        self.write().map_err(MasterError::status)
    }

    fn report(&self, only: &str) -> Result<wire::Document, Status> {
        if !only.is_empty() && !self.map.jobs.contains_key(only) {
            return Err(unknown(only));
        }
        let loads = self.map.service.loads();
        let aggregators = self.map.aggregators.iter().map(|name| {
            let load =
                self.map.of_name(name).and_then(|id| loads.iter().find(|load| load.aggregator.0 == id));
            let held = self.seen.get(name);
            report::Aggregator {
                name: name.clone(),
                answers: held.is_some() && !self.silent.contains_key(name),
                tensors: held.map_or(0, BTreeMap::len),
                bytes: held.map_or(0, |held| held.values().map(|held| held.bytes).sum()),
                cycle_ms: load.map(|load| milliseconds(load.cycle)),
                utilisation: load.map(tidemill_aggregation::Load::utilisation),
            }
        });
        let jobs = self.map.jobs.iter().filter(|(name, _)| only.is_empty() || *name == only);
        let report = Report {
            version: 1,
            aggregators: aggregators.collect(),
            jobs: jobs.map(|(name, job)| self.job(name, job)).collect(),
        };
        let json = serde_json::to_string(&report).map_err(|error| Status::internal(error.to_string()))?;
        Ok(wire::Document { json })
    }

    fn job(&self, name: &str, job: &Job) -> report::Job {
        let tensors: Vec<report::Tensor> = (0..)
            .zip(job.places.iter().zip(&job.specs))
            .map(|(tensor, (place, spec))| {
                let key: Key = (name.to_owned(), tensor);
                let at = |place: &String| self.seen.get(place).and_then(|of| of.get(&key));
                let held = job.moves.get(&tensor).and_then(at).filter(|held| held.phase != Phase::EXPECTED);
                let held = held.or_else(|| at(place));
                let has_state = held.filter(|held| held.phase != Phase::EXPECTED);
                let work = held.filter(|held| held.steps > 0);
                report::Tensor {
                    tensor,
                    name: spec.name.clone(),
                    count: spec.count,
                    aggregator: place.clone(),
                    moves_to: job.moves.get(&tensor).cloned(),
                    steps: has_state.map(|held| held.version),
                    missing: has_state.map(|held| held.missing),
                    bytes: spec.memory(job.workers),
                    work_us: work.map(|held| held.work_ns as f64 / held.steps as f64 / 1e3),
                }
            })
            .collect();
        let (stage, reason) = match &job.stage {
            Stage::Profiled => ("profiled", None),
            Stage::Placed => ("placed", None),
            Stage::Fixed(reason) => ("fixed", Some(reason.clone())),
        };
        let alone = self.map.service.job(JobId(job.id));
        report::Job {
            name: name.to_owned(),
            workers: job.workers,
            stage: stage.to_owned(),
            reason,
            steps: tensors.iter().map(|tensor| tensor.steps.unwrap_or(0)).min().unwrap_or(0),
            iteration_ms: self.measured.get(name).map(|time| milliseconds(*time)),
            alone_ms: alone.map(|job| milliseconds(job.iteration)),
            expected_loss: self.map.service.loss(JobId(job.id)),
            tensors,
        }
    }
}

impl wire::Master for Master {
    async fn join(&self, request: Request<wire::JoinRequest>) -> Result<Response<wire::Places>, Status> {
        Ok(self.0.lock().await.join(request.into_inner()).await?.into())
    }

    async fn locate(&self, request: Request<wire::LocateRequest>) -> Result<Response<wire::Places>, Status> {
        let state = self.0.lock().await;
        Ok(places(state.of(&request.message)?).into())
    }

    async fn leave(&self, request: Request<wire::LocateRequest>) -> Result<Response<Nothing>, Status> {
        self.0.lock().await.leave(&request.message).await?;
        Ok(Nothing {}.into())
    }

    async fn report(
        &self,
        request: Request<wire::ReportRequest>,
    ) -> Result<Response<wire::Document>, Status> {
        let mut state = self.0.lock().await;
        state.list().await;
        Ok(state.report(&request.message.job)?.into())
    }

    async fn r#move(&self, request: Request<wire::MoveRequest>) -> Result<Response<wire::Document>, Status> {
        let mut state = self.0.lock().await;
        state.wish(&request.message)?;
        Ok(state.report(&request.message.job)?.into())
    }

    async fn remove(&self, request: Request<wire::ReportRequest>) -> Result<Response<Nothing>, Status> {
        let mut state = self.0.lock().await;
        if !state.map.jobs.contains_key(&request.message.job) {
            return Err(unknown(&request.message.job));
        }
        state.remove(&request.message.job).await.map_err(MasterError::status)?;
        Ok(Nothing {}.into())
    }
}
