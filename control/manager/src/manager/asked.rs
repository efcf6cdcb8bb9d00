//! What operators and signals ask of the loop itself: to answer, to read the file again, to stop.
//!
//! Not here: calls that concern rooms (`calls::answer`), what a reload does (`reload`), and when the loop ends.

use std::time::Duration;

use config::api::{Answer, ApiError, Call, ErrorKind};
use tracing::info;

use super::Manager;
use crate::api::Request;
use crate::calls::{STOPPING, answer, disks, overdue, shown};
use crate::daemon_view;
use crate::defects::found;
use crate::poll::Token;
use crate::remote::Remote;
use crate::upgrade::error::UpgradeError;

/// How long a stop waits for what is in flight.
const STOP_TIME_MAX: Duration = Duration::from_millis(1500);

impl Manager {
    /// Answers an operator, at once or when the queues that his call concerns are back.
    pub(crate) fn answer(&mut self, request: Request) {
        request.log_change();
        let (call, reply) = request.into_parts();
        self.links(Remote::note_heard);
        self.commit_before(&call);
        let mode = self.mode();
        if mode.is_stopping() && call.change().is_some() {
            // Devices go already that stay in the plan, and whoever plans and keeps without them would lose them.
            return reply.answer(Err(ApiError::new(ErrorKind::Busy, STOPPING, "ask the next one")));
        }
        match call {
            Call::Reload { force } => {
                let asked = (Some(reply), force);
                self.reloading.begin(asked, &mut self.listening, &mut self.rooms, mode);
                self.go_on_reloading();
            }
            Call::ShowReload => {
                let view = self.reloading.dry(mode, &self.listening, &mut self.rooms);
                reply.answer(view.map(Answer::Reloaded));
            }
            Call::Upgrade { force } => self.begin_upgrade(reply, force),
            Call::AcceptDisk { id } => {
                let accepted = disks::accept_image(&id, &mut self.rooms, mode);
                self.settle();
                reply.answer(accepted.and_then(|()| shown::disk(&self.rooms, &id, true)));
            }
            call => answer::answer(call, reply, &mut self.rooms, mode),
        }
    }

    /// Goes on with calls that wait no longer.
    pub(crate) fn go_on_with_calls(&mut self) {
        let mode = self.mode();
        for undone in overdue::go_on(&mut self.rooms, mode) {
            self.reloading.note(undone);
        }
        daemon_view::go_on(&mut self.rooms);
    }

    /// A signal asks for a reload.
    pub(crate) fn reload_on_signal(&mut self) {
        self.rooms.poll.clear_signals(Token::Reload);
        self.commit();
        let mode = self.mode();
        // Nobody is there to insist.
        self.reloading.begin((None, false), &mut self.listening, &mut self.rooms, mode);
        self.go_on_reloading();
    }

    /// Begins to stop, on a signal.
    pub(crate) fn begin_stop(&mut self) {
        self.rooms.poll.clear_signals(Token::Stop);
        if self.stop_by.is_some() {
            return;
        }
        self.commit();
        info!("stopping");
        (self.rooms.options.stopping)();
        self.give_up_upgrade(&UpgradeError::Stopping);
        self.tell_of_dead_heir();
        self.rooms.shut.clear();
        self.rooms.waiting.stop_changing();
        self.reloading.stop();
        self.rooms.network.give_up_uplinks(&mut self.rooms.cores);
        self.stop_by = Some(self.rooms.turn.now() + STOP_TIME_MAX);
        // They stay in the plan, and so do their images.
        self.rooms.devices.are_told();
        let devices: Vec<u32> = self.rooms.devices.keys().copied().collect();
        for number in devices {
            let device = self.rooms.devices.get_mut(number);
            let device = found!(self.rooms.turn.defects, device, "device to stop");
            device.close_socket(&self.rooms.poll);
            // Its queues must not start again, and its front-end sees the end at once.
            device.go();
            if !device.detach_all(&mut self.rooms.turn, &mut self.rooms.cores) {
                self.links(|remote, around| remote.release_remote(number, around));
            }
        }
    }

    /// Closes what has a name, and answers whoever still waits.
    pub(crate) fn close_all(&mut self) {
        self.rooms.waiting.stop();
        daemon_view::stop(&mut self.rooms);
        let numbers: Vec<u32> = self.rooms.devices.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.rooms.hear_unsynced(number));
        let poll = &self.rooms.poll;
        self.rooms.devices.values_mut().for_each(|device| device.close_socket(poll));
    }
}
