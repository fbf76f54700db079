//! The committed stubs are what the proto files say.

use std::{env, fs, path::PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

#[test]
fn generated_code_is_current() {
    // Asked for when it runs: a build that is used again may have been made elsewhere.
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let committed = root.join("src/proto");
    let fresh = tempfile::tempdir().unwrap();
    let protos = root.join("proto");
    let roots = ["auth.proto", "election.proto", "lock.proto", "rpc.proto"];
    let descriptors = protox::compile(roots.map(|name| protos.join(name)), [protos]).unwrap();
    fs::write(fresh.path().join("descriptors.bin"), bare(&descriptors).encode_to_vec()).unwrap();
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(fresh.path())
        .compile_fds(descriptors)
        .unwrap();
    let mut names: Vec<_> =
        fs::read_dir(fresh.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "authpb.rs",
            "descriptors.bin",
            "etcdserverpb.rs",
            "mvccpb.rs",
            "v3electionpb.rs",
            "v3lockpb.rs"
        ]
    );
    for name in names {
        let want = fs::read(fresh.path().join(&name)).unwrap();
        if env::var_os("HOLDFAST_BLESS").is_some() {
            fs::write(committed.join(&name), &want).unwrap();
        }
        let have = fs::read(committed.join(&name)).unwrap_or_default();
        assert!(have == want, "{} is stale: run this test with HOLDFAST_BLESS=1", name.display());
    }
}

/// What the gateway reads: the messages and services, without comments.
fn bare(descriptors: &FileDescriptorSet) -> FileDescriptorSet {
    let mut bare = descriptors.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    bare
}
