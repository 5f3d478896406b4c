//! Where the front ends meet what decides: one way in for all of them.

use std::sync::Arc;

use tollgate::clock::{Clock, PreciseClock};
use tollgate::redis_cell::Throttle;
use tollgate::{Cost, Limit, Mono, Throttles, Time};
use tollgate_engine::{Decisions, Enforcement, Engine, Request, RequestError, SentLimits, Store, Taking};

use crate::control::auth::{Access, Guards, Tokens};
use crate::net::accept::Protocol;
use crate::net::shutdown::Connections;
use crate::observe::health::StoreHealth;
use crate::observe::metrics::{Gauges, Metrics, Tally};
use crate::observe::refusals::RefusalLog;
use crate::observe::top_keys::{Names, TopKeys};
use crate::ops::acquire::Room;
use crate::ops::idempotency::{Given, Once};
use crate::rules_source::status::{RulesSource, SourceStatus};

/// What every connection shares.
#[derive(Debug)]
pub struct App<S> {
    /// Decides.
    pub engine: Engine<S>,
    /// Who is connected.
    pub connections: Arc<Connections>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether the store answers.
    pub health: Arc<StoreHealth>,
    /// Who waits to be admitted.
    pub room: Room,
    /// Who uses most.
    pub top: TopKeys,
    /// Which refusals become lines of the log, if any.
    refusals: Option<RefusalLog>,
    /// Who may do what.
    pub guards: Guards,
    /// Where the rules come from.
    pub origin: SourceStatus,
    /// For what is remembered for a while; limits go by the clock of their store.
    clock: PreciseClock,
    /// What was answered lately under a key.
    pub once: Once<Given>,
    /// Keys of `CL.THROTTLE` while they are kept in this process. Its limits come with every call and its state is one word
    /// whatever they are, so it needs neither rules nor the engine; with a shared store it goes the way of all others.
    throttles: Option<Throttles>,
}

/// What is done with a request: the verbs that end in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take, or refuse.
    Check,
    /// Tell what a check would say.
    Peek,
    /// Take, or refuse, to be settled later.
    Reserve,
    /// Take as much as there is.
    TakeUpTo,
    /// Take regardless, into debt.
    Charge,
    /// Take all there is.
    Drain,
}

impl Verb {
    /// How much is taken; none if nothing is.
    const fn taking(self) -> Option<Taking> {
        match self {
            Self::Check | Self::Reserve => Some(Taking::Exactly),
            Self::Peek => None,
            Self::TakeUpTo | Self::Drain => Some(Taking::UpTo),
            Self::Charge => Some(Taking::Regardless),
        }
    }

    /// What a request of this weight is asked for.
    pub fn weight(self, cost: Option<Cost>) -> Option<Cost> {
        match self {
            Self::Check | Self::Peek | Self::Reserve | Self::TakeUpTo | Self::Charge => cost,
            Self::Drain => Some(Cost::MAX),
        }
    }

    /// Whether the answer says how much was taken: it need not be what was asked for.
    pub const fn tells_taken(self) -> bool {
        match self {
            Self::Check | Self::Peek | Self::Reserve => false,
            Self::TakeUpTo | Self::Charge | Self::Drain => true,
        }
    }

    /// Whether the answer has a receipt, asked for or not.
    pub const fn tells_receipt(self) -> bool {
        match self {
            Self::Check | Self::Peek | Self::TakeUpTo | Self::Charge | Self::Drain => false,
            Self::Reserve => true,
        }
    }
}

impl<S: Store> App<S> {
    /// A app in front of an engine.
    pub fn new(engine: Engine<S>, throttles: Option<Throttles>) -> Self {
        let clock = PreciseClock::new();
        Self {
            engine,
            connections: Arc::default(),
            metrics: Metrics::default(),
            health: Arc::default(),
            room: Room::default(),
            once: Once::default(),
            top: TopKeys::new(Names::Plain, clock.mono()),
            refusals: None,
            guards: Guards::default(),
            origin: SourceStatus::default(),
            clock,
            throttles,
        }
    }

    /// With refusals in the log.
    #[must_use]
    pub fn with_refusals(self, refusals: Option<RefusalLog>) -> Self {
        Self { refusals, ..self }
    }

    /// With another way of showing who uses most.
    #[must_use]
    pub fn with_names(self, names: Names) -> Self {
        Self { top: TopKeys::new(names, self.now()), ..self }
    }

