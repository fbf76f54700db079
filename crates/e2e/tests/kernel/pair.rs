//! Two of our targets in this process, which serve one namespace by a path each.
//!
//! Unlike `holdfast engine serve` they take orders, such as to change the state of a path.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, bail};
use block::BlockSize;
use e2e::vm::{HOST, Link, SECOND_HOST, Vm};
use engine::replication::Replication;
use engine::serve::{
    Backing, Config, EngineLimits, Namespace, Server, Subsystem, TargetHandle, identity_of,
};
use nvme::pdu::Digests;
use nvme::wire::{AnaState, Nqn};
use tempfile::TempDir;

use crate::lab::{Portal, SIZE, Target, Way};

/// Two engines, one file.
pub(crate) struct Pair {
    nqn: Nqn,
    image: PathBuf,
    addresses: [SocketAddr; 2],
    servers: Option<[Server; 2]>,
    _dir: TempDir,
}

/// Changes the states of the paths of a pair.
pub(crate) struct Switches {
    nqn: Nqn,
    orders: [TargetHandle; 2],
}

impl Pair {
    pub(crate) fn start() -> Result<Pair> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let nqn = Nqn::new(&format!("nqn.2026-11.test:pair-{number}"))?;
        let dir = TempDir::new().context("make a directory for the disk image")?;
        let image = dir.path().join("namespace");
        File::create(&image)
            .and_then(|file| file.set_len(SIZE))
            .with_context(|| format!("create {}", image.display()))?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut pair = Pair { nqn, image, addresses: [any; 2], servers: None, _dir: dir };
        pair.serve()?;
        Ok(pair)
    }

    pub(crate) fn switches(&self) -> Result<Switches> {
        let servers = self.servers.as_ref().context("the targets do not run")?;
        Ok(Switches { nqn: self.nqn.clone(), orders: servers.each_ref().map(Server::orders) })
    }

    /// Starts both, where they were before.
    fn serve(&mut self) -> Result<()> {
        let [first, second] = self.addresses;
        // Hosts tell paths apart by the controllers' numbers.
        let servers = [self.one(first, (1, 1000))?, self.one(second, (1001, 2000))?];
        for (address, server) in self.addresses.iter_mut().zip(&servers) {
            *address = *server.addresses().first().context("a target listens nowhere")?;
        }
        self.servers = Some(servers);
        Ok(())
    }

    fn one(&self, listen: SocketAddr, cntlids: (u16, u16)) -> Result<Server> {
        let backing = Backing::File { path: self.image.clone(), block_size: BlockSize::B4096 };
        let ids = identity_of(&self.nqn, 1);
        let namespace = Namespace { backing, ids, ana: AnaState::Optimized };
        let subsystem = Subsystem {
            namespaces: [(1, namespace)].into(),
            cntlids: Some(cntlids),
            ..Subsystem::default()
        };
        let config = Config {
            listen: vec![listen],
            cores: vec![0],
            pools: Vec::new(),
            subsystems: [(self.nqn.clone(), subsystem)].into(),
            digests: Digests { header: true, data: true },
            limits: EngineLimits::default(),
            replication: Replication::default(),
        };
        Server::start(config).context("cannot start a target")
    }
}

impl Switches {
    /// Takes the names that Linux has for the states.
    pub(crate) fn set_ana(&self, way: Way, state: &str) -> Result<()> {
        let [first, second] = &self.orders;
        let orders = if way == Way::First { first } else { second };
        let state = match state {
            "optimized" => AnaState::Optimized,
            "non-optimized" => AnaState::NonOptimized,
            "inaccessible" => AnaState::Inaccessible,
            other => bail!("{other:?} is no state of a path"),
        };
        orders.set_ana(self.nqn.clone(), 1, state).wait().context("cannot set a state")?;
        Ok(())
    }
}

impl Target for Pair {
    fn nqn(&self) -> &str {
        self.nqn.as_str()
    }

    fn portal(&self, way: Way) -> Portal {
        let [first, second] = self.addresses;
        match way {
            Way::First => Portal { address: HOST, port: first.port() },
            Way::Second => Portal { address: SECOND_HOST, port: second.port() },
        }
    }

    fn set_second_way(&mut self, vm: &Vm, open: bool) -> Result<()> {
        vm.set_link(Link::Second, open)
    }

    fn kill(&mut self, _: &Vm) -> Result<()> {
        for server in self.servers.take().into_iter().flatten() {
            server.stop().context("cannot stop a target")?;
        }
        Ok(())
    }

    fn revive(&mut self, _: &Vm) -> Result<()> {
        self.serve()
    }

    fn said(&self) -> String {
        "the targets are in the process of the test".to_owned()
    }

    fn remove(mut self: Box<Self>, vm: &Vm) -> Result<()> {
        self.kill(vm)
    }
}
