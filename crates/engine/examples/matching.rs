//! What finding two rules costs among 10 and among 10,000: a third path patterns, a third equality, a third any-of lists.
//!
//! `cargo run --release -p tollgate-engine --example matching`
//!
//! Two figures for each size: the same request again and again, and a thousand different ones in turn, where the tables have
//! to come from further away than the nearest cache. The sizes take turns, so that what disturbs one disturbs all.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::hint::black_box;

use tollgate::clock::{Clock, PreciseClock};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Decisions, Engine, Entry, Item, Matched, MemoryStore, Request, RuleSet};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 41;
const REQUESTS: usize = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = PreciseClock::new();
    let mut subjects = Vec::new();
    for size in SIZES {
        let started = clock.mono();
        let rules = Rules::read(&[Source { name: "made up", text: text(size).as_bytes() }])?;
        let read = clock.mono();
        let engine = Engine::new(MemoryStore::new(100_000)?)?;
        engine.put(&rules)?;
        println!("{size} rules: read in {}, in force in {}", read.since(started), clock.mono().since(read));
        subjects.push(Subject { engine, requests: requests(size) });
    }
    let mut figures: Vec<[Vec<f64>; 4]> = SIZES.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            let hot = [subject.requests[0].clone()];
            figures[0].push(subject.find(&clock, &hot));
            figures[1].push(subject.find(&clock, &subject.requests));
            figures[2].push(subject.check(&clock, &hot));
            figures[3].push(subject.check(&clock, &subject.requests));
        }
    }
    println!("{:>32} {:>9} {:>9} {:>9} {:>9}   10,000 to 10", "ns, median", SIZES[0], SIZES[1], SIZES[2], SIZES[3]);
    let rows = ["finding, one request", "finding, 1,000 requests", "check, one request", "check, 1,000 requests"];
    for (row, name) in rows.iter().enumerate() {
        let medians: Vec<f64> = figures.iter().map(|figures| median(&figures[row])).collect();
        let shown: Vec<String> = medians.iter().map(|ns| format!("{ns:9.1}")).collect();
        println!("{name:>32} {}   {:.2}", shown.join(" "), medians[3] / medians[0]);
    }
    Ok(())
}

fn text(size: usize) -> String {
    let mut text = String::from("domain: api\nrules:\n");
    for n in 0..size {
        let when = match n % 3 {
            0 => format!("path: /service-{n}/*/items/**"),
            1 => format!("tenant: tenant-{n}"),
            _ => format!("plan: [basic-{n}, silver-{n}, gold-{n}], method: [GET, POST]"),
        };
        text += &format!("- {{id: rule-{n}, when: {{{when}}}, per: [client], limit: 1000000/s}}\n");
    }
    text
}

/// What a request says of itself: a path, a tenant, a method and a client.
type Attributes = [(&'static str, String); 4];

struct Subject {
    engine: Engine<MemoryStore>,
    requests: Vec<Attributes>,
}

/// Requests that each meet one pattern and one tenant.
fn requests(size: usize) -> Vec<Attributes> {
    let request = |n: usize| {
        // Steps that visit everything, in no order.
        let path = n * 7_919 % size.div_ceil(3) * 3;
        let tenant = n * 104_729 % (size + 1).div_euclid(3) * 3 + 1;
        [
            ("path", format!("/service-{path}/17/items/4711")),
            ("tenant", format!("tenant-{tenant}")),
            ("method", "GET".into()),
            // As many counters for few rules as for many.
            ("client", format!("client {n}")),
        ]
    };
    (0..REQUESTS).map(request).collect()
}

impl Subject {
    fn find(&self, clock: &PreciseClock, requests: &[Attributes]) -> f64 {
        let rules: &RuleSet = &self.engine.rules();
        let mut matched = Matched::default();
        each(clock, requests, |entries| {
            let met = rules.meets(b"api", entries, &mut matched).map_or(0, <[u32]>::len);
            assert_eq!(black_box(met), 2);
        })
    }

    fn check(&self, clock: &PreciseClock, requests: &[Attributes]) -> f64 {
        let mut decisions = Decisions::default();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        each(clock, requests, |entries| {
            let items = [Item::new(entries)];
            let request = Request::new("api", &items);
            let decided = std::pin::pin!(self.engine.check(&request, &mut decisions)).poll(&mut context);
            black_box(decided.is_ready());
        })
    }
}

/// Nanoseconds per call.
fn each(clock: &PreciseClock, requests: &[Attributes], mut call: impl FnMut(&[Entry<'_>])) -> f64 {
    let entries: Vec<[Entry<'_>; 4]> =
        requests.iter().map(|attributes| attributes.each_ref().map(|(name, value)| Entry::new(*name, value))).collect();
    let started = clock.mono();
    for n in 0..10_000 {
        call(black_box(&entries[n % entries.len()]));
    }
    clock.mono().since(started).as_nanos() as f64 / 10_000.0
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
