//! Lines of the audit log about what is not in the database: the kill switch, and what was spent being forgotten.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Service;
use super::limits::MAX_SUBJECT;
use crate::control::Control;
use crate::control::auth::Access;
use crate::control::model::Change;

/// Something that was done.
#[derive(Debug)]
pub(super) struct Note {
    change: Change,
    kind: &'static str,
    action: &'static str,
    domain: Option<String>,
    subject: String,
}

impl Service {
    /// Has something written down that was done. Nobody waits for it: the switch must work while the database does not.
    pub fn note(&self, access: &Access, kind: &'static str, action: &'static str, domain: Option<&str>, subject: &str) {
        let subject = subject.chars().take(MAX_SUBJECT).collect();
        let change = Change { author: access.author().to_owned(), comment: None };
        let note = Note { change, kind, action, domain: domain.map(str::to_owned), subject };
        if let Err(error) = self.notes.try_send(note) {
            tracing::error!(note = ?error.into_inner(), "there is no room to write this down in the audit log");
        }
    }
}

/// Writes notes down, one after the other, until nobody can leave any more.
pub(super) async fn write_down(control: Arc<Control>, mut notes: mpsc::Receiver<Note>) {
    while let Some(note) = notes.recv().await {
        let Note { change, kind, action, domain, subject } = &note;
        if let Err(error) = control.note(change, kind, action, domain.as_deref(), subject).await {
            tracing::error!(%error, ?note, "this could not be written down in the audit log");
        }
    }
}
