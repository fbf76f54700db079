//! What a mirror costs: it takes turns with what it is made of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use engine::client::Session;
use engine::client::perf::{self, Load, Pattern};

use super::{Bench, Layout, Seen, Shape, THREE, fill, held_replica, print, seen, volume};
use crate::bench::median;
use crate::figure::Target;
use crate::fleet::Fleet;

const ONE_REMOTE: Layout = Layout { name: "one remote copy", copies: &[1] };
const TWO_REMOTE: Layout = Layout { name: "two remote copies", copies: &[1, 2] };
const LOCAL: Layout = Layout { name: "one local copy", copies: &[0] };

/// A client on a thread of its own, which has written everything once: its reactor stays there.
pub(super) struct Client {
    loads: SyncSender<Load>,
    seen: Receiver<Result<Seen>>,
}

impl Client {
    pub(super) fn start(connect: impl FnOnce() -> Result<Session> + Send + 'static) -> Client {
        let (loads, next) = sync_channel::<Load>(1);
        let (tell, seen_here) = sync_channel(1);
        std::thread::spawn(move || {
            let session = connect().and_then(|mut session| {
                perf::run(&mut session, fill(1))?;
                Ok(session)
            });
            let mut session = match session {
                Ok(session) => session,
                Err(error) => {
                    // Whoever asked is gone if it is not sent.
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            while let Ok(load) = next.recv() {
                let run = perf::run(&mut session, load);
                if tell.send(run.map(|run| seen(&run)).map_err(Into::into)).is_err() {
                    return;
                }
            }
        });
        Client { loads, seen: seen_here }
    }

    fn begin(&self, load: Load) -> Result<()> {
        // One that is gone has said why.
        self.loads.send(load).or_else(|_| self.end().map(|_| ()))
    }

    fn end(&self) -> Result<Seen> {
        self.seen.recv().map_err(|_| anyhow!("a client ended"))?
    }

    /// Runs a load to its end.
    pub(super) fn run(&self, load: Load) -> Result<Seen> {
        self.begin(load)?;
        self.end()
    }
}

/// Something that takes turns: a volume and its host, or bare copies with a client each.
struct Contender {
    name: &'static str,
    clients: Vec<Client>,
    /// What each turn saw of its slowest client.
    turns: Vec<Seen>,
    /// Ends with the last that uses it.
    _fleet: Arc<Fleet>,
}

impl Contender {
    fn new(name: &'static str, fleet: impl Into<Arc<Fleet>>, clients: Vec<Client>) -> Contender {
        Contender { name, clients, turns: Vec::new(), _fleet: fleet.into() }
    }

    fn turn(&mut self, load: Load) -> Result<()> {
        for client in &self.clients {
            client.begin(load)?;
        }
        let all = self.clients.iter().map(Client::end).collect::<Result<Vec<Seen>>>()?;
        let slowest = all.into_iter().min_by(|one, other| one.iops.total_cmp(&other.iops));
        self.turns.push(slowest.context("nobody took a turn")?);
        Ok(())
    }

    /// By another, turn by turn; the median of that.
    fn ratio(&self, other: &Contender, of: fn(&Seen) -> f64) -> f64 {
        median(self.turns.iter().zip(&other.turns).map(|(one, other)| of(one) / of(other)))
    }
}

impl Bench {
    fn take_turns(&self, all: &mut [Contender], what: Shape) -> Result<()> {
        let (turns, time) = if self.quick { (9, 120) } else { (50, 200) };
        for seed in 1..=turns {
            for one in all.iter_mut() {
                one.turn(what.load(Duration::from_millis(time), seed))?;
            }
        }
        for one in all {
            print_median(one.name, what, &one.turns);
        }
        Ok(())
    }

    /// The copies of a volume that has no target.
    fn copies(&self, name: &'static str, layout: Layout) -> Result<Contender> {
        let fleet = self.fleet(layout)?;
        let mut clients = Vec::new();
        for nth in layout.copies {
            let machine = fleet.machine(*nth)?;
            let (address, replica) = (machine.listen(), machine.replica);
            clients.push(Client::start(move || held_replica(address, replica)));
        }
        Ok(Contender::new(name, fleet, clients))
    }

    /// A volume, by its target.
    fn mirrored(&self, layout: Layout) -> Result<Contender> {
        let mut fleet = self.fleet(layout)?;
        let address: SocketAddr = self.open(&mut fleet)?;
        let id = fleet.volume;
        let host = Client::start(move || volume(address, id));
        Ok(Contender::new(layout.name, fleet, vec![host]))
    }

    pub(super) fn one_write(&mut self) -> Result<()> {
        let mut all = [
            self.copies("a copy by itself", ONE_REMOTE)?,
            self.mirrored(ONE_REMOTE)?,
            self.mirrored(TWO_REMOTE)?,
            self.mirrored(THREE)?,
        ];
        self.take_turns(&mut all, Shape::new(Pattern::RandomWrite, 1))?;
        let [bare, one, two, three] = &all;
        let names2 = ["mirror-2way-write-qd1-of-one-copy", "mirror-2way-write-qd1-of-bare-copy"];
        let names3 = ["mirror-3way-write-qd1-of-one-copy", "mirror-3way-write-qd1-of-bare-copy"];
        for ([by_one, by_bare], mirror) in [(names2, two), (names3, three)] {
            let by = |other| mirror.ratio(other, |seen| seen.p50);
            let (of_one, of_bare) = (by(one), by(bare));
            self.add(by_one, of_one, "x", Target::AtMost(1.6));
            self.add(by_bare, of_bare, "x", Target::Watched);
        }
        Ok(())
    }

    pub(super) fn many_writes(&mut self) -> Result<()> {
        self.many_writes_to(
            TWO_REMOTE,
            ["mirror-2way-write-qd32-of-slowest-leg", "mirror-2way-write-qd32-of-bare-copy"],
        )?;
        self.many_writes_to(
            THREE,
            ["mirror-3way-write-qd32-of-slowest-leg", "mirror-3way-write-qd32-of-bare-copy"],
        )
    }

    fn many_writes_to(&mut self, layout: Layout, names: [&str; 2]) -> Result<()> {
        let mut all = [
            self.copies("a copy by itself", ONE_REMOTE)?,
            self.copies("the slowest of its copies", layout)?,
            self.mirrored(layout)?,
        ];
        self.take_turns(&mut all, Shape::new(Pattern::RandomWrite, 32))?;
        let [bare, slowest, mirror] = &all;
        let by = |other| 100.0 * mirror.ratio(other, |seen| seen.iops);
        let ([by_leg, by_bare], of_leg, of_bare) = (names, by(slowest), by(bare));
        self.add(by_leg, of_leg, "%", Target::AtLeast(70.0));
        self.add(by_bare, of_bare, "%", Target::Watched);
        Ok(())
    }

    /// Reads of a local copy: by itself, and through a target. Both are served by one process:
    /// two of them differ by a few hundredths, however alike they are.
    pub(super) fn local_reads(&mut self) -> Result<()> {
        let fleet = Arc::new(self.fleet(LOCAL)?);
        let machine = fleet.machine(0)?;
        let (address, replica) = (machine.listen(), machine.replica);
        let beside = self.runtime.block_on(fleet.neighbour(0))?.volume;
        let alone = Client::start(move || held_replica(address, replica));
        let through = Client::start(move || volume(address, beside));
        let mut all = [
            Contender::new("a local copy by itself", Arc::clone(&fleet), vec![alone]),
            Contender::new(LOCAL.name, Arc::clone(&fleet), vec![through]),
        ];
        self.take_turns(&mut all, Shape::new(Pattern::RandomRead, 32))?;
        let [alone, through] = &all;
        let share = 100.0 * through.ratio(alone, |seen| seen.iops);
        self.add("mirror-local-read-qd32-of-copy", share, "%", Target::AtLeast(95.0));
        Ok(())
    }
}

pub(super) fn print_median(name: &str, what: Shape, turns: &[Seen]) {
    let of = |value: fn(&Seen) -> f64| median(turns.iter().map(value));
    let (iops, p50) = (of(|seen| seen.iops), of(|seen| seen.p50));
    let (p99, most) = (of(|seen| seen.p99), of(|seen| seen.most));
    print(name, what, Seen { iops, p50, p99, most });
}
