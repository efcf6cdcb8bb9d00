//! A client that goes over to another process: all but its session.
//!
//! Its attachments go one by one (`attachment::handing`), since whoever has it knows by which names. Keys never do: the
//! other process shakes hands anew, and says the same instance, by which an IOhost knows whose the attachments are.

use super::attachment::Attachment;
use super::{Client, ClientSpec};
use crate::saved::{BadSaved, Reader, Writer};

impl Client {
    /// Puts what concerns all attachments behind what was written.
    pub fn save(&self, out: &mut Writer<'_>) {
        out.u64(self.spec.instance);
        out.u64(self.held.bindings());
        out.u64(self.fenced_at.saturating_sub(self.ticked_at));
    }

    /// Puts an attachment behind what was written. False when it cannot go over now: requests of it are under way, or
    /// are being sent again to a machine that has lost them.
    pub fn save_attachment(&self, attachment: u16, out: &mut Writer<'_>) -> bool {
        self.held.save(attachment, out)
    }

    /// One that goes on as another was, which has ended; [`Client::begin`] follows. `spec` may differ in all but the
    /// instance, which is that of the other one.
    ///
    /// # Errors
    /// It is none that [`Client::save`] has put there.
    pub fn take_over(spec: ClientSpec, saved: &mut Reader<'_>) -> Result<Client, BadSaved> {
        let instance = saved.u64()?;
        let mut client = Client::new(ClientSpec { instance, ..spec }, 0);
        client.held.go_on_binding(saved.count()?);
        client.fenced_at = saved.u64()?;
        Ok(client)
    }

    /// The next attachment: its number here.
    ///
    /// # Errors
    /// It is none that [`Client::save_attachment`] has put there, or there is no place for it.
    pub fn take_over_attachment(&mut self, saved: &mut Reader<'_>) -> Result<u16, BadSaved> {
        let instance = self.spec.instance;
        let mut bad = BadSaved::Field;
        let made = self.held.add(|index| {
            Attachment::take_over(index, instance, 0, saved).map_err(|error| bad = error).ok()
        });
        made.ok_or(bad)
    }

    /// One that was taken over begins `now`. What it may not have waited for before counts from here: rather late than
    /// early.
    pub fn begin(&mut self, now: u64) {
        (self.ticked_at, self.heard_at, self.quiet_from) = (now, now, now);
        self.fenced_at = self.fenced_at.saturating_add(now);
    }
}
