//! The standard `process_*` metrics of Prometheus client libraries. On systems without `/proc`, all except
//! `process_max_fds` are missing.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::metrics::MetricsText;

/// The unit of times in `/proc`. On Linux the unit is always 1/100 s, independent of the kernel's own tick.
const TICKS_PER_SECOND: u64 = 100;
const BYTES_PER_KIB: u64 = 1024;

/// Writes the process metrics. Metrics that cannot be read are left out.
pub(super) fn write(page: &mut MetricsText) {
    // The program name is in parentheses and may contain any character. The fields after the name contain no
    // parentheses.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .map_or(Vec::new(), |rest| rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect());
    // The first field after the name is field 3 in proc(5).
    let field = |number: usize| fields.get(number - 3).copied();
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        let ticks = user + system;
        page.write_head("process_cpu_seconds_total", "counter", "User and system CPU time.");
        page.write_line("", format_args!("{}.{:02}", ticks / TICKS_PER_SECOND, ticks % TICKS_PER_SECOND));
    }
    if let (Some(ticks), Some(boot)) = (field(22), boot_time_seconds()) {
        page.write_gauge(
            "process_start_time_seconds",
            "Start time of the process, in seconds since 1970.",
            boot + ticks / TICKS_PER_SECOND,
        );
    }
    if let Some(threads) = field(20) {
        page.write_gauge("process_threads", "Threads.", threads);
    }
    if let Some(bytes) = field(23) {
        page.write_gauge("process_virtual_memory_bytes", "Address space in use.", bytes);
    }
    if let Some(bytes) = resident_bytes() {
        page.write_gauge("process_resident_memory_bytes", "Memory in use.", bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        page.write_gauge("process_open_fds", "Open files and connections.", files.count() as u64);
    }
    if let Some(files) = getrlimit(Resource::Nofile).current {
        page.write_gauge("process_max_fds", "Maximum number of open files and connections.", files);
    }
}

fn boot_time_seconds() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib * BYTES_PER_KIB)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn metrics_describe_this_process() {
        let mut page = MetricsText::default();
        write(&mut page);
        let value = |name: &str| {
            let line = page.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect(name);
            line.split('.').next().and_then(|value| value.parse::<u64>().ok()).expect("a number")
        };
        let memory = value("process_resident_memory_bytes");
        assert!((1 << 20..1 << 36).contains(&memory), "{memory}");
        assert!(value("process_virtual_memory_bytes") >= memory);
        assert!(value("process_threads") >= 1);
        assert!((3..=value("process_max_fds")).contains(&value("process_open_fds")));
        // The start time is after 2020 and before 2100.
        assert!((1_577_836_800..4_102_444_800).contains(&value("process_start_time_seconds")));
        assert!(page.text.contains("\nprocess_cpu_seconds_total "), "{}", page.text);
    }
}
