//! What this node's kernel has, as far as it is ours.

use std::collections::BTreeMap;
use std::path::PathBuf;

use linux::device_mapper::{self, Passage};
use linux::gpt::Layout;
use linux::nvme::{self, ControllerState};
use linux::{Kernel, gpt, md, nvmet};

use crate::names;
use crate::reconcile::{
    Array, Export, Import, KernelView, Leg, LegPath, LocalPartition, Member, MemberState, Volume,
};

/// A drive of this machine.
#[derive(Clone, Debug)]
pub struct LocalDrive {
    /// The kernel's name.
    pub name: String,
    /// What its maker calls it.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its logical block size.
    pub sector_size: u32,
    /// Hardware queues.
    pub queues: u32,
    /// Its partitions, or why there can be none.
    pub layout: Result<Layout, String>,
}

impl LocalDrive {
    /// Its device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/{}", self.name))
    }
}

/// The drives of this machine: NVMe, attached to it, not over a network.
pub fn drives(kernel: &dyn Kernel) -> Vec<LocalDrive> {
    let tree = kernel.tree();
    let mut found = Vec::new();
    for subsystem in nvme::subsystems(tree) {
        let local = subsystem.controllers.iter().find(|it| it.transport == "pcie");
        let Some(controller) = local else { continue };
        for namespace in &subsystem.namespaces {
            let name = namespace.name.clone();
            let of = |file: &str| tree.text(&format!("/sys/class/block/{name}/{file}"));
            let about = |file: &str| {
                tree.text(&format!("/sys/class/nvme/{}/{file}", controller.name)).trim().to_owned()
            };
            let path = PathBuf::from(format!("/dev/{name}"));
            let queues = tree.count(&format!("/sys/class/block/{name}/mq"));
            found.push(LocalDrive {
                model: about("model"),
                serial: about("serial"),
                bytes: namespace.bytes,
                sector_size: of("queue/logical_block_size").trim().parse().unwrap_or(512),
                queues: u32::try_from(queues).unwrap_or(u32::MAX),
                layout: gpt::layout(kernel, &path).map_err(|error| error.to_string()),
                name,
            });
        }
    }
    found
}

/// The partition and device of each leg that there is, by the kernel's name of the leg.
fn legs(kernel: &dyn Kernel) -> BTreeMap<String, (String, u64, String)> {
    let all = device_mapper::devices(kernel.tree()).into_iter();
    let ours = all.filter_map(|(name, device)| {
        let (partition, epoch) = names::parse_leg(&name)?;
        Some((device, (partition.to_owned(), epoch, name.clone())))
    });
    ours.collect()
}

/// Everything of ours in the kernel. Volumes translate ids to names.
pub fn kernel(
    kernel: &dyn Kernel,
    node: &str,
    volumes: &[Volume],
    drives: &[LocalDrive],
) -> KernelView {
    let mut view = KernelView::default();
    for drive in drives {
        let partitions = drive.layout.iter().flat_map(|layout| &layout.partitions);
        for partition in partitions {
            let prepared = partition.label == names::LABEL;
            if prepared || partition.label == names::UNPREPARED_LABEL {
                view.partitions.push(LocalPartition {
                    uuid: partition.uuid.clone(),
                    drive: drive.name.clone(),
                    bytes: partition.bytes,
                    room: partition.room,
                    prepared,
                });
            }
        }
    }
    view.exports = exports(kernel, node, volumes);
    view.imports = imports(kernel, node, volumes);
    let legs = legs(kernel);
    for (partition, epoch, name) in legs.values() {
        let path = leg_path(kernel, &view, (partition, *epoch, name));
        view.legs.push(Leg { partition: partition.clone(), epoch: *epoch, path });
    }
    view.arrays = arrays(kernel, volumes, &legs);
    view
}

/// A leg is live if it passes I/O on and what is below it is there.
fn leg_path(
    kernel: &dyn Kernel,
    view: &KernelView,
    (partition, epoch, name): (&str, u64, &str),
) -> LegPath {
    let is_below = view.partition(partition).is_some() || view.imports(partition, epoch);
    match device_mapper::passage(kernel, name) {
        Ok(Passage::Open) if is_below => LegPath::Live,
        Ok(Passage::Failed) => LegPath::Failed,
        // What cannot be looked at is not known to have failed.
        _ => LegPath::Held,
    }
}

fn volume_name(volumes: &[Volume], id: &str) -> Option<String> {
    volumes.iter().find(|it| it.spec.volume_id == id).map(|volume| volume.name.clone())
}

