//! Third-party clients: redis-cli, redis-benchmark, redis-py and ioredis.
//!
//! `scripts/test` installs them. `TOLLGATE_TEST_PYTHON` is a Python interpreter that can import `redis`, and
//! `TOLLGATE_TEST_NODE_MODULES` is a folder that contains `ioredis`.

use crate::common;

use std::process::Command;

use common::{Server, required_variable, run_program};

fn redis_cli(server: &Server, args: &[&str]) -> String {
    run_program(Command::new("redis-cli").args(["-p", &server.resp_port()]).args(args))
}

fn run_python(server: &Server, script: &str) -> String {
    let python = required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `redis`");
    run_program(Command::new(python).arg("-c").arg(script).arg(server.resp_port()))
}

fn run_node(server: &Server, script: &str) -> String {
    let modules = required_variable("TOLLGATE_TEST_NODE_MODULES", "a node_modules folder with ioredis in it");
    run_program(Command::new("node").env("NODE_PATH", modules).args(["-e", script, &server.resp_port()]))
}

#[test]
fn redis_cli_works_with_both_protocol_versions() {
    let server = Server::start(&[]);
    for version in ["-2", "-3"] {
        assert_eq!(redis_cli(&server, &[version, "CL.THROTTLE", version, "2", "3", "60"]), "0\n3\n2\n-1\n20\n");
        assert_eq!(redis_cli(&server, &[version, "PING"]), "PONG\n");
    }
    assert!(redis_cli(&server, &["INFO"]).contains("loading:0"));
    assert!(redis_cli(&server, &["COMMAND", "DOCS"]).contains("cl.throttle"));
    assert!(redis_cli(&server, &["GET", "k"]).starts_with("ERR unknown command 'GET'"));
}

#[test]
fn redis_cli_works_interactively() {
    let server = Server::start(&[]);
    let mut cli = Command::new("sh");
    cli.args(["-c", &format!("printf 'PING\\nCL.THROTTLE k 0 1 60\\nQUIT\\n' | redis-cli -p {}", server.resp_port())]);
    assert_eq!(run_program(&mut cli), "PONG\n0\n1\n0\n-1\n60\n");
}

#[test]
fn redis_benchmark_completes() {
    let server = Server::start(&[]);
    let args =
        ["-n", "20000", "-c", "20", "-P", "16", "-r", "1000", "-q", "CL.THROTTLE", "k:__rand_int__", "5", "10", "60"];
    let report = run_program(Command::new("redis-benchmark").args(["-p", &server.resp_port()]).args(args));
    assert!(report.contains("requests per second"), "{report}");
    assert!(!report.to_lowercase().contains("warning"), "{report}");
}

#[test]
fn redis_py_connects_pipelines_and_sees_errors() {
    let server = Server::start(&[]);
    let script = r#"
import sys, redis
for version in (2, 3):
    client = redis.Redis(port=int(sys.argv[1]), protocol=version, client_name="test")
    assert client.ping()
    assert client.client_getname() in ("test", b"test"), client.client_getname()
    assert client.config_get("save") == {"save": ""}
    key = f"python {version}"
    assert client.execute_command("CL.THROTTLE", key, 2, 3, 60) == [0, 3, 2, -1, 20]
    pipeline = client.pipeline(transaction=False)
    for _ in range(3):
        pipeline.execute_command("CL.THROTTLE", key, 2, 3, 60)
    assert [reply[0] for reply in pipeline.execute()] == [0, 0, 1]
    try:
        client.execute_command("CL.THROTTLE", key, 2, 0, 60)
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert str(error) == "Cell error: Store error: Zero rates are not supported", error
try:
    redis.Redis(port=int(sys.argv[1]), password="secret").ping()
    raise SystemExit("no error")
except redis.AuthenticationError:
    pass
print("fine")
"#;
    assert_eq!(run_python(&server, script), "fine\n");
}

#[test]
fn ioredis_connects_pipelines_and_sees_errors() {
    let server = Server::start(&[]);
    let script = r#"
const assert = require("assert");
const Redis = require("ioredis");
const client = new Redis(Number(process.argv[1]), { connectionName: "test", maxRetriesPerRequest: 0 });
(async () => {
  assert.deepStrictEqual(await client.call("CL.THROTTLE", "node", 2, 3, 60), [0, 3, 2, -1, 20]);
  const pipeline = client.pipeline();
  for (let n = 0; n < 3; n++) pipeline.call("CL.THROTTLE", "node", 2, 3, 60);
  assert.deepStrictEqual((await pipeline.exec()).map(([error, reply]) => reply[0]), [0, 0, 1]);
  await assert.rejects(client.get("k"), /unknown command/);
  assert.strictEqual(await client.quit(), "OK");
  console.log("fine");
})().catch((error) => { console.error(error); process.exit(1); });
"#;
    assert_eq!(run_node(&server, script), "fine\n");
}
