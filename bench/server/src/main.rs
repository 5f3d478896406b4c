//! Compares the server with floors (servers that decide nothing) and with its peers. The same load runs on each server
//! in turn, several times, and the medians are reported.
//!
//! On a small machine, the load generator competes with the server for CPU time. The server's CPU time per answer
//! varies less than the answers per second, so both are printed. Ratios within one run apply to other machines;
//! absolute values do not.

mod load;
mod neighbour;
mod outage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use load::{Expected, RunResult};
use outage::Waits;
use tollgate_server_bench::goals::Goals;
use tollgate_server_bench::process::{Server, describe_machine, free_address};
use tollgate_server_bench::rule_file;

const THROTTLE_COMMAND: [&str; 6] = ["CL.THROTTLE", "key:__rand_int__", "1000000", "1000000", "60", "1"];

/// A command that is admitted only once for each key, and then refused. The arguments are as long as in
/// [`THROTTLE_COMMAND`], so that both commands take the same time to parse.
const REFUSED_COMMAND: [&str; 6] = ["CL.THROTTLE", "key:__rand_int__", "0000000", "0000001", "99", "1"];

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let tollgate = args.next().context(
        "usage: bench-server TOLLGATE [REPETITIONS [resp|http|forward|latency|rules|memory|neighbour|outage]]",
    )?;
    let repetitions = args.next().map_or(Ok(5), |text| text.parse())?;
    let only = args.next();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let bench = Bench { tollgate: tollgate.into(), repetitions };
    println!("{}", describe_machine());
    let mut goals = Goals::default();
    let parts: [(&str, BenchmarkPart); 8] = [
        ("resp", Bench::measure_resp),
        ("http", Bench::measure_http),
        ("forward", Bench::measure_forward_auth),
        ("latency", Bench::measure_latency),
        ("rules", Bench::compare_rule_counts),
        ("memory", Bench::measure_memory),
        ("neighbour", Bench::measure_neighbour),
        ("outage", Bench::measure_outage),
    ];
    for (_, part) in parts.into_iter().filter(|(name, _)| wanted(name)) {
        part(&bench, &mut goals)?;
    }
    Ok(goals.report())
}

struct Bench {
    tollgate: PathBuf,
    repetitions: usize,
}

/// One group of measurements.
type BenchmarkPart = fn(&Bench, &mut Goals) -> anyhow::Result<()>;

type Figures = BTreeMap<&'static str, RunResult>;

impl Bench {
    fn start_tollgate(&self, http: &str, resp: &str, listening: SocketAddr, more: &[&str]) -> anyhow::Result<Server> {
        let mut command = Command::new(&self.tollgate);
        command.args(["serve", "--http", http, "--resp", resp, "--data", "off"]).args(more);
        Server::start(&mut command, listening)
    }

    fn start_resp_server(&self, more: &[&str]) -> anyhow::Result<Server> {
        let address = free_address()?;
        self.start_tollgate("off", &address.to_string(), address, more)
    }

