//! The open streams and the recently closed streams of a connection.

use std::collections::VecDeque;
use std::time::Duration;

use super::head::RequestHead;

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) state: StreamState,
    /// The time at which the headers arrived.
    pub(super) opened: Duration,
    /// Number of DATA bytes received, including padding. The bytes are returned to the connection window when the
    /// stream closes.
    pub(super) received: u32,
    /// Number of DATA bytes that the server may still send. Negative if the client has reduced its initial window.
    pub(super) send_window: i64,
}

/// The state of an open stream.
#[derive(Debug)]
pub(super) enum StreamState {
    /// The request is incomplete.
    Receiving { head: RequestHead, body: Vec<u8> },
    /// The request is being decided, or was refused before it was complete.
    Answering(ClientSide),
    /// Part of the response waits until the client enlarges a window.
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
    /// Both sides ended the stream, or the client reset it. Further DATA or HEADERS frames are an error.
    Both,
    /// The server reset the stream. Frames that the client sent before it received the reset are ignored.
    Us,
}

/// Number of closed streams to remember. DATA and HEADERS on a stream that was closed earlier are always an error, in
/// some cases with another error code.
const MAX_REMEMBERED_STREAMS: usize = 64;

/// The streams of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    /// Sorted by id, because the ids of new streams increase.
    open: VecDeque<Stream>,
    /// Ring buffer of closed stream ids.
    closed: [(u32, ClosedBy); MAX_REMEMBERED_STREAMS],
    next_closed: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self { open: VecDeque::new(), closed: [(0, ClosedBy::Both); MAX_REMEMBERED_STREAMS], next_closed: 0 }
    }
}

impl Streams {
    /// Adds a stream. The stream's id must be larger than all earlier ids.
    pub(super) fn open(&mut self, stream: Stream) {
        self.open.push_back(stream);
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.open.get_mut(index)
    }

    /// Removes a stream and records how it was closed.
    pub(super) fn close(&mut self, id: u32, by: ClosedBy) -> Option<Stream> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.remember_closed(id, by);
        self.open.remove(index)
    }

    /// Records how a stream was closed.
    pub(super) fn remember_closed(&mut self, id: u32, by: ClosedBy) {
        self.closed[self.next_closed] = (id, by);
        self.next_closed = (self.next_closed + 1) % MAX_REMEMBERED_STREAMS;
    }

    /// Returns how a stream was closed, or `None` if the stream was not closed recently.
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
