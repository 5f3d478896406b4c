//! A minimal Redis client, to inspect a server without the client under test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

/// The reply of a server.
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
    /// If the reply is of another kind.
    #[track_caller]
    pub fn number(self) -> i64 {
        let shown = format!("{self:?}");
        let Self::Number(number) = self else { panic!("not a number: {shown}") };
        number
    }

    /// Returns the bytes.
    ///
    /// # Panics
    /// If the reply is of another kind.
    #[track_caller]
    pub fn bytes(self) -> Vec<u8> {
        let shown = format!("{self:?}");
        let Self::Bytes(bytes) = self else { panic!("not bytes: {shown}") };
        bytes
    }

    /// Returns the array.
    ///
    /// # Panics
    /// If the reply is of another kind.
    #[track_caller]
    pub fn list(self) -> Vec<Self> {
        let shown = format!("{self:?}");
        let Self::List(list) = self else { panic!("not a list: {shown}") };
        list
    }
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: BufReader<TcpStream>,
}

impl Link {
    /// Connects to a loopback port.
    ///
    /// # Panics
    /// If nothing listens there.
    pub fn to(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
        stream.set_nodelay(true).expect("a socket takes options");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a command and reads the reply.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Reply {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments.iter().map(AsRef::as_ref) {
            bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
            bytes.extend(argument);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).expect("the server reads");
        self.read()
    }

    fn read(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<i64>().expect("a length is a number");
        match kind {
            "+" => Reply::Status(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Number(count()),
            "$" if count() >= 0 => {
                let mut bytes = vec![0; count() as usize + 2];
                self.stream.read_exact(&mut bytes).expect("the server answers in full");
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            "*" if count() >= 0 => {
                let count = count();
                Reply::List((0..count).map(|_| self.read()).collect())
            }
            "$" | "*" => Reply::Nil,
            other => panic!("{other} is not the start of an answer"),
        }
    }
}
