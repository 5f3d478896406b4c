//! Draws `docs/pictures/sharing.svg`, which shows the admitted requests over time for each way of sharing a limit, with
//! a fault in the middle.
//!
//! ```text
//! cargo test -p tollgate-server --all-features --test all -- --ignored picture_of_sharing
//! ```
//!
//! Three real servers on separate hosts share one limit. Each server alone gets more requests than the limit admits. In
//! the middle, the cable of one server is unplugged: its callers still reach it, but it reaches neither the others nor
//! the store. The picture differs a little each time, so no test compares it.

use crate::common;

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Folder, Server, eventually};
use serde_json::json;
use tokio::time::Instant;
use tollgate_testkit::servers::Namespaces;

use crate::peers::agree;

/// Burst and rate of the limit.
const BURST: u64 = 20;
const RATE: u64 = 20;
/// Length of the picture and time of the fault, in milliseconds.
const LENGTH: u64 = 16_000;
const FAULT: (u64, u64) = (6_000, 10_000);
/// Interval between requests to each server. All servers together get six times the limit's rate.
const EVERY: Duration = Duration::from_millis(25);
/// Width of a bar in milliseconds.
const BAR: u64 = 250;
/// Store deadline in milliseconds. A busy machine would miss the default of 10, and `on_fault` would apply without a
/// fault.
const DEADLINE: &str = "200";
/// Number of servers, and index of the host that runs the store or the proxy.
const SERVERS: usize = 3;
const STORE: usize = 3;

/// A way of sharing a limit.
struct Way {
    name: &'static str,
    /// Effect of the fault in this way of sharing.
    fault: &'static str,
    consistency: &'static str,
    runs_on: RunsOn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunsOn {
    Proxy,
    Redis,
    Peers,
}

const WAYS: [Way; 6] = [
    Way {
        name: "sticky",
        fault: "its key moves to another server, which starts from zero",
        consistency: "strict",
        runs_on: RunsOn::Proxy,
    },
    Way {
        name: "strict on Redis",
        fault: "it uses its share of the remaining limit",
        consistency: "strict",
        runs_on: RunsOn::Redis,
    },
    Way {
        name: "leased on Redis",
        fault: "it spends its leases, then uses its share",
        consistency: "leased",
        runs_on: RunsOn::Redis,
    },
    Way {
        name: "eventual on Redis",
        fault: "it decides from its own view",
        consistency: "eventual",
        runs_on: RunsOn::Redis,
    },
    Way {
        name: "eventual, peers",
        fault: "it decides from its own view",
        consistency: "eventual",
        runs_on: RunsOn::Peers,
    },
    Way {
        name: "strict, peers",
        fault: "it sees no majority and uses its share",
        consistency: "strict",
        runs_on: RunsOn::Peers,
    },
];

#[expect(clippy::disallowed_methods, reason = "the picture shows real time")]
fn sleep(length: Duration) {
    std::thread::sleep(length);
}

/// A program that is killed at the end of the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_quietly(mut command: Command) -> Program {
    Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
}

