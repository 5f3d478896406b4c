//! The peers thread: listens, dials and runs the links.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::pki_types::ServerName;
use tollgate::clock::Clock;

use crate::NodeId;
use crate::ask::{self, Answer, AskAction, SingleAsk};
use crate::config::{NO_SECRET, may_be_dialled};
use crate::frame::FrameBuffer;
use crate::greeting::{self, LinkFrame, NodeRecord};
use crate::hub::{AcceptedLink, Counters, Shared};
use crate::link::{self, LinkEndReason, Receive};
use crate::outbox::Outbox;
use crate::table::LimitsCache;
use crate::tls::LinkTls;
use crate::wire::{self, Frame, VERSION};

/// Timeout for connecting, for the TLS handshake and for the greeting.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of accepted connections that have not completed the greeting.
pub const MAX_UNGREETED: usize = 256;
/// Intervals between seed lookups: before the node has joined, and afterwards.
const SEED_LOOKUP_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Maximum sleep of the thread, so that an adjusted clock cannot delay its timers for long.
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// How long a relayed ask waits for its answer. The original caller gives up much earlier.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);
/// When the encoded answers to the asks of one read exceed this number of bytes, they are moved to the send queue.
const MAX_OWN_ANSWER_BYTES: usize = 64 << 10;

/// Runs the node until `stop` completes.
pub(crate) async fn run(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Option<LinkTls>,
    stop: impl Future<Output = ()>,
) {
    tokio::select! {
        () = stop => {}
        () = accept_connections(&shared, &listener, tls.as_ref()) => {}
        () = run_timers(&shared, tls.as_ref()) => {}
        () = expire_asks(&shared) => {}
        () = resolve_seeds(&shared) => {}
    }
}

/// Ends asks whose deadline has passed, and then sends the asks that were held while these asks were unanswered.
async fn expire_asks(shared: &Shared) {
    loop {
        for peer in shared.asks.expire().await {
            if let Some(outbox) = shared.outboxes.load().get(&peer) {
                outbox.release_asks();
            }
        }
    }
}

/// Resolves the seeds periodically.
async fn resolve_seeds(shared: &Shared) {
    loop {
        let mut addresses = Vec::new();
        for (host, port) in &shared.config.seeds {
            match tokio::net::lookup_host((&**host, *port)).await {
                Ok(found) => addresses.extend(found),
                Err(error) => shared.log_refusal(&format!("{host}:{port}"), &error.to_string()),
            }
        }
        // A temporary DNS failure does not remove the seeds.
        if !addresses.is_empty() {
            shared.set_seeds(addresses);
            shared.urgent.notify_one();
        }
        let joined = *shared.stage.borrow() != crate::Stage::Joining;
        sleep(if joined { SEED_LOOKUP_INTERVALS.1 } else { SEED_LOOKUP_INTERVALS.0 }).await;
    }
}

/// Runs the timers and dials due addresses.
async fn run_timers(shared: &Arc<Shared>, tls: Option<&LinkTls>) {
    let mut urgent = false;
    loop {
        let (due, wake_at) = shared.run_due_work(urgent);
        for address in due {
            tokio::spawn(dial(shared.clone(), address, tls.cloned()));
        }
        let pause = Duration::from(wake_at.since(shared.clock.mono())).min(MAX_SLEEP);
        urgent = tokio::select! {
            () = shared.urgent.notified() => true,
            () = shared.earlier.notified() => false,
            () = sleep(pause) => false,
        };
    }
}

