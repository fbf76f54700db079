//! The machine that all checks share.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use e2e::vm::{Vm, VmBuilder};

use crate::lab::{FUNCTIONS, PATIENCE};

static SHARED: Mutex<Option<Vm>> = Mutex::new(None);

/// A machine to be booted.
pub(crate) fn machine(name: &str) -> VmBuilder {
    Vm::builder(name, Path::new(env!("CARGO_BIN_EXE_guest-agent")))
}

/// Runs one test at a time on the shared machine, which only a test that succeeded passes on.
pub(crate) fn with_vm(test: impl FnOnce(&Vm) -> Result<()>) -> Result<()> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let vm = match shared.take() {
        Some(vm) => vm,
        None => boot()?,
    };
    let outcome = test(&vm);
    if outcome.is_ok() {
        *shared = Some(vm);
    } else {
        vm.condemn();
    }
    outcome
}

fn boot() -> Result<Vm> {
    let vm = machine("shared").boot()?;
    vm.run_with_input("cat > /run/functions.sh", FUNCTIONS.as_bytes(), PATIENCE)?.ok()?;
    Ok(vm)
}
