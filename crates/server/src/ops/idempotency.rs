//! What is asked twice under one key is done once: a client that got no answer can ask again without being charged again.
//!
//! The table belongs to this node and is bounded in entries, bytes and time; the oldest give way. So it makes asking again safe
//! for the minutes in which clients do that, and on connections to one node, of whatever protocol. It remembers only what took something: a refusal
//! changed nothing, and whoever asks again wants to know how things stand by then.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Mono, Nanos, Time};

use crate::{http, resp};

/// An answer that can be given again, in the protocol in which it was given.
#[derive(Clone, Debug)]
pub enum Given {
    /// Over HTTP.
    Http(http::Answer),
    /// Over the Redis protocol.
    Resp(Arc<resp::Replay>),
}

/// The longest key.
pub const MAX_KEY: usize = 255;
/// How many keys are remembered.
const MAX_KEYS: usize = 20_000;
/// How many bytes of answers are remembered.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// For how long.
const WINDOW: Nanos = Nanos::from_secs(600);

/// Answers by key.
#[derive(Debug)]
pub struct Once<A> {
    table: Mutex<Table<A>>,
    hasher: RandomState,
    replayed: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct Table<A> {
    known: HashMap<Arc<[u8]>, Entry<A>>,
    /// In the order in which they came, with the number of the entry: the key may have come again since.
    order: VecDeque<(Arc<[u8]>, u64)>,
    bytes: usize,
    next: u64,
}

#[derive(Debug)]
struct Entry<A> {
    number: u64,
    begun: Time<Mono>,
    /// What was asked, as a hash.
    asked: u64,
    /// The answer and its size; none while it is being made.
    answer: Option<(A, usize)>,
}

/// What is known about a key.
#[derive(Debug)]
pub enum Begun<'o, A: Clone> {
    /// Nothing: go on, and tell the ticket what came of it.
    First(Ticket<'o, A>),
    /// It was answered: so.
    Again(A),
    /// It is being answered.
    Running,
    /// It was asked with another question.
    Different,
}

/// The right to answer; dropping it without an answer forgets the key.
#[derive(Debug)]
pub struct Ticket<'o, A: Clone> {
    once: &'o Once<A>,
    key: Arc<[u8]>,
    number: u64,
    answered: bool,
}

impl<A> Default for Once<A> {
    fn default() -> Self {
        let table = Table { known: HashMap::new(), order: VecDeque::new(), bytes: 0, next: 0 };
        let (replayed, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { table: Mutex::new(table), hasher: RandomState::new(), replayed, evicted }
    }
}

impl<A: Clone> Once<A> {
    /// Begins what `asked` says under `key`, unless that was done.
    pub fn begin(&self, key: &[u8], asked: impl Hash, now: Time<Mono>) -> Begun<'_, A> {
        let asked = self.hasher.hash_one(asked);
        let mut table = self.table();
        self.make_room(&mut table, now);
        if let Some(entry) = table.known.get(key) {
            return match &entry.answer {
                _ if entry.asked != asked => Begun::Different,
                None => Begun::Running,
                Some((answer, _)) => {
                    self.replayed.fetch_add(1, Ordering::Relaxed);
                    Begun::Again(answer.clone())
                }
            };
        }
        let (key, number) = (Arc::<[u8]>::from(key), table.next);
        table.next += 1;
        table.order.push_back((key.clone(), number));
        table.known.insert(key.clone(), Entry { number, begun: now, asked, answer: None });
        Begun::First(Ticket { once: self, key, number, answered: false })
    }

