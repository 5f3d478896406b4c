//! Compares Tollgate's implementation of Envoy's rate-limit service with two floors: a fixed reply from tonic, and a
//! fixed reply from hyper's HTTP/2.
//!
//! `bench-rls TOLLGATE [REPETITIONS [load|latency|instructions]]`. Each request matches two rules. The client is h2load
//! with 10 connections of 10 streams each.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use tollgate_server_bench::goals::Goals;
use tollgate_server_bench::process::{Server, describe_machine, free_address};
use tollgate_server_bench::rule_file;

const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OURS: &str = "tollgate";
const FLOORS: [&str; 2] = ["tonic", "hyper"];

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let tollgate = args.next().context("usage: bench-rls TOLLGATE [REPETITIONS [load|latency|instructions]]")?;
    let repetitions = args.next().map_or(Ok(5), |text| text.parse())?;
    let only = args.next();
    let folder = std::env::temp_dir().join(format!("tollgate-bench-rls-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let bench = Bench { tollgate: tollgate.into(), repetitions, folder };
    std::fs::write(bench.program_path("rules.yaml"), rule_file(10))?;
    std::fs::write(bench.program_path("body"), request_body())?;
    println!("{}", describe_machine());
    let mut goals = Goals::default();
    let parts: [(&str, BenchmarkPart); 3] = [
        ("load", Bench::measure_load),
        ("latency", Bench::measure_latency),
        ("instructions", Bench::count_instructions),
    ];
    for (_, part) in parts.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        part(&bench, &mut goals)?;
    }
    std::fs::remove_dir_all(&bench.folder)?;
    Ok(goals.report())
}

struct Bench {
    tollgate: PathBuf,
    repetitions: usize,
    folder: PathBuf,
}

/// One group of measurements.
type BenchmarkPart = fn(&Bench, &mut Goals) -> anyhow::Result<()>;