    fn measure_resp(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let mut servers = vec![
            ("floor", start_floor("floor-resp")?),
            ("tollgate", self.start_resp_server(&[])?),
            ("refused", self.start_resp_server(&[])?),
        ];
        let mut script = String::new();
        for name in ["redis INCR", "redis script"] {
            let Some(server) = start_redis(&[])? else { continue };
            if name == "redis script" {
                script = load::load_script(&server, include_str!("../gcra.lua"))?;
            }
            servers.push((name, server));
        }
        if let Some(module) = std::env::var_os("TOLLGATE_REDIS_CELL") {
            let module = module.to_string_lossy().into_owned();
            servers.extend(start_redis(&["--loadmodule", &module])?.map(|server| ("redis-cell", server)));
        }
        servers.extend(start_throttlecrab("redis")?.map(|server| ("throttlecrab", server)));
        for (pipeline, count) in [(1, 60_000), (16, 600_000), (64, 1_500_000)] {
            let figures = self.run_in_turn(&servers, |name, server| {
                let count =
                    if matches!(name, "redis script" | "redis-cell" | "throttlecrab") { count / 8 } else { count };
                match name {
                    "redis INCR" => load::run_redis_benchmark(server, pipeline, count, &["INCR", "key:__rand_int__"]),
                    "redis script" => {
                        let command = ["EVALSHA", &script, "1", "key:__rand_int__", "1000000", "1000000", "60"];
                        load::run_redis_benchmark(server, pipeline, count, &command)
                    }
                    "throttlecrab" => {
                        let command = ["THROTTLE", "key:__rand_int__", "1000000", "1000000", "60", "1"];
                        load::run_redis_benchmark(server, pipeline, count, &command)
                    }
                    "refused" => load::run_redis_benchmark(server, pipeline, count, &REFUSED_COMMAND),
                    _ => load::run_redis_benchmark(server, pipeline, count, &THROTTLE_COMMAND),
                }
            })?;
            print_table(&format!("CL.THROTTLE, 50 connections, pipeline {pipeline}"), &figures);
            let (floor, ours) = (figures["floor"], figures["tollgate"]);
            match pipeline {
                1 => goals.at_most(
                    "pipeline 1, CPU time relative to the floor",
                    ours.cpu_micros / floor.cpu_micros,
                    1.15,
                ),
                16 => goals.at_least(
                    "pipeline 16, answers per second relative to the floor",
                    ours.per_second / floor.per_second,
                    0.7,
                ),
                _ => {
                    goals.at_least(
                        "pipeline 64, answers per second relative to the floor",
                        ours.per_second / floor.per_second,
                        0.6,
                    );
                    let ratio = ours.cpu_micros / floor.cpu_micros;
                    goals.at_most("pipeline 64, CPU time relative to the floor", ratio, 1.5);
                    if let Some(redis) = figures.get("redis INCR") {
                        goals.at_least(
                            "pipeline 64, answers per second relative to Redis INCR",
                            ours.per_second / redis.per_second,
                            2.5,
                        );
                    }
                    let ratio = ours.cpu_micros / figures["refused"].cpu_micros;
                    goals.at_least("pipeline 64, CPU time of an admission relative to a refusal", ratio, 0.95);
                }
            }
        }
        Ok(())
    }

    fn measure_http(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let start_ours = || {
            let address = free_address()?;
            self.start_tollgate(&address.to_string(), "off", address, &[])
        };
        let mut servers =
            vec![("floor", start_floor("floor-http")?), ("tollgate", start_ours()?), ("refused", start_ours()?)];
        servers.extend(start_throttlecrab("http")?.map(|server| ("throttlecrab", server)));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let run = |name: &str, server: &Server| match name {
            "throttlecrab" => load::run_wrk(server, "/throttle", &script("throttlecrab.lua"), Expected::Admitted),
            "refused" => load::run_wrk(server, "/v1/check", &script("refused.lua"), Expected::Refused),
            _ => load::run_wrk(server, "/v1/check", &script("check.lua"), Expected::Admitted),
        };
        let figures = self.run_in_turn(&servers, run)?;
        print_table("POST /v1/check, 50 connections", &figures);
        let ours = figures["tollgate"];
        goals.at_most("HTTP, CPU time relative to the floor", ours.cpu_micros / figures["floor"].cpu_micros, 1.);
        let ratio = figures["refused"].cpu_micros / ours.cpu_micros;
        goals.at_most("HTTP, CPU time of a refusal relative to an admission", ratio, 1.1);
        if let Some(peer) = figures.get("throttlecrab") {
            goals.at_least("HTTP, CPU time of throttlecrab relative to ours", peer.cpu_micros / ours.cpu_micros, 1.4);
        }
        Ok(())
    }

    /// Measures the forward-auth check of a reverse proxy, with one matching rule.
    fn measure_forward_auth(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let file = std::env::temp_dir().join(format!("tollgate-bench-forward-{}.yaml", std::process::id()));
        let rules = "{domain: api, rules: [{id: mine, when: {path: '/v1/mine/**'}, per: [client_ip], limit: 1M/s}]}";
        std::fs::write(&file, rules)?;
        let address = free_address()?;
        let ours = self.start_tollgate(&address.to_string(), "off", address, &["--rules", &file.to_string_lossy()])?;
        let servers = [("floor", start_floor("floor-http")?), ("tollgate", ours)];
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("forward.lua");
        let figures = self.run_in_turn(&servers, |_, server| {
            load::run_wrk(server, "/v1/forward-auth/api", &script.to_string_lossy(), Expected::Admitted)
        })?;
        std::fs::remove_file(file)?;
        print_table("GET /v1/forward-auth/api, 50 connections", &figures);
        let ratio = figures["tollgate"].cpu_micros / figures["floor"].cpu_micros;
        goals.at_most("forward-auth, CPU time relative to the floor", ratio, 1.3);
        Ok(())
    }

