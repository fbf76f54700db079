//! The machines that all checks share.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use e2e::vm::{Kernel, Vm, VmBuilder};

use crate::lab::{FUNCTIONS, PATIENCE};

/// At most one of each kernel.
static SHARED: Mutex<Vec<(Kernel, Vm)>> = Mutex::new(Vec::new());

/// A machine to be booted.
pub(crate) fn machine(name: &str) -> VmBuilder {
    Vm::builder(name, Path::new(env!("CARGO_BIN_EXE_guest-agent")))
}

/// Runs one test at a time on the shared machine, which only a test that succeeded passes on.
pub(crate) fn with_vm(test: impl FnOnce(&Vm) -> Result<()>) -> Result<()> {
    with_kernel(Kernel::V6_12, test)
}

/// The same on the shared machine with another kernel.
pub(crate) fn with_kernel(kernel: Kernel, test: impl FnOnce(&Vm) -> Result<()>) -> Result<()> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let vm = match shared.iter().position(|(found, _)| *found == kernel) {
        Some(at) => shared.remove(at).1,
        None => boot(kernel)?,
    };
    let outcome = test(&vm);
    if outcome.is_ok() {
        shared.push((kernel, vm));
    } else {
        vm.condemn();
    }
    outcome
}

fn boot(kernel: Kernel) -> Result<Vm> {
    let vm = machine("shared").kernel(kernel).boot()?;
    vm.run_with_input("cat > /run/functions.sh", FUNCTIONS.as_bytes(), PATIENCE)?.ok()?;
    Ok(vm)
}
