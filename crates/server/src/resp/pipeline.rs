//! From the bytes of a read to the bytes of a write: the commands in a buffer, taken in order.
//!
//! Calls of `CL.THROTTLE` that follow each other are decided together, in this process. What the engine has to be asked about
//! is left to [`decide`](super::decide), since a shared store takes its time. Everything else is answered on the spot,
//! after what came before it.

use tollgate_engine::Store;

use super::asked::Asked;
use super::command::{self, Session, Then};
use super::limits::WRITE_BUFFER;
use super::memo::{Memo, Slot};
use super::translate;
use super::wire::{Parsed, Replies, parse};
use crate::app::App;
use crate::net::accept::Protocol;

/// Calls that are decided together: as many as the table fetches at a time.
const BATCH: usize = 16;

/// What has to happen before more commands are looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The replies are written and more is read.
    Read,
    /// The replies are written; more commands wait.
    Write,
    /// The engine is asked about the commands that follow, and then the replies are written.
    Decide,
    /// The replies are written and the connection ends.
    Close,
}

/// Answers the commands at the beginning of `input`, and tells how many bytes they were.
pub(super) fn answer<S: Store>(
    app: &App<S>,
    session: &mut Session,
    memo: &mut Memo,
    input: &[u8],
    replies: &mut Replies,
) -> (usize, Next) {
    let mut args = Vec::with_capacity(8);
    let mut calls = Calls { app, waiting: [(&[], 0); BATCH], len: 0 };
    let mut at = 0;
    // Looked at once for all commands that are there, and again after those that may change it.
    let mut admitted = session.is_admitted(app);
    let next = loop {
        match parse(&input[at..], &mut args) {
            Ok(Parsed::Command(len)) => {
                let Some(name) = args.first() else {
                    at += len;
                    continue;
                };
                let throttles = *name == b"CL.THROTTLE" || name.eq_ignore_ascii_case(b"CL.THROTTLE");
                if !admitted && !command::is_open(name) {
                    at += len;
                    app.mistaken(Protocol::Resp);
                    replies.error(command::NO_AUTH);
                } else if throttles && app.throttles_here() {
                    at += len;
                    calls.add(&args, memo, replies);
                } else if throttles || Asked::find(name).is_some() {
                    break Next::Decide;
                } else {
                    at += len;
                    calls.decide(memo, replies);
                    match command::run(app, session, &args, replies) {
                        Then::Continue => admitted = session.is_admitted(app),
                        Then::Close => break Next::Close,
                    }
                }
            }
            Ok(Parsed::Incomplete(_)) => break Next::Read,
            Err(error) => {
                calls.decide(memo, replies);
                replies.error(&format!("ERR Protocol error: {error}"));
                break Next::Close;
            }
        }
        if replies.bytes.len() > WRITE_BUFFER {
            break Next::Write;
        }
    };
    calls.decide(memo, replies);
    (at, next)
}

/// Calls of `CL.THROTTLE` that have been read and not yet decided.
struct Calls<'a, S> {
    app: &'a App<S>,
    waiting: [(&'a [u8], Slot); BATCH],
    len: usize,
}

impl<'a, S: Store> Calls<'a, S> {
    #[inline]
    fn add(&mut self, args: &[&'a [u8]], memo: &mut Memo, replies: &mut Replies) {
        match self.slot(args, memo, replies) {
            Ok(slot) => {
                self.waiting[self.len] = (args[1], slot);
                self.len += 1;
                if self.len == BATCH {
                    self.decide(memo, replies);
                }
            }
            Err(error) => {
                self.decide(memo, replies);
                self.app.mistaken(Protocol::Resp);
                replies.error(&error);
            }
        }
    }

    #[inline]
    fn slot(&mut self, args: &[&[u8]], memo: &mut Memo, replies: &mut Replies) -> Result<Slot, String> {
        let numbers = translate::throttle_numbers(args)?;
        match memo.find(numbers) {
            Some(slot) => Ok(slot),
            None => {
                // The slot may be one that a waiting call refers to.
                self.decide(memo, replies);
                memo.insert(numbers)
            }
        }
    }

    #[inline]
    fn decide(&mut self, memo: &Memo, replies: &mut Replies) {
        if self.len > 0 {
            let waiting = self.waiting[..std::mem::take(&mut self.len)].iter();
            let calls = waiting.filter_map(|(key, slot)| Some((*key, memo.get(*slot)?)));
            self.app.throttle_many(calls, |reply| replies.five(reply));
        }
    }
}