    /// Where tokens are asked for, or are not, which is how it is without this.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { guards: Guards::new(tokens), ..self }
    }

    /// With rules that come from somewhere.
    #[must_use]
    pub fn with_source(self, source: RulesSource) -> Self {
        Self { origin: SourceStatus::new(source), ..self }
    }

    /// The time on the wall, in milliseconds since 1970: tokens end by it.
    pub fn wall_ms(&self) -> i64 {
        let wall = self.clock.wall(self.clock.mono());
        i64::try_from(wall.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
    }

    /// The time, for what is remembered for a while.
    pub fn now(&self) -> Time<Mono> {
        self.clock.mono()
    }

    /// Whether calls of `CL.THROTTLE` are decided in this process.
    #[inline]
    pub fn throttles_here(&self) -> bool {
        self.throttles.is_some()
    }

    /// Decides calls of `CL.THROTTLE` in this process, in order, and calls `each` with the five numbers of every reply.
    #[inline]
    pub fn throttle_many<'a>(
        &self,
        calls: impl IntoIterator<Item = (&'a [u8], &'a Throttle)>,
        mut each: impl FnMut([i64; 5]),
    ) {
        let Some(throttles) = &self.throttles else { return };
        let observing = self.engine.enforcement() == Enforcement::Observe;
        let mut tally = Tally::default();
        throttles.decide_many(calls, |mut reply| {
            if reply[0] == 0 {
                tally.allowed += 1;
            } else if observing {
                tally.observed += 1;
                (reply[0], reply[3]) = (0, -1);
            } else {
                tally.denied += 1;
            }
            each(reply);
        });
        self.metrics.front(Protocol::Resp).decided(tally);
    }

    /// The limit of a call of `CL.THROTTLE`, for the engine; none if nothing ever passes it.
    ///
    /// # Errors
    /// When the store cannot keep it.
    pub fn throttle_limits(&self, throttle: &Throttle) -> Option<Result<SentLimits, RequestError>> {
        let limit = Limit::from(*throttle.bucket()?);
        Some(self.engine.limits(&limit.into()))
    }

    /// Decides requests, each by itself, in order.
    pub async fn decide(&self, protocol: Protocol, verb: Verb, requests: &[Request<'_>], decisions: &mut Decisions) {
        match verb.taking() {
            Some(taking) => self.engine.take_batch(taking, requests, decisions).await,
            None => return self.engine.peek_batch(requests, decisions).await,
        }
        let mut tally = Tally::default();
        for (place, decision) in decisions.iter().enumerate() {
            let Ok(decision) = decision else { continue };
            self.top.note(&decision, &self.clock);
            match decision.observed() {
                None if decision.is_allowed() => {
                    tally.allowed += 1;
                    continue;
                }
                None => tally.denied += 1,
                Some(_) => tally.observed += 1,
            }
            if let Some(refusals) = &self.refusals {
                let explain = || self.engine.explain_decided(&requests[place], decisions, place);
                refusals.note(protocol, requests[place].domain, &decision, &self.top, explain);
            }
        }
        self.metrics.front(protocol).decided(tally);
    }

    /// Counts a request that could not be understood.
    pub fn mistaken(&self, protocol: Protocol) {
        self.metrics.front(protocol).mistaken();
    }

    /// Has something written into the audit log that was done here, if this server has one.
    pub fn note(&self, access: &Access, kind: &'static str, action: &'static str, domain: Option<&str>, subject: &str) {
        if let Some(service) = self.origin.service() {
            service.note(access, kind, action, domain, subject);
        }
    }

    /// How many connections there are, of all front ends.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// All counters as text.
    pub fn metrics_text(&self) -> String {
        let status = self.origin.status(self.now());
        self.metrics.to_text(&Gauges {
            connections: self.connections(),
            waiting: self.room.waiting(),
            turned_away: self.room.turned_away(),
            once: self.once.counts(),
            store_up: self.health.is_up(),
            enforcing: self.engine.enforcement() == Enforcement::Enforce,
            overflowed: self.throttles.as_ref().map_or(0, Throttles::overflowed)
                + self.engine.store().overflowed()
                + self.engine.fallback().overflowed(),
            engine: self.engine.counts(),
            rules: self.engine.rules(),
            // A file has no revisions: how often it was loaded is told as the version.
            revision: status.checksum.and(status.revision).and_then(|revision| u64::try_from(revision).ok()),
            rules_age: self.metrics.following.age_seconds(self.now()),
        })
    }
}
