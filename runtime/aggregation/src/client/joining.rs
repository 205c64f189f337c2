//! A worker takes part in a job, or takes part again.
use super::{Beginning, Client, ClientError, Held, Joining, PAUSE, Paths, Patience, may_come_back};
use crate::wire::{self, MasterClient, Outcome};
use std::collections::HashMap;
use std::sync::Mutex;
use tidemill_rpc::{Bytes, Code, Net, Status};

impl Client {
    /// Takes part in a job. The first workers bring its states; a worker that comes again, or a job whose workers all come again, continues
    /// where the aggregators are.
    ///
    /// # Errors
    /// No master is reached, it refuses, or the states are lost.
    pub fn join(joining: Joining, beginning: Beginning) -> Result<Self, ClientError> {
        check(&joining, &beginning)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ClientError::Refused(Status::internal(error.to_string())))?;
        let (paths, held, version) = runtime.block_on(join(joining, beginning))?;
        Ok(Self { runtime, paths, held, version })
    }
}

fn check(joining: &Joining, beginning: &Beginning) -> Result<(), ClientError> {
    let wrong = |text: String| Err(ClientError::Form(text));
    if joining.worker >= joining.workers {
        return wrong(format!("there is no worker {} of {}", joining.worker, joining.workers));
    }
    if joining.specs.is_empty() || joining.specs.len() != beginning.states.len() {
        let (specs, states) = (joining.specs.len(), beginning.states.len());
        return wrong(format!("a job has tensors, and as many states: {specs} and {states} came"));
    }
    for (spec, state) in joining.specs.iter().zip(&beginning.states) {
        spec.check()?;
        spec.values_of_state(state)?;
    }
    Ok(())
}

async fn join(joining: Joining, beginning: Beginning) -> Result<(Paths, Vec<Held>, u64), ClientError> {
    let program = format!("worker-{}", joining.job);
    let net = Net::connect_to(&joining.socket, &program).await?;
    let specs =
        serde_json::to_string(&joining.specs).map_err(|error| ClientError::Form(error.to_string()))?;
    let request = wire::JoinRequest {
        job: joining.job.clone(),
        token: joining.token.clone(),
        worker: joining.worker,
        workers: joining.workers,
        specs,
        spread: joining.spread.max(1),
    };
    let mut patience = Patience::new(joining.patience);
    let (master, places) = loop {
        let joined = async {
            let master = match joining.at.as_deref() {
                None => MasterClient::connect(&net).await?,
                Some(at) => MasterClient::connect_at(&net, &[at]).await?,
            };
            let places = master.join(request.clone()).await?.into_inner();
            Ok::<_, Status>((master, places))
        };
        match joined.await {
            Ok(joined) => break joined,
            Err(status) if status.code == Code::Unavailable && !patience.is_over() => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(status) if status.code == Code::Unavailable => {
                let text =
                    format!("no master serves aggregation; start one with `tidemill agg serve`: {status}");
                return Err(Status::unavailable(text).into());
            }
            Err(status) => return Err(status.into()),
        }
    };
    let held = joining.specs.iter().enumerate().zip(places.aggregators).map(|((index, spec), place)| Held {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        spec: spec.clone(),
        keeps: index % joining.workers as usize == joining.worker as usize,
        gives: false,
        place,
        values: Bytes::new(),
        version: 0,
        last: None,
    });
    let held: Vec<Held> = held.collect();
    let paths = Paths { net, master, joining, channels: Mutex::new(HashMap::new()) };
    begin(paths, held, beginning, places.started).await
}

/// Gets the states, or brings them.
async fn begin(
    paths: Paths,
    mut held: Vec<Held>,
    beginning: Beginning,
    started: bool,
) -> Result<(Paths, Vec<Held>, u64), ClientError> {
    let mut found = Vec::new();
    for held in &mut held {
        found.push(paths.pull(held, false, started).await?);
    }
    let is_new = !started && found.iter().flatten().all(|(version, _)| *version == beginning.version);
    if is_new {
        for (held, state) in held.iter_mut().zip(&beginning.states) {
            let values = held.spec.values_of_state(state)?;
            held.version = beginning.version;
            if held.keeps {
                held.values = state.clone();
                held.gives = true;
                // Where it fails, the first push gives it again.
                let _ = paths.give(held).await;
            } else {
                // As they travel: a state without moments has the form of values, but for halves.
                held.values = match held.spec.numbers {
                    crate::number::Numbers::F16 => {
                        let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
                        crate::number::halves(&values).into()
                    }
                    _ => state.slice(..held.spec.numbers.of_state() * held.spec.count),
                };
            }
        }
        return Ok((paths, held, beginning.version));
    }
    for (held, found) in held.iter_mut().zip(&mut found) {
        if found.is_none() {
            *found = paths.pull(held, false, true).await?;
        }
    }
    let version = found.iter().flatten().map(|(version, _)| *version).min().unwrap_or(0);
    for (held, found) in held.iter_mut().zip(found) {
        let Some((own, values)) = found else { continue };
        (held.version, held.values, held.gives) = (own, values, held.keeps);
        if own == version {
            continue;
        }
        // This tensor has made the step already: the gradient needs its values before.
        let before = paths.pull(held, true, true).await?.filter(|(own, _)| *own == version);
        let Some((_, values)) = before else {
            return Err(paths.too_late(held, version));
        };
        if held.keeps {
            // Values with moments of 0 are enough for a gradient; the next reply has the state.
            let values = held.spec.values_of(&values)?;
            held.values = held.spec.state_of(&values).into();
            (held.version, held.gives) = (version, false);
        } else {
            (held.version, held.values) = (version, values);
        }
    }
    Ok((paths, held, version))
}

impl Paths {
    /// Gets a tensor; none: its state has not come yet. `waits`: until it has come.
    async fn pull(
        &self,
        held: &mut Held,
        before: bool,
        waits: bool,
    ) -> Result<Option<(u64, Bytes)>, ClientError> {
        let mut patience = Patience::new(self.joining.patience);
        loop {
            let obstacle = match self.ask(held, held.keeps && !before, before).await {
                Ok(pulled) if pulled.outcome == Outcome::DONE => {
                    if crc32c::crc32c(&pulled.state) != pulled.crc32c {
                        let text = "the values of the tensor have changed on their way";
                        return Err(Status::new(Code::DataLoss, text).into());
                    }
                    return Ok(Some((pulled.version, Bytes::copy_from_slice(&pulled.state))));
                }
                Ok(pulled) if pulled.outcome == Outcome::AWAITING && !waits => return Ok(None),
                Ok(pulled) if pulled.outcome == Outcome::AWAITING => {
                    format!("{} waits for the state from worker {}", held.place, self.keeper(held))
                }
                Ok(pulled) if !pulled.moved_to.is_empty() => {
                    held.place = pulled.moved_to;
                    "it moves".to_owned()
                }
                Ok(_) => {
                    self.locate(held).await?;
                    "it is placed anew".to_owned()
                }
                Err(status) if may_come_back(&status) => {
                    crate::aggregator::locked(&self.channels).remove(&held.place);
                    let located = self.locate(held).await;
                    located.err().unwrap_or(status).to_string()
                }
                Err(status) => return Err(status.into()),
            };
            if patience.is_over() {
                return Err(self.lost(held, obstacle));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
