//! What the documents show is run: every block marked `console`, in order, by a shell, against the real program.
//!
//! A line that begins with `$ ` is a command, and goes on after a backslash or with lines that begin with `> `; the others are what it
//! prints, on both streams.
//! In them `…` stands for anything within a line, and alone for any number of lines. A command that ends with `&` is a server: it goes on
//! once it answers. Ports are replaced by free ones.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use common::Folder;
use tollgate_testkit::servers::Postgres;

/// A command of a document, and what it is said to print.
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut within = false;
    for (at, line) in text.lines().enumerate() {
        match (within, line) {
            (false, "```console") => within = true,
            (false, _) => {}
            (true, "```") => within = false,
            (true, line) => {
                let asked = |step: &&mut Step| step.expected.is_empty();
                let goes_on = |step: &&mut Step| line.starts_with("> ") || step.command.ends_with('\\');
                if let Some(step) = steps.last_mut().filter(asked).filter(goes_on) {
                    let _ = write!(step.command, "\n{}", line.strip_prefix("> ").unwrap_or(line));
                } else if let Some(command) = line.strip_prefix("$ ") {
                    steps.push(Step { line: at + 1, command: command.to_owned(), expected: Vec::new() });
                } else {
                    steps.last_mut().expect("a command comes first").expected.push(line.to_owned());
                }
            }
        }
    }
    steps
}

/// Whether what was printed is what was said.
fn is_as_said(said: &[String], printed: &[&str]) -> bool {
    match said {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "…" => (0..=printed.len()).any(|skipped| is_as_said(rest, &printed[skipped..])),
        [line, rest @ ..] => match printed {
            [first, others @ ..] => line_is(line, first) && is_as_said(rest, others),
            [] => false,
        },
    }
}

fn line_is(said: &str, printed: &str) -> bool {
    let parts: Vec<&str> = said.trim_end().split('…').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return said.trim_end() == printed.trim_end() };
    let printed = printed.trim_end();
    let Some(mut rest) = printed.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

/// The ports that documents name, each with a free one in its place. The first two are those that need not be named.
struct Ports(Vec<(&'static str, u16)>);

impl Ports {
    /// Below those that the system gives to whoever asks for any: a server of a document starts late, and another test would have
    /// been given its port meanwhile.
    fn new() -> Self {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        let mut free = std::iter::from_fn(|| {
            let port = 10_000 + (std::process::id() * 50 + TAKEN.fetch_add(1, Ordering::Relaxed)) % 20_000;
            u16::try_from(port).ok()
        })
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let named = ["8080", "6380", "8081", "8082", "8083", "8084", "8443"];
        Self(named.into_iter().map(|name| (name, free.next().expect("a free port"))).collect())
    }

    fn address(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.0[place].1)
    }

    fn replace(&self, text: String) -> String {
        self.0.iter().fold(text, |text, (old, new)| {
            // redis-cli is told the port alone.
            let text = text.replace(&format!("127.0.0.1:{old}"), &format!("127.0.0.1:{new}"));
            text.replace(&format!("-p {old}"), &format!("-p {new}"))
        })
    }
}

const MARK: &str = "==== step";

/// One script for the whole document: what one command leaves behind is there for the next.
fn script(steps: &[Step], address: &str) -> String {
    // Servers end with the shell, whatever ends it.
    let mut script = String::from("exec 2>&1\ntrap 'kill $(jobs -p) 2> /dev/null' EXIT\n");
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(script, "echo '{MARK} {at}'");
        let Some(server) = step.command.strip_suffix('&') else {
            let _ = writeln!(script, "{}", step.command);
            continue;
        };
        let address = server.split("--http ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or(address);
        let scheme = if server.contains("--tls-cert") { "https" } else { "http" };
        let _ = writeln!(
            script,
            "{server} > server-{at}.log 2>&1 &\n\
             for try in $(seq 300); do curl -sk -o /dev/null {scheme}://{address}/healthz && break; sleep 0.1; done\n\
             curl -sk -o /dev/null {scheme}://{address}/healthz || cat server-{at}.log"
        );
    }
    script
}

/// The database that documents name; a real one is put in its place.
const POSTGRES: &str = "postgres://tollgate:secret@db.internal/tollgate";

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).expect("the document")
}

/// Runs a document in a folder.
fn run(name: &str, folder: &Folder) {
    let ports = Ports::new();
    let mut text = ports.replace(document(name));
    let postgres = text.contains(POSTGRES).then(Postgres::start);
    if let Some(postgres) = &postgres {
        text = text.replace(POSTGRES, &postgres.database("tollgate"));
    }
    let steps = steps(&text);
    assert!(steps.len() > 3, "{name} has commands");
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let mut shell = Command::new("bash")
        .current_dir(folder.path())
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default()))
        .env("TZ", "UTC")
        .env("TOLLGATE_HTTP", ports.address(0))
        .env("TOLLGATE_RESP", ports.address(1))
        .env("TOLLGATE_SERVER", format!("http://{}", ports.address(0)))
        .env_remove("TOLLGATE_TOKEN")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    shell.stdin.take().unwrap().write_all(script(&steps, &ports.address(0)).as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut wrong = String::new();
    for (at, Step { line, command, expected }) in steps.iter().enumerate() {
        let of_step = printed.split(&format!("{MARK} {at}\n")).nth(1).unwrap_or("(it was not reached)");
        let of_step = of_step.split(MARK).next().unwrap_or_default();
        if !is_as_said(expected, &of_step.lines().collect::<Vec<_>>()) {
            let said = expected.join("\n");
            let _ = writeln!(wrong, "{name}:{line}: $ {command}\nsaid:\n{said}\nprinted:\n{of_step}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_page_on_operating_says_what_happens() {
    run("docs/operating.md", &Folder::new());
}

#[test]
fn the_readme_says_what_happens() {
    run("README.md", &Folder::new());
}

#[test]
fn the_page_on_verbs_says_what_happens() {
    let (folder, page) = (Folder::new(), document("docs/verbs.md"));
    let rules = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules");
    folder.file("rules.yaml", rules);
    run("docs/verbs.md", &folder);
}

#[test]
fn what_is_said_stands_for_what_is_printed() {
    let said = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for (text, printed, as_said) in [
        ("a…c", "abc", true),
        ("a…c", "ac", true),
        ("a…b…c", "a1b2c", true),
        ("a…b…c", "a12c", false),
        ("abc", "abd", false),
        ("…\nx", "1\n2\nx", true),
        ("…\nx", "1\n2\ny", false),
        ("", "x", false),
    ] {
        assert_eq!(is_as_said(&said(text), &printed.lines().collect::<Vec<_>>()), as_said, "{text:?} {printed:?}");
    }
}
