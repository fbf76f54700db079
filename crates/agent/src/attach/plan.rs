//! What it takes to attach a volume, decided before anything is done.
//!
//! Everything that can be refused is refused here, by what was looked at; so that a refusal leaves
//! nothing behind.

use std::path::PathBuf;

use linux::filesystem::{Content, FilesystemKind};
use linux::machine::{Availability, Features};

use crate::record::Transport;

/// How the user wants a volume to become a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// As this machine does it best.
    #[default]
    Auto,
    /// In this way.
    Only(Transport),
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Where to mount it; nowhere if nothing is said.
    pub mount: Option<PathBuf>,
    /// The file system it must have, or gets if it is empty.
    pub filesystem: Option<FilesystemKind>,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// How it becomes a device.
    pub transport: Choice,
}

/// What is there of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// Parts, of a command that was interrupted or of a worker that is gone.
    Leftovers,
    /// All of it.
    Attached {
        /// How.
        transport: Transport,
        /// Whether nothing may be written.
        read_only: bool,
        /// Where it is mounted.
        mount: Option<PathBuf>,
    },
    /// All of it, by a publication that is over: others may have written to the volume since.
    Stale {
        /// The device, which only fails.
        device: PathBuf,
    },
}

/// What is at the place of the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// Nothing: the folder is made.
    Absent,
    /// An empty folder.
    Empty,
    /// A folder with something in it.
    NotEmpty,
    /// No folder.
    NotAFolder,
    /// A mount of the volume.
    Ours,
    /// Another mount.
    Mounted {
        /// Of what.
        source: String,
    },
}

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether this is root.
    pub is_root: bool,
    /// What the kernel can.
    pub features: Features,
    /// What is there of the volume.
    pub existing: Existing,
    /// What is where it is to be mounted.
    pub point: Point,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Remove what an interrupted command left.
    CleanUp,
    /// Let this host use the volume, if it may not yet.
    Publish,
    /// Make it a block device.
    Serve(Transport),
    /// Mount it; formatted before, if it is empty.
    Mount {
        /// Whether the folder has to be made.
        make_folder: bool,
    },
}

/// Why it cannot be done, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not root.
    #[error("attaching a volume makes a block device, which only root may: run it with sudo")]
    NotRoot,
    /// No way to make a device.
    #[error(
        "this kernel has no /dev/fuse and loop devices: {remedy}; holdfast preflight says more"
    )]
    NoTransport {
        /// What helps.
        remedy: &'static str,
    },
    /// The way that was asked for does not exist here.
    #[error("this kernel cannot attach by {transport}: {remedy}, or leave --transport out")]
    NotThisTransport {
        /// Which.
        transport: Transport,
        /// What helps.
        remedy: &'static str,
    },
    /// Attached in another way.
    #[error("the volume is attached already, {how}: detach it first, holdfast detach VOLUME")]
    Otherwise {
        /// How it is.
        how: String,
    },
    /// Attached by a publication that is over.
    #[error(
        "{} is of an earlier publication of the volume, and is shut out: others may have written \
         to it since. Unmount it and detach it, holdfast detach VOLUME, then attach it again",
        .0.display()
    )]
    Stale(PathBuf),
    /// Mounts that would destroy each other.
    #[error(
        "the volume is shared, and a file system that several hosts write is destroyed: attach it \
         without --mount as a block device, or with --read-only; or make the volume not shared"
    )]
    SharedWritable,
    /// A folder in use.
    #[error("{} is not empty: choose an empty folder, or one that does not exist", .0.display())]
    NotEmpty(PathBuf),
    /// No folder.
    #[error("{} is not a folder: choose another place for --mount", .0.display())]
    NotAFolder(PathBuf),
    /// A relative path.
    #[error("--mount {} must be an absolute path, such as /mnt/data", .0.display())]
    Relative(PathBuf),
    /// A mount of something else.
    #[error("{what} is mounted at {}: unmount it, or choose another place", .point.display())]
    PointInUse {
        /// Where.
        point: PathBuf,
        /// Of what.
        what: String,
    },
    /// A file system without a place.
    #[error("--fs says what is mounted: give --mount DIR with it, or leave it out")]
    NothingToMount,
    /// Other content.
    #[error("the volume holds {content}, not {wanted}: leave --fs out to mount what is there")]
    OtherFilesystem {
        /// What is on it.
        content: String,
        /// What was asked for.
        wanted: FilesystemKind,
    },
    /// Content that is no file system of ours.
    #[error(
        "the volume holds {content}, and is not formatted over it: attach it without --mount and \
         look at the device"
    )]
    Foreign {
        /// What is on it.
        content: String,
    },
    /// Nothing to be seen.
    #[error("the volume is empty, and cannot be formatted read-only: leave --read-only out once")]
    EmptyReadOnly,
}

