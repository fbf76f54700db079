//! The kernel lane.

use e2e::vm::Vm;
use std::{
    path::Path,
    time::{Duration, Instant},
};

#[test]
fn boots() {
    let start = Instant::now();
    let vm = Vm::builder("boot", Path::new(env!("CARGO_BIN_EXE_guest-agent"))).boot().unwrap();
    println!("booted in {:?}", start.elapsed());
    for s in std::fs::read_to_string("/tmp/vmx/scripts").unwrap().split("\n\n") {
        let t = Instant::now();
        let o = vm.run(s, Duration::from_secs(60)).unwrap();
        println!("== {s} {} {:?}\n{}\n{}", o.status, t.elapsed(), o.stdout, o.stderr);
    }
    println!("CONSOLE {}", vm.console());
}
