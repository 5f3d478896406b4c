//! Waiting to be admitted, with the answer held until then or until the deadline.
//!
//! Who is refused joins the line of the counter that refused it. Only the first of a line asks again, when that counter said it
//! would be worth it; the others wait for their turn, so that within this node whoever came first is served first. It looks
//! before it takes, so that waiting counts as one decision, and neither as a dozen refusals nor towards a ban.
//!
//! Waiting costs a bounded amount: there are at most [`MAX_WAITERS`], for at most [`MAX_WAIT`]. A waiter that goes away is
//! dropped where it waits, and its place goes to the next.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate::{Nanos, Outcome, Retry};
use tollgate_engine::{Decisions, Request, Store};

use crate::app::{App, Verb};
use crate::net::accept::Protocol;

/// Requests that wait at a time; further ones are told at once what they would be told at the end.
pub const MAX_WAITERS: usize = 10_000;
/// The longest wait.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often to look for something that comes back when somebody releases it, which may be on another node.
const LOOK: Duration = Duration::from_millis(25);
/// How often a waiter looks whether the server is stopping.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Who waits, and for what.
#[derive(Debug, Default)]
pub struct Room {
    lines: Mutex<HashMap<Box<[u8]>, Line>>,
    waiting: AtomicUsize,
    turned_away: AtomicU64,
    jitter: RandomState,
}

/// Those who wait for one counter.
#[derive(Debug, Default)]
struct Line {
    /// Held by the first. Those who want it get it in the order in which they asked.
    turn: Arc<tokio::sync::Mutex<()>>,
    members: usize,
}

/// A place in a line; dropping it leaves.
struct Place<'r> {
    room: &'r Room,
    counter: Box<[u8]>,
    turn: Option<OwnedMutexGuard<()>>,
}

/// One of those who wait, for the count.
struct Seat<'r>(&'r Room);

