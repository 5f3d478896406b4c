//! HTTP requests, one per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::{Server, TEST_TIMEOUT, eventually};

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub tag: Option<String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Sends a request on a new connection. Returns `None` if no complete response arrives.
pub fn try_send_request(server: &Server, method: &str, path: &str, headers: &[&str], body: &str) -> Option<Answer> {
    let stream = TcpStream::connect(server.http?).ok()?;
    stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
    let mut stream = BufReader::new(stream);
    let headers: String = headers.iter().flat_map(|header| [header, "\r\n"]).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.get_mut().write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let (mut length, mut tag) = (0, None);
    loop {
        line.clear();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("etag", value)) => tag = Some(value.to_owned()),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Answer { status, tag, body: String::from_utf8(body).ok()? })
}

/// Sends a request on a new connection.
pub fn send_request(server: &Server, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    try_send_request(server, method, path, headers, body).unwrap_or_else(|| panic!("no answer to {method} {path}"))
}

/// Repeats a request until `expected` returns true for the response. The method is POST, or GET if `body` is empty.
pub fn repeat_request_until(server: &Server, path: &str, body: &str, expected: impl Fn(&Answer) -> bool) -> Answer {
    let mut last = None;
    eventually(path, || {
        let answer = send_request(server, if body.is_empty() { "GET" } else { "POST" }, path, &[], body);
        let is_expected = expected(&answer);
        last = Some(answer);
        is_expected
    });
    last.expect("an answer")
}
