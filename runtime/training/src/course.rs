//! A training from its first step to its last, with ranks that are lost and come back.
use crate::member::Member;
use crate::parts::Parts;
use crate::regrouping::Regrouped;
use crate::trainer::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Time in which all ranks that are left have to say that they continue, where nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Length of a training, and actions between its steps.
#[derive(Debug, Clone)]
pub struct Course {
    /// Steps of the whole training.
    pub steps: u64,
    /// Steps between checkpoints; 0: only where the training is asked to end.
    pub checkpoint_every: u64,
    /// The file of checkpoints; none: there are none.
    pub checkpoint: Option<PathBuf>,
    /// Steps after which experts get new places, and lost ranks that came back take part; 0: never.
    pub rebalance_every: u64,
    /// Ranks that may be lost.
    pub survive: usize,
    /// Time in which all ranks that are left have to say that they continue.
    pub patience: Duration,
}

/// Something that happened. All ranks get the same, in the same order, but for a loss and what it interrupts.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// The ranks have agreed, and continue.
    Regrouped(Regrouped),
    /// A step is done, with this mean loss of its batch before it.
    Step {
        /// Steps that are done.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// A checkpoint is going to be written over the last one.
    Saving,
    /// A checkpoint of this step is written.
    Saved {
        /// The step.
        step: u64,
    },
    /// A rank is lost, for this reason.
    Lost {
        /// The reason.
        why: String,
    },
}

/// End of a training.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// All steps are done. The parameters are those of the whole model.
    Done {
        /// The parameters.
        parameters: Vec<f64>,
    },
    /// A rank wished it. The checkpoint has the last step.
    Asked,
    /// More ranks are lost than it survives. The checkpoint has the last step.
    TooFew {
        /// The number of lost ranks.
        lost: usize,
    },
    /// A rank is lost, and those that are left cannot find each other. Where each rank has the whole model, the checkpoint has the last step;
    /// otherwise it is an older one.
    Apart {
        /// The reason.
        why: String,
    },
}

/// Facts that all ranks have agreed on since they last regrouped, so that all do the same next.
#[derive(Default)]
struct Agreed {
    /// Whether they have agreed at all.
    is_grouped: bool,
    /// The step at which they did.
    regrouped: u64,
    /// The step of the last checkpoint since then.
    saved: Option<u64>,
    /// A rank wished for the end.
    ends: bool,
}

impl Course {
    /// Trains until the end. `wishes` says whether this rank wishes for an early end; all ranks then end after the same step. `news` gets
    /// what happens, and whether this rank is the first of those that take part.
    ///
    /// # Errors
    /// The gradients are no numbers, a checkpoint cannot be read or written, or ranks are lost in a manner that does not let the others
    /// continue.
    pub fn run(
        &self,
        member: &mut Member,
        ranks: &mut impl Parts,
        wishes: &dyn Fn() -> bool,
        news: &mut dyn FnMut(&News, bool),
    ) -> Result<Ending, Error> {
        let mut agreed = Agreed::default();
        loop {
            let result = match agreed.is_grouped {
                true => self.next(member, ranks, &mut agreed, wishes, news),
                false => self.regroup(member, ranks, &mut agreed, news),
            };
            match result {
                Ok(None) => {}
                Ok(Some(ending)) => return Ok(ending),
                Err(Error::Exchange(error)) if error.is_loss() => {
                    let is_first = ranks.share().0 == 0;
                    news(&News::Lost { why: error.to_string() }, is_first);
                    if let Err(error) = self.continue_with(ranks) {
                        if member.is_there && member.held().is_empty() {
                            self.save(member, ranks, &mut agreed, news)?;
                        }
                        return Ok(Ending::Apart { why: error.to_string() });
                    }
                    agreed = Agreed::default();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for all ranks that are left. More may be lost meanwhile.
    fn continue_with(&self, ranks: &mut impl Parts) -> Result<(), Error> {
        let mut failures = 0;
        loop {
            match ranks.continues(self.patience) {
                Err(error) if error.is_loss() && failures < ranks.size() => failures += 1,
                result => return Ok(result?),
            }
        }
    }

    fn regroup(
        &self,
        member: &mut Member,
        ranks: &mut impl Parts,
        agreed: &mut Agreed,
        news: &mut dyn FnMut(&News, bool),
    ) -> Result<Option<Ending>, Error> {
        let regrouped = member.regroup(ranks, self.checkpoint.as_deref())?;
        let lost = (ranks.size() as usize).saturating_sub(regrouped.members.len());
        *agreed = Agreed { is_grouped: true, regrouped: regrouped.step, ..Agreed::default() };
        if lost > self.survive {
            self.save(member, ranks, agreed, news)?;
            return Ok(Some(Ending::TooFew { lost }));
        }
        news(&News::Regrouped(regrouped), ranks.share().0 == 0);
        Ok(None)
    }

    fn save(
        &self,
        member: &Member,
        ranks: &mut impl Parts,
        agreed: &mut Agreed,
        news: &mut dyn FnMut(&News, bool),
    ) -> Result<(), Error> {
        if let Some(path) = &self.checkpoint {
            news(&News::Saving, ranks.share().0 == 0);
            member.save(ranks, path)?;
            agreed.saved = Some(member.steps());
            news(&News::Saved { step: member.steps() }, ranks.share().0 == 0);
        }
        Ok(())
    }

    /// Does the next thing.
    fn next(
        &self,
        member: &mut Member,
        ranks: &mut impl Parts,
        agreed: &mut Agreed,
        wishes: &dyn Fn() -> bool,
        news: &mut dyn FnMut(&News, bool),
    ) -> Result<Option<Ending>, Error> {
        let step = member.steps();
        if step >= self.steps {
            let parameters = member.parameters(ranks)?;
            return match ranks.sum(&mut [0]) {
                // This rank has the whole model. Others that have not find out themselves.
                Err(error) if !error.is_loss() => Err(error.into()),
                _ => Ok(Some(Ending::Done { parameters })),
            };
        }
        if agreed.ends {
            if agreed.saved != Some(step) {
                self.save(member, ranks, agreed, news)?;
            }
            return Ok(Some(Ending::Asked));
        }
        let is_due = |every: u64| every > 0 && step > 0 && step.is_multiple_of(every);
        if is_due(self.checkpoint_every) && agreed.saved != Some(step) && agreed.regrouped != step {
            self.save(member, ranks, agreed, news)?;
        }
        let is_missing = ranks.members().len() < ranks.size() as usize;
        let has_experts = member.placement.is_some() && ranks.share().1 > 1;
        if is_due(self.rebalance_every) && agreed.regrouped != step && (is_missing || has_experts) {
            if is_missing {
                self.continue_with(ranks)?;
            }
            return self.regroup(member, ranks, agreed, news);
        }
        let stepped = member.step(ranks, wishes())?;
        agreed.ends = stepped.ends;
        news(&News::Step { step: member.steps(), loss: stepped.loss }, ranks.share().0 == 0);
        Ok(None)
    }
}