async fn accept_connections(shared: &Arc<Shared>, listener: &TcpListener, tls: Option<&LinkTls>) {
    let ungreeted = Arc::new(Semaphore::new(MAX_UNGREETED));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // File descriptors are exhausted, or the client closed the connection before it was accepted.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        if shared.is_closed() {
            continue;
        }
        // Close connections above the maximum.
        let Ok(permit) = ungreeted.clone().try_acquire_owned() else { continue };
        let (shared, tls) = (shared.clone(), tls.cloned());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let outcome = match tls {
                None => run_connection(&shared, stream.into_split(), None, permit).await,
                Some(tls) => match timeout(HANDSHAKE_TIMEOUT, tls.acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => run_connection(&shared, split(stream), None, permit).await,
                    Ok(Err(error)) => Err(tls_error_message(&error)),
                    Err(_) => Err(format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}")),
                },
            };
            if let Err(why) = outcome {
                Counters::add(&shared.counters.refused_links, 1);
                shared.log_refusal(&from.ip().to_string(), &why);
            }
        });
    }
}

async fn dial(shared: Arc<Shared>, address: SocketAddr, tls: Option<LinkTls>) {
    if let Err(why) = connect(&shared, address, tls).await {
        shared.record_failed_dial(address, &why);
    }
}

async fn connect(shared: &Arc<Shared>, address: SocketAddr, tls: Option<LinkTls>) -> Result<(), String> {
    // A name among the seeds, or a record of a peer, may have any address.
    if !may_be_dialled(address, tls.is_some()) {
        return Err(NO_SECRET.to_owned());
    }
    let connected = timeout(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await;
    shared.record_dial_answer(address, matches!(connected, Ok(Ok(_))));
    let stream = connected.map_err(|_| format!("no connection within {HANDSHAKE_TIMEOUT:?}"))?;
    let stream = stream.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let permit = Semaphore::new(1);
    let permit = Arc::new(permit).try_acquire_owned().map_err(|error| error.to_string())?;
    let Some(tls) = tls else { return run_connection(shared, stream.into_split(), Some(address), permit).await };
    let name = ServerName::IpAddress(address.ip().into());
    let connected = timeout(HANDSHAKE_TIMEOUT, tls.connector.connect(name, stream)).await;
    let stream = connected.map_err(|_| format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}"))?;
    run_connection(shared, split(stream.map_err(|error| tls_error_message(&error))?), Some(address), permit).await
}

fn tls_error_message(error: &io::Error) -> String {
    // rustls errors have the kind `InvalidData`.
    let hint = if error.kind() == io::ErrorKind::InvalidData { "; all nodes need the same secret" } else { "" };
    format!("no TLS with the peer: {error}{hint}")
}

/// Exchanges greetings and runs the link until it ends.
///
/// # Errors
/// Fails if no link was established.
async fn run_connection<R: AsyncRead + Unpin, W: AsyncWrite + Send + Unpin + 'static>(
    shared: &Arc<Shared>,
    (mut reader, mut writer): (R, W),
    dialled: Option<SocketAddr>,
    permit: tokio::sync::OwnedSemaphorePermit,
) -> Result<(), String> {
    let mut frames = FrameBuffer::default();
    let greeted = timeout(HANDSHAKE_TIMEOUT, exchange_greetings(shared, (&mut reader, &mut writer), &mut frames)).await;
    let record = match greeted.map_err(|_| format!("no greeting within {HANDSHAKE_TIMEOUT:?}"))? {
        Ok(record) => record,
        Err(GreetingError::Failed(why)) => return Err(why),
        Err(GreetingError::Refuse(why)) => {
            let mut refusal = Vec::new();
            greeting::push_refused(&mut refusal, &why);
            // Best effort: the peer may be gone.
            let _ = timeout(HANDSHAKE_TIMEOUT, writer.write_all(&refusal)).await;
            let _ = timeout(HANDSHAKE_TIMEOUT, writer.shutdown()).await;
            return Err(why);
        }
    };
    drop(permit);
    if record.node == shared.node {
        if let Some(address) = dialled {
            shared.record_own_address(address);
        }
        return Ok(());
    }
    let peer = record.node;
    let Some(AcceptedLink { outbox, generation }) = shared.accept_link(record, dialled) else { return Ok(()) };
    let mut receiver = LinkReceiver {
        shared,
        peer,
        generation,
        outbox: outbox.clone(),
        limits: LimitsCache::default(),
        urgent: false,
        answers: Vec::new(),
        own_answers: Vec::new(),
        received: 0,
        answered: 0,
    };
    let end = link::run((&mut reader, writer), &mut frames, &outbox, &mut receiver).await;
    shared.on_link_end(peer, generation, &end.to_string());
    Ok(())
}

