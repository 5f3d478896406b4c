//! Runs the clients in `examples/clients/` in their frameworks. Each client checks requests, and fails open or closed
//! if the server does not answer. Middleware also forwards the headers of every decision, and the status of a refusal.

use crate::common;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Folder, Rules, Server, required_variable, run_program};

const CLIENTS_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clients");

/// Starts a server with a limit of one request per hour, and a denied path with its own status.
fn start_server() -> (Server, Rules) {
    let rules = Rules::new(
        "domain: api\nrules:\n- {id: denied, when: {path: /denied}, deny: true, status: 451}\n\
         - {id: all, per: [client_ip], limit: 1/h}\n",
    );
    (Server::start(&["--rules", rules.path()]), rules)
}

/// An address where nothing listens.
const UNREACHABLE_URL: &str = "http://127.0.0.1:9";

/// Expected output of every framework. Each line contains the status, whether there is a `RateLimit` header, and
/// whether there is a `Retry-After` header. The five requests are: the first and the second request within an hour, a
/// denied request, a request for a domain without rules, and a request while the server is unreachable.
const EXPECTED_OUTPUT: &str = "200 true false\n429 true true\n451 false true\n200 false false\n200 false false\n";

#[test]
fn fastapi_middleware_refuses_and_fails_open() {
    let (server, _rules) = start_server();
    let script = r#"
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from fastapi import FastAPI
from tollgate_asgi import Tollgate

def application(url, domain):
    app = FastAPI()
    app.add_middleware(Tollgate, url=url, domain=domain)
    @app.get("/{path:path}")
    def hello(path):
        return "hello"
    return app

async def call(url, domain, path):
    sent = []
    async def send(message):
        sent.append(message)
    async def receive():
        return {"type": "http.request", "body": b""}
    scope = {"type": "http", "path": path, "method": "GET", "client": ("192.0.2.1", 1), "headers": [], "query_string": b""}
    await application(url, domain)(scope, receive, send)
    headers = dict(sent[0]["headers"])
    print(sent[0]["status"], *[str(name in headers).lower() for name in [b"ratelimit", b"retry-after"]])

url, gone = sys.argv[2:]
for args in [(url, "api", "/"), (url, "api", "/"), (url, "api", "/denied"), (url, "none", "/"), (gone, "api", "/")]:
    asyncio.run(call(*args))
"#;
    let python = required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `fastapi`");
    assert_eq!(
        run_program(Command::new(python).args(["-c", script, CLIENTS_FOLDER, &server.url(""), UNREACHABLE_URL])),
        EXPECTED_OUTPUT
    );
}

#[test]
fn django_middleware_refuses_and_fails_open() {
    let (server, _rules) = start_server();
    let script = r#"
import sys
sys.path.insert(0, sys.argv[1])
import django
from django.conf import settings
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", MIDDLEWARE=["tollgate_django.Tollgate"], TOLLGATE={})
django.setup()
from django.http import HttpResponse
from django.test import Client
from django.urls import re_path
urlpatterns = [re_path("", lambda request: HttpResponse("hello"))]

url, gone = sys.argv[2:]
for url, domain, path in [(url, "api", "/"), (url, "api", "/"), (url, "api", "/denied"), (url, "none", "/"), (gone, "api", "/")]:
    settings.TOLLGATE = {"url": url, "domain": domain}
    response = Client(REMOTE_ADDR="192.0.2.1").get(path)
    print(response.status_code, *[str(name in response.headers).lower() for name in ["RateLimit", "Retry-After"]])
"#;
    let python = required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `django`");
    assert_eq!(
        run_program(Command::new(python).args(["-c", script, CLIENTS_FOLDER, &server.url(""), UNREACHABLE_URL])),
        EXPECTED_OUTPUT
    );
}

#[test]
fn go_middleware_refuses_and_fails_open() {
    let go = Path::new(&required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter in the folder of `go`"))
        .with_file_name("go");
    let (server, _rules) = start_server();
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("tollgate")).expect("a directory");
    std::fs::copy(format!("{CLIENTS_FOLDER}/tollgate.go"), folder.path().join("tollgate/tollgate.go")).expect("a copy");
    folder.write_file("go.mod", "module example\n\ngo 1.21\n");
    folder.write_file(
        "main.go",
        r#"package main

import (
	"example/tollgate"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
)

func main() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	url, gone := os.Args[1], os.Args[2]
	for _, c := range [][3]string{{url, "api", "/"}, {url, "api", "/"}, {url, "api", "/denied"}, {url, "none", "/"}, {gone, "api", "/"}} {
		request := httptest.NewRequest("GET", c[2], nil)
		request.RemoteAddr = "192.0.2.1:1"
		response := httptest.NewRecorder()
		tollgate.Limit(hello, c[0], c[1], "").ServeHTTP(response, request)
		headers := response.Result().Header
		fmt.Println(response.Code, headers.Get("RateLimit") != "", headers.Get("Retry-After") != "")
	}
}
"#,
    );
    let mut command = Command::new(go);
    // Disables optimisation, so that the build is faster. The build cache is kept between runs.
    command.current_dir(folder.path()).args(["run", "-gcflags=-N -l", ".", &server.url(""), UNREACHABLE_URL]);
    assert_eq!(run_program(&mut command), EXPECTED_OUTPUT);
}

