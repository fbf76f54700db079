//! The machines themselves: what the checks rely on.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};
use e2e::vm::{Disk, HOST, Kernel, Link, Loss, SECOND_HOST};

use crate::lab::{PATIENCE, expect_eq};
use crate::shared::{machine, with_vm};

#[test]
fn commands_run_side_by_side_with_status_input_and_deadline() -> Result<()> {
    with_vm(|vm| {
        let mut waits =
            vm.spawn("echo waiting; until [ -e /tmp/go ]; do sleep 0.1; done; exit 3")?;
        waits.wait_for("waiting", PATIENCE)?;
        let echo = vm.run_with_input("cat; echo problem >&2; touch /tmp/go", b"input", PATIENCE)?;
        expect_eq("output", (echo.stdout.as_str(), echo.stderr.as_str()), ("input", "problem\n"))?;
        expect_eq("status", waits.wait(PATIENCE)?.status, 3)?;

        let big = vec![b'x'; 300_000];
        let output = vm.run_with_input("wc -c; rm /tmp/go", &big, PATIENCE)?.ok()?;
        expect_eq("bytes received", output.trim(), "300000")?;

        let late = vm.run("echo $$ > /tmp/late; sleep 1000", Duration::from_secs(1));
        let Err(error) = late else { bail!("a deadline passed unnoticed") };
        expect_eq("says why", format!("{error:#}").contains("out of time"), true)?;
        vm.run("while kill -0 -$(cat /tmp/late) 2>/dev/null; do sleep 0.1; done", PATIENCE)?
            .ok()?;
        Ok(())
    })
}

#[test]
fn the_guest_reaches_the_host_until_the_cable_is_pulled() -> Result<()> {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    with_vm(|vm| {
        let service = TcpListener::bind("127.0.0.1:0")?;
        let port = service.local_addr()?.port();
        let dial = |host: &str| vm.run(&format!("nc -w 2 {host} {port} < /dev/null"), PATIENCE);
        let serve = |text: &str| -> Result<()> {
            service.accept()?.0.write_all(text.as_bytes())?;
            Ok(())
        };
        for host in [HOST, SECOND_HOST] {
            let answer = std::thread::scope(|scope| {
                let server = scope.spawn(|| serve("hello"));
                let answer = dial(host)?.ok();
                match server.join() {
                    Ok(served) => served.and(answer),
                    Err(_) => bail!("the server failed"),
                }
            })?;
            expect_eq(host, answer.as_str(), "hello")?;
        }
        vm.set_link(Link::Second, false)?;
        expect_eq("dialling over a pulled cable works", dial(SECOND_HOST)?.status == 0, false)?;
        vm.set_link(Link::Second, true)?;

        let listens = vm.spawn("echo from the guest | nc -l -p 7000")?;
        let forwarded = vm.forward(7000)?;
        vm.run("until grep -q :1B58 /proc/net/tcp*; do sleep 0.1; done", PATIENCE)?.ok()?;
        let mut text = String::new();
        TcpStream::connect(forwarded)?.read_to_string(&mut text)?;
        expect_eq("through the forwarded port", text.as_str(), "from the guest\n")?;
        listens.wait(PATIENCE)?.ok().map(drop)
    })
}

/// The oldest kernel, a disk with and one without a write cache, and a second machine.
#[test]
fn a_power_cut_keeps_what_was_flushed_and_may_lose_the_rest() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let cached = Disk::create(&dir.path().join("cached"), 16 << 20)?.with_write_cache();
    let durable = Disk::create(&dir.path().join("durable"), 16 << 20)?;
    let vm = machine("power-cut").kernel(Kernel::V6_1).disk(&cached).disk(&durable).boot()?;
    let fill = |letter: char, block: u32, options: &str| {
        format!("head -c 4096 /dev/zero | tr '\\0' {letter} | dd bs=4096 {options} seek={block};")
    };
    let flushed = fill('a', 0, "of=/dev/vda conv=fsync");
    // The device's own cache takes these; nobody asks it to write them down.
    let lost: String = (1..40).map(|block| fill('b', block, "of=/dev/vda oflag=direct")).collect();
    let kept = fill('c', 0, "of=/dev/vdb oflag=direct");
    vm.run(&format!("set -e; {flushed} {lost} {kept}"), PATIENCE)?.ok()?;
    let release = vm.run("uname -r", PATIENCE)?.ok()?;
    expect_eq("series", release.starts_with("6.1."), true)?;
    vm.power_cut(Loss::Some { seed: 1 })?;

    let image = fs::read(cached.image())?;
    let letters: Vec<char> = image.iter().step_by(4096).take(40).copied().map(char::from).collect();
    expect_eq("flushed block", letters.first(), Some(&'a'))?;
    let survivors = letters.iter().filter(|letter| **letter == 'b').count();
    expect_eq("some of 39 unflushed blocks survive", (5..35).contains(&survivors), true)?;
    expect_eq("block without cache", fs::read(durable.image())?.first(), Some(&b'c'))
}
