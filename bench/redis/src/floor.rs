//! The floor of a decision on the server: scripts that read and write the same number of keys, but decide nothing. A
//! script that decides charges also has to read their keys, and to write the keys of the charges that it admits.

use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate_testkit::servers::Server;

use crate::measure::{KEYS, next_random};

const TURN_DURATION: Duration = Duration::from_millis(1_000);

/// Reads all keys. The reply has the same number of bytes per key as the reply to a decision.
const READ_SCRIPT: &str = r"
redis.call('TIME')
redis.call('MGET', unpack(KEYS))
return string.rep('123456789012345', #KEYS)
";

/// Also writes 13 bytes of each value in place, as a decision does.
const WRITE_SCRIPT: &str = r"
redis.call('TIME')
redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do redis.call('SETRANGE', KEYS[i], '30', '1234567890123') end
return string.rep('123456789012345', #KEYS)
";

/// A floor script, loaded on a server that holds values for its keys.
pub(crate) struct Floor {
    connection: redis::Connection,
    sha: String,
}

impl Floor {
    pub(crate) fn new(server: &Server, writes: bool) -> Result<Self> {
        let mut connection = redis::Client::open(server.url())?.get_connection()?;
        for key in 0..KEYS {
            let mut command = redis::cmd("SET");
            command.arg(key_name(key)).arg(&[b'v'; 44]).arg("EX").arg(3_600).exec(&mut connection)?;
        }
        let source = if writes { WRITE_SCRIPT } else { READ_SCRIPT };
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection)?;
        Ok(Self { connection, sha })
    }

    /// Measures the CPU time of the server per key, in microseconds, for calls with `keys_per_call` random keys.
    pub(crate) fn cpu_micros(&mut self, server: &Server, keys_per_call: usize) -> Result<f64> {
        let (mut number, mut keys) = (1, 0_usize);
        let (start, before) = (Instant::now(), server.processor_time());
        while start.elapsed() < TURN_DURATION {
            let mut command = redis::cmd("EVALSHA");
            command.arg(&self.sha).arg(keys_per_call);
            for _ in 0..keys_per_call {
                number = next_random(number);
                command.arg(key_name((number >> 33) as u32 % KEYS));
            }
            command.exec(&mut self.connection)?;
            keys += keys_per_call;
        }
        Ok((server.processor_time() - before).as_secs_f64() * 1e6 / keys as f64)
    }
}

/// Returns a name as long as the names that the store uses.
fn key_name(key: u32) -> String {
    format!("floor1x1:{{bench:0:user{key:06}}}")
}
