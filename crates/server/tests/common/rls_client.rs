//! A third-party client of the rate-limit service: grpcio.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses only part of this module")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A grpcio connection. Dropping the client closes the connection.
pub struct RlsClient {
    child: Child,
    calls: ChildStdin,
    responses: BufReader<ChildStdout>,
}

const PYTHON_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rls_client");

impl RlsClient {
    /// Connects to an address, such as `127.0.0.1:8081` or `unix:/path`.
    pub fn connect(address: &str) -> Self {
        let python =
            super::required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `grpc_tools`");
        let mut command = Command::new(python);
        command.arg(format!("{PYTHON_FOLDER}/client.py")).args([address, PYTHON_FOLDER]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let (calls, responses) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Self { child, calls, responses: BufReader::new(responses) }
    }

    /// Makes a call and returns the response or the error.
    pub fn call(&mut self, call: &Value) -> Value {
        writeln!(self.calls, "{call}").expect("the client runs");
        let mut line = String::new();
        self.responses.read_line(&mut line).expect("the client runs");
        serde_json::from_str(&line).expect("a response")
    }

    /// Sends a request with these descriptors. Each descriptor is a list of keys and values.
    pub fn check_descriptors(&mut self, domain: &str, descriptors: &[&[(&str, &str)]]) -> Response {
        let descriptors: Vec<Value> = descriptors.iter().map(|entries| descriptor(entries)).collect();
        self.should_rate_limit(&json!({"domain": domain, "descriptors": descriptors}))
    }

    /// Sends a request.
    pub fn should_rate_limit(&mut self, request: &Value) -> Response {
        Response(self.call(&json!({"request": request})))
    }
}

impl Drop for RlsClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a descriptor with these keys and values.
pub fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entries: Vec<Value> = entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({"entries": entries})
}

/// Returns a descriptor with its own cost.
pub fn with_hits(entries: &[(&str, &str)], hits: u64, is_negative: bool) -> Value {
    let mut descriptor = descriptor(entries);
    descriptor["hits_addend"] = json!({"value": hits});
    descriptor["is_negative_hits"] = json!(is_negative);
    descriptor
}

/// A response in proto3 JSON. Fields with default values are missing.
#[derive(Debug)]
pub struct Response(pub Value);

impl Response {
    pub fn code(&self) -> &str {
        self.0["overall_code"].as_str().unwrap_or("none")
    }

    /// Returns the code and the remaining amount of each descriptor.
    pub fn statuses(&self) -> Vec<(&str, u64)> {
        let statuses = self.0["statuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let status = |status: &'_ Value| status["limit_remaining"].as_u64().unwrap_or(0);
        statuses.iter().map(|it| (it["code"].as_str().unwrap_or("none"), status(it))).collect()
    }

    pub fn remaining(&self) -> u64 {
        self.statuses().first().map_or(0, |(_, remaining)| *remaining)
    }

    pub fn reset(&self) -> u64 {
        let seconds = &self.0["statuses"][0]["duration_until_reset"]["seconds"];
        seconds.as_str().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
    }

    /// Returns the value of a response header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.0["response_headers_to_add"].as_array()?;
        headers.iter().find(|header| header["key"] == name)?["value"].as_str()
    }
}
