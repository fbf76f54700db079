//! Subsystems of made-up machines.

use super::*;
use crate::Kernel;
use crate::testing::FakeKernel;

const NQN: &str = "nqn.2026-11.io.holdfast:volume:00000000-0000-4000-8000-000000000001";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000a";

/// Two paths, one of them lost, to one namespace.
fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    let folder = "sys/class/nvme-subsystem/nvme-subsys0";
    for (file, text) in [
        ("subsysnqn", NQN),
        ("iopolicy", "numa\n"),
        ("nvme0/state", "live\n"),
        ("nvme0/transport", "tcp\n"),
        ("nvme0/address", "traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.9\n"),
        ("nvme0/hostnqn", HOST),
        ("nvme0/nvme0c0n1/ana_state", "optimized\n"),
        ("nvme1/state", "connecting\n"),
        ("nvme1/transport", "tcp\n"),
        ("nvme1/address", "traddr=fe80::1%eth0,trsvcid=4421\n"),
        ("nvme1/nvme0c1n1/ana_state", "inaccessible\n"),
        ("nvme0n1/nsid", "1\n"),
        ("nvme0n1/size", "2097152\n"),
        ("nvme0n1/uuid", "00000000-0000-4000-8000-000000000001\n"),
        ("nvme0n1/nvme0n1p1/partition", "1\n"),
    ] {
        kernel.write(&format!("{folder}/{file}"), text);
    }
    // One that goes while it is read has no name any more.
    kernel.write("sys/class/nvme-subsystem/nvme-subsys1/iopolicy", "numa");
    kernel
}

#[test]
fn paths_and_their_states_are_read() {
    let kernel = machine();
    let found = subsystems(kernel.tree());
    assert_eq!(found.len(), 1, "{found:?}");
    let subsystem = subsystem(kernel.tree(), &NQN.parse().unwrap()).unwrap();
    assert_eq!(subsystem.io_policy.as_deref(), Some("numa"));
    let [live, lost] = &subsystem.controllers[..] else { panic!("{subsystem:?}") };
    assert_eq!((&live.state, &lost.state), (&ControllerState::Live, &ControllerState::Connecting));
    let address = PathAddress { address: "10.0.0.1".parse().unwrap(), port: 4420 };
    assert_eq!(live.address, Some(address));
    assert_eq!(lost.address.unwrap().address, "fe80::1".parse::<IpAddr>().unwrap());
    assert_eq!(live.host_nqn, Some(HOST.parse().unwrap()));
    assert_eq!(live.paths[0].ana, Some(AnaState::Optimized));
    assert!(live.serves(&live.paths[0]));
    assert!(!lost.serves(&lost.paths[0]));
    let [namespace] = &subsystem.namespaces[..] else { panic!("{subsystem:?}") };
    assert_eq!((namespace.nsid, namespace.bytes), (Some(1), 1 << 30));
    assert_eq!(namespace.device(), Path::new("/dev/nvme0n1"));
}

#[test]
fn a_path_of_an_unknown_state_is_not_used_and_one_without_states_is() {
    let kernel = machine();
    let nqn = subsystems(kernel.tree())[0].nqn.clone();
    let file = "sys/class/nvme-subsystem/nvme-subsys0/nvme0/nvme0c0n1/ana_state";
    let live = || subsystem(kernel.tree(), &nqn).unwrap().controllers[0].clone();
    kernel.write(file, "invalid state");
    assert_eq!(live().paths[0].ana, Some(AnaState::Inaccessible));
    assert!(!live().serves(&live().paths[0]));
    kernel.remove(file);
    assert_eq!(live().paths[0].ana, None);
    assert!(live().serves(&live().paths[0]));
}

#[test]
fn without_multipath_the_namespace_is_its_controllers() {
    let kernel = FakeKernel::new();
    let folder = "sys/class/nvme-subsystem/nvme-subsys0";
    kernel.write(&format!("{folder}/subsysnqn"), NQN);
    kernel.write(&format!("{folder}/nvme0/state"), "live");
    kernel.write(&format!("{folder}/nvme0/nvme0n1/size"), "16");
    let subsystem = subsystem(kernel.tree(), &NQN.parse().unwrap()).unwrap();
    assert_eq!(subsystem.namespaces.len(), 1, "{subsystem:?}");
    assert_eq!(subsystem.namespaces[0].bytes, 8192);
    assert!(subsystem.controllers[0].serves(&subsystem.controllers[0].paths[0]));
}