/// Reason why a handshake failed.
enum GreetingError {
    Failed(String),
    /// This node refuses the peer and sends the reason to it.
    Refuse(String),
}

/// Exchanges greetings and waits until the peer accepts. If the peer refuses the link, this node must not count the
/// peer as a member.
async fn exchange_greetings<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    shared: &Shared,
    (reader, writer): (&mut R, &mut W),
    frames: &mut FrameBuffer,
) -> Result<NodeRecord, GreetingError> {
    let mut own = Vec::new();
    greeting::push_greeting(&mut own, shared.cluster, &shared.own_record());
    let failed = |end: LinkEndReason| GreetingError::Failed(end.to_string());
    writer.write_all(&own).await.map_err(|error| failed(LinkEndReason::Failed(error)))?;
    writer.flush().await.map_err(|error| failed(LinkEndReason::Failed(error)))?;
    let record = match next_frame(reader, frames).await? {
        LinkFrame::Greeting { version, .. } if version != VERSION => {
            return Err(GreetingError::Refuse(format!("protocol version {version} instead of {VERSION}")));
        }
        LinkFrame::Greeting { cluster, .. } if cluster != shared.cluster => {
            return Err(GreetingError::Refuse("another cluster: its name or secret differs".to_owned()));
        }
        LinkFrame::Greeting { record, .. } => record,
        _ => return Err(GreetingError::Failed("no greeting".to_owned())),
    };
    if let Some(why) = shared.name_conflict(&record) {
        return Err(GreetingError::Refuse(why));
    }
    own.clear();
    greeting::push_accepted(&mut own);
    writer.write_all(&own).await.map_err(|error| failed(LinkEndReason::Failed(error)))?;
    writer.flush().await.map_err(|error| failed(LinkEndReason::Failed(error)))?;
    match next_frame(reader, frames).await? {
        LinkFrame::Accepted => Ok(record),
        _ => Err(GreetingError::Failed("no answer to the greeting".to_owned())),
    }
}

/// Reads the next handshake frame.
async fn next_frame<S: AsyncRead + Unpin>(
    stream: &mut S,
    frames: &mut FrameBuffer,
) -> Result<LinkFrame, GreetingError> {
    loop {
        let decoded = match frames.next_frame() {
            Ok(Some(frame)) => greeting::decode(frame),
            Ok(None) => {
                link::read_more(stream, frames).await.map_err(|end| GreetingError::Failed(end.to_string()))?;
                continue;
            }
            Err(bad) => return Err(GreetingError::Failed(bad.to_string())),
        };
        return match decoded {
            Ok(LinkFrame::Refused(why)) => Err(GreetingError::Failed(format!("refused by the peer: {why}"))),
            Ok(frame) => Ok(frame),
            Err(malformed) => Err(GreetingError::Failed(malformed.to_string())),
        };
    }
}

/// Handles the frames of one link.
struct LinkReceiver<'a> {
    shared: &'a Arc<Shared>,
    peer: NodeId,
    generation: u64,
    outbox: Arc<Outbox>,
    limits: LimitsCache,
    urgent: bool,
    /// Answers received in the current read.
    answers: Vec<Answer>,
    /// This node's encoded answers to asks in the current read.
    own_answers: Vec<u8>,
    /// Number of bytes in the current read.
    received: usize,
    /// Number of asks handled in the current read.
    answered: usize,
}