/// Sends a check for a key. Returns whether it was admitted, or `None` if there was no answer within a second.
fn check(address: SocketAddr, key: &str) -> Option<bool> {
    let body = json!({"domain": "api", "attributes": {"key": key}}).to_string();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let head = format!("host: x\r\ntollgate-key: {key}\r\nconnection: close\r\ncontent-length: {}", body.len());
    stream.write_all(format!("POST /v1/check HTTP/1.1\r\n{head}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    match answer.split(' ').nth(1)? {
        "200" => Some(true),
        "429" => Some(false),
        _ => None,
    }
}

/// Sends requests for the length of the picture. Returns the times of the admitted requests in milliseconds.
fn send_all(address: SocketAddr, key: &str, epoch: Instant) -> Vec<u64> {
    let mut admitted = Vec::new();
    let mut next = Duration::ZERO;
    while next < Duration::from_millis(LENGTH) {
        sleep(next.saturating_sub(epoch.elapsed()));
        let at = epoch.elapsed();
        if check(address, key) == Some(true) {
            admitted.push(at.as_millis() as u64);
        }
        // Requests that could not be sent in time are skipped.
        next = (next + EVERY).max(epoch.elapsed());
    }
    admitted
}

/// Runs one way of sharing and returns the times of admitted requests.
fn run(way: &Way) -> Vec<u64> {
    let network = Namespaces::new(SERVERS + 1).unwrap_or_else(|why| panic!("no network namespaces: {why}"));
    let folder = Folder::new();
    let rule = format!("{{id: all, per: [key], limit: {RATE}/s, burst: {BURST}, consistency: {}}}", way.consistency);
    let rules = folder.write_file("rules.yaml", format!("domain: api\nrules:\n- {rule}\n"));
    let secret = folder.write_file("secret", "0123456789abcdef".repeat(4));
    let on_network = |host: usize, port: u16| SocketAddr::from((network.address(host), port));
    let store = match way.runs_on {
        RunsOn::Proxy => "memory".to_owned(),
        RunsOn::Redis => format!("redis://{}", on_network(STORE, 6_379)),
        RunsOn::Peers => {
            let hosts: Vec<String> = (0..SERVERS).map(|host| on_network(host, 7_400).to_string()).collect();
            format!("peers://{}?secret_file={secret}", hosts.join(","))
        }
    };
    let entry = SocketAddr::from((network.control_address(STORE), 8_080));
    let backends: Vec<SocketAddr> = (0..SERVERS).map(|host| on_network(host, 8_080)).collect();
    let _beside = match way.runs_on {
        RunsOn::Proxy => {
            let config = folder.write_file("haproxy.cfg", crate::sticky::proxy_config("haproxy", entry, &backends));
            let mut command = network.command(STORE, "haproxy");
            command.args(["-db", "-f", &config]);
            Some(run_quietly(command))
        }
        RunsOn::Redis => {
            let mut command = network.command(STORE, "redis-server");
            let address = network.address(STORE).to_string();
            command.args(["--bind", &address, "--port", "6379", "--protected-mode", "no", "--save", ""]);
            Some(run_quietly(command))
        }
        RunsOn::Peers => None,
    };
    let start = |host: usize| {
        let listen = on_network(host, 7_400).to_string();
        let mut args = vec![
            "--http",
            "0.0.0.0:8080",
            "--insecure",
            "--resp",
            "off",
            "--rules",
            &rules,
            "--store",
            &store,
            "--store-deadline",
            DEADLINE,
        ];
        if way.runs_on == RunsOn::Peers {
            args.extend(["--peers-listen", &listen]);
        }
        let mut server = Server::start_by(network.command(host, env!("CARGO_BIN_EXE_tollgate")), &args);
        server.http = Some(SocketAddr::from((network.control_address(host), 8_080)));
        server
    };
    let start = &start;
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..SERVERS).map(|host| scope.spawn(move || start(host))).collect();
        starting.into_iter().map(|starting| starting.join().expect("it starts")).collect()
    });
    let (addresses, key) = match way.runs_on {
        RunsOn::Proxy => {
            eventually("the proxy answers", || check(entry, "warm-up").is_some());
            // Chooses a key that the proxy sends to the server whose cable will be unplugged.
            let decided = || {
                let page = common::service::get(&servers[SERVERS - 1], "/metrics");
                let lines = page.lines().filter(|line| line.starts_with("tollgate_decisions_total"));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
            };
            let is_there = |key: &String| {
                let before = decided();
                check(entry, key);
                decided() > before
            };
            let key = (0..100).map(|number| format!("k{number}")).find(is_there).expect("a key of the last server");
            (vec![entry; SERVERS], key)
        }
        RunsOn::Redis | RunsOn::Peers => {
            if way.runs_on == RunsOn::Peers {
                agree(&servers);
            }
            (servers.iter().map(|server| server.http.expect("HTTP is on")).collect(), "k".to_owned())
        }
    };
    eventually("all answer", || addresses.iter().all(|address| check(*address, "another").is_some()));
    // Waits until the store connections and leases exist and the tokens of the key are refilled.
    sleep(Duration::from_secs(2));
    let epoch = Instant::now();
    std::thread::scope(|scope| {
        let (key, network) = (&*key, &network);
        let sending: Vec<_> =
            addresses.iter().map(|address| scope.spawn(move || send_all(*address, key, epoch))).collect();
        sleep(Duration::from_millis(FAULT.0).saturating_sub(epoch.elapsed()));
        network.unplug(SERVERS - 1);
        sleep(Duration::from_millis(FAULT.1).saturating_sub(epoch.elapsed()));
        network.plug(SERVERS - 1);
        sending.into_iter().flat_map(|sending| sending.join().expect("a history")).collect()
    })
}