impl Room {
    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many found no room.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    fn sit(&self) -> Option<Seat<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITERS {
            return Some(Seat(self));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether somebody waits for a counter.
    fn has_line(&self, counter: &[u8]) -> bool {
        self.waiting() > 1 && self.lines.lock().unwrap_or_else(PoisonError::into_inner).contains_key(counter)
    }

    /// Joins the line of a counter, and waits to be its first.
    async fn join(&self, counter: &[u8], deadline: Instant) -> Option<Place<'_>> {
        let turn = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let line = lines.entry(counter.into()).or_default();
            line.members += 1;
            line.turn.clone()
        };
        let mut place = Place { room: self, counter: counter.into(), turn: None };
        place.turn = Some(timeout_at(deadline, turn.lock_owned()).await.ok()?);
        Some(place)
    }

    /// A little longer than `wait`, so that nodes which were told the same do not come at the same instant.
    fn spread(&self, wait: Duration) -> Duration {
        let most = (wait / 16).min(Duration::from_millis(20)).as_nanos() as u64;
        let chance = self.jitter.hash_one(Instant::now());
        wait + Duration::from_nanos(chance % (most + 1))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The next one is let go first, so that it finds its line.
        self.turn = None;
        let mut lines = self.room.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.counter) {
            line.members -= 1;
            if line.members == 0 {
                lines.remove(&self.counter);
            }
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Store> App<S> {
    /// Decides a request, and while it would be refused waits as long as `wait`. A wait that would be in vain is not begun.
    pub async fn acquire(&self, protocol: Protocol, request: &Request<'_>, wait: Duration, decisions: &mut Decisions) {
        let deadline = Instant::now() + wait.min(MAX_WAIT);
        let requests = std::slice::from_ref(request);
        let admitted = match self.room.sit() {
            Some(_seat) => tokio::select! {
                admitted = self.admit(protocol, requests, deadline, decisions) => admitted,
                () = self.stopping() => false,
            },
            None => false,
        };
        if !admitted {
            self.decide(protocol, Verb::Check, requests, decisions).await;
        }
        // What passes only after a while is held back for that long, if there is time for it.
        if let Ok(Outcome::Delay(wait)) = decisions.get(0).map(|decision| decision.outcome())
            && Instant::now() + Duration::from(wait) <= deadline
        {
            sleep(wait.into()).await;
            decisions.delayed();
        }
    }

    /// Whether it was let in, or can never be decided: then `decisions` has the answer.
    async fn admit(
        &self,
        protocol: Protocol,
        requests: &[Request<'_>],
        deadline: Instant,
        decisions: &mut Decisions,
    ) -> bool {
        let mut place: Option<Place<'_>> = None;
        loop {
            self.engine.peek_batch(requests, decisions).await;
            let Ok(decision) = decisions.get(0) else { return true };
            // What has come back since belongs to those who wait for it already.
            if let Some(counter) = decision.counter().filter(|counter| place.is_none() && self.room.has_line(counter)) {
                match self.room.join(counter, deadline).await {
                    Some(joined) => place = Some(joined),
                    None => return false,
                }
                continue;
            }
            let mut refused = decision.retry();
            if refused.is_none() {
                self.decide(protocol, Verb::Check, requests, decisions).await;
                match decisions.get(0) {
                    Ok(decision) if !decision.is_allowed() => refused = decision.retry(),
                    Ok(_) | Err(_) => return true,
                }
            }
            let pause = match refused {
                Some(Retry::After(wait)) => Duration::from(wait.max(Nanos::from_millis(1))),
                Some(Retry::OnRelease) => LOOK,
                Some(Retry::Never) | None => return false,
            };
            if Instant::now() + pause > deadline {
                return false;
            }
            let counter = decisions.get(0).ok().and_then(|decision| decision.counter());
            match (&place, counter) {
                (None, Some(counter)) => match self.room.join(counter, deadline).await {
                    Some(joined) => place = Some(joined),
                    None => return false,
                },
                (Some(_), _) | (None, None) => {
                    sleep_until((Instant::now() + self.room.spread(pause)).min(deadline)).await;
                }
            }
        }
    }

    async fn stopping(&self) {
        while !self.connections.is_stopping() {
            sleep(LOOK_UP).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::clock::Clock;
    use tollgate::{Mono, Time, Wall};
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, Entry, Item, MemoryStore};

    /// The time of the event loop, which is paused in tests.
    #[derive(Debug)]
    struct Paused(Instant);

    impl Clock for Paused {
        fn mono(&self) -> Time<Mono> {
            Time::from_nanos(1_000_000_000 + self.0.elapsed().as_nanos() as u64)
        }

        fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
            Time::from_nanos(mono.as_nanos())
        }
    }

    fn app(rules: &str) -> Arc<App<MemoryStore<Paused>>> {
        let store = MemoryStore::with_clock(1_000, Arc::new(Paused(Instant::now()))).expect("a table");
        let engine = Engine::new(store).expect("an engine");
        let text = format!("domain: d\nrules:\n{rules}");
        engine.put(&Rules::read(&[Source { name: "r", text: text.as_bytes() }]).expect("rules")).expect("numbers");
        Arc::new(App::new(engine, None))
    }

    /// Acquires for a user: whether it was let in, and after how many milliseconds.
    async fn acquire(app: &App<MemoryStore<Paused>>, user: &str, wait: u64) -> (bool, u128) {
        let start = Instant::now();
        let entries = [Entry::new("user", user)];
        let items = [Item::new(&entries)];
        let mut decisions = Decisions::default();
        let wait = Duration::from_millis(wait);
        app.acquire(Protocol::Http, &Request::new("d", &items), wait, &mut decisions).await;
        (decisions.get(0).expect("a request").is_allowed(), start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_is_held_until_there_is_room_and_no_longer_than_asked() {
        let app = app("- {id: r, per: [user], limit: 1/s}\n");
        assert_eq!(acquire(&app, "a", 5_000).await, (true, 0));
        let (allowed, waited) = acquire(&app, "a", 5_000).await;
        assert!(allowed && (1_000..=1_020).contains(&waited), "{waited} ms");
        assert_eq!(acquire(&app, "a", 900).await, (false, 0), "a wait in vain is not begun");
        assert_eq!(acquire(&app, "b", 0).await, (true, 0));
        let counts = app.engine.rules().rules()[0].meter().read();
        assert_eq!((counts.allowed, counts.refused), (3, 1), "each counts once");
        assert_eq!((app.room.waiting(), app.room.lines.lock().expect("nobody panicked").len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_came_first_is_served_first_and_who_leaves_makes_room() {
        let app = app("- {id: r, limit: 1/s}\n");
        assert!(acquire(&app, "a", 0).await.0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..5 {
            let (app, order) = (app.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let (allowed, _) = acquire(&app, &n.to_string(), 30_000).await;
                order.lock().expect("nobody panicked").push((n, allowed));
            }));
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(app.room.waiting(), 5);
        tasks[1].abort();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_ok(), n != 1);
        }
        assert_eq!(*order.lock().expect("nobody panicked"), [(0, true), (2, true), (3, true), (4, true)]);
        assert_eq!(app.room.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_is_waited_out_and_a_stop_ends_every_wait() {
        let app = app("- {id: slow, when: {user: s}, limit: 1/s, burst: 1, on_exceed: {delay: {max_wait: 9s}}}\n\
             - {id: slots, when: {user: c}, limit: 1, algorithm: concurrency}\n");
        assert_eq!(acquire(&app, "s", 5_000).await, (true, 0));
        assert_eq!(acquire(&app, "s", 5_000).await, (true, 1_000));
        assert_eq!(acquire(&app, "c", 5_000).await, (true, 0));
        let (allowed, waited) = acquire(&app, "c", 2_000).await;
        assert!(!allowed && (1_950..=2_000).contains(&waited), "{waited} ms");
        let waiter = tokio::spawn({
            let app = app.clone();
            async move { acquire(&app, "c", 50_000).await }
        });
        sleep(Duration::from_millis(100)).await;
        app.connections.stop();
        let (allowed, waited) = waiter.await.expect("an answer");
        assert!(!allowed && waited <= 1_000, "{waited} ms");
    }
}