fn exports(kernel: &dyn Kernel, node: &str, volumes: &[Volume]) -> Vec<Export> {
    let mut found = Vec::new();
    for subsystem in nvmet::subsystems(kernel.tree()) {
        let Some((source, target, id)) = names::parse_subsystem(&subsystem.nqn) else { continue };
        let Some(volume) = volume_name(volumes, id).filter(|_| source == node) else { continue };
        let epoch = subsystem.serial.parse().unwrap_or_default();
        let export = |partition: String| Export {
            volume: volume.clone(),
            partition,
            target: target.to_owned(),
            epoch,
        };
        let shown = subsystem.namespaces.iter().filter(|_| subsystem.is_shown);
        let before = found.len();
        found.extend(shown.map(|(_, uuid)| export(uuid.clone())));
        if found.len() == before {
            // Half made: it shows nothing, and is withdrawn with the rest when it is stale.
            found.push(export(String::new()));
        }
    }
    found
}

fn imports(kernel: &dyn Kernel, node: &str, volumes: &[Volume]) -> Vec<Import> {
    let mut found = Vec::new();
    for subsystem in nvme::subsystems(kernel.tree()) {
        let Some((source, target, id)) = names::parse_subsystem(subsystem.nqn.as_str()) else {
            continue;
        };
        let Some(volume) = volume_name(volumes, id).filter(|_| target == node) else { continue };
        let live = subsystem.controllers.iter().find(|it| it.state == ControllerState::Live);
        let Some(controller) = live else { continue };
        let serial = kernel.tree().text(&format!("/sys/class/nvme/{}/serial", controller.name));
        let epoch = serial.trim().parse().unwrap_or_default();
        found.extend(subsystem.namespaces.iter().filter_map(|namespace| {
            Some(Import {
                volume: volume.clone(),
                partition: namespace.uuid.clone()?,
                source: source.to_owned(),
                epoch,
            })
        }));
    }
    found
}

/// The device of a partition that another node shows.
pub(crate) fn imported_device(kernel: &dyn Kernel, partition: &str) -> Option<PathBuf> {
    let all = nvme::subsystems(kernel.tree()).into_iter();
    let mut ours = all.filter(|it| names::parse_subsystem(it.nqn.as_str()).is_some());
    ours.find_map(|subsystem| {
        let mut namespaces = subsystem.namespaces.into_iter();
        let found = namespaces.find(|it| it.uuid.as_deref() == Some(partition))?;
        Some(PathBuf::from(format!("/dev/{}", found.name)))
    })
}

/// The array of MD that has legs of a volume.
pub(crate) fn md_array(kernel: &dyn Kernel, volume: &Volume) -> Option<md::MdArray> {
    let legs = legs(kernel);
    md::arrays(kernel.tree()).into_iter().find(|array| {
        array.members.iter().any(|member| {
            let leg = legs.get(&member.device);
            leg.is_some_and(|(partition, ..)| volume.spec.request(partition).is_some())
        })
    })
}

fn arrays(
    kernel: &dyn Kernel,
    volumes: &[Volume],
    legs: &BTreeMap<String, (String, u64, String)>,
) -> Vec<Array> {
    let mut found = Vec::new();
    for volume in volumes {
        let Some(array) = md_array(kernel, volume) else { continue };
        let of: Vec<_> =
            array.members.iter().filter_map(|it| Some((it, legs.get(&it.device)?))).collect();
        let first = of.first().map(|(_, (_, epoch, _))| *epoch);
        let epoch = first.filter(|epoch| of.iter().all(|(_, (_, one, _))| one == epoch));
        let recovers = array.action == "recover";
        let member = |(member, (partition, ..)): &(&md::MdMember, &(String, u64, String))| Member {
            partition: partition.clone(),
            state: match member {
                it if it.is_faulty => MemberState::Faulty,
                it if it.is_in_sync => MemberState::InSync,
                it if recovers && it.slot.is_some() => MemberState::Recovering,
                _ => MemberState::Spare,
            },
        };
        let percent = |done: u64| format!("{}.{}%", done / 10, done % 10);
        found.push(Array {
            volume: volume.name.clone(),
            epoch,
            members: of.iter().map(member).collect(),
            slots: array.slots,
            sync: array.done.map(percent),
            bytes: array.bytes,
            state: if recovers { "recovering".to_owned() } else { array.state },
        });
    }
    found
}