    /// How many keys are remembered, how often an answer was given again, and how many keys gave way before their time.
    pub fn counts(&self) -> (usize, u64, u64) {
        let known = self.table().known.len();
        (known, self.replayed.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }

    fn table(&self) -> MutexGuard<'_, Table<A>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is too old, and, until one more fits, the oldest.
    fn make_room(&self, table: &mut Table<A>, now: Time<Mono>) {
        while let Some((key, number)) = table.order.front() {
            let entry = table.known.get(key).filter(|entry| entry.number == *number);
            let is_old = entry.is_none_or(|entry| now.since(entry.begun) >= WINDOW);
            // What was forgotten without an answer may still stand in the order.
            let is_full = table.known.len() >= MAX_KEYS || table.bytes > MAX_BYTES || table.order.len() >= 2 * MAX_KEYS;
            if !is_old && !is_full {
                return;
            }
            if !is_old {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((key, number)) = table.order.pop_front() {
                table.forget(&key, number);
            }
        }
    }
}

impl<A> Table<A> {
    fn forget(&mut self, key: &[u8], number: u64) {
        if self.known.get(key).is_some_and(|entry| entry.number == number)
            && let Some(Entry { answer: Some((_, size)), .. }) = self.known.remove(key)
        {
            self.bytes -= size;
        }
    }
}

impl<A: Clone> Ticket<'_, A> {
    /// Remembers an answer of `size` bytes.
    pub fn answered(mut self, answer: &A, size: usize) {
        self.answered = true;
        let mut table = self.once.table();
        let entry = table.known.get_mut(&self.key).filter(|entry| entry.number == self.number);
        // It may have had to give way.
        if let Some(entry) = entry {
            entry.answer = Some((answer.clone(), size));
            table.bytes += size;
        }
    }
}

impl<A: Clone> Drop for Ticket<'_, A> {
    fn drop(&mut self) {
        if !self.answered {
            self.once.table().forget(&self.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first<'o>(once: &'o Once<u32>, key: &str, now: Time<Mono>) -> Ticket<'o, u32> {
        match once.begin(key.as_bytes(), "asked", now) {
            Begun::First(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_answered_is_answered_the_same_within_the_window() {
        let (once, now) = (Once::default(), Time::from_nanos(5));
        first(&once, "k", now).answered(&7, 10);
        let almost = Time::from_nanos(now.as_nanos() + WINDOW.as_nanos() - 1);
        assert!(matches!(once.begin(b"k", "asked", almost), Begun::Again(7)));
        assert!(matches!(once.begin(b"k", "another", almost), Begun::Different));
        let later = now.saturating_add(WINDOW);
        first(&once, "k", later).answered(&8, 10);
        assert!(matches!(once.begin(b"k", "asked", later), Begun::Again(8)));
        assert_eq!(once.counts(), (1, 2, 0));
    }

    #[test]
    fn while_it_is_being_answered_nobody_else_begins_and_what_failed_begins_anew() {
        let (once, now) = (Once::default(), Time::from_nanos(5));
        let ticket = first(&once, "k", now);
        assert!(matches!(once.begin(b"k", "asked", now), Begun::Running));
        drop(ticket);
        drop(first(&once, "k", now));
        assert_eq!((once.counts().0, once.table().order.len()), (0, 1));
        let later = now.saturating_add(WINDOW);
        first(&once, "other", later).answered(&1, 1);
        assert_eq!(once.table().order.len(), 1, "what is not known any more leaves nothing behind");
        let _running = first(&once, "long", later);
        (0..3 * MAX_KEYS).for_each(|n| drop(first(&once, &n.to_string(), later)));
        assert!(once.table().order.len() <= 2 * MAX_KEYS);
    }

    #[test]
    fn keys_and_bytes_are_bounded_and_the_oldest_give_way() {
        let (once, now) = (Once::default(), Time::from_nanos(5));
        (0..=MAX_KEYS).for_each(|n| first(&once, &n.to_string(), now).answered(&1, 1));
        assert_eq!(once.counts(), (MAX_KEYS, 0, 1));
        assert!(matches!(once.begin(b"1", "asked", now), Begun::Again(_)) || once.counts().2 == 2);
        let once = Once::default();
        (0..4).for_each(|n| first(&once, &n.to_string(), now).answered(&1, MAX_BYTES / 2));
        assert!(once.table().bytes <= MAX_BYTES + MAX_BYTES / 2, "{} bytes", once.table().bytes);
        assert!(once.counts().2 >= 1);
        let late = first(&once, "late", now);
        (0..=MAX_KEYS).for_each(|n| first(&once, &format!("x{n}"), now).answered(&1, 1));
        late.answered(&1, 1);
        assert_eq!(once.table().bytes, MAX_KEYS, "an answer whose key gave way is not kept");
    }
}
