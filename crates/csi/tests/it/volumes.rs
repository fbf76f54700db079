//! Volumes: requests that are repeated, contradict what is there, or make no sense.

use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_content_source::{Type, VolumeSource};
use csi::proto::{
    ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, GetCapacityRequest, GetPluginInfoRequest, ListVolumesRequest,
    ProbeRequest, Topology, ValidateVolumeCapabilitiesRequest, Volume, VolumeContentSource,
};
use tonic::Code;

use crate::driver::{Driver, GIB, capability, code, create, mounted, range};

const UUID: &str = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";

#[tokio::test]
async fn a_volume_is_made_once_whatever_is_repeated() {
    let driver = Driver::start().await;
    let name = format!("pvc-{UUID}");
    let first = driver.volume(&name).await;
    assert_eq!((first.volume_id.as_str(), first.capacity_bytes), (UUID, GIB));
    assert_eq!(driver.volume(&name).await, first);
    let mut other = create(&name);
    other.capacity_range = Some(range(2 * GIB, 0));
    assert_eq!(code(driver.controller().create_volume(other).await), Code::AlreadyExists);
    let mut smaller = create(&name);
    smaller.capacity_range = Some(range(1, GIB));
    assert!(driver.controller().create_volume(smaller).await.is_ok(), "its size is in the range");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let driver = Driver::start().await;
    let with = |change: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut request = create("refused");
        change(&mut request);
        request
    };
    let parameter = |name: &'static str, text: &'static str| {
        move |request: &mut CreateVolumeRequest| {
            request.parameters.insert(name.to_owned(), text.to_owned());
        }
    };
    let cases: Vec<(CreateVolumeRequest, Code)> = vec![
        (with(&|it| it.name.clear()), Code::InvalidArgument),
        (with(&|it| it.volume_capabilities.clear()), Code::InvalidArgument),
        (with(&|it| it.capacity_range = Some(range(-1, 0))), Code::OutOfRange),
        (with(&|it| it.capacity_range = Some(range(2 * GIB, GIB))), Code::OutOfRange),
        (with(&|it| it.capacity_range = Some(range(1 << 62, 0))), Code::OutOfRange),
        (with(&parameter("repl", "0")), Code::InvalidArgument),
        (with(&parameter("repl", "4")), Code::ResourceExhausted),
        (with(&parameter("colour", "blue")), Code::InvalidArgument),
        (
            with(&|it| {
                it.mutable_parameters.insert("XXX_FakeKey".to_owned(), "1".to_owned());
            }),
            Code::InvalidArgument,
        ),
        (
            with(&|it| {
                it.volume_capabilities = vec![capability(false, Mode::MultiNodeMultiWriter)];
            }),
            Code::InvalidArgument,
        ),
        (
            with(&|it| {
                let source = VolumeSource { volume_id: "fake-vol-id".to_owned() };
                let source = Some(Type::Volume(source));
                it.volume_content_source = Some(VolumeContentSource { r#type: source });
            }),
            Code::NotFound,
        ),
    ];
    for (request, wanted) in cases {
        let shown = format!("{request:?}");
        assert_eq!(code(driver.controller().create_volume(request).await), wanted, "{shown}");
    }
    let listed = driver.controller().list_volumes(ListVolumesRequest::default()).await.unwrap();
    assert!(listed.into_inner().entries.is_empty());
}

#[tokio::test]
async fn ids_of_others_are_unknown_and_deleting_them_is_done() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    for id in ["fake-vol-id", UUID] {
        let volume_id = id.to_owned();
        let gone = DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() };
        assert!(controller.delete_volume(gone).await.is_ok());
        let volume_id = id.to_owned();
        let get = ControllerGetVolumeRequest { volume_id };
        assert_eq!(code(controller.controller_get_volume(get).await), Code::NotFound);
        let validate = ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: vec![mounted()],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let answer = controller.validate_volume_capabilities(validate).await;
        assert_eq!(code(answer), Code::NotFound);
    }
    let nothing = DeleteVolumeRequest::default();
    assert_eq!(code(controller.delete_volume(nothing).await), Code::InvalidArgument);
}

fn publish(volume: &Volume, node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted()),
        ..ControllerPublishVolumeRequest::default()
    }
}

