//! Tests the dashboard and the alert rules in `deploy/`: a real Prometheus scrapes real servers, and every expression
//! must return data.

use crate::common;

use std::process::{Child, Command, Stdio};

use common::{Folder, Server, eventually, run_program, tollgate};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer, free_port};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

/// A Prometheus that scrapes servers every second. Dropping the value stops the process.
struct Prometheus {
    child: Child,
    url: String,
    _folder: Folder,
}

impl Prometheus {
    fn start(targets: &[String]) -> Self {
        let (folder, port) = (Folder::new(), free_port());
        let config = json!({
            "global": {"scrape_interval": "1s"},
            "rule_files": [format!("{DEPLOY}/prometheus/alerts.yml")],
            "scrape_configs": [{"job_name": "tollgate", "static_configs": [{"targets": targets}]}],
        });
        // JSON is valid YAML.
        let config = folder.write_file("prometheus.yml", config.to_string());
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={config}")).arg(format!("--storage.tsdb.path={}", folder.join("data")));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not run: {error}; scripts/test installs it"));
        Self { child, url: format!("http://127.0.0.1:{port}"), _folder: folder }
    }

    /// Runs an expression. Returns the number of series or the error.
    fn query(&self, expression: &str) -> Result<usize, String> {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--data-urlencode", &format!("query={expression}")]);
        let output = curl.arg(format!("{}/api/v1/query", self.url)).output().expect("curl runs");
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| "no answer yet".to_owned())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().map_or(0, Vec::len)),
            _ => Err(answer["error"].to_string()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the dashboard's expressions with Grafana's variables filled in.
fn dashboard_expressions() -> Vec<String> {
    let text = std::fs::read_to_string(format!("{DEPLOY}/grafana/tollgate.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let filled = |expression: &str| {
        let filled = expression.replace("$__rate_interval", "10s").replace("$job", ".*").replace("$instance", ".*");
        assert!(!filled.contains('$'), "a variable is not filled in: {filled}");
        filled
    };
    targets.map(|target| filled(target["expr"].as_str().expect("an expression"))).collect()
}

/// Returns the alert expressions without their thresholds, because an alert that does not fire has no data.
fn alert_expressions() -> Vec<String> {
    let text = std::fs::read_to_string(format!("{DEPLOY}/prometheus/alerts.yml")).expect("the alerts");
    let expressions = text.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let without = |expression: &str| {
        let threshold = [" > ", " == "].iter().filter_map(|operator| expression.rfind(operator)).max();
        // The rules use ranges of minutes, but the servers run only for seconds.
        expression[..threshold.expect("a threshold")].replace("[5m]", "[10s]").replace("[10m]", "[10s]")
    };
    expressions.map(without).collect()
}

#[test]
fn every_expression_of_the_dashboard_and_the_alerts_has_data() {
    let (folder, store) = (Folder::new(), StoreServer::start(Kind::Redis));
    let data = folder.join("data");
    let service = Server::start(&["--data", &data, "--snapshot-every", "1"]);
    let put = ["rules", "apply", "-", "--yes", "--server", &service.url("")];
    let rules = "
domain: api
rules:
- {id: all, limit: 1/h}
- {id: later, per: [user], limit: 1/h, on_exceed: shadow}
";
    tollgate(&put, rules.as_bytes()).expect_success();
    let node = Server::start(&["--rules", &service.url(""), "--store", &store.url(), "--rls", "127.0.0.1:0"]);
    let address = |server: &Server| server.http.expect("HTTP is on").to_string();
    let prometheus = Prometheus::start(&[address(&service), address(&node)]);

    let mut left: Vec<String> = dashboard_expressions().into_iter().chain(alert_expressions()).collect();
    assert!(left.len() > 50, "{left:?}");
    let (mut one, mut other) = (service.connect_http(), node.connect_http());
    eventually("every expression has data", || {
        for client in [&mut one, &mut other] {
            client.post("/v1/check", r#"{"domain": "api", "attributes": {"user": "a"}}"#);
            client.post("/v1/check", r#"{"key": "a", "limit": "1000/s"}"#);
        }
        left.retain(|expression| match prometheus.query(expression) {
            Ok(series) => series == 0,
            Err(error) => {
                assert!(error == "no answer yet" || error.contains("Starting"), "{expression}: {error}");
                true
            }
        });
        // The test runner shows the output if the test fails.
        println!("expressions without data: {}, such as {:?}", left.len(), left.first());
        left.is_empty()
    });
}

#[test]
fn alerts_are_valid_and_fire_as_their_tests_say() {
    run_program(Command::new("promtool").args(["check", "rules"]).arg(format!("{DEPLOY}/prometheus/alerts.yml")));
    run_program(Command::new("promtool").args(["test", "rules"]).arg(format!("{DEPLOY}/prometheus/alerts_test.yml")));
    let read = |name: &str| std::fs::read_to_string(format!("{DEPLOY}/prometheus/{name}")).expect("a file");
    let (alerts, tests) = (read("alerts.yml"), read("alerts_test.yml"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n    exp_alerts:\n    - exp_labels");
        assert!(tests.contains(&fires), "there is no case in which {alert} fires");
    }
}
