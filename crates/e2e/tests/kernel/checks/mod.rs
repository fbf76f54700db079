//! What a Linux host must be able to do with a target.

mod ana;
mod connect;
mod copies;
mod data;
mod filesystem;
mod identify;
mod paths;
mod reservations;

use std::env;

use anyhow::{Context, Result};
use e2e::vm::{Kernel, Vm};

use crate::engine::{Engine, Ground};
use crate::lab::{Lab, PATIENCE, Secrets, Target};
use crate::mirrored::Mirrored;
use crate::nvmet::Nvmet;
use crate::shared::with_kernel;

type Check = fn(&mut Lab) -> Result<()>;
type Start = fn(&Vm, Option<&Secrets>) -> Result<Box<dyn Target>>;

/// One test per check, on a kernel, against a target.
macro_rules! tests {
    ($kernel:ident, $start:ident, $secrets:ident, $($name:ident = $check:path;)*) => {
        $(#[test]
        fn $name() -> anyhow::Result<()> {
            use super::Knowledge::$secrets;
            super::run(super::Kernel::$kernel, super::$start, $secrets, $check)
        })*
    };
}

/// Whether host and target know each other's secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    NoSecrets,
    Secrets,
}

/// The cheap checks, to tell a broken machine from a broken target.
mod reference {
    tests! { V6_12, nvmet, NoSecrets,
        discover = super::connect::discover;
        connect = super::connect::plain;
        list_subsystems = super::identify::subsystems;
        identify_controller = super::identify::controller;
        identify_namespace = super::identify::namespace;
        ana_log = super::identify::ana_log;
        fio_verifies_random_and_sequential_writes = super::data::fio_verifies;
        losing_one_of_two_paths_fails_no_request = super::paths::lose_one_of_two;
        killing_the_target_fails_no_request = super::paths::kill_and_revive;
    }
    tests! { V6_12, nvmet, Secrets,
        authenticate = super::connect::authenticate;
    }
    // The kernel's target knows reservations since 6.13.
    tests! { Newest, nvmet, NoSecrets,
        one_host_reserves = super::reservations::register_acquire_report;
        another_host_is_fenced = super::reservations::preempt;
    }
}

/// All checks.
mod holdfast {
    tests! { V6_12, engine, NoSecrets,
        discover = super::connect::discover;
        connect = super::connect::plain;
        connect_with_digests = super::connect::with_digests;
        connect_again_and_again = super::connect::again_and_again;
        list_subsystems = super::identify::subsystems;
        identify_controller = super::identify::controller;
        identify_namespace = super::identify::namespace;
        ana_log = super::identify::ana_log;
        fio_verifies_random_and_sequential_writes = super::data::fio_verifies;
        fio_verifies_with_digests = super::data::fio_verifies_with_digests;
        fio_verifies_with_trim = super::data::fio_verifies_with_trim;
        discarded_and_zeroed_blocks_read_as_zeroes = super::data::discard;
        xfs_keeps_files = super::filesystem::xfs;
        ext4_keeps_files = super::filesystem::ext4;
        losing_one_of_two_paths_fails_no_request = super::paths::lose_one_of_two;
        killing_the_target_fails_no_request = super::paths::kill_and_revive;
        one_host_reserves = super::reservations::register_acquire_report;
        another_host_is_fenced = super::reservations::preempt;
    }
    tests! { V6_12, engine, Secrets,
        authenticate = super::connect::authenticate;
        a_wrong_secret_is_refused = super::connect::wrong_secret;
    }
}

/// What goes through to the disk, on a replica of a pool.
mod pooled {
    tests! { V6_12, pooled_engine, NoSecrets,
        fio_verifies_random_and_sequential_writes = super::data::fio_verifies;
        fio_verifies_with_trim = super::data::fio_verifies_with_trim;
        discarded_and_zeroed_blocks_read_as_zeroes = super::data::discard;
        ext4_keeps_files = super::filesystem::ext4;
        killing_the_target_fails_no_request = super::paths::kill_and_revive;
    }
    tests! { V6_12, engine_on_a_loop_device, NoSecrets,
        killing_the_target_on_a_loop_device = super::paths::kill_and_revive;
    }
    tests! { V6_12, encrypted_engine, NoSecrets,
        encrypted_ext4_keeps_files = super::filesystem::ext4;
        killing_the_target_of_an_encrypted_replica = super::paths::kill_and_revive;
    }
}

/// A volume with copies in three engines.
mod mirrored {
    tests! { V6_12, mirrored, NoSecrets,
        fio_verifies_random_and_sequential_writes = super::data::fio_verifies;
        discarded_and_zeroed_blocks_read_as_zeroes = super::data::discard;
        xfs_keeps_files = super::filesystem::xfs;
        losing_one_of_two_paths_fails_no_request = super::paths::lose_one_of_two;
        killing_a_copy_fails_no_request = super::paths::lose_a_copy;
    }
}

fn nvmet(vm: &Vm, secrets: Option<&Secrets>) -> Result<Box<dyn Target>> {
    Ok(Box::new(Nvmet::start(vm, secrets)?))
}

fn engine(vm: &Vm, secrets: Option<&Secrets>) -> Result<Box<dyn Target>> {
    if env::var_os("HOLDFAST_REFERENCE").is_some() {
        return nvmet(vm, secrets);
    }
    Ok(Box::new(Engine::start(Ground::File, secrets)?))
}

fn pooled_engine(_: &Vm, secrets: Option<&Secrets>) -> Result<Box<dyn Target>> {
    Ok(Box::new(Engine::start(Ground::Pool, secrets)?))
}

fn engine_on_a_loop_device(_: &Vm, secrets: Option<&Secrets>) -> Result<Box<dyn Target>> {
    Ok(Box::new(Engine::start(Ground::LoopDevice, secrets)?))
}

fn encrypted_engine(_: &Vm, secrets: Option<&Secrets>) -> Result<Box<dyn Target>> {
    Ok(Box::new(Engine::start(Ground::EncryptedPool, secrets)?))
}

fn mirrored(vm: &Vm, _: Option<&Secrets>) -> Result<Box<dyn Target>> {
    Ok(Box::new(Mirrored::start(vm)?))
}

fn run(kernel: Kernel, start: Start, knowledge: Knowledge, check: Check) -> Result<()> {
    with_kernel(kernel, |vm| {
        let secrets = match knowledge {
            Knowledge::NoSecrets => None,
            Knowledge::Secrets => Some(make_secrets(vm)?),
        };
        let mut lab = Lab { vm, target: start(vm, secrets.as_ref())?, secrets };
        check(&mut lab).with_context(|| format!("the target said:\n{}", lab.target.said()))?;
        lab.close()
    })
}

/// Keys as an administrator would make them.
fn make_secrets(vm: &Vm) -> Result<Secrets> {
    let sh =
        |script: &str| Ok::<_, anyhow::Error>(vm.run(script, PATIENCE)?.ok()?.trim().to_owned());
    let key = |hash: u8| sh(&format!("nvme gen-dhchap-key -m {hash} -n $(cat /etc/nvme/hostnqn)"));
    Ok(Secrets { host_nqn: sh("cat /etc/nvme/hostnqn")?, host: key(1)?, controller: key(3)? })
}
