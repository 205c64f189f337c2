//! Hints for a program: the state of the links between the machines of its group.
use super::{Error, Group, ask};
use crate::hints::OwnHints;
use crate::protocol::{Answer, Question};
use std::time::Duration;

/// Time in which the service answers.
const PATIENCE: Duration = Duration::from_secs(5);

impl Group {
    /// Asks for the state of the links between the machines of the group. Machines and racks are numbers, and nothing in the answer
    /// depends on what others do in racks that the group does not use.
    ///
    /// ```no_run
    /// # use tidemill_collective::client::{Error, Group};
    /// # fn plan(group: &Group) -> Result<(), Error> {
    /// let own = group.hints()?;
    /// println!("figures of up to {} ms ago", own.age_us / 1000);
    /// for (machine, rack) in own.racks.iter().enumerate() {
    ///     let up = &own.links[2 * machine];
    ///     println!("machine {machine} in rack {rack}: {} of {} bytes/s are free", up.residual, up.total);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] where the operator keeps hints for the service, within 50 ms of the last question of this rank, and while
    /// a machine of the group does not report.
    pub fn hints(&self) -> Result<OwnHints, Error> {
        let place = self
            .place
            .as_ref()
            .ok_or_else(|| Error::Refused("the group is one of the service".to_owned()))?;
        let (service, group) = &**place;
        match ask(service, Question::OwnHints { group: group.clone(), rank: self.rank() }, PATIENCE)? {
            Answer::OwnHints(hints) => Ok(hints),
            Answer::Refused(reason) => Err(Error::Refused(reason)),
            _ => Err(Error::Broken("answers something else".to_owned())),
        }
    }
}
