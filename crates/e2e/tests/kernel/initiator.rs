//! Our initiator against the kernel's target: `holdfast nvme` here, nvmet in the guest.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use e2e::process::holdfast;
use e2e::vm::{Kernel, Vm};
use serde_json::Value;

use crate::lab::{SIZE, Secrets, Target, Way, expect_eq};
use crate::nvmet::Nvmet;
use crate::shared::with_kernel;

#[test]
fn discovers() -> Result<()> {
    with_nvmet(None, |lab| {
        let found = lab.json(Way::First, &["discover"], &[])?;
        let names = found.as_array().into_iter().flatten().map(|entry| &entry["subsystem"]);
        expect_eq("named", names.filter(|name| *name == lab.nvmet.nqn()).count(), 1)
    })
}

#[test]
fn connects_with_and_without_digests() -> Result<()> {
    with_nvmet(None, |lab| {
        for digests in [&[][..], &["--header-digest"], &["--header-digest", "--data-digest"]] {
            let seen = lab.on_subsystem(Way::First, "connect-test", digests)?;
            expect_eq("namespaces", &seen["namespaces"], &serde_json::json!([1]))?;
        }
        Ok(())
    })
}

#[test]
fn identifies_and_sees_ana_states() -> Result<()> {
    with_nvmet(None, |lab| {
        lab.nvmet.set_ana(lab.vm, Way::Second, "inaccessible")?;
        for (way, state) in [(Way::First, "Optimized"), (Way::Second, "Inaccessible")] {
            let seen = lab.on_subsystem(way, "identify", &[])?;
            let namespace = &seen["namespaces"][0];
            expect_eq("bytes", namespace["bytes"].as_u64(), Some(SIZE))?;
            let ana = namespace["ana"].as_str().unwrap_or_default();
            expect_eq(&format!("state {state} in {ana}"), ana.contains(state), true)?;
        }
        Ok(())
    })
}

#[test]
fn verifies_what_it_writes() -> Result<()> {
    with_nvmet(None, |lab| {
        for (pattern, size) in [("randwrite", "4KiB"), ("randrw", "64KiB"), ("write", "1MiB")] {
            let options = ["--rw", pattern, "--bs", size, "--qd", "16", "--queues", "2"];
            let load = ["--time", "2", "--verify", "--data-digest"];
            let seen = lab.on_subsystem(Way::First, "perf", &[&options[..], &load].concat())?;
            if seen["commands"].as_u64().unwrap_or_default() == 0 {
                bail!("{pattern} did nothing: {seen}");
            }
        }
        Ok(())
    })
}

#[test]
fn authenticates_and_expects_it() -> Result<()> {
    let secrets = Secrets {
        host_nqn: "nqn.2026-11.test:initiator".to_owned(),
        host: "DHHC-1:01:NgmqYDANMjDIjDnWTG1YsI/E46Bt69Sf6i027fj8jk6vqO/C:".to_owned(),
        controller: "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:".to_owned(),
    };
    with_nvmet(Some(&secrets), |lab| {
        let host = ["--host-nqn", &secrets.host_nqn];
        let known = [&host[..], &["--secret", &secrets.host]].concat();
        lab.on_subsystem(Way::First, "connect-test", &known)?;
        let both = [&known[..], &["--controller-secret", &secrets.controller]].concat();
        lab.on_subsystem(Way::First, "connect-test", &both)?;
        let impostor = [&known[..], &["--controller-secret", &secrets.host]].concat();
        for wrong in [&host[..], &impostor] {
            if lab.on_subsystem(Way::First, "connect-test", wrong).is_ok() {
                bail!("connected with {wrong:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn reserves_and_is_refused() -> Result<()> {
    on_kernel(Kernel::Newest, None, |lab| {
        let [old, new] = ["nqn.2026-11.test:old", "nqn.2026-11.test:new"];
        let reserve = |host, verb: &str, options: &[&str]| {
            let verb = ["reservation", verb, "--nqn", lab.nvmet.nqn(), "--host-nqn", host];
            lab.json(Way::First, &verb, options)
        };
        let writes = |host| {
            let options = ["--host-nqn", host, "--rw", "randwrite", "--bs", "4KiB", "--time", "1"];
            lab.on_subsystem(Way::First, "perf", &options).is_ok()
        };
        let kind = ["--type", "write-exclusive"];
        reserve(old, "register", &["--key", "0xa"])?;
        reserve(old, "acquire", &[&["--key", "0xa"], &kind[..]].concat())?;
        reserve(new, "register", &["--key", "0xb"])?;
        expect_eq("holder and other write", (writes(old), writes(new)), (true, false))?;
        let preempt = ["--key", "0xb", "--from", "0xa", "--abort"];
        reserve(new, "preempt", &[&preempt[..], &kind].concat())?;
        expect_eq("old and new holder write", (writes(old), writes(new)), (false, true))?;
        let report = reserve(new, "report", &[])?;
        expect_eq("type", report["type"].as_str(), Some("write-exclusive"))?;
        let registrants = report["registrants"].as_array().cloned().unwrap_or_default();
        let keys = registrants.iter().map(|one| (one["key"].as_str(), one["holds"].as_bool()));
        expect_eq("registrants", keys.collect(), vec![(Some("0xb"), Some(true))])?;
        reserve(new, "release", &[&["--key", "0xb"], &kind[..]].concat())?;
        expect_eq("anybody writes", writes(old), true)
    })
}

/// A target in the guest, and the way to it from here.
struct Reached<'a> {
    vm: &'a Vm,
    nvmet: Nvmet,
    first: SocketAddr,
    second: SocketAddr,
}

impl Reached<'_> {
    fn on_subsystem(&self, way: Way, command: &str, options: &[&str]) -> Result<Value> {
        self.json(way, &[command, "--nqn", self.nvmet.nqn()], options)
    }

    fn json(&self, way: Way, command: &[&str], options: &[&str]) -> Result<Value> {
        let address = if way == Way::First { self.first } else { self.second };
        let mut holdfast: Command = holdfast()?;
        holdfast.arg("nvme").args(command).args(options).args(["--output", "json"]);
        let output = holdfast.arg(address.to_string()).output().context("start holdfast")?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("holdfast nvme {command:?} {options:?}: {}: {said}", output.status);
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("read what it said; {said}"))
    }
}

fn with_nvmet(secrets: Option<&Secrets>, check: impl FnOnce(&Reached) -> Result<()>) -> Result<()> {
    on_kernel(Kernel::V6_12, secrets, check)
}

fn on_kernel(
    kernel: Kernel,
    secrets: Option<&Secrets>,
    check: impl FnOnce(&Reached) -> Result<()>,
) -> Result<()> {
    with_kernel(kernel, |vm| {
        let nvmet = Nvmet::start(vm, secrets)?;
        let [first, second] = nvmet.ports();
        let reached = Reached { first: vm.forward(first)?, second: vm.forward(second)?, vm, nvmet };
        check(&reached)?;
        Box::new(reached.nvmet).remove(vm)
    })
}
