//! What requests may leave out, and what they may not put in.

use model::*;

use crate::sample::id;

fn volume(json: &str) -> Result<VolumeSpec, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

#[test]
fn a_small_request_gets_the_defaults() {
    let spec = volume(r#"{"size":1048576,"replicas":2}"#).unwrap();
    assert_eq!(spec, VolumeSpec::new(Size::mib(1), 2));
    assert!(spec.thin && spec.policy.self_heal && spec.topology.zones == Zones::Prefer);
    let policy = volume(r#"{"size":1048576,"replicas":2,"policy":{"replaceAfterSeconds":5}}"#);
    assert!(policy.unwrap().policy.self_heal);
}

#[test]
fn wrong_requests_are_refused_by_field() {
    for (json, word) in [
        ("", "EOF"),
        ("[]", "VolumeSpec"),
        (r#"{"replicas":2}"#, "size"),
        (r#"{"size":1048576}"#, "replicas"),
        (r#"{"size":"1MiB","replicas":2}"#, "1MiB"),
        (r#"{"size":-1,"replicas":2}"#, "-1"),
        (r#"{"size":1048576,"replicas":256}"#, "256"),
        (r#"{"size":1048576,"replicas":1,"replica":1}"#, "replica"),
        (r#"{"size":1048576,"replicas":1,"size":1}"#, "duplicate"),
        (r#"{"size":1048576,"replicas":1,"labels":{"a b":""}}"#, "label key"),
        (r#"{"size":1048576,"replicas":1,"limits":{"iopz":1}}"#, "iopz"),
        (r#"{"size":1048576,"replicas":1,"affinityGroup":"A"}"#, "affinity group"),
        (r#"{"size":1048576,"replicas":1,"source":{"kind":"moon"}}"#, "moon"),
        (r#"{"size":1048576,"replicas":1,"topology":{"zones":"all"}}"#, "all"),
        (r#"{"size":1048576,"replicas":1,"topology":{"allowedNodes":["A"]}}"#, "node name"),
    ] {
        let refused = volume(json).expect_err(json);
        assert!(refused.contains(word), "{json}: {refused}");
    }
}

#[test]
fn variants_without_data_are_strict_too() {
    assert!(serde_json::from_str::<TargetChange>(r#"{"kind":"shutdown"}"#).is_ok());
    assert!(serde_json::from_str::<TargetChange>(r#"{"kind":"shutdown","force":true}"#).is_err());
    assert!(serde_json::from_str::<PoolChange>(r#"{"kind":"grow","to":1}"#).is_err());
    assert!(serde_json::from_str::<ChildPath>(r#"{"kind":"local","addresses":[]}"#).is_err());
}

#[test]
fn statuses_of_a_newer_server_are_read() {
    let mut json = serde_json::to_value(crate::sample::target().status).unwrap();
    json["later"] = 1.into();
    json["state"]["later"] = 1.into();
    json["children"][0]["later"] = 1.into();
    assert!(serde_json::from_value::<TargetStatus>(json).is_ok());
}

#[test]
fn orders_carry_their_generation() {
    let json = r#"{"spec":{"volume":"00000000-0000-4000-8000-000000000001","pool":"p",
        "size":1048576,"thin":true}}"#;
    let refused = serde_json::from_str::<VersionedSpec<ReplicaSpec>>(json).unwrap_err().to_string();
    assert!(refused.contains("generation"), "{refused}");
    let json = json.replacen('{', r#"{"generation":7,"#, 1);
    let order: VersionedSpec<ReplicaSpec> = serde_json::from_str(&json).unwrap();
    assert_eq!((order.generation.number(), order.spec.volume), (7, id(1)));
}
