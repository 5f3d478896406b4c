#![doc = include_str!("../docs/guide.md")]

mod account;
mod adjustable;
pub mod clock;
mod fingerprint;
mod hold;
mod keyed;
mod ledger;
mod limiter;
pub mod migration;
mod paced;
mod periodic;
pub mod pictures;
mod registry;
mod shaper;
#[cfg(feature = "stream")]
mod stream;
mod sync;
mod table;
#[cfg(test)]
mod testing;
mod throttle;
mod wait;

pub use adjustable::Adjustable;
pub use fingerprint::{Hashed, Key};
pub use hold::{Permit, Reservation};
pub use keyed::{Keyed, RestoreError, TooLarge, WhenFull};
pub use ledger::{Charge, Ledger, Numbers, PlainCharge, Seat};
pub use limiter::Limiter;
pub use paced::Pacer;
pub use periodic::Periodic;
pub use registry::{Event, EventKind, RegisteredAcquire, RegisteredLimiter, Registry, RegistryError};
pub use shaper::{Overflow, Pushed, Shaper};
#[cfg(feature = "stream")]
pub use stream::LimitedStream;
pub use throttle::Throttles;
pub use tollgate_core::*;
pub use wait::{Acquire, AcquireError, Grant};
