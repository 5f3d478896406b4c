//! The state that all connections share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::{Clock, PreciseClock};
use tollgate::core::{Mono, Time};
use tollgate::redis_cell::RedisCellTable;
use tollgate_engine::{Enforcement, Engine, Store};
use tollgate_http::ClientIp;

use crate::console::session::Sessions;
use crate::control::api::{AuditQueue, AuditSlot};
use crate::control::auth::{Authenticator, TokenPolicy};
use crate::counters::SnapshotStatus;
use crate::http::AllowedHosts;
use crate::live::LiveData;
use crate::net::shutdown::Connections;
use crate::observe::health::StoreHealth;
use crate::observe::metrics::Metrics;
use crate::observe::refusals::RefusalLog;
use crate::observe::top_keys::{KeyDisplay, TopKeys};
use crate::ops::acquire::Waiters;
use crate::ops::error::OpError;
use crate::ops::idempotency::IdempotencyTable;
use crate::rls::{HeldBodies, HeldSlots, ResponseOptions, ZeroCostChecks};
use crate::rules_source::status::{RulesSource, SourceStatus};

/// The two kill switches: one for this server and one for its whole fleet.
#[derive(Debug)]
struct KillSwitches {
    server: Enforcement,
    fleet: Enforcement,
}

impl KillSwitches {
    /// Returns the effective enforcement mode. Refusals are enforced only if both switches are set to `Enforce`.
    fn effective_mode(&self) -> Enforcement {
        match (self.server, self.fleet) {
            (Enforcement::Enforce, Enforcement::Enforce) => Enforcement::Enforce,
            (Enforcement::Observe, _) | (_, Enforcement::Observe) => Enforcement::Observe,
        }
    }
}

/// The state that all connections share.
#[derive(Debug)]
pub struct App<S> {
    /// The engine that decides requests.
    pub engine: Engine<S>,
    /// The open connections and the shutdown signal.
    pub connections: Arc<Connections>,
    /// The counters of `/metrics`.
    pub metrics: Metrics,
    /// Whether the store answers.
    pub health: Arc<StoreHealth>,
    /// The acquire requests that are waiting for capacity.
    pub waiters: Waiters,
    /// The heaviest keys.
    pub top: TopKeys,
    /// The log of refusals, if enabled.
    pub refusals: Option<RefusalLog>,
    /// The valid tokens.
    pub auth: Authenticator,
    /// The browser sessions.
    pub sessions: Sessions,
    /// Current rates and their history, for the live API.
    pub live: LiveData,
    /// The source of the rules.
    pub source: SourceStatus,
    /// Determines a client's address behind trusted proxies.
    pub client: ClientIp,
    /// Maximum age of a rate-limit-service connection. When such a connection closes, the client may reconnect to
    /// another server.
    pub max_connection_age: Duration,
    /// The concurrency slots held by callers of the rate-limit service.
    pub held_slots: HeldSlots,
    /// The rate-limit-service descriptors that were recently checked with a cost of 0.
    pub zero_cost_checks: ZeroCostChecks,
    /// The total size of the bodies of unanswered rate-limit-service calls, on all connections.
    pub held_bodies: HeldBodies,
    /// Which headers and metadata are included in rate-limit-service responses.
    pub rls_options: ResponseOptions,
    /// The host names that the `Host` header of an HTTP request may contain. `None` accepts any host name.
    pub hosts: Option<AllowedHosts>,
    /// The clock of [`now`](Self::now) and [`wall_ms`](Self::wall_ms). Limits use their store's clock.
    clock: PreciseClock,
    /// The stored results of requests with an idempotency key.
    pub idempotency: IdempotencyTable,
    /// The status of the counter snapshots, and the number of keys in memory.
    pub snapshots: SnapshotStatus,
    /// Locked only to read or change a switch, never during a decision.
    kill_switches: Mutex<KillSwitches>,
    /// The counters of `CL.THROTTLE`, if they are kept in this process. The command needs neither rules nor the engine,
    /// because every call contains its limit and the state of a key fits in 64 bits. With a shared store, the engine
    /// decides `CL.THROTTLE` as an inline limit.
    pub throttles: Option<RedisCellTable>,
}

