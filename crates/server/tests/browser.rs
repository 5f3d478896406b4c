//! An attack by a web page, in a real browser, on a server on the same machine.

use crate::common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use common::api::send_request;
use common::{Folder, Server, run_program};

/// Serves one page at `/` and forwards every other connection to `target`. To the browser, this looks like a host
/// name whose address changes between two requests (DNS rebinding).
fn rebinding_host(page: &'static str, target: SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut browser in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut head = vec![0; 8192];
                let read = browser.read(&mut head).unwrap_or(0);
                head.truncate(read);
                if head.starts_with(b"GET / ") {
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n{page}");
                    let _ = browser.write_all(answer.as_bytes());
                    return;
                }
                let mut server = TcpStream::connect(target).expect("the target listens");
                server.write_all(&head).expect("it reads");
                let mut back = (server.try_clone().expect("a socket"), browser.try_clone().expect("a socket"));
                std::thread::spawn(move || std::io::copy(&mut browser, &mut server));
                let _ = std::io::copy(&mut back.0, &mut back.1);
            });
        }
    });
    port
}

/// Opens a page in Chromium and returns its text. Every host name resolves to this machine.
fn open_in_chromium(folder: &Folder, url: &str) -> String {
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]);
    command.args(["--no-first-run", "--host-resolver-rules=MAP * 127.0.0.1", "--dump-dom"]);
    run_program(command.arg(format!("--user-data-dir={}", folder.join("profile"))).arg(url))
}

#[test]
fn dns_rebinding_lets_a_web_page_neither_read_metrics_nor_switch_the_mode() {
    // The page requests its own host name, as same-origin scripts may.
    const PAGE: &str = "<body><script>
        const ask = (method, path, body) => {
            const request = new XMLHttpRequest();
            request.open(method, path, false);
            request.send(body);
            return request.status + ' ' + request.responseText.slice(0, 80);
        };
        document.body.textContent = ask('GET', '/metrics') + ' | ' + ask('POST', '/v1/enforcement', '{\"mode\":\"observe\"}');
    </script></body>";
    let folder = Folder::new();
    // The attack succeeds against a server that checks neither `Host` nor `Origin`.
    let naive = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = naive.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in naive.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 8192]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\na secret: 7");
        }
    });
    let page = open_in_chromium(&folder, &format!("http://rebound.example:{}/", rebinding_host(PAGE, address)));
    assert!(page.contains("200 a secret"), "{page}");

    let server = Server::start(&[]);
    let address = server.http.expect("HTTP is on");
    let page = open_in_chromium(&folder, &format!("http://rebound.example:{}/", rebinding_host(PAGE, address)));
    assert!(!page.contains("tollgate_") && page.contains("421 ") | page.contains("403 "), "{page}");
    assert!(
        send_request(&server, "GET", "/v1/enforcement", &[], "").body.contains("\"enforce\""),
        "the mode was not switched"
    );
    // A user who opens the attacker's host name with the port of the server gets no metrics either.
    let page = open_in_chromium(&folder, &format!("http://rebound.example:{}/metrics", address.port()));
    assert!(!page.contains("tollgate_build_info") && page.contains("Misdirected"), "{page}");
    // A direct request by the operator is served.
    let page = open_in_chromium(&folder, &format!("http://127.0.0.1:{}/metrics", address.port()));
    assert!(page.contains("tollgate_build_info"), "{page}");
}
