#![doc = include_str!("../docs/guide.md")]

mod account;
pub mod clock;
mod fingerprint;
mod hold;
mod keyed;
mod ledger;
mod limiter;
mod live;
pub mod migration;
mod paced;
mod periodic;
pub mod pictures;
mod registry;
mod shaper;
mod sync;
mod table;
#[cfg(test)]
mod testing;
mod throttle;
mod wait;

pub use fingerprint::{Hashed, Key};
pub use hold::{Permit, Reservation};
pub use keyed::{Keyed, RestoreError, TooLarge, WhenFull};
pub use ledger::{Charge, Ledger, Numbers, PlainCharge, Seat};
pub use limiter::Limiter;
pub use live::Live;
pub use paced::Pacer;
pub use periodic::Periodic;
pub use registry::{Event, Happened, Named, Observed, Registry, RegistryError};
pub use shaper::{Funnel, Overflow, Pushed, Shaper};
pub use throttle::Throttles;
pub use tollgate_core::*;
pub use wait::{Acquire, AcquireError};
