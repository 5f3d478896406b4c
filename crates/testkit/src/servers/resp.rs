//! A minimal Redis client, to inspect a server without using the client under test.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpStream};

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string such as OK.
    Status(String),
    /// An error, with its code first.
    Error(String),
    /// An integer.
    Number(i64),
    /// A bulk string.
    Bytes(Vec<u8>),
    /// A null.
    Nil,
    /// An array.
    List(Vec<Self>),
}

impl Reply {
    /// Returns the integer.
    ///
    /// # Panics
    /// Panics if the reply is of another kind.
    #[track_caller]
    pub fn number(self) -> i64 {
        let shown = format!("{self:?}");
        let Self::Number(number) = self else { panic!("not a number: {shown}") };
        number
    }

    /// Returns the bytes.
    ///
    /// # Panics
    /// Panics if the reply is of another kind.
    #[track_caller]
    pub fn bytes(self) -> Vec<u8> {
        let shown = format!("{self:?}");
        let Self::Bytes(bytes) = self else { panic!("not bytes: {shown}") };
        bytes
    }

    /// Returns the array.
    ///
    /// # Panics
    /// Panics if the reply is of another kind.
    #[track_caller]
    pub fn list(self) -> Vec<Self> {
        let shown = format!("{self:?}");
        let Self::List(list) = self else { panic!("not a list: {shown}") };
        list
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct RespConnection {
    stream: BufReader<TcpStream>,
}

impl RespConnection {
    /// Connects to a loopback port.
    ///
    /// # Panics
    /// Panics if nothing listens on the port.
    pub fn to(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a command and reads the reply.
    ///
    /// # Panics
    /// Panics if the server closes the connection.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Reply {
        self.try_command(arguments).unwrap_or_else(|error| panic!("the server does not answer: {error}"))
    }

    /// Sends a command and reads the reply. Used with servers that may close the connection, for example during a
    /// Sentinel failover.
    ///
    /// # Errors
    /// Returns an error if the server closes the connection.
    pub fn try_command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments.iter().map(AsRef::as_ref) {
            bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
            bytes.extend(argument);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)?;
        self.read()
    }

    fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<i64>().expect("a length is a number");
        Ok(match kind {
            "+" => Reply::Status(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Number(count()),
            "$" if count() >= 0 => {
                let mut bytes = vec![0; count() as usize + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            "*" if count() >= 0 => {
                let count = count();
                Reply::List((0..count).map(|_| self.read()).collect::<Result<_>>()?)
            }
            "$" | "*" => Reply::Nil,
            other => panic!("{other} is not the start of an answer"),
        })
    }
}
