//! The streams of a connection: those that are open, and the last that were closed.

use std::collections::VecDeque;
use std::time::Duration;

use super::head::Head;

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) state: StreamState,
    /// When its headers arrived.
    pub(super) opened: Duration,
    /// The bytes of DATA received, with padding. They are returned to the window of the connection when the stream is closed.
    pub(super) received: u32,
    /// The bytes of DATA that may be sent; negative after the client has made its window smaller.
    pub(super) send_window: i64,
}

/// The state of an open stream.
#[derive(Debug)]
pub(super) enum StreamState {
    /// The request is not complete.
    Receiving { head: Head, body: Vec<u8> },
    /// The request is being decided, or was refused before its end.
    Answering(ClientSide),
    /// A part of the response waits for the client's window.
    Sending { client: ClientSide, rest: Vec<u8>, sent: usize, trailers: &'static [u8] },
}

impl Stream {
    pub(super) fn client_side(&self) -> ClientSide {
        match self.state {
            StreamState::Receiving { .. } => ClientSide::Open,
            StreamState::Answering(client) | StreamState::Sending { client, .. } => client,
        }
    }
}

/// Whether the client has ended its side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientSide {
    Open,
    Ended,
}

/// How a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// Both sides have ended it, or the client has reset it: any further frame is an error.
    Both,
    /// Closed by our reset: frames that the client sent before it knew are ignored.
    Us,
}

/// The number of closed streams that are remembered. Frames on older streams are errors in any case; only the error
/// code differs.
const REMEMBERED: usize = 64;

/// The streams of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    /// Sorted by id: ids of new streams only grow.
    open: VecDeque<Stream>,
    /// A ring of ids, with the way they were closed.
    closed: [(u32, ClosedBy); REMEMBERED],
    next: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self { open: VecDeque::new(), closed: [(0, ClosedBy::Both); REMEMBERED], next: 0 }
    }
}

impl Streams {
    /// Adds a stream; its id is larger than those of all before it.
    pub(super) fn open(&mut self, stream: Stream) {
        self.open.push_back(stream);
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.open.get_mut(index)
    }

    /// Removes a stream and remembers how it was closed.
    pub(super) fn close(&mut self, id: u32, by: ClosedBy) -> Option<Stream> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.remember(id, by);
        self.open.remove(index)
    }

    /// Remembers how a stream that was not kept was closed.
    pub(super) fn remember(&mut self, id: u32, by: ClosedBy) {
        self.closed[self.next] = (id, by);
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Returns how a stream was closed, if that is remembered.
    pub(super) fn closed_by(&self, id: u32) -> Option<ClosedBy> {
        self.closed.iter().find(|(closed, _)| *closed == id).map(|(_, by)| *by)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.open.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.open.iter_mut()
    }
}