#[tokio::test]
async fn one_node_at_a_time_uses_a_volume() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    let volume = driver.volume("one").await;
    let context = controller.controller_publish_volume(publish(&volume, "n1")).await.unwrap();
    let context = context.into_inner().publish_context;
    assert!(context["nqn"].contains(&volume.volume_id), "{context:?}");
    assert!(controller.controller_publish_volume(publish(&volume, "n1")).await.is_ok());
    let elsewhere = controller.controller_publish_volume(publish(&volume, "n2")).await;
    assert_eq!(code(elsewhere), Code::FailedPrecondition);
    for unknown in ["n9", "Not A Node"] {
        let answer = controller.controller_publish_volume(publish(&volume, unknown)).await;
        assert_eq!(code(answer), Code::NotFound);
    }
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap();
    let entry = listed.into_inner().entries.remove(0);
    assert_eq!(entry.status.unwrap().published_node_ids, ["n1"]);
    let volume_id = volume.volume_id.clone();
    let in_use = DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() };
    assert_eq!(code(controller.delete_volume(in_use.clone()).await), Code::FailedPrecondition);
    let unpublish = ControllerUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: "n1".to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    };
    for _ in 0..2 {
        assert!(controller.controller_unpublish_volume(unpublish.clone()).await.is_ok());
    }
    for _ in 0..2 {
        assert!(controller.delete_volume(in_use.clone()).await.is_ok());
    }
}

#[tokio::test]
async fn lists_come_in_pages_and_foreign_tokens_are_refused() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    for nth in 0..5 {
        driver.volume(&format!("vol-{nth}")).await;
    }
    let all = controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!((all.entries.len(), all.next_token.as_str()), (5, ""));
    let two = ListVolumesRequest { max_entries: 2, starting_token: String::new() };
    let two = controller.list_volumes(two).await.unwrap().into_inner();
    assert_eq!(two.entries.len(), 2);
    let rest = ListVolumesRequest { max_entries: 0, starting_token: two.next_token };
    let rest = controller.list_volumes(rest).await.unwrap().into_inner();
    assert_eq!(rest.entries.len(), 3);
    let ids = two.entries.iter().chain(&rest.entries).map(|it| it.volume.clone().unwrap());
    let all = all.entries.iter().map(|it| it.volume.clone().unwrap());
    assert!(ids.eq(all));
    let foreign = ListVolumesRequest { max_entries: 0, starting_token: "token".to_owned() };
    assert_eq!(code(controller.list_volumes(foreign).await), Code::Aborted);
    let negative = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_eq!(code(controller.list_volumes(negative).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_volume_grows_and_never_shrinks() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    let volume = driver.volume("grows").await;
    let expand = |required, limit, block| ControllerExpandVolumeRequest {
        volume_id: volume.volume_id.clone(),
        capacity_range: Some(range(required, limit)),
        volume_capability: Some(capability(block, Mode::SingleNodeWriter)),
        ..ControllerExpandVolumeRequest::default()
    };
    for _ in 0..2 {
        let grown = controller.controller_expand_volume(expand(2 * GIB, 0, false)).await.unwrap();
        let grown = grown.into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * GIB, true));
    }
    let block = controller.controller_expand_volume(expand(GIB, 0, true)).await.unwrap();
    let block = block.into_inner();
    assert_eq!((block.capacity_bytes, block.node_expansion_required), (2 * GIB, false));
    let shrinks = controller.controller_expand_volume(expand(1, GIB, false)).await;
    assert_eq!(code(shrinks), Code::OutOfRange);
}

#[tokio::test]
async fn a_volume_in_use_is_modified_whole_or_not_at_all() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    let volume = driver.volume("modified").await;
    let modify = |pairs: &[(&str, &str)]| ControllerModifyVolumeRequest {
        volume_id: volume.volume_id.clone(),
        mutable_parameters: pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        ..ControllerModifyVolumeRequest::default()
    };
    for wrong in [&[("iops", "5"), ("XXX_FakeKey", "1")][..], &[("iops", "5"), ("repl", "99")], &[]]
    {
        let answer = controller.controller_modify_volume(modify(wrong)).await;
        assert_eq!(code(answer), Code::InvalidArgument);
    }
    let spec = || async {
        let id = volume.volume_id.parse().unwrap();
        api::rest::Control::volume(&*driver.fake, id).await.unwrap().spec().clone()
    };
    assert_eq!((spec().await.limits.iops, spec().await.replicas), (None, 1));
    let right = modify(&[("iops", "5"), ("repl", "2")]);
    assert!(controller.controller_modify_volume(right).await.is_ok());
    assert_eq!((spec().await.limits.iops, spec().await.replicas), (Some(5), 2));
}

