//! The peers, one file each. A new peer is a struct that implements [`Contender`](crate::contender::Contender) and a
//! line in `speed.rs`.

pub(crate) mod gcra;
pub(crate) mod governor;
pub(crate) mod leaky_bucket;
pub(crate) mod pingora;
pub(crate) mod ratelimit;
pub(crate) mod throttlecrab;
