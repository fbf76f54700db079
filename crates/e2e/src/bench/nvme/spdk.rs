//! SPDK's `spdk_nvme_perf` as a client, for those who have it: what it is told, what it says.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::servers::CLIENT_CORE;
use super::{Seen, Shape};

/// Keeps the shape's load on a target for some time.
pub(super) fn measure(
    client: &Path,
    address: &str,
    nqn: &str,
    (shape, time): (Shape, Duration),
) -> Result<Seen> {
    let address: SocketAddr =
        address.parse().with_context(|| format!("{address:?} is no address"))?;
    let shown = client.display();
    let mut command = Command::new(client);
    command.args(arguments(address, nqn, shape, time));
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} failed: {errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    understand(&said).with_context(|| format!("cannot read what {shown} said:\n{said}"))
}

/// It counts time in whole seconds, at least one, and names cores by a mask.
fn arguments(address: SocketAddr, nqn: &str, shape: Shape, time: Duration) -> Vec<String> {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let (host, port) = (address.ip(), address.port());
    let transport = format!("trtype:TCP adrfam:{family} traddr:{host} trsvcid:{port} subnqn:{nqn}");
    let pairs = [
        ("-q", shape.depth.to_string()),
        ("-o", shape.bytes.to_string()),
        ("-w", shape.rw.flag().to_owned()),
        ("-t", time.as_secs().max(1).to_string()),
        ("-c", format!("{:#x}", 1_u64 << CLIENT_CORE)),
        ("-r", transport),
    ];
    let pairs = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    // A summary of latencies, too.
    pairs.chain(["-L".to_owned()]).collect()
}

/// Finds the totals, `Total : IOPS MiB/s average min max`, and the percentiles after them, lines
/// like `50.00000% : 12.345us`.
fn understand(said: &str) -> Result<Seen> {
    let mut iops = None;
    let (mut p50, mut p99) = (None, None);
    for line in said.lines() {
        let Some((name, value)) = line.rsplit_once(':') else { continue };
        let number = |text: &str| text.trim().trim_end_matches("us").parse::<f64>().ok();
        match name.trim() {
            "Total" => iops = value.split_whitespace().next().and_then(number),
            "50.00000%" => p50 = p50.or(number(value)),
            "99.00000%" => p99 = p99.or(number(value)),
            _ => {}
        }
    }
    let iops = iops.context("there is no total")?;
    Ok(Seen { iops, p50: p50.unwrap_or(f64::NAN), p99, cores: None })
}

#[cfg(test)]
mod tests {
    use super::super::Rw;
    use super::*;

    const SHAPE: Shape = Shape { rw: Rw::RandomRead, bytes: 4096, depth: 32 };

    fn told(address: &str, time: Duration) -> String {
        arguments(address.parse().unwrap(), "nqn.2026-11.io.example:a", SHAPE, time).join(" ")
    }

    #[test]
    fn it_is_told_where_how_and_how_long() {
        assert_eq!(
            told("127.0.0.1:4420", Duration::from_millis(300)),
            "-q 32 -o 4096 -w randread -t 1 -c 0x2 -r trtype:TCP adrfam:IPv4 traddr:127.0.0.1 \
             trsvcid:4420 subnqn:nqn.2026-11.io.example:a -L"
        );
        let told = told("[::1]:4421", Duration::from_millis(2900));
        assert!(told.contains("-t 2 "), "{told}");
        assert!(told.contains("adrfam:IPv6 traddr:::1 trsvcid:4421"), "{told}");
    }

    const SAID: &str = "\
Initializing
Associating TCP (addr:127.0.0.1 subnqn:nqn.2026-11.io.example:a) NSID 1 with lcore 1
======================
                                      Latency(us)
Device Information            :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1) NSID 1 from core  1:   1111.50       4.34      28.10      11.00     900.00
======================
Total                         :   2222.25       8.68      28.10      11.00     900.00

Summary latency data for TCP (addr:127.0.0.1) NSID 1 from core 1:
======================
  1.00000% :    12.001us
 50.00000% :    27.250us
 99.00000% :    80.500us
 99.99999% :   900.100us
";

    #[test]
    fn its_total_and_percentiles_are_found() {
        let seen = understand(SAID).unwrap();
        assert_eq!((seen.iops, seen.p50, seen.p99), (2222.25, 27.25, Some(80.5)));
    }

    #[test]
    fn percentiles_may_be_missing_but_not_the_total() {
        let (totals, _) = SAID.split_once("Summary").unwrap();
        let seen = understand(totals).unwrap();
        assert!(seen.iops > 2222.0 && seen.p50.is_nan() && seen.p99.is_none());
        let error = understand("Initializing\n").unwrap_err();
        assert_eq!(error.to_string(), "there is no total");
    }
}
