//! Measures the rules service: the delay until a change is in force, the cost of polls and pages, and the slowdown of
//! decisions during a reload.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use tollgate_server_bench::goals::Goals;
use tollgate_server_bench::process::{Server, free_address};
use tollgate_server_bench::rule_file;

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let tollgate = PathBuf::from(args.next().context("usage: bench-rules TOLLGATE [REPETITIONS]")?);
    let repetitions = args.next().map_or(Ok(20), |text| text.parse())?;
    let folder = std::env::temp_dir().join(format!("tollgate-bench-rules-{}", std::process::id()));
    let mut goals = Goals::default();
    let outcome = Bench { tollgate, repetitions, folder: folder.clone() }.run(&mut goals);
    std::fs::remove_dir_all(folder)?;
    outcome.map(|()| goals.report())
}

struct Bench {
    tollgate: PathBuf,
    repetitions: usize,
    folder: PathBuf,
}

impl Bench {
    fn run(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let service = self.start_service("service")?;
        let mut client = Client::connect(service.address)?;
        client.send_rules("/v1/apply", "POST", &rule_file(10_000))?;
        let node = self.start_following_node(&service)?;
        let mut asked = Client::connect(node.address)?;
        self.measure_changes(&mut client, &mut asked, goals)?;
        self.measure_polls(&mut client, &mut asked, goals)?;
        self.measure_reloads(&mut client, &node, goals)?;
        self.measure_pages(goals)
    }

    fn start_service(&self, name: &str) -> anyhow::Result<Server> {
        self.start_server(name, &[])
    }

    fn start_following_node(&self, service: &Server) -> anyhow::Result<Server> {
        self.start_server("node", &["--rules", &format!("http://{}", service.address)])
    }

    fn start_server(&self, name: &str, more: &[&str]) -> anyhow::Result<Server> {
        let address = free_address()?;
        let data = self.folder.join(name);
        let mut command = Command::new(&self.tollgate);
        command.args(["serve", "--resp", "off", "--http", &address.to_string(), "--data"]).arg(data).args(more);
        Server::start(&mut command, address)
    }

