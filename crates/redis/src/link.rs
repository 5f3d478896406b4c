//! A connection to the store, and a call of the script on it.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::timeout;

use crate::config::Config;
use crate::request::Call;
use crate::script::Script;

/// A connection on which the script has been tried out.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

/// Why a call brought no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The store said no, before it changed anything.
    Refused(String),
    /// The connection broke, or the answer makes no sense. What was sent may have been carried out.
    Lost(String),
    /// No answer within the deadline; it may still come, and nobody will listen.
    Late,
}

impl Link {
    /// Connects, brings the script along and runs it once with nothing to decide. An answer to a ping would not prove
    /// that the script can be run.
    ///
    /// # Errors
    /// Why the store cannot be used, for the log.
    pub(crate) async fn open(config: &Config, script: &Arc<Script>) -> Result<Self, String> {
        // The client's own timeout does not cover everything it does, so ours is around all of it.
        let connection = timeout(config.connect_timeout, connect(config, script)).await;
        let connection = connection.map_err(|_| format!("no connection within {:?}", config.connect_timeout))?;
        let connection = connection.map_err(|error| told(&error))?;
        let mut link = Self { connection, script: script.clone() };
        match link.call(&Call::default(), config).await {
            Ok(_) => Ok(link),
            Err(CallError::Refused(why) | CallError::Lost(why)) => Err(why),
            Err(CallError::Late) => Err(format!("the script did not answer within {:?}", config.deadline)),
        }
    }

    /// Runs the script. A store that does not know it gets it once more, within the same deadline; nothing else is repeated.
    pub(crate) async fn call(&mut self, call: &Call<'_>, config: &Config) -> Result<Vec<u8>, CallError> {
        timeout(config.deadline, self.call_without_end(call)).await.unwrap_or(Err(CallError::Late))
    }

    async fn call_without_end(&mut self, call: &Call<'_>) -> Result<Vec<u8>, CallError> {
        let known = call.command(["EVALSHA", self.script.sha()]);
        let result = match self.connection.send_packed_command(&known).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let whole = call.command(["EVAL", self.script.source()]);
                self.connection.send_packed_command(&whole).await
            }
            result => result,
        };
        match result {
            Ok(Value::BulkString(reply)) => Ok(reply),
            Ok(_) => Err(CallError::Lost("the script answered something else than it should".to_owned())),
            // Errors of the server are raised by the first write or before, see the script.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                Err(CallError::Refused(told(&error)))
            }
            Err(error) => Err(CallError::Lost(told(&error))),
        }
    }
}

async fn connect(config: &Config, script: &Script) -> Result<MultiplexedConnection, RedisError> {
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client(config)?.get_multiplexed_async_connection_with_config(&settings).await?;
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script.source());
    connection.send_packed_command(&load).await?;
    Ok(connection)
}

#[cfg(feature = "tls")]
fn client(config: &Config) -> Result<Client, RedisError> {
    use redis::{ConnectionAddr, TlsCertificates};

    if !matches!(config.server.addr(), ConnectionAddr::TcpTls { .. }) {
        return Client::open(config.server.clone());
    }
    // Somebody in this process may have chosen one before; theirs is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let root_cert = config.authority.as_ref().map(std::fs::read).transpose()?;
    Client::build_with_tls(config.server.clone(), TlsCertificates { client_tls: None, root_cert })
}

#[cfg(not(feature = "tls"))]
fn client(config: &Config) -> Result<Client, RedisError> {
    Client::open(config.server.clone())
}

/// For the log, in one line.
fn told(error: &RedisError) -> String {
    let mut text = error.to_string();
    text.truncate(text.find(['\r', '\n']).unwrap_or(text.len()));
    text
}
