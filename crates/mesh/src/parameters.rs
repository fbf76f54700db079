//! Parameters of a StorageClass: read strictly.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use tonic::Status;

/// What a class says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Copies, each on another node.
    pub replica_count: u16,
    /// Drives of each copy.
    pub stripe_width: u16,
    /// Seconds before a missing member is replaced.
    pub member_missing_timeout: u32,
    /// The logical block size of every drive.
    pub sector_size: u32,
    /// What nodes need to know.
    pub context: BTreeMap<String, String>,
}

/// Parameters by name.
pub trait Given {
    /// All of them.
    fn pairs(&self) -> Vec<(&str, &str)>;
}

impl Given for BTreeMap<String, String> {
    fn pairs(&self) -> Vec<(&str, &str)> {
        self.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
    }
}

impl<S: BuildHasher> Given for HashMap<String, String, S> {
    fn pairs(&self) -> Vec<(&str, &str)> {
        self.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
    }
}

fn number<T: std::str::FromStr + PartialOrd>(
    (name, text): (&str, &str),
    (least, most): (T, T),
    remedy: &str,
) -> Result<T, Status> {
    let parsed = text.parse().ok().filter(|value| *value >= least && *value <= most);
    parsed.ok_or_else(|| Status::invalid_argument(format!("{name}: {text:?} is wrong: {remedy}")))
}

impl Class {
    /// Reads the parameters of a class.
    pub fn read(given: &impl Given) -> Result<Class, Status> {
        let mut class = Class {
            replica_count: 2,
            stripe_width: 1,
            member_missing_timeout: 900,
            sector_size: 4096,
            // What the driver was made for; a class may choose ext4.
            context: BTreeMap::from([("fsType".to_owned(), "xfs".to_owned())]),
        };
        for (name, text) in given.pairs() {
            let pair = (name, text);
            match name {
                "replicaCount" => class.replica_count = number(pair, (1, 4), "give 1 to 4")?,
                "stripeWidth" => class.stripe_width = number(pair, (1, 8), "give 1 to 8")?,
                "memberMissingTimeout" => {
                    let all = (60, u32::MAX);
                    class.member_missing_timeout = number(pair, all, "give 60 seconds or more")?;
                }
                "sectorSize" if matches!(text, "512" | "4096") => {
                    class.sector_size = number(pair, (512, 4096), "give 512 or 4096")?;
                }
                "sectorSize" => {
                    let message = format!("sectorSize: {text:?} is wrong: give 512 or 4096");
                    return Err(Status::invalid_argument(message));
                }
                "fsType" | "csi.storage.k8s.io/fstype" if matches!(text, "xfs" | "ext4") => {
                    class.context.insert("fsType".to_owned(), text.to_owned());
                }
                _ if name.starts_with("csi.storage.k8s.io/") => {}
                _ => {
                    let message = format!(
                        "{name}={text:?} is no parameter of a mesh class: replicaCount, \
                         stripeWidth, memberMissingTimeout, sectorSize, fsType (xfs, ext4)"
                    );
                    return Err(Status::invalid_argument(message));
                }
            }
        }
        if class.replica_count > 2 && class.stripe_width > 1 {
            let message = "replicaCount above 2 with stripeWidth above 1 is not offered";
            return Err(Status::invalid_argument(message));
        }
        Ok(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Class, Status> {
        let given: BTreeMap<String, String> =
            given.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Class::read(&given)
    }

    #[test]
    fn a_class_without_parameters_has_two_copies_and_xfs() {
        let class = read(&[]).unwrap();
        assert_eq!((class.replica_count, class.stripe_width), (2, 1));
        assert_eq!((class.member_missing_timeout, class.sector_size), (900, 4096));
        assert_eq!(class.context["fsType"], "xfs");
    }

    #[test]
    fn what_is_wrong_or_unknown_is_refused_with_its_name() {
        for (name, text) in [
            ("replicaCount", "0"),
            ("stripeWidth", "x"),
            ("memberMissingTimeout", "59"),
            ("sectorSize", "1024"),
            ("fsType", "zfs"),
            ("numberOfCopies", "2"),
        ] {
            let refused = read(&[(name, text)]).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().contains(name), "{refused}");
        }
        assert!(read(&[("csi.storage.k8s.io/pvc/name", "x")]).is_ok());
    }
}