#[test]
fn names_are_told_apart() {
    for name in ["nvme0n1", "nvme10n2", "nvme0c3n1"] {
        assert!(is_namespace(name) && !is_controller(name), "{name}");
    }
    for name in ["nvme0", "nvme0n1p1", "nvme-subsys0", "nvme0nx", "power", "nvmen1", "nvme0cn1"] {
        assert!(!is_namespace(name), "{name}");
    }
    assert!(is_controller("nvme12") && !is_controller("nvme"));
}

fn to_connect() -> Connect {
    let address = PathAddress { address: "127.0.0.1".parse().unwrap(), port: 4420 };
    Connect {
        controller_loss: Some(std::time::Duration::MAX),
        reconnect_delay: Some(std::time::Duration::from_secs(1)),
        data_digest: true,
        host_secret: Some("DHHC-1:00:c2VjcmV0:".into()),
        ..Connect::tcp(address, NQN.parse().unwrap(), HOST.parse().unwrap(), "host-id".into())
    }
}

#[test]
fn a_connection_is_one_line() {
    let kernel = FakeKernel::new();
    kernel.reply("/dev/nvme-fabrics", "instance=3,cntlid=7\n");
    let connected = connect(&kernel, &to_connect()).unwrap();
    assert_eq!(connected, Connected { controller: "nvme3".into(), controller_id: 7 });
    let expected = format!(
        "exchange /dev/nvme-fabrics nqn={NQN},transport=tcp,traddr=127.0.0.1,trsvcid=4420,\
         hostnqn={HOST},hostid=host-id,reconnect_delay=1,ctrl_loss_tmo=-1,\
         dhchap_secret=DHHC-1:00:c2VjcmV0:,data_digest"
    );
    assert_eq!(kernel.calls(), [expected]);
}

#[test]
fn refusals_have_a_meaning_and_hold_no_secret() {
    let kernel = FakeKernel::new();
    for (errno, said) in [
        (libc::EALREADY, "is connected at this address already"),
        (libc::ENOENT, "modprobe nvme-tcp"),
        (libc::ECONNREFUSED, "nothing answers at 127.0.0.1:4420"),
        (libc::EKEYREJECTED, "refuses this host"),
        (libc::EINVAL, "refuses the options"),
        (libc::EIO, "cannot be connected"),
    ] {
        kernel.fail_next("exchange", errno);
        let refused = connect(&kernel, &to_connect()).unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
        assert!(!format!("{refused:?} {refused}").contains("c2VjcmV0"));
    }
    assert!(!format!("{:?}", to_connect()).contains("c2VjcmV0"));
    kernel.reply("/dev/nvme-fabrics", "what?");
    assert!(matches!(connect(&kernel, &to_connect()), Err(ConnectError::Answer(_))));
}

#[test]
fn an_option_that_would_be_two_is_not_sent() {
    let kernel = FakeKernel::new();
    for bad in ["a,hostnqn=b", "a b", "", "a\n"] {
        let connection = Connect { host_secret: Some(bad.into()), ..to_connect() };
        assert!(matches!(connect(&kernel, &connection), Err(ConnectError::BadOption)), "{bad:?}");
        let connection = Connect { host_id: bad.into(), ..to_connect() };
        assert!(matches!(connect(&kernel, &connection), Err(ConnectError::BadOption)), "{bad:?}");
    }
    assert!(kernel.calls().is_empty());
}

#[test]
fn a_controller_that_is_gone_is_disconnected() {
    let kernel = machine();
    disconnect(&kernel, "nvme9").unwrap();
    kernel.write("sys/class/nvme/nvme0/delete_controller", "");
    disconnect(&kernel, "nvme0").unwrap();
    assert_eq!(kernel.tree().text("/sys/class/nvme/nvme0/delete_controller"), "1");
    kernel.fail_next("set_attribute", libc::EACCES);
    let refused = disconnect(&kernel, "nvme0").unwrap_err().to_string();
    assert!(refused.starts_with("cannot disconnect nvme0: it is not permitted"), "{refused}");
}
