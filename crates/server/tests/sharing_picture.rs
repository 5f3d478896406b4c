//! Draws `docs/pictures/sharing.svg`, which shows the admitted requests over time for each way of sharing a limit, with
//! a fault in the middle.
//!
//! ```text
//! cargo test -p tollgate-server --all-features --test all -- --ignored sharing_picture_is_drawn
//! ```
//!
//! Three real servers on separate hosts share one limit. Each server gets more requests than the limit admits. In the
//! middle, the cable of one server is unplugged: its callers still reach it, but it reaches neither the other servers
//! nor the store. The picture differs slightly between runs, so no test compares it.

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

use crate::peers::wait_until_linked;

/// Burst and rate of the limit.
const BURST: u64 = 20;
const RATE: u64 = 20;
/// Length of the picture and time of the fault, in milliseconds.
const PICTURE_MILLIS: u64 = 16_000;
const FAULT_MILLIS: (u64, u64) = (6_000, 10_000);
/// Interval between requests to each server. All servers together get six times the limit's rate.
const REQUEST_INTERVAL: Duration = Duration::from_millis(25);
/// Width of a bar in milliseconds.
const BAR_MILLIS: u64 = 250;
/// Store deadline in milliseconds. On a busy machine the store would sometimes miss the default of 10 ms, and
/// `on_fault` would decide although nothing failed.
const STORE_DEADLINE_MILLIS: &str = "200";
/// Number of servers, and index of the host that runs the store or the proxy.
const SERVER_COUNT: usize = 3;
const STORE_HOST: usize = 3;

