//! Sockets and threads: accepting connections, the workers that serve them, TLS, shutdown and the background thread.

pub mod accept;
pub mod background;
pub mod lazy_timer;
pub mod linger;
pub mod protocol;
pub mod shutdown;
#[cfg(test)]
pub(crate) mod stalled_client;
pub mod stream;
pub mod tls;
pub mod unix;
pub mod workers;
pub mod write_timeout;
