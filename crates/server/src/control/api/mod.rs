//! The API of the rules service.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::Control;
use crate::drain::Drain;

/// The rules service of this process.
#[derive(Debug)]
pub struct Service {
    _control: Arc<Control>,
    _runtime: Handle,
    _drain: Arc<Drain>,
}

impl Service {
    /// Rules that are kept by `control`, on the event loop of `runtime`.
    pub fn new(control: Arc<Control>, runtime: Handle, drain: Arc<Drain>) -> Self {
        Self { _control: control, _runtime: runtime, _drain: drain }
    }
}
