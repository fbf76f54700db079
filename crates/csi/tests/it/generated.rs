//! The committed stubs are what the proto files say.

use std::{env, fs, path::PathBuf};

#[test]
fn generated_code_is_current() {
    // Asked for when it runs: a build that is used again may have been made elsewhere.
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let committed = root.join("src/proto");
    let fresh = tempfile::tempdir().unwrap();
    let protos = root.join("proto");
    let files = [protos.join("csi.proto"), protos.join("registration.proto")];
    let descriptors = protox::compile(files, [protos]).unwrap();
    tonic_prost_build::configure()
        .btree_map(".")
        .out_dir(fresh.path())
        .compile_fds(descriptors)
        .unwrap();
    let mut names: Vec<_> =
        fs::read_dir(fresh.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["csi.v1.rs", "pluginregistration.rs"]);
    for name in names {
        let want = fs::read_to_string(fresh.path().join(&name)).unwrap();
        if env::var_os("HOLDFAST_BLESS").is_some() {
            fs::write(committed.join(&name), &want).unwrap();
        }
        let have = fs::read_to_string(committed.join(&name)).unwrap();
        assert!(have == want, "{} is stale: run this test with HOLDFAST_BLESS=1", name.display());
    }
}