#[tokio::test]
async fn capacity_is_what_a_volume_of_the_class_could_get() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    let asked = |copies: &str, node: Option<&str>| {
        let segments = node.map(|node| ("topology.holdfast.io/node".to_owned(), node.to_owned()));
        let topology = segments.map(|segment| Topology { segments: [segment].into() });
        let parameters = [("repl".to_owned(), copies.to_owned())].into();
        let request = GetCapacityRequest {
            parameters,
            accessible_topology: topology,
            ..GetCapacityRequest::default()
        };
        let mut controller = controller.clone();
        async move {
            let room = controller.get_capacity(request).await.unwrap().into_inner();
            (room.available_capacity / GIB, room.maximum_volume_size.unwrap() / GIB)
        }
    };
    assert_eq!(asked("1", None).await, (300, 100));
    assert_eq!(asked("2", None).await, (150, 100));
    assert_eq!(asked("3", Some("n1")).await, (100, 100));
    assert_eq!(asked("4", None).await, (0, 0));
    assert_eq!(asked("1", Some("n9")).await, (0, 0));
    let mut unknown = GetCapacityRequest::default();
    unknown.parameters.insert("colour".to_owned(), "blue".to_owned());
    assert_eq!(code(controller.get_capacity(unknown).await), Code::InvalidArgument);
}

#[tokio::test]
async fn the_driver_says_who_it_is_and_how_well_its_volumes_are() {
    let driver = Driver::start().await;
    let mut identity = driver.identity();
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, csi::DRIVER_NAME);
    let probe = identity.probe(ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let mut controller = driver.controller();
    let volume = driver.volume("well").await;
    let asked = ControllerGetVolumeHealthRequest {
        volume_id: volume.volume_id.clone(),
        ..ControllerGetVolumeHealthRequest::default()
    };
    let health = controller.controller_get_volume_health(asked).await.unwrap().into_inner();
    assert!(health.volume_health.unwrap().health_statuses.is_empty());
    let all = ControllerListVolumeHealthRequest::default();
    let unwell = controller.controller_list_volume_health(all).await.unwrap().into_inner();
    assert!(unwell.entries.is_empty());
}

#[tokio::test]
async fn while_a_volume_is_busy_calls_are_aborted() {
    let driver = Driver::start().await;
    let volume = driver.volume("busy").await;
    driver.fake.set_busy(volume.volume_id.parse().unwrap(), true);
    let answer = driver.controller().controller_publish_volume(publish(&volume, "n1")).await;
    assert_eq!(code(answer), Code::Aborted);
}

#[tokio::test]
async fn a_volume_is_published_to_hosts_alone_and_never_read_only() {
    let driver = Driver::start().await;
    let volume = driver.volume("hosts").await;
    let mut controller = driver.controller();
    // A node with an engine, which no agent has registered as a host.
    crate::driver::add_node(&driver.fake, 9).await;
    let answer = controller.controller_publish_volume(publish(&volume, "n9")).await;
    assert_eq!(code(answer), Code::NotFound);
    let read_only = ControllerPublishVolumeRequest { readonly: true, ..publish(&volume, "n1") };
    let answer = controller.controller_publish_volume(read_only).await;
    assert_eq!(code(answer), Code::InvalidArgument);
    assert!(controller.controller_publish_volume(publish(&volume, "n1")).await.is_ok());
}

#[tokio::test]
async fn the_file_system_of_a_shared_volume_has_one_writer_and_nobody_beside_it() {
    let driver = Driver::start().await;
    let mut controller = driver.controller();
    let (reads, writes) = (Mode::MultiNodeReaderOnly, Mode::SingleNodeWriter);
    let mut request = create("shared");
    request.volume_capabilities = vec![capability(false, reads), capability(false, writes)];
    let volume = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap();
    let publish = |node: &str, mode| {
        let request = ControllerPublishVolumeRequest {
            volume_capability: Some(capability(false, mode)),
            ..publish(&volume, node)
        };
        let mut controller = controller.clone();
        async move { controller.controller_publish_volume(request).await }
    };
    let unpublish = |node: &str| {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let mut controller = controller.clone();
        async move { controller.controller_unpublish_volume(request).await.unwrap() }
    };
    assert!(publish("n1", writes).await.is_ok());
    assert!(publish("n1", writes).await.is_ok(), "again");
    assert_eq!(code(publish("n2", writes).await), Code::FailedPrecondition);
    assert_eq!(code(publish("n2", reads).await), Code::FailedPrecondition, "it is written");
    unpublish("n1").await;
    assert!(publish("n2", reads).await.is_ok());
    assert!(publish("n3", reads).await.is_ok());
    assert_eq!(code(publish("n1", writes).await), Code::FailedPrecondition, "it is read");
    unpublish("n2").await;
    unpublish("n3").await;
    assert!(publish("n1", writes).await.is_ok());
}