impl<S: Store> App<S> {
    /// Creates the state for an engine, with defaults for all options.
    pub fn new(engine: Engine<S>, throttles: Option<RedisCellTable>) -> Self {
        let clock = PreciseClock::new();
        Self {
            engine,
            connections: Arc::default(),
            metrics: Metrics::default(),
            health: Arc::default(),
            waiters: Waiters::default(),
            idempotency: IdempotencyTable::default(),
            top: TopKeys::new(KeyDisplay::Plain, clock.mono()),
            refusals: None,
            auth: Authenticator::default(),
            sessions: Sessions::default(),
            live: LiveData::default(),
            source: SourceStatus::default(),
            client: ClientIp::direct(),
            held_slots: HeldSlots::default(),
            zero_cost_checks: ZeroCostChecks::default(),
            held_bodies: HeldBodies::default(),
            rls_options: ResponseOptions::default(),
            max_connection_age: Duration::from_secs(86_400),
            hosts: None,
            clock,
            snapshots: SnapshotStatus::default(),
            kill_switches: Mutex::new(KillSwitches { server: Enforcement::Enforce, fleet: Enforcement::Enforce }),
            throttles,
        }
    }

    /// Sets the refusal log. Default: none.
    #[must_use]
    pub fn with_refusal_log(self, refusals: Option<RefusalLog>) -> Self {
        Self { refusals, ..self }
    }

    /// Sets whether the heaviest keys are counted, and how they are shown. Default: counted and shown in plain text.
    #[must_use]
    pub fn with_key_display(self, names: KeyDisplay) -> Self {
        Self { top: TopKeys::new(names, self.now()), ..self }
    }

    /// Sets whether callers need tokens. Default: no.
    #[must_use]
    pub fn with_token_policy(self, policy: TokenPolicy) -> Self {
        Self { auth: Authenticator::new(policy), ..self }
    }

    /// Sets the trusted proxies. Default: none.
    #[must_use]
    pub fn with_client_ip(self, client: ClientIp) -> Self {
        Self { client, ..self }
    }

    /// Sets the host names accepted in HTTP requests. Default: any.
    #[must_use]
    pub fn with_allowed_hosts(self, hosts: Option<AllowedHosts>) -> Self {
        Self { hosts, ..self }
    }

    /// Sets the maximum age of a rate-limit-service connection. Default: one day.
    #[must_use]
    pub fn with_max_connection_age(self, max_connection_age: Duration) -> Self {
        Self { max_connection_age, ..self }
    }

    /// Sets the contents of rate-limit-service responses. Default: the headers `RateLimit` and `RateLimit-Policy`.
    #[must_use]
    pub fn with_rls_options(self, rls_options: ResponseOptions) -> Self {
        Self { rls_options, ..self }
    }

    /// Sets the source of the rules.
    #[must_use]
    pub fn with_rules_source(self, source: RulesSource) -> Self {
        Self { source: SourceStatus::new(source), ..self }
    }

    /// Returns the wall-clock time in milliseconds since 1970.
    pub fn wall_ms(&self) -> i64 {
        let wall = self.clock.wall(self.clock.mono());
        i64::try_from(wall.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
    }

    /// Returns the monotonic time.
    pub fn now(&self) -> Time<Mono> {
        self.clock.mono()
    }

    /// Reserves an audit-log entry for an action. Call this before the action. Returns `None` if the server has no
    /// audit log.
    ///
    /// # Errors
    /// Returns an error if the audit-log queue is full. The caller must then skip the action.
    pub fn reserve_audit_slot(&self, queue: AuditQueue) -> Result<Option<AuditSlot<'_>>, OpError> {
        self.source.audit_queues().map(|audit| audit.reserve_entry(queue)).transpose()
    }

    /// Sets the kill switch of this server.
    pub fn set_server_enforcement(&self, mode: Enforcement) {
        self.change_switches(|kill_switches| kill_switches.server = mode);
    }

    /// Sets the kill switch of the fleet, as received from the rules service.
    pub fn set_fleet_enforcement(&self, mode: Enforcement) {
        let before = self.fleet_enforcement();
        self.change_switches(|kill_switches| kill_switches.fleet = mode);
        if before != mode {
            tracing::warn!(mode = mode.as_str(), "enforcement mode of the fleet changed");
        }
    }

    /// Returns the kill switch of the fleet.
    pub fn fleet_enforcement(&self) -> Enforcement {
        self.kill_switches.lock().unwrap_or_else(PoisonError::into_inner).fleet
    }

    fn change_switches(&self, change: impl FnOnce(&mut KillSwitches)) {
        // Hold the lock until the engine is switched, so that concurrent changes reach the engine in order.
        let mut kill_switches = self.kill_switches.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut kill_switches);
        self.engine.set_enforcement(kill_switches.effective_mode());
    }
}