#[test]
fn redis_py_client_refuses_and_fails_open() {
    let (server, _rules) = start_server();
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
    let python = required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `redis`");
    let output = run_program(Command::new(python).args(["-c", script, CLIENTS_FOLDER, &server.resp_port()]));
    assert_eq!(output, "True\nFalse True\n[0, 1]\nTrue\n");
}

#[test]
fn express_middleware_refuses_and_fails_open() {
    let (server, _rules) = start_server();
    let script = r#"
const express = require('express');
const { tollgate } = require(process.argv[1] + '/tollgate_express.js');
async function call(url, domain, path) {
  const app = express();
  app.use(tollgate({ url, domain, attributes: (req) => ({ client_ip: '192.0.2.1', path: req.path, method: req.method }) }));
  app.use((req, res) => res.send('hello'));
  const listening = app.listen(0, '127.0.0.1');
  await new Promise((done) => listening.once('listening', done));
  const response = await fetch(`http://127.0.0.1:${listening.address().port}${path}`);
  console.log(response.status, response.headers.has('ratelimit'), response.headers.has('retry-after'));
  listening.close();
  listening.closeAllConnections();
}
(async () => {
  const [url, gone] = process.argv.slice(2);
  for (const args of [[url, 'api', '/'], [url, 'api', '/'], [url, 'api', '/denied'], [url, 'none', '/'], [gone, 'api', '/']]) await call(...args);
})();
"#;
    let modules = required_variable("TOLLGATE_TEST_NODE_MODULES", "a folder of Node packages with `express`");
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).args(["-e", script, CLIENTS_FOLDER, &server.url(""), UNREACHABLE_URL]);
    assert_eq!(run_program(&mut command), EXPECTED_OUTPUT);
}

