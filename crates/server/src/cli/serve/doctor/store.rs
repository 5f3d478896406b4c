//! Checks the script, the latency, the clock and the eviction policy of the counter store.

use std::time::Duration;

use tollgate_redis::Diagnosis;

use super::super::config::{Config, StoreConfig};
use super::{DoctorFinding, wall_micros};

/// If the store's clock and this machine's clock differ by more than this time, the difference is reported. Limits
/// use the store's clock; logs, calendars and schedules use this machine's clock.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_millis(500);

/// Checks that the store can decide within the deadline.
pub(super) async fn check_store(config: &Config) -> Vec<DoctorFinding> {
    let url = match &config.store {
        StoreConfig::Memory => {
            return vec![DoctorFinding::ok("store", format!("memory, for {} keys", config.capacity))];
        }
        StoreConfig::Peers(_) => {
            return vec![DoctorFinding::ok("store", format!("{}, for {} keys", config.store.name(), config.capacity))];
        }
        StoreConfig::Redis(url) => url,
    };
    let name = config.store.name();
    let store = match tollgate_redis::Config::from_url(url.reveal()) {
        Ok(store) => store.deadline(config.store_deadline),
        Err(error) => {
            return vec![DoctorFinding::error(
                "store",
                format!("{name}: {error}"),
                "write redis://host:port in --store",
            )];
        }
    };
    match tollgate_redis::diagnose(&store, &wall_micros).await {
        Ok(diagnosis) => check_diagnosis(&name, &diagnosis, config.store_deadline),
        Err(why) => {
            // The reason may already say which URL would be right.
            let action = match why.contains("; write redis") {
                true => "until then, on_fault of each rule decides",
                false => {
                    "check that it is running, and check the address, user and password in --store; until it answers, \
                     on_fault of each rule decides"
                }
            };
            vec![DoctorFinding::error("store", format!("{name}: {why}"), action)]
        }
    }
}

fn check_diagnosis(name: &str, diagnosis: &Diagnosis, deadline: Duration) -> Vec<DoctorFinding> {
    let mut findings = vec![DoctorFinding::ok("store", format!("{name}, {}, runs the script", diagnosis.server))];
    let times = format!("median {:?}, worst {:?} of {} probes", diagnosis.median, diagnosis.worst, diagnosis.probes);
    findings.push(match diagnosis.worst * 2 > deadline {
        true => DoctorFinding::warning(
            "store latency",
            format!("{times}, and --store-deadline is {deadline:?}"),
            "move the store nearer, or raise --store-deadline; when the store answers too late, on_fault of each rule decides",
        ),
        false => DoctorFinding::ok("store latency", format!("{times}, of {deadline:?}")),
    });
    let difference = Duration::from_micros(diagnosis.clock_difference_us.unsigned_abs());
    let side = if diagnosis.clock_difference_us > 0 { "ahead of" } else { "behind" };
    findings.push(match difference > MAX_CLOCK_DIFFERENCE {
        true => DoctorFinding::warning(
            "store clock",
            format!("{difference:.1?} {side} this machine"),
            "synchronise both with NTP: calendars and schedules use this machine's clock",
        ),
        false => DoctorFinding::ok("store clock", "agrees with this machine"),
    });
    if let Some(policy) = &diagnosis.evicts {
        findings.push(DoctorFinding::warning(
            "store memory",
            format!("maxmemory-policy {policy} deletes counters when memory is full, which resets their limits"),
            "set noeviction: a full store then refuses to write, and on_fault decides",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_probes_clock_difference_and_eviction_are_reported() {
        let diagnosis = |worst_ms, clock_difference_us| Diagnosis {
            server: "Redis 7".into(),
            probes: 20,
            median: Duration::from_millis(1),
            worst: Duration::from_millis(worst_ms),
            clock_difference_us,
            evicts: None,
        };
        let lines = |diagnosis: &Diagnosis| -> Vec<String> {
            check_diagnosis("redis://s", diagnosis, Duration::from_millis(10)).iter().map(ToString::to_string).collect()
        };
        let well = lines(&diagnosis(5, -500_000));
        assert!(well.iter().all(|line| line.starts_with("ok ")), "{well:?}");
        let slow = lines(&diagnosis(6, 2_000_000));
        assert!(slow[1].starts_with(
            "warning  store latency median 1ms, worst 6ms of 20 probes, and --store-deadline is 10ms; move"
        ));
        assert!(slow[2].starts_with("warning  store clock   2.0s ahead of this machine; synchronise"), "{slow:?}");
        assert!(lines(&diagnosis(1, -2_000_000))[2].contains("2.0s behind this machine"));
    }
}
