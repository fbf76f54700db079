//! A network of its own for a program, with a cable that can be pulled.
//!
//! Needs root: it makes a network namespace and a pair of virtual cards with `ip`.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, ensure};

/// A network namespace. Dropping it removes it.
pub struct Netns {
    name: String,
    cards: (String, String),
    outside: Ipv4Addr,
    address: Ipv4Addr,
}

/// Namespaces of this process so far.
static COUNT: AtomicU8 = AtomicU8::new(0);

impl Netns {
    /// A namespace that this machine reaches by one cable.
    pub fn new() -> Result<Netns> {
        let (process, nth) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("holdfast-{process}-{nth}");
        let cards = (format!("hf{process}o{nth}"), format!("hf{process}i{nth}"));
        let [_, _, high, low] = process.to_be_bytes();
        // Four addresses for each: two processes at once differ in the middle.
        let base = u32::from(Ipv4Addr::new(10, high, low, 0)) + u32::from(nth % 64) * 4;
        let (outside, address) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let made = Netns { name, cards, outside, address };
        let (name, (out, inside)) = (&made.name, &made.cards);
        ip(&["netns", "add", name])?;
        ip(&["link", "add", out, "type", "veth", "peer", "name", inside, "netns", name])?;
        ip(&["addr", "add", &format!("{outside}/30"), "dev", out])?;
        ip(&["link", "set", out, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", inside])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        made.mend()?;
        Ok(made)
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of this machine at the other end of the cable.
    pub fn outside(&self) -> Ipv4Addr {
        self.outside
    }

    /// The same command, inside.
    pub fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("ip");
        wrapped.args(["netns", "exec", &self.name]);
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped
    }

    /// Pulls the cable: packets are lost, and nobody is told.
    pub fn cut(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", &self.cards.1, "down"])
    }

    /// Puts it back.
    pub fn mend(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", &self.cards.1, "up"])
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The cards go with it. If it cannot be removed it is left behind, and harms nobody.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("cannot run ip (iproute2)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}; run it as root", words.join(" "), said.trim());
    Ok(())
}
