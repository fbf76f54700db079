//! The reference: the kernel's own target, inside the guest, over its loopback.

use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Result;
use e2e::vm::Vm;

use crate::lab::{PATIENCE, Portal, SIZE, Secrets, Target, Way};

/// A subsystem of the guest's kernel, with one namespace in a file in memory.
#[derive(Clone)]
pub(crate) struct Nvmet {
    nqn: String,
    ports: [u16; 2],
}

impl Nvmet {
    /// Sets it up, on two ports of all the guest's addresses.
    pub(crate) fn start(vm: &Vm, secrets: Option<&Secrets>) -> Result<Nvmet> {
        static NEXT: AtomicU16 = AtomicU16::new(4420);
        let first = NEXT.fetch_add(2, Ordering::Relaxed);
        let nvmet =
            Nvmet { nqn: format!("nqn.2026-11.test:nvmet-{first}"), ports: [first, first + 1] };
        let allow = match secrets {
            None => "echo 1 > $SUBSYSTEM/attr_allow_any_host".to_owned(),
            Some(Secrets { host_nqn, host, controller }) => format!(
                "H=$NVMET/hosts/{host_nqn}; mkdir $H; echo {host} > $H/dhchap_key; \
                 echo {controller} > $H/dhchap_ctrl_key; ln -s $H $SUBSYSTEM/allowed_hosts/"
            ),
        };
        nvmet.configure(
            vm,
            &format!(
                r#"
mkdir "$SUBSYSTEM"
truncate -s {SIZE} $FILE
mkdir $SUBSYSTEM/namespaces/1
echo 1 > $SUBSYSTEM/namespaces/1/buffered_io
echo $FILE > $SUBSYSTEM/namespaces/1/device_path
[ ! -e $SUBSYSTEM/namespaces/1/resv_enable ] || echo 1 > $SUBSYSTEM/namespaces/1/resv_enable
echo 1 > $SUBSYSTEM/namespaces/1/enable
{allow}
for port in $PORTS; do
    mkdir $NVMET/ports/$port
    echo tcp > $NVMET/ports/$port/addr_trtype
    echo ipv4 > $NVMET/ports/$port/addr_adrfam
    echo 0.0.0.0 > $NVMET/ports/$port/addr_traddr
    echo $port > $NVMET/ports/$port/addr_trsvcid
done
link $PORTS
"#
            ),
        )?;
        Ok(nvmet)
    }

    /// The guest's ports.
    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// Changes what a path says about itself: `optimized`, `non-optimized`, `inaccessible`.
    pub(crate) fn set_ana(&self, vm: &Vm, way: Way, state: &str) -> Result<()> {
        let port = self.portal(way).port;
        self.configure(vm, &format!("echo {state} > $NVMET/ports/{port}/ana_groups/1/ana_state"))
    }

    fn configure(&self, vm: &Vm, script: &str) -> Result<()> {
        let [first, second] = self.ports;
        let prelude = format!(
            r#"
set -e
NVMET=/sys/kernel/config/nvmet
SUBSYSTEM=$NVMET/subsystems/{nqn}
PORTS="{first} {second}"
FILE=/tmp/nvmet-{first}
link() {{ for port; do ln -s $SUBSYSTEM $NVMET/ports/$port/subsystems/{nqn}; done; }}
unlink() {{ for port; do rm -f $NVMET/ports/$port/subsystems/{nqn}; done; }}
"#,
            nqn = self.nqn
        );
        vm.run(&format!("{prelude}{script}"), PATIENCE)?.ok().map(drop)
    }
}

impl Target for Nvmet {
    fn nqn(&self) -> &str {
        &self.nqn
    }

    fn portal(&self, way: Way) -> Portal {
        let [first, second] = self.ports;
        let port = if way == Way::First { first } else { second };
        Portal { address: "127.0.0.1", port }
    }

    fn set_second_way(&mut self, vm: &Vm, open: bool) -> Result<()> {
        let [_, second] = self.ports;
        let verb = if open { "link" } else { "unlink" };
        self.configure(vm, &format!("{verb} {second}"))
    }

    fn kill(&mut self, vm: &Vm) -> Result<()> {
        self.configure(vm, "unlink $PORTS")
    }

    fn revive(&mut self, vm: &Vm) -> Result<()> {
        self.configure(vm, "link $PORTS")
    }

    fn said(&self) -> String {
        "the target is the guest's kernel: see its console".to_owned()
    }

    fn remove(self: Box<Self>, vm: &Vm) -> Result<()> {
        self.configure(
            vm,
            r"
unlink $PORTS
for port in $PORTS; do rmdir $NVMET/ports/$port; done
echo 0 > $SUBSYSTEM/namespaces/1/enable
rmdir $SUBSYSTEM/namespaces/1
hosts=$(ls $SUBSYSTEM/allowed_hosts)
rm -f $SUBSYSTEM/allowed_hosts/*
rmdir $SUBSYSTEM
for host in $hosts; do rmdir $NVMET/hosts/$host; done
rm $FILE
",
        )
    }
}