/// The steps to what is wanted; none if it is so already.
pub fn plan(wanted: &Wanted, found: &Found) -> Result<Vec<Step>, Refusal> {
    if !found.is_root {
        return Err(Refusal::NotRoot);
    }
    if wanted.mount.is_none() && wanted.filesystem.is_some() {
        return Err(Refusal::NothingToMount);
    }
    let mount = match &wanted.mount {
        None => None,
        Some(point) if !point.is_absolute() => return Err(Refusal::Relative(point.clone())),
        Some(point) => mount_step(point.clone(), &found.point)?,
    };
    let mut steps = Vec::new();
    match &found.existing {
        Existing::Attached { transport, read_only, mount: at } => {
            check_same(wanted, (*transport, *read_only), at.as_ref())?;
        }
        Existing::Stale { device } => return Err(Refusal::Stale(device.clone())),
        existing => {
            let transport = transport(wanted.transport, &found.features)?;
            if *existing == Existing::Leftovers {
                steps.push(Step::CleanUp);
            }
            steps.extend([Step::Publish, Step::Serve(transport)]);
        }
    }
    steps.extend(mount);
    Ok(steps)
}

fn mount_step(point: PathBuf, there: &Point) -> Result<Option<Step>, Refusal> {
    match there {
        Point::Absent => Ok(Some(Step::Mount { make_folder: true })),
        Point::Empty => Ok(Some(Step::Mount { make_folder: false })),
        Point::Ours => Ok(None),
        Point::NotEmpty => Err(Refusal::NotEmpty(point)),
        Point::NotAFolder => Err(Refusal::NotAFolder(point)),
        Point::Mounted { source } => Err(Refusal::PointInUse { point, what: source.clone() }),
    }
}

/// Refuses to mount what other hosts may write, too: file systems are for one writer.
pub fn check_sharing(wanted: &Wanted, shared: bool) -> Result<(), Refusal> {
    if shared && wanted.mount.is_some() && !wanted.read_only {
        return Err(Refusal::SharedWritable);
    }
    Ok(())
}

/// An attached volume stays as it is.
fn check_same(
    wanted: &Wanted,
    (transport, read_only): (Transport, bool),
    mount: Option<&PathBuf>,
) -> Result<(), Refusal> {
    let refused = |how: String| Err(Refusal::Otherwise { how });
    if !matches!(wanted.transport, Choice::Auto) && wanted.transport != Choice::Only(transport) {
        return refused(format!("by {transport}"));
    }
    if wanted.read_only != read_only {
        return refused(if read_only { "read-only" } else { "writable" }.to_owned());
    }
    match (mount, &wanted.mount) {
        (Some(at), Some(asked)) if at != asked => refused(format!("mounted at {}", at.display())),
        _ => Ok(()),
    }
}

/// How a volume becomes a device here.
pub fn transport(choice: Choice, features: &Features) -> Result<Transport, Refusal> {
    let nvme = match (features.nvme_tcp, features.multipath) {
        (Availability::Usable, Some(true)) => Ok(()),
        (Availability::Usable, _) => Err("turn multipath on: nvme_core.multipath=Y"),
        (Availability::Loadable, _) => Err("load it: modprobe nvme-tcp"),
        (Availability::Absent, _) => Err("it has no module nvme-tcp"),
    };
    let fuse = match (features.fuse, features.loop_devices) {
        (Availability::Usable, Availability::Usable) => Ok(()),
        (Availability::Absent, _) => Err("give this machine or container /dev/fuse"),
        (_, Availability::Absent) => Err("give this machine or container loop devices"),
        _ => Err("load them: modprobe -a fuse loop"),
    };
    let only = |transport, usable: Result<(), &'static str>| {
        usable.map(|()| transport).map_err(|remedy| Refusal::NotThisTransport { transport, remedy })
    };
    match choice {
        Choice::Only(Transport::Nvme) => only(Transport::Nvme, nvme),
        Choice::Only(Transport::Fuse) => only(Transport::Fuse, fuse),
        // The kernel's paths do not follow a target that moves.
        Choice::Auto => match fuse {
            Ok(()) => Ok(Transport::Fuse),
            Err(remedy) => Err(Refusal::NoTransport { remedy }),
        },
    }
}

/// The file system to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Which.
    pub kind: FilesystemKind,
    /// Whether it has to be made first.
    pub format: bool,
}

/// What a new file system is unless told otherwise: small volumes can have it, too.
pub const USUAL: FilesystemKind = FilesystemKind::Ext4;

