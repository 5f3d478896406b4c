//! The clients under `examples/clients/` decide, pass headers on, and fail open when the server is gone.

use crate::common;

use std::process::Command;

use common::{Rules, Server, run, variable};

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clients");

fn server() -> (Server, Rules) {
    let rules = Rules::new("domain: api\nrules:\n- {id: all, per: [client_ip], limit: 1/h}\n");
    (Server::start(&["--rules", rules.path()]), rules)
}

/// An address where nothing listens.
const GONE: &str = "http://127.0.0.1:9";

#[test]
fn asgi_middleware_refuses_and_fails_open() {
    let (server, _rules) = server();
    let script = r#"
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from tollgate_asgi import Tollgate

async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})

async def call(url):
    sent = []
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "path": "/", "method": "GET", "client": ("192.0.2.1", 1)}
    await Tollgate(application, url=url, domain="api")(scope, None, send)
    headers = dict(sent[0]["headers"])
    return sent[0]["status"], b"ratelimit" in headers, b"retry-after" in headers

for url in [sys.argv[2], sys.argv[2], sys.argv[3]]:
    print(*asyncio.run(call(url)))
"#;
    let python = variable("TOLLGATE_TEST_PYTHON", "a Python interpreter");
    let output = run(Command::new(python).args(["-c", script, CLIENTS, &server.url(""), GONE]));
    assert_eq!(output, "200 True False\n429 True True\n200 False False\n");
}

#[test]
fn redis_py_client_refuses_and_fails_open() {
    let (server, _rules) = server();
    let script = r#"
import sys
sys.path.insert(0, sys.argv[1])
from tollgate_redis import Limits
limits = Limits(f"redis://127.0.0.1:{sys.argv[2]}")
print(limits.check("api", client_ip="192.0.2.1")[0])
allowed, retry = limits.check("api", client_ip="192.0.2.1")
print(allowed, retry > 3_000_000)
pipeline = limits.pipeline()
for _ in range(2):
    pipeline.execute_command("CL.THROTTLE", "k", "0", "1", "60")
print([reply[0] for reply in pipeline.execute()])
print(Limits("redis://127.0.0.1:9").check("api", client_ip="192.0.2.1")[0])
"#;
    let python = variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `redis`");
    let output = run(Command::new(python).args(["-c", script, CLIENTS, &server.resp_port()]));
    assert_eq!(output, "True\nFalse True\n[0, 1]\nTrue\n");
}

#[test]
fn express_middleware_refuses_and_fails_open() {
    let (server, _rules) = server();
    let script = r#"
const { tollgate } = require(process.argv[1] + '/tollgate_express.js');
async function call(url) {
  const headers = {};
  const res = { statusCode: 200, setHeader: (name, value) => { headers[name] = value; }, end() {} };
  let passed = false;
  await tollgate({ url, domain: 'api' })({ ip: '192.0.2.1', path: '/', method: 'GET' }, res, () => { passed = true; });
  console.log(passed, res.statusCode, 'ratelimit' in headers, 'retry-after' in headers);
}
(async () => {
  for (const url of [process.argv[2], process.argv[2], process.argv[3]]) await call(url);
})();
"#;
    let output = run(Command::new("node").args(["-e", script, CLIENTS, &server.url(""), GONE]));
    assert_eq!(output, "true 200 true false\nfalse 429 true true\ntrue 200 false false\n");
}

#[test]
fn java_client_refuses_and_fails_open() {
    if let Err(error) = Command::new("java").arg("-version").output() {
        println!("skipped: cannot run `java`: {error}");
        return;
    }
    let (server, _rules) = server();
    let file = format!("{CLIENTS}/Tollgate.java");
    // The first check of a process loads classes, so it may take longer than the deadline of a service.
    let call = |url: &str| {
        let args = [&*file, url, "api", r#"{"client_ip":"192.0.2.1"}"#, "30000"];
        run(Command::new("java").args(args))
    };
    assert_eq!(call(&server.url("")), "true -\n");
    let refused = call(&server.url(""));
    assert!(refused.starts_with("false 3"), "a wait of about an hour, not {refused}");
    assert_eq!(call(GONE), "true -\n");
}