    fn measure_latency(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let servers = [("floor", start_floor("floor-resp")?), ("tollgate", self.start_resp_server(&[])?)];
        let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..self.repetitions {
            for (name, server) in &servers {
                let time = load::median_latency(server.address, 20_000, Duration::from_secs(1))?;
                times.entry(*name).or_default().push(time);
            }
        }
        let times: BTreeMap<&str, f64> = times.into_iter().map(|(name, times)| (name, median(times))).collect();
        println!("\nmedian response time at 20,000 requests/s over 50 connections");
        times.iter().for_each(|(name, time)| println!("  {name:<14} {time:>8.0} µs"));
        goals.at_most(
            "median response time at 20,000 requests/s, relative to the floor",
            times["tollgate"] / times["floor"],
            1.15,
        );
        Ok(())
    }

    /// Compares requests that match two of 10 rules with requests that match two of 10,000 rules, and with
    /// `CL.THROTTLE`.
    fn compare_rule_counts(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut servers = Vec::new();
        for (name, count) in [("10 rules", 10), ("10,000 rules", 10_000)] {
            let file = folder.join(format!("{count}.yaml"));
            std::fs::write(&file, rule_file(count))?;
            servers.push((name, self.start_resp_server(&["--rules", &file.to_string_lossy()])?));
        }
        servers.push(("CL.THROTTLE", self.start_resp_server(&[])?));
        let check = ["TG.CHECK", "api", "1", "path", "/v1/mine/things", "client", "key:__rand_int__", "plan", "gold"];
        let figures = self.run_in_turn(&servers, |name, server| match name {
            "CL.THROTTLE" => load::run_redis_benchmark(server, 16, 600_000, &THROTTLE_COMMAND),
            _ => load::run_redis_benchmark(server, 16, 200_000, &check),
        })?;
        std::fs::remove_dir_all(folder)?;
        print_table("TG.CHECK, pipeline 16, two matching rules", &figures);
        let ratio = figures["10,000 rules"].cpu_micros / figures["10 rules"].cpu_micros;
        goals.at_most("CPU time with 10,000 rules, relative to 10 rules", ratio, 1.5);
        let ratio = figures["10 rules"].cpu_micros / figures["CL.THROTTLE"].cpu_micros;
        goals.at_most("CPU time with two matching rules, relative to CL.THROTTLE", ratio, 2.);
        Ok(())
    }

    fn measure_memory(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let server = self.start_resp_server(&[])?;
        let before = server.resident_megabytes()?;
        load::fill_with_keys(server.address, 1_000_000)?;
        let after = server.resident_megabytes()?;
        println!("\na million keys: {before:.1} MB before, {after:.1} MB after");
        goals.at_most("resident memory with a million keys, in MB", after, 80.);
        Ok(())
    }

