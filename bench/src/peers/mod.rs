//! The peers, one file each. To add a peer, implement [`Contender`](crate::contender::Contender) and add a line to
//! `speed.rs`.

pub(crate) mod gcra;
pub(crate) mod governor;
pub(crate) mod leaky_bucket;
pub(crate) mod pingora;
pub(crate) mod ratelimit;
pub(crate) mod throttlecrab;
