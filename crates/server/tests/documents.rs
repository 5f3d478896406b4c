//! Runs the examples in the documents: the commands of every block marked `console`, in order, in a shell, with the
//! real program.
//!
//! A line that starts with `$ ` is a command. A command continues on the next line after a backslash, and on lines that
//! start with `> `. The other lines are the expected output, on standard output and standard error together. In the
//! expected output, `…` stands for any text within a line, and a line with only `…` stands for any number of lines. A
//! command that ends with `&` starts a server, and the script continues when the server answers. A `sleep` in a
//! document also waits for changes to arrive: until all followers of the server at the default address have its rules,
//! and until servers that share limits are linked. Ports are replaced by free ports.
#![allow(clippy::unwrap_used)]

use crate::common;

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::proxy::{start_app, tool_path};
use common::{Folder, eventually, stable_port};
use tollgate_testkit::servers::Postgres;

/// A command in a document with its expected output.
struct DocumentStep {
    line: usize,
    command: String,
    expected: Vec<String>,
}

fn parse_steps(text: &str) -> Vec<DocumentStep> {
    let mut steps: Vec<DocumentStep> = Vec::new();
    let mut within = false;
    for (at, line) in text.lines().enumerate() {
        match (within, line) {
            (false, "```console") => within = true,
            (false, _) => {}
            (true, "```") => within = false,
            (true, line) => {
                let has_no_output = |step: &&mut DocumentStep| step.expected.is_empty();
                let is_continued = |step: &&mut DocumentStep| line.starts_with("> ") || step.command.ends_with('\\');
                if let Some(step) = steps.last_mut().filter(has_no_output).filter(is_continued) {
                    let _ = write!(step.command, "\n{}", line.strip_prefix("> ").unwrap_or(line));
                } else if let Some(command) = line.strip_prefix("$ ") {
                    steps.push(DocumentStep { line: at + 1, command: command.to_owned(), expected: Vec::new() });
                } else {
                    steps.last_mut().expect("a command comes first").expected.push(line.to_owned());
                }
            }
        }
    }
    steps
}

/// Returns whether the printed lines match the expected lines.
fn output_matches(expected: &[String], printed: &[&str]) -> bool {
    match expected {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "…" => {
            (0..=printed.len()).any(|skipped| output_matches(rest, &printed[skipped..]))
        }
        [line, rest @ ..] => match printed {
            [first, others @ ..] => line_matches(line, first) && output_matches(rest, others),
            [] => false,
        },
    }
}

fn line_matches(expected: &str, printed: &str) -> bool {
    let parts: Vec<&str> = expected.trim_end().split('…').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return expected.trim_end() == printed.trim_end() };
    let printed = printed.trim_end();
    let Some(mut rest) = printed.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

/// The ports in the documents, each with a free port that replaces it. The first two ports are the program's defaults.
struct Ports(Vec<(&'static str, u16)>);

/// Index of the proxy's port.
const PROXY_PORT_INDEX: usize = 10;

impl Ports {
    fn new() -> Self {
        let named = ["8080", "6380", "8081", "8082", "8083", "8084", "8443", "7401", "7402", "7403", "8000"];
        Self(named.into_iter().map(|name| (name, stable_port())).collect())
    }

    fn free_address(&self, index: usize) -> String {
        format!("127.0.0.1:{}", self.0[index].1)
    }

    fn replace(&self, text: String) -> String {
        self.0.iter().fold(text, |text, (old, new)| {
            // Commands of redis-cli name the port without an address, so the port is replaced separately.
            let text = text.replace(&format!("127.0.0.1:{old}"), &format!("127.0.0.1:{new}"));
            text.replace(&format!("-p {old}"), &format!("-p {new}"))
        })
    }
}

const STEP_MARK: &str = "==== step";

/// A `sleep` that also waits until changes have arrived, because a fixed time may be too short on a busy machine.
const SLEEP_FUNCTION: &str = r#"
revision_of() { curl -s -H "Authorization: Bearer $TOLLGATE_TOKEN" "$1/v1/rules-status" | grep -o '"revision":[0-9]*'; }
sleep() {
  command sleep "$@"
  for follower in $followers; do
    for try in $(seq 300); do
      [ "$(revision_of "$follower")" = "$(revision_of "$TOLLGATE_SERVER")" ] && break
      command sleep 0.1
    done
  done
  for peer in $peers; do
    for try in $(seq 300); do
      [ "$(curl -s "$peer/v1/peers" | grep -oE '"state":"ready"[^}]*"linked":true' | wc -l)" = $(($(wc -w <<< "$peers") - 1)) ] && break
      command sleep 0.1
    done
  done
  peers=
}
"#;

/// Returns one script for the whole document, so that later commands see the effects of earlier commands. `address` is
/// the default server address, and `proxy` is the address of Envoy.
fn document_script(steps: &[DocumentStep], address: &str, proxy: &str) -> String {
    // When the shell ends, it kills the servers.
    let mut script = String::from("exec 2>&1\ntrap 'kill $(jobs -p) 2> /dev/null' EXIT\n");
    script += SLEEP_FUNCTION;
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(script, "echo '{STEP_MARK} {at}'");
        let Some(server) = step.command.strip_suffix('&') else {
            let _ = writeln!(script, "{}", step.command);
            continue;
        };
        let named = server.split("--http ").nth(1).and_then(|rest| rest.split(' ').next());
        let address = if server.starts_with("envoy ") { proxy } else { named.unwrap_or(address) };
        let scheme = if server.contains("--tls-cert") { "https" } else { "http" };
        if server.contains("--rules http") {
            let _ = writeln!(script, "followers+=' {scheme}://{address}'");
        }
        if server.contains("--peers-listen") {
            let _ = writeln!(script, "peers+=' {scheme}://{address}'");
        }
        let _ = writeln!(
            script,
            "{server} > server-{at}.log 2>&1 &\n\
             for try in $(seq 300); do curl -sk -o /dev/null {scheme}://{address}/healthz && break; command sleep 0.1; done\n\
             curl -sk -o /dev/null {scheme}://{address}/healthz || cat server-{at}.log"
        );
    }
    script
}

/// The database URL in the documents. The test replaces this URL with the URL of a real server.
const DOCUMENT_DATABASE_URL: &str = "postgres://tollgate:secret@db.internal/tollgate";

fn read_document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).expect("the document")
}