/// What to mount of what lies on the device.
pub fn filesystem(wanted: &Wanted, content: &Content) -> Result<Filesystem, Refusal> {
    match (content, wanted.filesystem) {
        (Content::Empty, _) if wanted.read_only => Err(Refusal::EmptyReadOnly),
        (Content::Empty, kind) => Ok(Filesystem { kind: kind.unwrap_or(USUAL), format: true }),
        (Content::Filesystem { kind, .. }, Some(wanted)) if *kind != wanted => {
            Err(Refusal::OtherFilesystem { content: content.to_string(), wanted })
        }
        (Content::Filesystem { kind, .. }, _) => Ok(Filesystem { kind: *kind, format: false }),
        (Content::Known(_) | Content::Unknown, _) => {
            Err(Refusal::Foreign { content: content.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUSE: Transport = Transport::Fuse;

    /// A machine, in a word for each part that is there: `root fuse loop tcp multipath`; a part
    /// behind `?` could be loaded.
    fn found(words: &str, existing: Existing, point: Point) -> Found {
        let has = |word: &str| words.split(' ').any(|it| it == word);
        let part = |word: &str| match (has(word), has(&format!("?{word}"))) {
            (true, _) => Availability::Usable,
            (_, true) => Availability::Loadable,
            _ => Availability::Absent,
        };
        let features = Features {
            release: "6.18".into(),
            nvme_tcp: part("tcp"),
            multipath: Some(has("multipath")),
            fuse: part("fuse"),
            loop_devices: part("loop"),
            ublk: Availability::Absent,
        };
        Found { is_root: has("root"), features, existing, point }
    }

    fn at(point: &str) -> Wanted {
        Wanted { mount: Some(point.into()), ..Wanted::default() }
    }

    fn attached(mount: Option<&str>) -> Existing {
        Existing::Attached { transport: FUSE, read_only: false, mount: mount.map(PathBuf::from) }
    }

    const USUAL_MACHINE: &str = "root fuse loop";

    #[test]
    fn a_volume_is_published_served_and_mounted() {
        let new = |point| found(USUAL_MACHINE, Existing::Nothing, point);
        let bare = plan(&Wanted::default(), &new(Point::Absent));
        assert_eq!(bare, Ok(vec![Step::Publish, Step::Serve(FUSE)]));
        let mounted = plan(&at("/mnt/a"), &new(Point::Absent)).unwrap();
        assert_eq!(mounted[2..], [Step::Mount { make_folder: true }]);
        let mounted = plan(&at("/mnt/a"), &new(Point::Empty)).unwrap();
        assert_eq!(mounted[2..], [Step::Mount { make_folder: false }]);
        let left = found(USUAL_MACHINE, Existing::Leftovers, Point::Absent);
        assert_eq!(plan(&Wanted::default(), &left).unwrap()[0], Step::CleanUp);
    }

    #[test]
    fn what_is_so_already_stays_so() {
        let same = found(USUAL_MACHINE, attached(Some("/mnt/a")), Point::Ours);
        assert_eq!(plan(&at("/mnt/a"), &same), Ok(vec![]));
        assert_eq!(plan(&Wanted::default(), &same), Ok(vec![]));
        let unmounted = found(USUAL_MACHINE, attached(None), Point::Empty);
        let mount = Step::Mount { make_folder: false };
        assert_eq!(plan(&at("/mnt/a"), &unmounted), Ok(vec![mount]));
        let refused = |wanted: &Wanted, existing| {
            plan(wanted, &found(USUAL_MACHINE, existing, Point::Empty)).unwrap_err().to_string()
        };
        let elsewhere = refused(&at("/mnt/b"), attached(Some("/mnt/a")));
        assert!(elsewhere.contains("mounted at /mnt/a"), "{elsewhere}");
        let read_only = Wanted { read_only: true, ..Wanted::default() };
        assert!(refused(&read_only, attached(None)).contains("attached already, writable"));
        let nvme = Choice::Only(Transport::Nvme);
        let other = Wanted { transport: nvme, ..Wanted::default() };
        assert!(refused(&other, attached(None)).contains("already, by fuse: detach it first"));
    }

    #[test]
    fn a_transport_that_follows_its_target_is_chosen_and_the_other_only_on_request() {
        let check = |words: &str, choice, expected: Result<Transport, &str>| {
            let features = found(words, Existing::Nothing, Point::Absent).features;
            match (transport(choice, &features), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{words}"),
                (Err(refusal), Err(expected)) => {
                    assert!(refusal.to_string().contains(expected), "{words}: {refusal}");
                }
                (found, _) => panic!("{words}: {found:?}"),
            }
        };
        check("tcp multipath fuse loop", Choice::Auto, Ok(FUSE));
        check("tcp multipath fuse loop", Choice::Only(Transport::Nvme), Ok(Transport::Nvme));
        check("tcp multipath", Choice::Auto, Err("/dev/fuse"));
        check("tcp fuse loop", Choice::Auto, Ok(FUSE));
        check("?tcp multipath fuse loop", Choice::Auto, Ok(FUSE));
        check("tcp multipath fuse loop", Choice::Only(FUSE), Ok(FUSE));
        check("", Choice::Auto, Err("/dev/fuse"));
        check("?fuse ?loop", Choice::Auto, Err("modprobe -a fuse loop"));
        check("fuse", Choice::Auto, Err("loop devices"));
        check("?tcp", Choice::Only(Transport::Nvme), Err("modprobe nvme-tcp"));
        check("tcp", Choice::Only(Transport::Nvme), Err("nvme_core.multipath=Y"));
        check("fuse loop", Choice::Only(Transport::Nvme), Err("no module nvme-tcp"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy_before_anything_is_done() {
        let check = |wanted: &Wanted, words: &str, point, expected: &str| {
            let refused = plan(wanted, &found(words, Existing::Nothing, point)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        };
        check(&Wanted::default(), "fuse loop", Point::Absent, "sudo");
        check(&at("/mnt/a"), USUAL_MACHINE, Point::NotEmpty, "/mnt/a is not empty: choose");
        check(&at("/mnt/a"), USUAL_MACHINE, Point::NotAFolder, "/mnt/a is not a folder: choose");
        check(&at("mnt"), USUAL_MACHINE, Point::Absent, "must be an absolute path");
        let other = Point::Mounted { source: "/dev/sda1".into() };
        check(&at("/mnt/a"), USUAL_MACHINE, other, "/dev/sda1 is mounted at /mnt/a: unmount");
        let fs = Wanted { filesystem: Some(FilesystemKind::Xfs), ..Wanted::default() };
        check(&fs, USUAL_MACHINE, Point::Absent, "give --mount DIR");
    }

    #[test]
    fn what_an_earlier_publication_attached_is_not_used_again() {
        let stale = Existing::Stale { device: "/dev/loop3".into() };
        let stale = found(USUAL_MACHINE, stale, Point::Empty);
        for wanted in [Wanted::default(), at("/mnt/a")] {
            let said = plan(&wanted, &stale).unwrap_err().to_string();
            assert!(said.contains("/dev/loop3 is of an earlier publication"), "{said}");
            assert!(said.contains("holdfast detach"), "{said}");
        }
    }

    #[test]
    fn a_file_system_has_one_writer_and_a_block_device_may_have_several() {
        let read_only = Wanted { read_only: true, ..at("/mnt/a") };
        for wanted in [&Wanted::default(), &read_only, &at("/mnt/a")] {
            assert_eq!(check_sharing(wanted, false), Ok(()));
        }
        assert_eq!(check_sharing(&Wanted::default(), true), Ok(()));
        assert_eq!(check_sharing(&read_only, true), Ok(()));
        assert_eq!(check_sharing(&at("/mnt/a"), true), Err(Refusal::SharedWritable));
    }

    #[test]
    fn only_what_is_empty_is_formatted() {
        let (ext4, xfs) = (FilesystemKind::Ext4, FilesystemKind::Xfs);
        let has = |kind| Content::Filesystem { kind, uuid: "u".into() };
        let wants = |filesystem| Wanted { filesystem, ..at("/mnt") };
        let ok = |kind, format| Ok(Filesystem { kind, format });
        assert_eq!(filesystem(&wants(None), &Content::Empty), ok(ext4, true));
        assert_eq!(filesystem(&wants(Some(xfs)), &Content::Empty), ok(xfs, true));
        assert_eq!(filesystem(&wants(None), &has(xfs)), ok(xfs, false));
        assert_eq!(filesystem(&wants(Some(xfs)), &has(xfs)), ok(xfs, false));
        let refused = |wanted: &Wanted, content| filesystem(wanted, &content).unwrap_err();
        let other = refused(&wants(Some(xfs)), has(ext4)).to_string();
        assert!(other.contains("ext4 with uuid u, not xfs: leave --fs out"), "{other}");
        for content in [Content::Unknown, Content::Known("a LUKS container")] {
            let said = refused(&wants(None), content).to_string();
            assert!(said.contains("is not formatted over it"), "{said}");
        }
        let read_only = Wanted { read_only: true, ..wants(None) };
        assert_eq!(refused(&read_only, Content::Empty), Refusal::EmptyReadOnly);
        assert_eq!(filesystem(&read_only, &has(ext4)), ok(ext4, false));
    }
}