/// A way of sharing a limit.
struct SharingMode {
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

const SHARING_MODES: [SharingMode; 6] = [
    SharingMode {
        name: "sticky",
        fault: "its key moves to another server, which starts from zero",
        consistency: "strict",
        runs_on: RunsOn::Proxy,
    },
    SharingMode {
        name: "strict on Redis",
        fault: "it uses its share of the remaining limit",
        consistency: "strict",
        runs_on: RunsOn::Redis,
    },
    SharingMode {
        name: "leased on Redis",
        fault: "it spends its leases, then uses its share",
        consistency: "leased",
        runs_on: RunsOn::Redis,
    },
    SharingMode {
        name: "eventual on Redis",
        fault: "it decides from its own view",
        consistency: "eventual",
        runs_on: RunsOn::Redis,
    },
    SharingMode {
        name: "eventual, peers",
        fault: "it decides from its own view",
        consistency: "eventual",
        runs_on: RunsOn::Peers,
    },
    SharingMode {
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
struct KilledProgram(Child);

impl Drop for KilledProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_quietly(mut command: Command) -> KilledProgram {
    KilledProgram(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
}

/// Sends a check for a key. Returns whether it was admitted, or `None` if there was no answer within a second.
fn send_check(address: SocketAddr, key: &str) -> Option<bool> {
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
    while next < Duration::from_millis(PICTURE_MILLIS) {
        sleep(next.saturating_sub(epoch.elapsed()));
        let at = epoch.elapsed();
        if send_check(address, key) == Some(true) {
            admitted.push(at.as_millis() as u64);
        }
        // Requests that could not be sent in time are skipped.
        next = (next + REQUEST_INTERVAL).max(epoch.elapsed());
    }
    admitted
}

/// Runs one way of sharing and returns the times of admitted requests.
fn run_mode(mode: &SharingMode) -> Vec<u64> {
    let network = Namespaces::new(SERVER_COUNT + 1).unwrap_or_else(|why| panic!("no network namespaces: {why}"));
    let folder = Folder::new();
    let rule = format!("{{id: all, per: [key], limit: {RATE}/s, burst: {BURST}, consistency: {}}}", mode.consistency);
    let rules = folder.write_file("rules.yaml", format!("domain: api\nrules:\n- {rule}\n"));
    let secret = folder.write_file("secret", "0123456789abcdef".repeat(4));
    let on_network = |host: usize, port: u16| SocketAddr::from((network.address(host), port));
    let store = match mode.runs_on {
        RunsOn::Proxy => "memory".to_owned(),
        RunsOn::Redis => format!("redis://{}", on_network(STORE_HOST, 6_379)),
        RunsOn::Peers => {
            let hosts: Vec<String> = (0..SERVER_COUNT).map(|host| on_network(host, 7_400).to_string()).collect();
            format!("peers://{}?secret_file={secret}", hosts.join(","))
        }
    };
    let entry = SocketAddr::from((network.control_address(STORE_HOST), 8_080));
    let backends: Vec<SocketAddr> = (0..SERVER_COUNT).map(|host| on_network(host, 8_080)).collect();
    let _beside = match mode.runs_on {
        RunsOn::Proxy => {
            let config = folder.write_file("haproxy.cfg", crate::sticky::proxy_config("haproxy", entry, &backends));
            let mut command = network.command(STORE_HOST, "haproxy");
            command.args(["-db", "-f", &config]);
            Some(run_quietly(command))
        }
        RunsOn::Redis => {
            let mut command = network.command(STORE_HOST, "redis-server");
            let address = network.address(STORE_HOST).to_string();
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
            STORE_DEADLINE_MILLIS,
        ];
        if mode.runs_on == RunsOn::Peers {
            args.extend(["--peers-listen", &listen]);
        }
        let mut server = Server::start_with_command(network.command(host, env!("CARGO_BIN_EXE_tollgate")), &args);
        server.http = Some(SocketAddr::from((network.control_address(host), 8_080)));
        server
    };
    let start = &start;
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..SERVER_COUNT).map(|host| scope.spawn(move || start(host))).collect();
        starting.into_iter().map(|starting| starting.join().expect("it starts")).collect()
    });
    let (addresses, key) = match mode.runs_on {
        RunsOn::Proxy => {
            eventually("the proxy answers", || send_check(entry, "warm-up").is_some());
            // Chooses a key that the proxy sends to the server whose cable will be unplugged.
            let decided = || {
                let page = common::service::get_body(&servers[SERVER_COUNT - 1], "/metrics");
                let lines = page.lines().filter(|line| line.starts_with("tollgate_decisions_total"));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
            };
            let is_there = |key: &String| {
                let before = decided();
                send_check(entry, key);
                decided() > before
            };
            let key = (0..100).map(|number| format!("k{number}")).find(is_there).expect("a key of the last server");
            (vec![entry; SERVER_COUNT], key)
        }
        RunsOn::Redis | RunsOn::Peers => {
            if mode.runs_on == RunsOn::Peers {
                wait_until_linked(&servers);
            }
            (servers.iter().map(|server| server.http.expect("HTTP is on")).collect(), "k".to_owned())
        }
    };
    eventually("all answer", || addresses.iter().all(|address| send_check(*address, "another").is_some()));
    // Waits until the store connections and leases exist and the tokens of the key are refilled.
    sleep(Duration::from_secs(2));
    let epoch = Instant::now();
    std::thread::scope(|scope| {
        let (key, network) = (&*key, &network);
        let sending: Vec<_> =
            addresses.iter().map(|address| scope.spawn(move || send_all(*address, key, epoch))).collect();
        sleep(Duration::from_millis(FAULT_MILLIS.0).saturating_sub(epoch.elapsed()));
        network.unplug(SERVER_COUNT - 1);
        sleep(Duration::from_millis(FAULT_MILLIS.1).saturating_sub(epoch.elapsed()));
        network.plug(SERVER_COUNT - 1);
        sending.into_iter().flat_map(|sending| sending.join().expect("a history")).collect()
    })
}

const PICTURE_WIDTH: u64 = 760;
/// Left and right ends of the time axis.
const AXIS_LEFT: u64 = 16;
const AXIS_RIGHT: u64 = 744;
/// Position of the first lane (the strip of one way of sharing), heights of a lane's text and bars, and distance
/// between lanes.
const FIRST_LANE_TOP: u64 = 44;
const LANE_TEXT_HEIGHT: u64 = 22;
const LANE_BARS_HEIGHT: u64 = 54;
const LANE_DISTANCE: u64 = LANE_TEXT_HEIGHT + LANE_BARS_HEIGHT + 18;
/// Number of requests in a bar of full height.
const FULL_BAR_REQUESTS: u64 = 24;

/// The style of the other pictures, with additions for bars and for the time of the fault.
const STYLE: &str = ".tg{max-width:100%;height:auto}.tg text{font:12px system-ui,sans-serif;fill:#7b8492}\
    .tg .t{font-size:15px;font-weight:600}.tg .n{font-weight:600}.tg .e{text-anchor:end}.tg .m{text-anchor:middle}\
    .tg line{fill:none}.tg .g{stroke:#7b8492;stroke-opacity:.35;stroke-width:1}\
    .tg .c{stroke:#7b8492;stroke-dasharray:5 4;stroke-width:1.2}.tg .p{fill:#2f86eb}.tg .o{fill:#e5534b}\
    .tg .f{fill:#c98a00;fill-opacity:.13}";

fn x_of(at: u64) -> u64 {
    AXIS_LEFT + at.min(PICTURE_MILLIS) * (AXIS_RIGHT - AXIS_LEFT) / PICTURE_MILLIS
}

fn draw_picture(histories: &[(&SharingMode, Vec<u64>)]) -> String {
    let bottom = FIRST_LANE_TOP + LANE_DISTANCE * histories.len() as u64;
    let height = bottom + 28;
    let title = format!("{RATE} per second, burst {BURST}, on three servers; one is cut off for four seconds");
    let mut svg = format!(
        "<svg class=\"tg\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PICTURE_WIDTH} {height}\" width=\"{PICTURE_WIDTH}\" \
         height=\"{height}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\n\
         <text class=\"t\" x=\"16\" y=\"24\">{title}</text>\n"
    );
    let (from, until) = (x_of(FAULT_MILLIS.0), x_of(FAULT_MILLIS.1));
    let _ = writeln!(
        svg,
        "<rect class=\"f\" x=\"{from}\" y=\"{FIRST_LANE_TOP}\" width=\"{}\" height=\"{}\"/>",
        until - from,
        bottom - FIRST_LANE_TOP
    );
    for second in (0..=PICTURE_MILLIS / 1_000).step_by(2) {
        let _ =
            writeln!(svg, "<text class=\"m\" x=\"{}\" y=\"{}\">{second} s</text>", x_of(second * 1_000), bottom + 18);
    }
    for (lane, (mode, admitted)) in histories.iter().enumerate() {
        draw_lane(&mut svg, mode, admitted, FIRST_LANE_TOP + LANE_DISTANCE * lane as u64);
    }
    svg + "</svg>\n"
}

fn draw_lane(svg: &mut String, mode: &SharingMode, admitted: &[u64], top: u64) {
    let allowed = BURST + RATE * PICTURE_MILLIS / 1_000;
    let excess = (admitted.len() as u64).saturating_sub(allowed);
    let passed = format!("{} passed, {excess} beyond {allowed}", admitted.len());
    let text = top + 15;
    let _ = writeln!(svg, "<text class=\"n\" x=\"{AXIS_LEFT}\" y=\"{text}\">{}</text>", mode.name);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{text}\">{}</text>", AXIS_LEFT + 130, mode.fault);
    let _ = writeln!(svg, "<text class=\"e\" x=\"{AXIS_RIGHT}\" y=\"{text}\">{passed}</text>");
    let base = top + LANE_TEXT_HEIGHT + LANE_BARS_HEIGHT;
    let height_of = |count: u64| count.min(FULL_BAR_REQUESTS) * LANE_BARS_HEIGHT / FULL_BAR_REQUESTS;
    for bar in 0..PICTURE_MILLIS / BAR_MILLIS {
        let count = admitted.iter().filter(|at| **at / BAR_MILLIS == bar).count() as u64;
        let (x, width) = (x_of(bar * BAR_MILLIS), x_of((bar + 1) * BAR_MILLIS) - x_of(bar * BAR_MILLIS) - 1);
        let height = height_of(count);
        if height > 0 {
            let y = base - height;
            let _ = writeln!(svg, "<rect class=\"p\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
        }
    }
    let rate = base - height_of(RATE * BAR_MILLIS / 1_000);
    let _ = writeln!(svg, "<line class=\"g\" x1=\"{AXIS_LEFT}\" x2=\"{AXIS_RIGHT}\" y1=\"{base}\" y2=\"{base}\"/>");
    let _ = writeln!(svg, "<line class=\"c\" x1=\"{AXIS_LEFT}\" x2=\"{AXIS_RIGHT}\" y1=\"{rate}\" y2=\"{rate}\"/>");
}

#[test]
#[ignore = "draws a picture for the documentation; takes two minutes"]
fn sharing_picture_is_drawn() {
    let histories: Vec<_> = SHARING_MODES.iter().map(|mode| (mode, run_mode(mode))).collect();
    for (mode, admitted) in &histories {
        assert!(admitted.len() as u64 > RATE * PICTURE_MILLIS / 2_000, "{}: only {} passed", mode.name, admitted.len());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/sharing.svg");
    std::fs::write(path, draw_picture(&histories)).expect("a file");
}