/// Runs a document in a folder.
fn run_document(name: &str, folder: &Folder) {
    run_text(name, read_document(name), &Ports::new(), folder);
}

/// Runs the text of a document or part of it.
fn run_text(name: &str, text: String, ports: &Ports, folder: &Folder) {
    let mut text = ports.replace(text);
    let postgres = text.contains(DOCUMENT_DATABASE_URL).then(Postgres::start);
    if let Some(postgres) = &postgres {
        text = text.replace(DOCUMENT_DATABASE_URL, &postgres.create_database("tollgate"));
    }
    let steps = parse_steps(&text);
    assert!(!steps.is_empty(), "{name} has commands");
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let script = document_script(&steps, &ports.free_address(0), &ports.free_address(PROXY_PORT_INDEX));
    let mut shell = Command::new("bash")
        .current_dir(folder.path())
        .env(
            "PATH",
            format!("{}:{}:{}", folder.join("bin"), program.display(), std::env::var("PATH").unwrap_or_default()),
        )
        .env("TZ", "UTC")
        // The deadline is far longer than the default, because a busy machine must not change decisions.
        .env("TOLLGATE_STORE_DEADLINE", "20000")
        .env("TOLLGATE_HTTP", ports.free_address(0))
        .env("TOLLGATE_RESP", ports.free_address(1))
        .env("TOLLGATE_SERVER", format!("http://{}", ports.free_address(0)))
        .env_remove("TOLLGATE_TOKEN")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut wrong = String::new();
    for (at, DocumentStep { line, command, expected }) in steps.iter().enumerate() {
        let of_step = printed.split(&format!("{STEP_MARK} {at}\n")).nth(1).unwrap_or("(not reached)");
        let of_step = of_step.split(STEP_MARK).next().unwrap_or_default();
        if !output_matches(expected, &of_step.lines().collect::<Vec<_>>()) {
            let expected = expected.join("\n");
            let _ = writeln!(wrong, "{name}:{line}: $ {command}\nexpected:\n{expected}\nprinted:\n{of_step}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn operating_page_examples_run() {
    run_document("docs/operating.md", &Folder::new());
}

#[test]
fn replay_page_examples_run() {
    run_document("docs/replay.md", &Folder::new());
}

#[test]
fn readme_examples_run() {
    run_document("README.md", &Folder::new());
}

/// Runs a page whose first YAML block is the rule file used by its commands.
fn run_with_rules(name: &str) {
    let (folder, page) = (Folder::new(), read_document(name));
    let rules = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules");
    folder.write_file("rules.yaml", rules);
    run_document(name, &folder);
}

#[test]
fn verbs_page_examples_run() {
    run_with_rules("docs/verbs.md");
}

#[test]
fn sharing_page_examples_run() {
    run_with_rules("docs/sharing.md");
}

#[test]
fn faults_page_examples_run() {
    run_with_rules("docs/faults.md");
}

/// A program that gets `TERM` at the end of the test.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        common::signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// Configuration of an nginx as installed by a distribution, but within a folder.
const NGINX_CONFIG: &str = "
daemon off; pid nginx.pid; error_log error.log; worker_processes 1;
events {}
http {
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  include conf.d/*.conf;
}
";

#[test]
fn proxies_page_examples_run() {
    let page = read_document("docs/proxies.md");
    let (nginx, envoy) = page.split_once("## Envoy's rate-limit service").expect("a section");
    for part in [nginx, envoy] {
        let (folder, mut ports) = (Folder::new(), Ports::new());
        ports.0.push(("9000", start_app().port()));
        // Wrapper programs for nginx and Envoy. Both extend the snippet's 50 ms timeouts, because the machine may be
        // busy. The wrapper for nginx also runs nginx within the folder.
        let (home, proxy) = (folder.path().display().to_string(), ports.free_address(PROXY_PORT_INDEX));
        let nginx = format!(
            "#!/bin/bash\nsed -i 's/50ms/2s/' {home}/conf.d/*\n\
             run=(env PATH=/usr/sbin:/usr/bin:/bin nginx -p {home}/ -c nginx.conf -e error.log)\n\
             [ \"$1\" = -s ] || exec \"${{run[@]}}\" \"$@\"\n\
             \"${{run[@]}}\" \"$@\" && for try in $(seq 300); do curl -s -o /dev/null http://{proxy}/ && break; sleep 0.1; done\n"
        );
        let envoy = format!(
            "#!/bin/bash\nsed -i 's/0.05s/2s/' envoy-proxy.yaml\n\
             exec {} --use-dynamic-base-id --concurrency 1 \"$@\"\n",
            tool_path("envoy").display()
        );
        folder.write_file("nginx.conf", NGINX_CONFIG);
        folder.write_file("conf.d/empty.conf", "");
        for (name, script) in [("bin/nginx", nginx), ("bin/envoy", envoy)] {
            let path = folder.write_file(name, script);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        // On a real machine, nginx would already be running.
        let _nginx = KilledOnDrop(Command::new(folder.join("bin/nginx")).spawn().expect("nginx"));
        eventually("nginx runs", || folder.path().join("nginx.pid").exists());
        run_text("docs/proxies.md", part.replace("/etc/nginx/conf.d/", &folder.join("conf.d/")), &ports, &folder);
    }
}

#[test]
fn tests_that_the_faults_page_names_exist() {
    let page = read_document("docs/faults.md");
    let named: Vec<(&str, &str)> = page.split('`').filter_map(|word| word.split_once(".rs::")).collect();
    assert!(named.len() > 15, "{} tests", named.len());
    for (file, test) in named {
        let text = read_document(&format!("crates/{file}.rs"));
        assert!(text.contains(&format!("#[test]\nfn {test}() {{")), "{file}.rs has no test {test}");
    }
}

/// Checks that each fault in the page's upper tables has a row in the last table. The row names the tests of the fault.
/// The row begins with the first words of that fault. A prefix such as `peers: ` precedes these words, except for
/// faults on a shared store.
#[test]
fn every_fault_on_the_faults_page_has_a_test() {
    let page = read_document("docs/faults.md");
    let rows_of = |section: &str| -> Vec<String> {
        let (_, text) = page.split_once(section).unwrap_or_else(|| panic!("{section}"));
        let text = text.split("\n## ").next().unwrap_or_default();
        let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |"));
        rows.filter_map(|row| Some(row.split(" | ").next()?.trim_start_matches("| ").to_owned())).skip(1).collect()
    };
    let tests: Vec<(String, String)> = rows_of("## Tests")
        .into_iter()
        .map(|row| match row.split_once(": ") {
            Some((of, fault)) => (of.to_owned(), fault.to_owned()),
            None => (String::new(), row),
        })
        .collect();
    let sections: [(&str, &[&str]); 4] = [
        ("## On a shared store", &[""]),
        ("## Rules with `consistency: leased` or `eventual`", &["`leased`", "`eventual`"]),
        ("## Among peers", &["peers"]),
        ("## In memory", &["in memory"]),
    ];
    for (section, kinds) in sections {
        let rows = rows_of(section);
        assert!(rows.len() > 3, "{section}: {rows:?}");
        for (row, kind) in rows.iter().flat_map(|row| kinds.iter().map(move |kind| (row, kind))) {
            let names = |faults: &str| faults.split(", ").any(|fault| row.starts_with(fault));
            let is_named = tests.iter().any(|(of, faults)| of.split(", ").any(|of| of == *kind) && names(faults));
            assert!(is_named, "{section}: no test for {kind} {row}");
        }
    }
}

#[test]
fn ellipsis_matches_any_output() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for (text, printed, matches) in [
        ("a…c", "abc", true),
        ("a…c", "ac", true),
        ("a…b…c", "a1b2c", true),
        ("a…b…c", "a12c", false),
        ("abc", "abd", false),
        ("…\nx", "1\n2\nx", true),
        ("…\nx", "1\n2\ny", false),
        ("", "x", false),
    ] {
        assert_eq!(output_matches(&lines(text), &printed.lines().collect::<Vec<_>>()), matches, "{text:?} {printed:?}");
    }
}
