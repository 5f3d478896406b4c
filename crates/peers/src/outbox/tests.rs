use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

/// A connection that accepts a given number of bytes.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<PipeState>>);

#[derive(Default)]
struct PipeState {
    written: Vec<u8>,
    /// Number of bytes that the connection still accepts.
    room: usize,
    waker: Option<Waker>,
    is_broken: bool,
}

impl Pipe {
    fn with_room(room: usize) -> Self {
        let pipe = Self::default();
        pipe.add_room(room);
        pipe
    }

    fn add_room(&self, room: usize) {
        let mut pipe = self.0.lock().unwrap();
        pipe.room = pipe.room.saturating_add(room);
        if let Some(waker) = pipe.waker.take() {
            waker.wake();
        }
    }

    fn written(&self) -> Vec<u8> {
        self.0.lock().unwrap().written.clone()
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.lock().unwrap();
        if pipe.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let accepted = bytes.len().min(pipe.room);
        if accepted == 0 {
            pipe.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        pipe.written.extend_from_slice(&bytes[..accepted]);
        pipe.room -= accepted;
        Poll::Ready(Ok(accepted))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls the link's task once.
async fn poll_once(task: Pin<&mut impl Future<Output = LinkEndReason>>) -> Poll<LinkEndReason> {
    let mut task = Some(task);
    poll_fn(|context| Poll::Ready(task.take().map_or(Poll::Pending, |task| task.poll(context)))).await
}

#[tokio::test(start_paused = true)]
async fn links_task_continues_interrupted_writes_and_reports_errors() {
    let (outbox, pipe) = (Outbox::default(), Pipe::with_room(2));
    let _end = outbox.begin(pipe.clone());
    let mut task = pin!(outbox.write_all());
    assert!(outbox.push_ask(true, |to| to.extend([1, 2, 3])));
    assert!(outbox.push_ask(true, |to| to.push(4)));
    assert_eq!(pipe.written(), [1, 2]);
    pipe.add_room(9);
    assert!(poll_once(task.as_mut()).await.is_pending());
    assert_eq!(pipe.written(), [1, 2, 3, 4]);
    let long = vec![7; MAX_DIRECT_BYTES + 1];
    pipe.add_room(long.len());
    assert!(outbox.push_ask(true, |to| to.extend_from_slice(&long)));
    assert_eq!(pipe.written().len(), 4, "long queues are left to the link's task");
    assert!(poll_once(task.as_mut()).await.is_pending());
    assert_eq!(pipe.written().len(), 4 + long.len());
    pipe.0.lock().unwrap().is_broken = true;
    assert!(outbox.push_ask(true, |to| to.push(5)));
    let end = task.await;
    assert!(matches!(end, LinkEndReason::Failed(_)), "{end}");
}

#[tokio::test]
async fn connection_closes_when_the_link_is_dropped() {
    let (near, mut far) = tokio::io::duplex(64);
    let outbox = Outbox::default();
    drop(outbox.begin(near));
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    assert!(!outbox.push(|to| to.push(1)), "an ended outbox accepts nothing");
}

#[test]
fn frames_of_many_threads_are_written_once_and_in_order() {
    const THREADS: u8 = 4;
    const FRAMES: u8 = 200;
    let (outbox, pipe) = (Outbox::default(), Pipe::with_room(usize::MAX));
    let _end = outbox.begin(pipe.clone());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let outbox = &outbox;
            scope.spawn(move || {
                for number in 0..FRAMES {
                    assert!(outbox.push_ask(true, |to| to.extend([thread, number])));
                }
            });
        }
    });
    let mut next = [0; THREADS as usize];
    for frame in pipe.written().chunks(2) {
        assert_eq!(frame[1], next[usize::from(frame[0])]);
        next[usize::from(frame[0])] += 1;
    }
    assert_eq!(next, [FRAMES; THREADS as usize], "no frame is left in the queue");
}