const WIDTH: u64 = 760;
/// Left and right ends of the time axis.
const LEFT: u64 = 16;
const RIGHT: u64 = 744;
/// Position of the first lane, heights of a lane's text and bars, and distance between lanes.
const TOP: u64 = 44;
const TEXT: u64 = 22;
const BARS: u64 = 54;
const LANE: u64 = TEXT + BARS + 18;
/// Number of requests in a bar of full height.
const FULL: u64 = 24;

/// The style of the other pictures, plus bars and the time of the fault.
const STYLE: &str = ".tg{max-width:100%;height:auto}.tg text{font:12px system-ui,sans-serif;fill:#7b8492}\
    .tg .t{font-size:15px;font-weight:600}.tg .n{font-weight:600}.tg .e{text-anchor:end}.tg .m{text-anchor:middle}\
    .tg line{fill:none}.tg .g{stroke:#7b8492;stroke-opacity:.35;stroke-width:1}\
    .tg .c{stroke:#7b8492;stroke-dasharray:5 4;stroke-width:1.2}.tg .p{fill:#2f86eb}.tg .o{fill:#e5534b}\
    .tg .f{fill:#c98a00;fill-opacity:.13}";

fn x_of(at: u64) -> u64 {
    LEFT + at.min(LENGTH) * (RIGHT - LEFT) / LENGTH
}

fn draw(histories: &[(&Way, Vec<u64>)]) -> String {
    let bottom = TOP + LANE * histories.len() as u64;
    let height = bottom + 28;
    let title = format!("{RATE} per second, burst {BURST}, on three servers; one is cut off for four seconds");
    let mut svg = format!(
        "<svg class=\"tg\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\n\
         <text class=\"t\" x=\"16\" y=\"24\">{title}</text>\n"
    );
    let (from, until) = (x_of(FAULT.0), x_of(FAULT.1));
    let _ = writeln!(
        svg,
        "<rect class=\"f\" x=\"{from}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>",
        until - from,
        bottom - TOP
    );
    for second in (0..=LENGTH / 1_000).step_by(2) {
        let _ =
            writeln!(svg, "<text class=\"m\" x=\"{}\" y=\"{}\">{second} s</text>", x_of(second * 1_000), bottom + 18);
    }
    for (lane, (way, admitted)) in histories.iter().enumerate() {
        draw_lane(&mut svg, way, admitted, TOP + LANE * lane as u64);
    }
    svg + "</svg>\n"
}

fn draw_lane(svg: &mut String, way: &Way, admitted: &[u64], top: u64) {
    let allowed = BURST + RATE * LENGTH / 1_000;
    let excess = (admitted.len() as u64).saturating_sub(allowed);
    let passed = format!("{} passed, {excess} beyond {allowed}", admitted.len());
    let text = top + 15;
    let _ = writeln!(svg, "<text class=\"n\" x=\"{LEFT}\" y=\"{text}\">{}</text>", way.name);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{text}\">{}</text>", LEFT + 130, way.fault);
    let _ = writeln!(svg, "<text class=\"e\" x=\"{RIGHT}\" y=\"{text}\">{passed}</text>");
    let base = top + TEXT + BARS;
    let height_of = |count: u64| count.min(FULL) * BARS / FULL;
    for bar in 0..LENGTH / BAR {
        let count = admitted.iter().filter(|at| **at / BAR == bar).count() as u64;
        let (x, width) = (x_of(bar * BAR), x_of((bar + 1) * BAR) - x_of(bar * BAR) - 1);
        let height = height_of(count);
        if height > 0 {
            let y = base - height;
            let _ = writeln!(svg, "<rect class=\"p\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
        }
    }
    let rate = base - height_of(RATE * BAR / 1_000);
    let _ = writeln!(svg, "<line class=\"g\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{base}\" y2=\"{base}\"/>");
    let _ = writeln!(svg, "<line class=\"c\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{rate}\" y2=\"{rate}\"/>");
}

#[test]
#[ignore = "draws a picture for the documentation; takes two minutes"]
fn picture_of_sharing() {
    let histories: Vec<_> = WAYS.iter().map(|way| (way, run(way))).collect();
    for (way, admitted) in &histories {
        assert!(admitted.len() as u64 > RATE * LENGTH / 2_000, "{}: only {} passed", way.name, admitted.len());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/sharing.svg");
    std::fs::write(path, draw(&histories)).expect("a file");
}
