//! NVMe qualified names: of hosts, and of what we export.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::text::as_text;
use crate::{NodeName, PublicationId, ReplicaId, ValidationError, VolumeId};

/// An NVMe qualified name: `nqn.YYYY-MM.reverse.domain:anything`, at most 223 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// What one of our own names stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NqnKind {
    /// The subsystem hosts connect to, the same wherever the target is.
    Volume(VolumeId),
    /// The subsystem a target connects to.
    Replica(ReplicaId),
    /// An engine, as the host of the replicas its targets use.
    Node(NodeName),
    /// A host, as the user of one volume from one publication to the end of it.
    Publication(PublicationId),
}

const OURS: &str = "nqn.2026-11.io.holdfast:";

impl Nqn {
    /// The longest name NVMe allows, in bytes.
    pub const LONGEST: usize = 223;

    /// The subsystem of a volume. It does not change with the target: that is what makes a move to
    /// another node look to hosts like one more path to the device they have.
    pub fn volume(id: VolumeId) -> Nqn {
        Nqn(format!("{OURS}volume:{id}"))
    }

    /// The subsystem of a replica.
    pub fn replica(id: ReplicaId) -> Nqn {
        Nqn(format!("{OURS}replica:{id}"))
    }

    /// The name under which the engine of a node connects to replicas.
    ///
    /// Names of nodes may be longer than what is left of an NQN; such a node must be renamed.
    pub fn node(name: &NodeName) -> Result<Nqn, ValidationError> {
        format!("{OURS}node:{name}").parse()
    }

    /// The name with which a host connects to a volume that was published to it. A host that was
    /// dismissed and is admitted again gets another: what it had connected before stays shut out.
    pub fn publication(id: PublicationId) -> Nqn {
        Nqn(format!("{OURS}publication:{id}"))
    }

    /// What this name stands for, if it is one of ours.
    pub fn named(&self) -> Option<NqnKind> {
        let (kind, id) = self.0.strip_prefix(OURS)?.split_once(':')?;
        match kind {
            "volume" => id.parse().ok().map(NqnKind::Volume),
            "replica" => id.parse().ok().map(NqnKind::Replica),
            "node" => id.parse().ok().map(NqnKind::Node),
            "publication" => id.parse().ok().map(NqnKind::Publication),
            _ => None,
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Nqn {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<Nqn, ValidationError> {
        let refused = |why: String| Err(ValidationError::text("NQN", text, why));
        if text.len() > Nqn::LONGEST {
            return refused(format!("it may have at most {} bytes", Nqn::LONGEST));
        }
        if !well_formed(text) {
            let remedy = "write nqn.YYYY-MM.REVERSE.DOMAIN:NAME, as in /etc/nvme/hostnqn";
            return refused(remedy.to_string());
        }
        Ok(Nqn(text.to_string()))
    }
}

fn well_formed(text: &str) -> bool {
    let Some((authority, name)) = text.strip_prefix("nqn.").and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let Some((date, domain)) = authority.split_once('.') else { return false };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let date_good = date.split_once('-').is_some_and(|(year, month)| {
        year.len() == 4
            && number(year)
            && month.len() == 2
            && number(month)
            && ("01"..="12").contains(&month)
    });
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    date_good
        && domain.split('.').all(part)
        && !name.is_empty()
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

as_text!(Nqn);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    #[test]
    fn the_usual_names_are_taken() {
        for text in [
            "nqn.2014-08.org.nvmexpress:uuid:5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10",
            "nqn.2014-08.org.nvmexpress.discovery:x",
            "nqn.2019-05.com.example:a:b",
        ] {
            let nqn: Nqn = text.parse().unwrap();
            assert_eq!(nqn.named(), None);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("nqn.2014-08.org.x:{}", "a".repeat(206));
        for text in [
            "",
            "nqn.",
            "iqn.2014-08.org.x:a",
            "nqn.2014-13.org.x:a",
            "nqn.2014-00.org.x:a",
            "nqn.14-08.org.x:a",
            "nqn.2014-08.org.x",
            "nqn.2014-08.org.x:",
            "nqn.2014-08.org..x:a",
            "nqn.2014-08.org.x:a b",
            "nqn.2014-08.org.x:a\n",
            "nqn.2014-08:a",
            &long,
        ] {
            assert!(text.parse::<Nqn>().is_err(), "{text:?}");
        }
        assert!(long[..223].parse::<Nqn>().is_ok());
    }

    #[test]
    fn a_node_whose_name_leaves_no_room_is_told_so() {
        let name: NodeName = "n".repeat(200).parse().unwrap();
        assert!(Nqn::node(&name).unwrap_err().to_string().contains("at most 223 bytes"));
    }

    proptest! {
        #[test]
        fn our_names_say_what_they_stand_for(bits in 1u128.., name in "[a-z0-9]{1,60}") {
            let volume = VolumeId::new(Uuid::from_u128(bits)).unwrap();
            let replica = ReplicaId::new(Uuid::from_u128(bits)).unwrap();
            let node: NodeName = name.parse().unwrap();
            let publication = PublicationId::new(Uuid::from_u128(bits)).unwrap();
            for (nqn, named) in [
                (Nqn::publication(publication), NqnKind::Publication(publication)),
                (Nqn::volume(volume), NqnKind::Volume(volume)),
                (Nqn::replica(replica), NqnKind::Replica(replica)),
                (Nqn::node(&node).unwrap(), NqnKind::Node(node)),
            ] {
                let again: Nqn = nqn.to_string().parse().unwrap();
                prop_assert_eq!(again.named(), Some(named));
                prop_assert_eq!(again, nqn);
            }
        }

        #[test]
        fn any_text_is_a_name_or_refused(text in "(nqn\\.2014-08\\.)?\\PC{0,40}") {
            let _ = text.parse::<Nqn>();
        }
    }
}
