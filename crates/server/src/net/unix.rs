//! Unix sockets as an alternative to TCP ports.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::accept::Listener;

/// Listens on a Unix socket. Replaces a stale socket file, which a killed server leaves behind.
///
/// # Errors
/// Returns an error if the socket cannot be created, or if another process listens on it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_stale = |path: &Path| {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        is_socket && std::os::unix::net::UnixStream::connect(path).is_err()
    };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Listener for UnixListener {
    async fn accept_stream(&self) -> io::Result<TcpStream> {
        as_tcp_stream(self.accept().await?.0)
    }
}

/// Converts a Unix stream to a TCP stream, the type that workers accept. The conversion works because workers only
/// read, write and close the stream, and ignore errors when they set TCP options or read the client address.
fn as_tcp_stream(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(stream.into_std()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("socket");
        let listener = bind(&path).expect("a socket");
        assert_eq!(bind(&path).expect_err("in use").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        drop(bind(&path).expect("the socket file is stale"));
        let file = folder.path().join("file");
        std::fs::write(&file, "kept").expect("a file");
        assert!(bind(&file).is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "kept");
    }
}