    /// Measures the time from sending a change until it is in force on a node, with 10,000 rules.
    fn measure_changes(&self, service: &mut Client, node: &mut Client, goals: &mut Goals) -> anyhow::Result<()> {
        let mut times = Vec::new();
        for number in 0..self.repetitions {
            let before = read_revision(node)?;
            let start = Instant::now();
            service.send_rules(RULE_PATH, "PUT", &changed_rule(number))?;
            while read_revision(node)? == before {
                ensure!(start.elapsed() < Duration::from_secs(30), "the change did not reach the node within 30 s");
                std::thread::sleep(Duration::from_millis(2));
            }
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let (middle, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "\na change to one of 10,000 rules is in force on a node after {middle:.3} s (median), {longest:.3} s (longest)"
        );
        goals.at_most("longest time until a change is in force on a node, seconds", longest, 1.);
        Ok(())
    }

    /// Measures polls without new rules.
    fn measure_polls(&self, service: &mut Client, node: &mut Client, goals: &mut Goals) -> anyhow::Result<()> {
        const POLLS: u32 = 1_000;
        let whole = service.request("GET", "/v1/snapshot", "", "")?;
        let tag = whole.tag.context("the snapshot has no tag")?;
        let loads = read_metric(node, "tollgate_rule_reloads_total{result=\"loaded\"}")?;
        let start = Instant::now();
        for _ in 0..POLLS {
            let same = service.request("GET", "/v1/snapshot", &format!("if-none-match: {tag}\r\n"), "")?;
            ensure!(same.status == 304 && same.body.is_empty(), "unexpected status of a poll: {}", same.status);
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(POLLS);
        let start = Instant::now();
        for _ in 0..POLLS {
            service.request("GET", "/healthz", "", "")?;
        }
        let nothing = start.elapsed().as_secs_f64() * 1e6 / f64::from(POLLS);
        let compiled = read_metric(node, "tollgate_rule_reloads_total{result=\"loaded\"}")? - loads;
        println!(
            "\na poll without changes takes {each:.0} µs, a health check {nothing:.0} µs; the whole rule set has {} bytes",
            whole.body.len()
        );
        goals.at_most("rule sets compiled while nothing changed", compiled, 0.);
        Ok(())
    }

    /// Compares the decisions per second during a rule change with the decisions per second before and after it.
    fn measure_reloads(&self, service: &mut Client, node: &Server, goals: &mut Goals) -> anyhow::Result<()> {
        let (count, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut asked = Client::connect(node.address)?;
        std::thread::scope(|scope| {
            for number in 0..CALLERS {
                let (count, over, address) = (&count, &over, node.address);
                scope.spawn(move || run_caller(number, address, count, over));
            }
            let measured = self.reload_under_load(service, &mut asked, &count, goals);
            // Stops the callers.
            over.store(true, Ordering::Relaxed);
            measured
        })
    }

    fn reload_under_load(
        &self,
        service: &mut Client,
        node: &mut Client,
        count: &AtomicU64,
        goals: &mut Goals,
    ) -> anyhow::Result<()> {
        std::thread::sleep(Duration::from_secs(1));
        let mut ratios = Vec::new();
        for number in 0..self.repetitions {
            let mut meter = RateMeter::new(count);
            std::thread::sleep(Duration::from_millis(500));
            let before = meter.per_second();
            let running = read_revision(node)?;
            meter.per_second();
            service.send_rules(RULE_PATH, "PUT", &changed_rule(1_000 + number))?;
            while read_revision(node)? == running {
                std::thread::sleep(Duration::from_millis(5));
            }
            let during = meter.per_second();
            std::thread::sleep(Duration::from_millis(500));
            let after = meter.per_second();
            ratios.push(during / f64::midpoint(before, after));
        }
        ratios.sort_by(f64::total_cmp);
        let middle = ratios[ratios.len() / 2];
        println!(
            "\ndecisions per second while 10,000 rules are replaced, relative to before and after: {middle:.2} ({:.2} to {:.2})",
            ratios[0],
            ratios[ratios.len() - 1]
        );
        goals.at_least("decisions per second during a reload, relative to before and after", middle, 0.9);
        Ok(())
    }

    /// Measures the first pages (at most 20) of a list of 1,000 and of 100,000 rules, and the time to apply the rules.
    fn measure_pages(&self, goals: &mut Goals) -> anyhow::Result<()> {
        let mut times = Vec::new();
        let mut clients = Vec::new();
        let mut servers = Vec::new();
        for count in [1_000, 100_000] {
            let server = self.start_service(&format!("{count}-rules"))?;
            let mut client = Client::connect(server.address)?;
            for what in ["a file of", "the same file of"] {
                let start = Instant::now();
                client.send_rules("/v1/apply", "POST", &rule_file(count))?;
                println!("{what} {count} rules is applied in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
            }
            // The server also compiles the rules for its own decisions, which is not measured here.
            while read_revision(&mut client)? == "0" {
                std::thread::sleep(Duration::from_millis(100));
            }
            clients.push(client);
            servers.push(server);
            times.push(Vec::new());
        }
        for _ in 0..10 {
            for (client, times) in clients.iter_mut().zip(&mut times) {
                let mut path = format!("{LIST_PATH}?limit=50");
                for _ in 0..self.repetitions.min(20) {
                    let start = Instant::now();
                    let page = client.request("GET", &path, "", "")?;
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                    ensure!(page.status == 200, "{}", page.body);
                    let next = page.body.rsplit("\"next\":\"").next().and_then(|rest| rest.split('"').next());
                    path = format!("{LIST_PATH}?limit=50&after={}", next.context("no next page")?);
                }
            }
        }
        let middle: Vec<f64> = times
            .iter_mut()
            .map(|times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            })
            .collect();
        println!(
            "\na page of 50 rules takes {:.0} µs with 1,000 rules and {:.0} µs with 100,000 rules",
            middle[0], middle[1]
        );
        goals.at_most("time for a page of 100,000 rules, relative to 1,000 rules", middle[1] / middle[0], 1.5);
        Ok(())
    }
}

const LIST_PATH: &str = "/v1/domains/api/rules";
const RULE_PATH: &str = "/v1/domains/api/rules/r5000";
/// Number of callers: enough to keep the server busy, but few enough to leave CPU time for other threads.
const CALLERS: usize = 4;

/// Returns a new version of rule `r5000`, with a limit that depends on `number`.
fn changed_rule(number: usize) -> String {
    format!("{{\"when\":{{\"plan\":\"plan5000\"}},\"per\":[\"client\"],\"limit\":\"{}/s\"}}", 200 + number)
}

fn read_revision(client: &mut Client) -> anyhow::Result<String> {
    let status = client.request("GET", "/v1/rules-status", "", "")?;
    let revision = status.body.split("\"revision\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
    Ok(revision.with_context(|| format!("no revision in {}", status.body))?.to_owned())
}

fn read_metric(client: &mut Client, name: &str) -> anyhow::Result<f64> {
    let text = client.request("GET", "/metrics", "", "")?.body;
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"))?;
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}

/// Sends batches of sixteen requests until `over` is set.
fn run_caller(number: usize, address: SocketAddr, count: &AtomicU64, over: &AtomicBool) {
    const REQUESTS_PER_BATCH: u64 = 16;
    let request = format!(
        "{{\"domain\":\"api\",\"attributes\":{{\"path\":\"/v1/mine/x\",\"client\":\"c{number}\",\"plan\":\"gold\"}}}}"
    );
    let body = format!("[{}]", vec![request; REQUESTS_PER_BATCH as usize].join(","));
    let Ok(mut client) = Client::connect(address) else { return };
    while !over.load(Ordering::Relaxed) {
        if client.request("POST", "/v1/check", "", &body).is_err() {
            return;
        }
        count.fetch_add(REQUESTS_PER_BATCH, Ordering::Relaxed);
    }
}

/// Measures the growth rate of a counter.
struct RateMeter<'a> {
    count: &'a AtomicU64,
    last: (Instant, u64),
}

impl<'a> RateMeter<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        Self { count, last: (Instant::now(), count.load(Ordering::Relaxed)) }
    }

    /// Returns the growth per second since the last call.
    fn per_second(&mut self) -> f64 {
        let now = (Instant::now(), self.count.load(Ordering::Relaxed));
        let (time, count) = (now.0 - self.last.0, now.1 - self.last.1);
        self.last = now;
        count as f64 / time.as_secs_f64()
    }
}

/// An HTTP connection.
struct Client {
    stream: BufReader<TcpStream>,
}

struct Answer {
    status: u16,
    tag: Option<String>,
    body: String,
}

impl Client {
    fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn request(&mut self, method: &str, path: &str, headers: &str, body: &str) -> anyhow::Result<Answer> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(head.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .context("the server closed the connection")?;
        let (mut length, mut tag) = (0, None);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some(("content-length", value)) => length = value.parse()?,
                Some(("etag", value)) => tag = Some(value.to_owned()),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; if status == 304 { 0 } else { length }];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, tag, body: String::from_utf8(body)? })
    }

    /// Sends rules, and fails if they are not accepted.
    fn send_rules(&mut self, path: &str, method: &str, body: &str) -> anyhow::Result<()> {
        let kind = if Path::new(path).ends_with("apply") { "application/yaml" } else { "application/json" };
        let answer = self.request(method, path, &format!("content-type: {kind}\r\n"), body)?;
        ensure!(answer.status < 300, "unexpected response to {method} {path}: {}: {}", answer.status, answer.body);
        Ok(())
    }
}