impl Receive for LinkReceiver<'_> {
    fn frame(&mut self, whole: &[u8]) -> Result<(), String> {
        self.received += whole.len();
        if let Some(ask) = wire::decode_single_ask(whole)
            && self.try_answer(&ask)
        {
            return Ok(());
        }
        if let Some(answer) = wire::decode_answer(whole) {
            self.answers.push(answer);
            return Ok(());
        }
        if greeting::is_link_frame(whole) {
            return match greeting::decode(whole).map_err(|malformed| malformed.to_string())? {
                LinkFrame::Gossip(records) => {
                    self.shared.merge_records(records);
                    Ok(())
                }
                LinkFrame::Greeting { .. } | LinkFrame::Accepted => Err("unexpected second greeting".to_owned()),
                LinkFrame::Refused(why) => Err(format!("refused by the peer: {why}")),
            };
        }
        match wire::decode(whole) {
            Ok(Some((Frame::Ask(ask), _))) => self.on_ask(ask),
            Ok(Some((Frame::Answer(answer), _))) => self.answers.push(answer),
            Ok(Some((frame, _))) => self.shared.pass_to_mesh(self.peer, self.generation, frame),
            Ok(None) => return Err("frame shorter than its length prefix".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn end_of_read(&mut self) {
        Counters::add(&self.shared.counters.received, std::mem::take(&mut self.received));
        Counters::add(&self.shared.counters.answered, std::mem::take(&mut self.answered));
        self.queue_own_answers();
        if self.answers.is_empty() {
            self.outbox.flush();
        } else {
            // The woken callers may ask again at once. The new asks then share a write with the held asks.
            self.shared.asks.deliver_answers(self.peer, &mut self.answers);
            self.outbox.release_asks();
        }
        if std::mem::take(&mut self.urgent) {
            self.shared.urgent.notify_one();
        }
    }
}

impl LinkReceiver<'_> {
    /// Decides an ask with one charge, if this node is its home. Otherwise returns `false` and does nothing.
    fn try_answer(&mut self, ask: &SingleAsk<'_>) -> bool {
        let (shared, limits, out) = (self.shared, &mut self.limits, &mut self.own_answers);
        let homes = shared.homes.load();
        let Some(urgent) = ask::try_receive_single(&homes, &shared.table, limits, &shared.now(), ask, out) else {
            return false;
        };
        self.urgent |= urgent;
        self.on_answered();
        true
    }

    /// Counts an ask, and keeps the encoded answers below [`MAX_OWN_ANSWER_BYTES`].
    fn on_answered(&mut self) {
        self.answered += 1;
        if self.own_answers.len() > MAX_OWN_ANSWER_BYTES {
            self.queue_own_answers();
        }
    }

    /// Moves the encoded answers to the send queue, which is flushed at the end of the read. If the queue is full, the
    /// callers get no answer.
    fn queue_own_answers(&mut self) {
        if !self.own_answers.is_empty() {
            let _ = self.outbox.queue(|out| out.extend_from_slice(&self.own_answers));
            self.own_answers.clear();
        }
    }

    /// Decides an ask from the peer, or forwards it.
    fn on_ask(&mut self, ask: ask::Ask) {
        let (shared, id) = (self.shared, ask.id);
        let answer = match ask::receive_ask(&shared.homes.load(), &shared.table, &shared.now(), ask) {
            AskAction::Answer { answer, urgent } => {
                self.urgent |= urgent;
                answer
            }
            AskAction::Forward(to, mut ask) => {
                let is_sent = shared.outboxes.load().get(&to).is_some_and(|outbox| {
                    let deadline = Instant::now() + RELAY_TIMEOUT;
                    let Some(here) = shared.asks.register_relayed(to, self.outbox.clone(), id, deadline) else {
                        return false;
                    };
                    ask.id = here;
                    let is_queued = outbox.push_ask(false, |out| wire::encode(&Frame::Ask(ask), out));
                    if !is_queued {
                        shared.asks.remove(here);
                    }
                    is_queued
                });
                if is_sent {
                    return self.on_answered();
                }
                Answer { id, result: Err(ask::UndecidedReason::NoHome) }
            }
        };
        wire::encode(&Frame::Answer(answer), &mut self.own_answers);
        self.on_answered();
    }
}
