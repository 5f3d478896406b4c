//! A minimal HTTP/1.1 client, which can send requests from a chosen local address.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpResponse {
    /// Returns the value of a header, or an empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }
}

/// Sends one request on a new connection.
pub(crate) async fn send_request(server: SocketAddr, line: &str, headers: &[(&str, &str)]) -> HttpResponse {
    send_request_from(Ipv4Addr::LOCALHOST, server, line, headers).await
}

/// Sends one request on a new connection from the local address `client`.
pub(crate) async fn send_request_from(
    client: Ipv4Addr,
    server: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
) -> HttpResponse {
    let mut text = format!("{line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    text.push_str("\r\n");
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((client, 0).into()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    });
    HttpResponse { status, headers: headers.collect(), body: body.to_owned() }
}
