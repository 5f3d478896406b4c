//! `ONCE key`: a command that is carried out once, however often it is sent.
//!
//! The words stand after those that every call of the command has, before the attributes: `TG.CHECK api 1 ONCE 7f3a path /login`.
//! `ONCE` is written in capitals, so that nearly no attribute is called so; one that is has to stand further back.

use std::sync::Arc;

use tollgate_engine::Store;

use super::asked::Asked;
use super::wire::{Replies, Version};
use crate::app::App;
use crate::ops::idempotency::{Begun, Given, MAX_KEY, Ticket};

/// A reply that can be given again, as it is written then, in either version of the protocol.
#[derive(Debug)]
pub struct Replay {
    two: Box<[u8]>,
    three: Box<[u8]>,
}

/// Whether a reply is given for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    Again,
}

impl Replay {
    /// What `write` writes.
    pub(super) fn new(write: impl Fn(&mut Replies)) -> Self {
        let written = |version| {
            let mut replies = Replies { bytes: Vec::new(), version };
            write(&mut replies);
            replies.bytes.into_boxed_slice()
        };
        Self { two: written(Version::Two), three: written(Version::Three) }
    }

    pub(super) fn write(&self, replies: &mut Replies) {
        replies.bytes.extend_from_slice(match replies.version {
            Version::Two => &self.two,
            Version::Three => &self.three,
        });
    }
}

/// The right to carry out a command, or what came of it before.
#[derive(Debug)]
pub(super) enum Keyed<'g> {
    /// Nobody wants it to be remembered.
    Unkeyed,
    /// Go on, and tell the ticket what came of it.
    First(Ticket<'g, Given>),
    /// It was carried out.
    Again(Arc<Replay>),
}

impl Keyed<'_> {
    /// Remembers a reply.
    pub(super) fn answered(self, write: impl Fn(&mut Replies)) {
        if let Self::First(ticket) = self {
            let replay = Replay::new(write);
            let size = replay.two.len() + replay.three.len();
            ticket.answered(&Given::Resp(Arc::new(replay)), size);
        }
    }
}

/// Takes `ONCE key` out of the words of a command, if it is there.
pub(super) fn take_key<'a>(asked: Asked, args: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let at = asked.words()?;
    match args.get(at..) {
        Some([b"ONCE", key, ..]) => {
            let key = *key;
            args.drain(at..at + 2);
            Some(key)
        }
        Some(_) | None => None,
    }
}

/// Begins a command under its key, unless that was done. Those that change nothing take no notice of a key.
///
/// # Errors
/// For the caller.
pub(super) fn begin<'g, S: Store>(
    app: &'g App<S>,
    asked: Asked,
    key: Option<&[u8]>,
    args: &[&[u8]],
) -> Result<Keyed<'g>, String> {
    let Some(key) = key.filter(|_| asked.takes()) else { return Ok(Keyed::Unkeyed) };
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(format!("ERR the key after ONCE has 1 to {MAX_KEY} bytes"));
    }
    match app.once.begin(key, args, app.now()) {
        Begun::First(ticket) => Ok(Keyed::First(ticket)),
        Begun::Again(Given::Resp(replay)) => Ok(Keyed::Again(replay)),
        Begun::Running => Err("TRYAGAIN a request with this key is being answered; ask again when it is".into()),
        Begun::Different | Begun::Again(Given::Http(_)) => {
            Err("ERR this key after ONCE came with another request; take a new key for every request".into())
        }
    }
}