#[tokio::test(start_paused = true)]
async fn asks_are_held_while_an_ask_of_a_fast_peer_is_unanswered() {
    let (outbox, pipe) = (Outbox::default(), Pipe::with_room(usize::MAX));
    let _end = outbox.begin(pipe.clone());
    let mut task = pin!(outbox.write_all());
    let ask = |number: u8| assert!(outbox.push_ask(false, |to| to.push(number)));
    macro_rules! assert_written {
        ($expected:expr, $why:expr) => {
            // Runs the link's task only if it was woken.
            assert!(poll_once(task.as_mut()).await.is_pending());
            assert_eq!(std::mem::take(&mut pipe.0.lock().unwrap().written), $expected, $why);
        };
    }
    assert_written!([0u8; 0], "nothing is queued");
    assert!(outbox.push_ask(true, |to| to.push(1)));
    assert_eq!(pipe.written(), [1], "the only ask is written by its caller");
    ask(2);
    assert_written!([1, 2], "nothing is known about the peer, so asks are not held");
    outbox.release_asks();
    ask(3);
    ask(4);
    assert_written!([3, 4], "the link is idle, so asks are not held");
    ask(5);
    ask(6);
    assert_written!([0u8; 0], "an ask is unanswered");
    assert_eq!(outbox.queued_bytes(), 2);
    outbox.release_asks();
    assert_written!([5, 6], "an answer arrived");
    ask(7);
    assert_written!([0u8; 0], "an ask is unanswered");
    assert!(outbox.push(|to| to.push(8)));
    assert_written!([7, 8], "held asks are written with other frames");
    ask(9);
    tokio::time::advance(MAX_HOLD).await;
    ask(10);
    assert_written!([9, 10], "the answer is late, so asks are no longer held");
    tokio::time::advance(MAX_HOLD).await;
    outbox.release_asks();
    ask(11);
    assert_written!([11], "the link is idle");
    ask(12);
    assert_written!([12], "the peer is slow, so asks are not held");
    outbox.release_asks();
    ask(13);
    assert_written!([13], "the link is idle");
    ask(14);
    assert_written!([0u8; 0], "the peer is fast again");
    outbox.close();
    assert!(!outbox.push_ask(true, |to| to.push(15)), "a closing outbox accepts no ask");
    assert!(matches!(task.await, LinkEndReason::Ended));
    assert_eq!(pipe.written(), [14], "held asks are written before the link closes");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    OnlyAsk,
    Push,
    AddRoom(usize),
    RunTask,
    /// Answers arrive, or asks expire.
    Answer,
    Wait,
}

proptest! {
    /// For every order of steps by the callers, the connection, the peer and the link's task, frames are written in
    /// order. No frame stays queued while the connection accepts bytes and no answer is expected.
    #[test]
    fn frames_are_written_in_order_and_none_is_forgotten(
        steps in proptest::collection::vec(
            prop_oneof![
                4 => Just(Step::Ask),
                1 => Just(Step::Push),
                2 => Just(Step::OnlyAsk),
                2 => (0usize..6).prop_map(Step::AddRoom),
                2 => Just(Step::RunTask),
                2 => Just(Step::Answer),
                1 => Just(Step::Wait),
            ],
            1..60,
        )
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (outbox, pipe) = (Outbox::default(), Pipe::default());
            let _end = outbox.begin(pipe.clone());
            let mut task = pin!(outbox.write_all());
            let mut sent = Vec::new();
            for step in steps.into_iter().chain([Step::AddRoom(usize::MAX), Step::RunTask]) {
                let number = sent.len() as u8;
                match step {
                    Step::Ask => assert!(outbox.push_ask(false, |to| to.extend([number; 3]))),
                    Step::OnlyAsk => assert!(outbox.push_ask(true, |to| to.extend([number; 3]))),
                    Step::Push => assert!(outbox.push(|to| to.extend([number; 3]))),
                    Step::AddRoom(room) => pipe.add_room(room),
                    Step::RunTask => assert!(poll_once(task.as_mut()).await.is_pending()),
                    Step::Answer => outbox.release_asks(),
                    Step::Wait => tokio::time::advance(MAX_HOLD / 2).await,
                }
                if matches!(step, Step::Ask | Step::OnlyAsk | Step::Push) {
                    sent.extend([number; 3]);
                }
                assert!(sent.starts_with(&pipe.written()));
                let is_blocked = pipe.0.lock().unwrap().room == 0;
                let is_answered = outbox.lock().hold.sent_at.is_none();
                if matches!(step, Step::RunTask) && is_answered && !is_blocked {
                    assert_eq!(pipe.written(), sent);
                }
            }
            outbox.release_asks();
            assert!(poll_once(task.as_mut()).await.is_pending());
            assert_eq!(pipe.written(), sent);
        });
    }
}
