//! The clients under `examples/clients/` in the frameworks they are for: they decide, pass headers and the status of a
//! refusal on, and fail open when the server is unreachable or answers with an error.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{Folder, Rules, Server, required_variable, run};

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clients");

/// The rules: one request an hour, and a path that is denied with its own status.
fn start_server() -> (Server, Rules) {
    let rules = Rules::new(
        "domain: api\nrules:\n- {id: denied, when: {path: /denied}, deny: true, status: 451}\n\
         - {id: all, per: [client_ip], limit: 1/h}\n",
    );
    (Server::start(&["--rules", rules.path()]), rules)
}

/// An address where nothing listens.
const GONE: &str = "http://127.0.0.1:9";

/// What a framework prints for the requests of every test: status, `RateLimit`, `Retry-After`. The requests: the first
/// and the second of an hour, a denied one, one without rules on the server, and one while the server is unreachable.
const EXPECTED: &str = "200 true false\n429 true true\n451 false true\n200 false false\n200 false false\n";

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
    assert_eq!(run(Command::new(python).args(["-c", script, CLIENTS, &server.url(""), GONE])), EXPECTED);
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
    assert_eq!(run(Command::new(python).args(["-c", script, CLIENTS, &server.url(""), GONE])), EXPECTED);
}

#[test]
fn go_middleware_refuses_and_fails_open() {
    let go =
        Path::new(&required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter beside `go`")).with_file_name("go");
    let (server, _rules) = start_server();
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("tollgate")).expect("a directory");
    std::fs::copy(format!("{CLIENTS}/tollgate.go"), folder.path().join("tollgate/tollgate.go")).expect("a copy");
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
    // Unoptimised, and the cache of the build is kept between runs.
    command.current_dir(folder.path()).args(["run", "-gcflags=-N -l", ".", &server.url(""), GONE]);
    assert_eq!(run(&mut command), EXPECTED);
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
    let output = run(Command::new(python).args(["-c", script, CLIENTS, &server.resp_port()]));
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
    command.env("NODE_PATH", modules).args(["-e", script, CLIENTS, &server.url(""), GONE]);
    assert_eq!(run(&mut command), EXPECTED);
}

#[test]
fn java_client_refuses_and_fails_open() {
    let (server, _rules) = start_server();
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
