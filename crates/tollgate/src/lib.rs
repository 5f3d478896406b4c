//! Rate limiting to embed.

pub mod clock;
mod fingerprint;
mod keyed;
mod ledger;
mod limiter;
mod sync;
mod table;

pub use fingerprint::{Hashed, Key};
pub use keyed::{Keyed, TooLarge, WhenFull};
pub use ledger::{Charge, Ledger, Numbers, Seat};
pub use limiter::Limiter;
pub use tollgate_core::*;