impl Bench {
    fn program_path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the command that starts a server on an address.
    fn server_command(&self, name: &str, address: SocketAddr) -> anyhow::Result<Vec<String>> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let address = address.to_string();
        if name != OURS {
            let program = std::env::current_exe()?.with_file_name("floor-rls");
            return Ok(vec![text(&program), address, name.to_owned()]);
        }
        let rules = text(&self.program_path("rules.yaml"));
        let arguments =
            ["serve", "--http", "off", "--resp", "off", "--data", "off", "--rules", &rules, "--rls", &address];
        Ok(std::iter::once(text(&self.tollgate)).chain(arguments.map(str::to_owned)).collect())
    }

    fn start(&self, name: &str) -> anyhow::Result<Server> {
        let address = free_address()?;
        let command = self.server_command(name, address)?;
        Server::start(Command::new(&command[0]).args(&command[1..]), address)
    }

    fn start_servers(&self) -> anyhow::Result<Vec<(&'static str, Server)>> {
        [OURS].into_iter().chain(FLOORS).map(|name| Ok((name, self.start(name)?))).collect()
    }

    /// Runs h2load and returns its output.
    fn run_h2load(&self, address: SocketAddr, more: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("h2load")
            .args(["-t1", "-c10", "-m10", "-H", "content-type: application/grpc", "-H", "te: trailers", "-d"])
            .arg(self.program_path("body"))
            .args(more)
            .arg(format!("http://{address}{METHOD_PATH}"))
            .output()
            .context("h2load does not run; it is in the package nghttp2-client")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Measures the server's CPU time per request at full load.
    fn measure_load(&self, goals: &mut Goals) -> anyhow::Result<()> {
        const REQUESTS_PER_RUN: usize = 100_000;
        let servers = self.start_servers()?;
        let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..self.repetitions {
            for (name, server) in &servers {
                let before = server.cpu_micros();
                self.run_h2load(server.address, &["-n", &REQUESTS_PER_RUN.to_string()])?;
                times.entry(*name).or_default().push((server.cpu_micros() - before) / REQUESTS_PER_RUN as f64);
            }
        }
        let times: BTreeMap<&str, f64> = times.into_iter().map(|(name, times)| (name, median(times))).collect();
        println!("\nCPU time per request, 10 connections of 10 streams each, two matching rules");
        for (name, time) in &times {
            println!("  {name:<10} {time:>7.2} µs ({:.2})", time / times["tonic"]);
        }
        goals.at_most("CPU time, relative to a fixed reply from tonic", times[OURS] / times["tonic"], 0.5);
        Ok(())
    }

    /// Measures the response times at 10,000 requests per second.
    fn measure_latency(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let servers = self.start_servers()?;
        let log = self.program_path("log");
        let mut times: BTreeMap<&str, Vec<[f64; 2]>> = BTreeMap::new();
        for _ in 0..self.repetitions {
            for (name, server) in &servers {
                let _ = std::fs::remove_file(&log);
                let file = format!("--log-file={}", log.display());
                self.run_h2load(server.address, &["--rps=1000", "-D2", &file])?;
                let text = std::fs::read_to_string(&log)?;
                let elapsed = text.lines().filter_map(|line| line.rsplit('\t').next()?.parse().ok());
                let mut elapsed: Vec<f64> = elapsed.collect();
                elapsed.sort_by(f64::total_cmp);
                ensure!(elapsed.len() > 10_000, "only {} requests were answered", elapsed.len());
                times.entry(*name).or_default().push([50, 99].map(|percent| elapsed[elapsed.len() * percent / 100]));
            }
        }
        println!("\nresponse times at 10,000 requests/s");
        let of = |name: &str, index: usize| median(times[name].iter().map(|pair| pair[index]).collect());
        for name in [OURS].into_iter().chain(FLOORS) {
            println!("  {name:<10} p50 {:>6.0} µs   p99 {:>6.0} µs", of(name, 0), of(name, 1));
        }
        goals.at_most("p50 at 10,000 requests/s, relative to the tonic floor", of(OURS, 0) / of("tonic", 0), 1.1);
        goals.at_most("p99 at 10,000 requests/s, relative to the tonic floor", of(OURS, 1) / of("tonic", 1), 1.1);
        Ok(())
    }

    /// Counts the server's instructions per request with valgrind, which is repeatable even on a busy machine.
    fn count_instructions(&self, goals: &mut Goals) -> anyhow::Result<()> {
        const REQUEST_COUNTS: [usize; 2] = [1_000, 5_000];
        println!("\ninstructions per request");
        let mut all = BTreeMap::new();
        for name in [OURS].into_iter().chain(FLOORS) {
            let mut collected = Vec::new();
            for count in REQUEST_COUNTS {
                collected.push(self.count_instructions_of(name, count)?);
            }
            // The difference excludes start and shutdown, which both runs include.
            let each = (collected[1] - collected[0]) / (REQUEST_COUNTS[1] - REQUEST_COUNTS[0]) as f64;
            println!("  {name:<10} {each:>7.0}");
            all.insert(name, each);
        }
        goals.at_most("instructions, relative to a fixed reply from tonic", all[OURS] / all["tonic"], 0.5);
        Ok(())
    }

    fn count_instructions_of(&self, name: &str, count: usize) -> anyhow::Result<f64> {
        let (address, log) = (free_address()?, self.program_path("valgrind"));
        let command = self.server_command(name, address)?;
        let mut child = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--log-file={}", log.display())])
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("valgrind does not run")?;
        let is_up = (0..1_200).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(address).is_ok()
        });
        let loaded = if is_up {
            self.run_h2load(address, &["-n", &count.to_string()])
        } else {
            Err(anyhow::anyhow!("{name} does not start"))
        };
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        child.wait()?;
        loaded?;
        let text = std::fs::read_to_string(log)?;
        let line = text.lines().rev().find_map(|line| line.split("Collected : ").nth(1));
        Ok(line.with_context(|| format!("no instruction count in {text}"))?.trim().parse()?)
    }
}

/// Returns a gRPC message with the domain `api` and one descriptor. The descriptor's three entries match two rules.
fn request_body() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry = |key: &str, value: &str| field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let entries = [entry("path", "/v1/mine/things"), entry("client", "some-client:00000007"), entry("plan", "gold")];
    let message = [field(1, b"api"), field(2, &entries.concat())].concat();
    [&[0, 0, 0, 0, message.len() as u8][..], &message].concat()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