#[test]
fn java_client_refuses_and_fails_open() {
    let (server, _rules) = start_server();
    let file = format!("{CLIENTS_FOLDER}/Tollgate.java");
    // The deadline is long, because the first check of a process loads classes.
    let call = |url: &str| {
        let args = [&*file, url, "api", r#"{"client_ip":"192.0.2.1"}"#, "30000"];
        run_program(Command::new("java").args(args))
    };
    let allowed = call(&server.url(""));
    assert!(allowed.starts_with("true {ratelimit=") && allowed.contains("ratelimit-policy="), "{allowed}");
    let refused = call(&server.url(""));
    assert!(refused.starts_with("false {ratelimit=") && refused.contains("retry-after=3"), "{refused}");
    assert_eq!(call(UNREACHABLE_URL), "true {}\n");
}

#[test]
fn ioredis_client_refuses_and_fails_open() {
    let (server, _rules) = start_server();
    let script = r#"
const { Limits } = require(process.argv[1] + '/tollgate_ioredis.js');
(async () => {
  const limits = new Limits(`redis://127.0.0.1:${process.argv[2]}`);
  console.log((await limits.check('api', { client_ip: '192.0.2.1' })).allowed);
  const { allowed, retryAfterMs } = await limits.check('api', { client_ip: '192.0.2.1' });
  console.log(allowed, retryAfterMs > 3_000_000);
  const pipeline = limits.pipeline();
  for (let n = 0; n < 2; n++) pipeline.call('CL.THROTTLE', 'k', 0, 1, 60);
  console.log((await pipeline.exec()).map(([error, reply]) => reply[0]));
  limits.close();
  const gone = new Limits('redis://127.0.0.1:9');
  console.log((await gone.check('api', { client_ip: '192.0.2.1' })).allowed);
  gone.close();
})();
"#;
    let output = run_program(node_command().args(["-e", script, CLIENTS_FOLDER, &server.resp_port()]));
    assert_eq!(output, "true\nfalse true\n[ 0, 1 ]\ntrue\n");
}

fn node_command() -> Command {
    let mut command = Command::new("node");
    command.env("NODE_PATH", required_variable("TOLLGATE_TEST_NODE_MODULES", "a folder of Node packages"));
    command
}

fn python_command() -> Command {
    Command::new(required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter with the packages of scripts/test"))
}

/// Start of an answer that never ends, over HTTP and over the Redis protocol.
const SLOW_HTTP: &str = "HTTP/1.1 200 OK\r\nx-slow: ";
const SLOW_RESP: &str = "+";

/// Starts a server that accepts connections but never finishes an answer, and returns its port. After `start` the
/// server sends a byte from time to time, so that a timeout per socket operation would never expire. If `start` is
/// empty, the server sends nothing.
#[expect(clippy::disallowed_methods, reason = "a slow server waits between two bytes")]
fn start_server_that_never_answers(start: &'static str) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _ = stream.write_all(start.as_bytes());
                // Ends when the client closes the connection. Without bytes to send, the thread never ends.
                while start.is_empty() || stream.write_all(b"1").is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    port
}

/// Runs `check` with a silent server and with a slow server. Neither server finishes an answer. `check` gets a folder
/// with the clients, and the port. Returns the output for each server, first for a client that fails open and then
/// for a client that fails closed.
fn run_with_silent_and_slow_servers(slow: &'static str, check: impl Fn(&Path, u16) -> String) -> Vec<String> {
    let mut printed = Vec::new();
    for start in ["", slow] {
        let port = start_server_that_never_answers(start);
        for closed in [false, true] {
            let folder = Folder::new();
            for file in std::fs::read_dir(CLIENTS_FOLDER).expect("the clients").map_while(Result::ok) {
                let text = std::fs::read_to_string(file.path()).expect("text");
                let text = if closed {
                    text.replace("FAIL_OPEN = True", "FAIL_OPEN = False")
                        .replace("FAIL_OPEN = true", "FAIL_OPEN = false")
                        .replace("failOpen = true", "failOpen = false")
                } else {
                    text
                };
                folder.write_file(file.file_name().to_str().expect("text"), text);
            }
            printed.push(check(folder.path(), port));
        }
    }
    printed
}

#[test]
fn python_clients_fail_open_or_closed_at_the_deadline() {
    let script = r#"
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import tollgate_asgi
from django.conf import settings
settings.configure(TOLLGATE={})
import tollgate_django
url = f"http://127.0.0.1:{sys.argv[2]}"
print(asyncio.run(tollgate_asgi.check(url, "api", {}))[0], tollgate_django.check(url, "api", {})[0])
"#;
    let outputs = run_with_silent_and_slow_servers(SLOW_HTTP, |folder, port| {
        run_program(python_command().args(["-c", script]).arg(folder).arg(port.to_string()))
    });
    assert_eq!(outputs, ["200 200\n", "503 503\n", "200 200\n", "503 503\n"]);
}

#[test]
fn redis_clients_fail_open_or_closed_at_the_deadline() {
    let script = r#"
import sys
sys.path.insert(0, sys.argv[1])
from tollgate_redis import Limits
print(Limits(f"redis://127.0.0.1:{sys.argv[2]}").check("api")[0])
"#;
    // redis-py has a timeout only per socket operation, so the slow server is not tested.
    let outputs = run_with_silent_and_slow_servers("", |folder, port| {
        run_program(python_command().args(["-c", script]).arg(folder).arg(port.to_string()))
    });
    assert_eq!(outputs[..2], ["True\n", "False\n"]);
    let script = r#"
const { Limits } = require(process.argv[1] + '/tollgate_ioredis.js');
const limits = new Limits(`redis://127.0.0.1:${process.argv[2]}`);
limits.check('api', {}).then(({ allowed }) => { console.log(allowed); limits.close(); });
"#;
    let outputs = run_with_silent_and_slow_servers(SLOW_RESP, |folder, port| {
        run_program(node_command().args(["-e", script]).arg(folder).arg(port.to_string()))
    });
    assert_eq!(outputs, ["true\n", "false\n", "true\n", "false\n"]);
}

#[test]
fn express_client_fails_open_or_closed_at_the_deadline() {
    let script = r#"
const { check } = require(process.argv[1] + '/tollgate_express.js');
check({ url: `http://127.0.0.1:${process.argv[2]}`, domain: 'api' }, {}).then(({ status }) => console.log(status));
"#;
    let outputs = run_with_silent_and_slow_servers(SLOW_HTTP, |folder, port| {
        run_program(node_command().args(["-e", script]).arg(folder).arg(port.to_string()))
    });
    assert_eq!(outputs, ["200\n", "503\n", "200\n", "503\n"]);
}

#[test]
fn go_client_fails_open_or_closed_at_the_deadline() {
    let go = Path::new(python_command().get_program()).with_file_name("go");
    let main = r#"package main

import (
	"example/tollgate"
	"fmt"
	"os"
)

func main() {
	status, _ := tollgate.Check("http://127.0.0.1:"+os.Args[1], "api", "", nil)
	fmt.Println(status)
}
"#;
    let outputs = run_with_silent_and_slow_servers(SLOW_HTTP, |folder, port| {
        std::fs::create_dir(folder.join("tollgate")).expect("a directory");
        std::fs::rename(folder.join("tollgate.go"), folder.join("tollgate/tollgate.go")).expect("a file");
        std::fs::write(folder.join("go.mod"), "module example\n\ngo 1.21\n").expect("a file");
        std::fs::write(folder.join("main.go"), main).expect("a file");
        let mut command = Command::new(&go);
        run_program(command.current_dir(folder).args(["run", "-gcflags=-N -l", ".", &port.to_string()]))
    });
    assert_eq!(outputs, ["200\n", "503\n", "200\n", "503\n"]);
}

#[test]
fn java_client_fails_open_or_closed_at_the_deadline() {
    let outputs = run_with_silent_and_slow_servers(SLOW_HTTP, |folder, port| {
        let url = format!("http://127.0.0.1:{port}");
        run_program(Command::new("java").arg(folder.join("Tollgate.java")).args([&*url, "api", "{}"]))
    });
    assert_eq!(outputs, ["true {}\n", "false {}\n", "true {}\n", "false {}\n"]);
}
