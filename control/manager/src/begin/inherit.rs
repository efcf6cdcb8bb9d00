//! A start with what another daemon serves until now, a packet at a time.
//!
//! What it holds is shared, and dropping it would cut off front-ends: so whatever fails ends the process where it fails.
//! Not here: what is said (`upgrade::heir`), and that it serves (`manager::upgrading`).

use config::Plan;

use super::{StartError, begin, open_all};
use crate::api::Entrance;
use crate::manager::Manager;
use crate::options::Options;
use crate::upgrade::estate::Estate;
use crate::upgrade::heir::Heir;

/// How far it is. `D` is the door for operators, at which nobody is let in yet.
pub(crate) enum Inheriting<D> {
    /// It is being told what there is.
    Told(Box<(Plan, Options)>, Estate),
    /// It could serve that, and is being told where it stands.
    Able(Manager, D),
    /// It has all.
    Placed(Manager, D),
    /// It is to serve, and waits for nothing any more.
    Given(Manager, D),
}

impl<D> Inheriting<D> {
    /// Says what this program is.
    pub(crate) fn begin(plan: Plan, options: Options, heir: &Heir) -> Inheriting<D> {
        granted(heir.greet(&options.told()), heir);
        Inheriting::Told(Box::new((plan, options)), Estate::default())
    }

    /// Hears the next packet, and answers it. `open` makes the door.
    pub(crate) fn hear(
        self,
        heir: &mut Heir,
        open: impl FnOnce(Entrance, &Options) -> Result<D, StartError>,
    ) -> Inheriting<D> {
        match self {
            Inheriting::Told(given, mut estate) => {
                if !granted(heir.hear_estate(&mut estate), heir) {
                    return Inheriting::Told(given, estate);
                }
                let (plan, options) = *given;
                let (mut manager, entrance) = granted(begin(&plan, options, Some(estate)), heir);
                let mode = manager.mode();
                granted(open_all(&mut manager.rooms, &manager.calls, plan, mode), heir);
                granted(manager.adopt(), heir);
                let door = granted(open(entrance, &manager.rooms.options), heir);
                granted(heir.say_ready(), heir);
                Inheriting::Able(manager, door)
            }
            Inheriting::Able(mut manager, door) => {
                if !granted(manager.hear_rings(heir), heir) {
                    return Inheriting::Able(manager, door);
                }
                granted(manager.inherit_uplinks(), heir);
                granted(manager.inherit_links(), heir);
                match granted(heir.say_taken(), heir) {
                    true => Inheriting::Given(manager, door),
                    false => Inheriting::Placed(manager, door),
                }
            }
            Inheriting::Placed(mut manager, door) => {
                granted(manager.hear_leave(heir), heir);
                Inheriting::Given(manager, door)
            }
            given @ Inheriting::Given(..) => given,
        }
    }
}

/// What was to be had, or the end of this process.
fn granted<T, E: std::fmt::Display>(what: Result<T, E>, heir: &Heir) -> T {
    what.unwrap_or_else(|why| heir.refuse(&why.to_string()))
}