    /// Measures the longest wait of a connection while another connection sends the most expensive requests.
    fn measure_neighbour(&self, goals: &mut Goals) -> anyhow::Result<()> {
        const RUN_DURATION: Duration = Duration::from_secs(2);
        let folder = std::env::temp_dir().join(format!("tollgate-bench-neighbour-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("rules.yaml");
        std::fs::write(&file, neighbour::rule_file())?;
        let address = free_address()?;
        let server = self.start_tollgate(
            &address.to_string(),
            "off",
            address,
            &["--threads", "1", "--rules", &file.to_string_lossy()],
        )?;
        let longest = |request: Option<&neighbour::HeavyRequest>| {
            let runs = (0..self.repetitions).map(|_| neighbour::longest_wait(server.address, RUN_DURATION, request));
            Ok::<f64, anyhow::Error>(median(runs.collect::<anyhow::Result<Vec<f64>>>()?))
        };
        let idle = longest(None)?;
        println!("\nlongest wait of a connection over 2 s, one thread, 10,000 rules");
        println!("  {:<16} {idle:>8.0} µs", "idle");
        for request in neighbour::heavy_requests() {
            let wait = longest(Some(&request))?;
            println!("  {:<16} {wait:>8.0} µs", request.name);
            goals.at_most(
                &format!("longest wait during a {}, relative to an idle server", request.name),
                wait / idle,
                3.,
            );
        }
        std::fs::remove_dir_all(folder)?;
        Ok(())
    }

    fn measure_outage(&self, goals: &mut Goals) -> anyhow::Result<()> {
        const RUN_DURATION: Duration = Duration::from_secs(2);
        let Some(redis) = start_redis(&[])? else { return Ok(()) };
        let server = self.start_resp_server(&["--store", &format!("redis://{}", redis.address)])?;
        let (mut control, mut stopped) = (Vec::new(), Vec::new());
        for _ in 0..self.repetitions {
            control.push(outage::run_callers(server.address, RUN_DURATION, || Ok(()))?);
            stopped
                .push(outage::run_callers(server.address, RUN_DURATION, || outage::send_signal(redis.id(), "STOP"))?);
            outage::send_signal(redis.id(), "CONT")?;
        }
        println!("\n20 callers, deadline 10 ms, every request decided; the store is stopped after a third of the time");
        let middle_of = |waits: &[Waits], figure: fn(&Waits) -> f64| median(waits.iter().map(figure).collect());
        let longest = [("control", control), ("stopped", stopped)].map(|(name, waits)| {
            let (usual, longest) = (middle_of(&waits, |waits| waits.middle), middle_of(&waits, |waits| waits.longest));
            let answers = middle_of(&waits, |waits| waits.answers as f64);
            println!("  {name:<14} {answers:>8.0} answers, median {usual:.2} ms, longest {longest:.2} ms");
            longest
        });
        goals.at_most(
            "longest wait with the store stopped minus longest wait without a fault, ms",
            longest[1] - longest[0],
            10.,
        );
        Ok(())
    }

    /// Runs the load on every server in turn, several times, and returns the medians.
    fn run_in_turn(
        &self,
        servers: &[(&'static str, Server)],
        run: impl Fn(&str, &Server) -> anyhow::Result<RunResult>,
    ) -> anyhow::Result<Figures> {
        let mut runs: BTreeMap<&str, Vec<RunResult>> = BTreeMap::new();
        for _ in 0..self.repetitions {
            for (name, server) in servers {
                runs.entry(*name).or_default().push(run(name, server).with_context(|| (*name).to_owned())?);
            }
        }
        let middle_of = |runs: &[RunResult], figure: fn(&RunResult) -> f64| median(runs.iter().map(figure).collect());
        Ok(runs
            .into_iter()
            .map(|(name, runs)| {
                let per_second = middle_of(&runs, |run| run.per_second);
                (name, RunResult { per_second, cpu_micros: middle_of(&runs, |run| run.cpu_micros) })
            })
            .collect())
    }
}

/// Starts a floor from this program's folder.
fn start_floor(name: &str) -> anyhow::Result<Server> {
    let address = free_address()?;
    let program = std::env::current_exe()?.with_file_name(name);
    Server::start(Command::new(program).arg(address.to_string()), address)
}

/// Starts Redis, if it is installed.
fn start_redis(more: &[&str]) -> anyhow::Result<Option<Server>> {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return Ok(None);
    }
    let address = free_address()?;
    let mut command = Command::new("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--port", &address.port().to_string()]).args(more);
    Server::start(&mut command, address).map(Some)
}

/// Starts throttlecrab-server, if `TOLLGATE_THROTTLECRAB` contains its path.
fn start_throttlecrab(protocol: &str) -> anyhow::Result<Option<Server>> {
    let Some(program) = std::env::var_os("TOLLGATE_THROTTLECRAB") else { return Ok(None) };
    let address = free_address()?;
    let mut command = Command::new(program);
    command.arg(format!("--{protocol}")).args([&format!("--{protocol}-host"), "127.0.0.1"]);
    command.args([&format!("--{protocol}-port"), &address.port().to_string()]);
    command.args(["--store", "periodic", "--store-capacity", "200000"]);
    Server::start(&mut command, address).map(Some)
}

fn print_table(title: &str, figures: &Figures) {
    println!("\n{title}");
    let floor = figures.get("floor").or(figures.values().next()).copied();
    for (name, run) in figures {
        let of = |figure: fn(&RunResult) -> f64| floor.as_ref().map_or(1., |floor| figure(run) / figure(floor));
        println!(
            "  {name:<14} {:>10.0}/s ({:.2})   {:>7.3} µs ({:.2})",
            run.per_second,
            of(|run| run.per_second),
            run.cpu_micros,
            of(|run| run.cpu_micros)
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
