//! The structures of the specifications, byte by byte.
//!
//! Each structure is written as a table of offsets, and the compiler checks the table
//! (see the `layout!` macro). Integers are little-endian and unaligned, so any byte slice of the
//! right length *is* the structure and no code translates.
//!
//! Names follow the specification's abbreviations, so that one search finds both. Zero-based
//! counts stay zero-based in raw fields and are undone by the accessor methods.
//!
//! Deliberately not here: what a value means to a controller (that is [`crate::target`]), and
//! structures that neither side uses.

mod command;
mod completion;
mod fabrics;
mod feature;
mod identify;
mod log;
mod nqn;
mod property;
mod reservation;
mod status;

pub(crate) use command::halves;
pub use command::{AdminOpcode, DsmRange, Fuse, IoOpcode, Psdt, Sgl, SglKind, Sqe};
pub use completion::Cqe;
pub use fabrics::{
    AUTH_REQUIRED, Auth, BadConnect, CNTLID_DYNAMIC, CNTLID_MAX, Connect, ConnectData, FabricsType,
    PropertyGet, PropertySet,
};
pub use feature::{AsyncEvent, EventConfig, FeatureId, HostBehavior, QueueCounts, Timestamp};
pub use identify::{
    Cns, CommandSets, IdController, IdControllerNvm, IdNamespace, IdNamespaceIndependent,
    IdNamespaceNvm, LbaFormat, NsDescriptor, NsDescriptorType, NsList, oncs, padded_ascii,
};
pub use log::{
    AnaGroupHeader, AnaLogHeader, AnaState, CommandEffects, DiscoveryEntry, DiscoveryHeader,
    ErrorEntry, FirmwareSlots, LogId, ReservationNotice, Smart, effect,
};
pub use nqn::{BadNqn, Nqn};
pub use property::{Cap, Cc, Csts, Property, Shutdown, VERSION_2_0};
pub use reservation::{
    AcquireAction, AcquireData, RegisterAction, RegisterData, Registrant, RegistrantExtended,
    ReleaseAction, ReleaseData, ReportHeader, ReportHeaderExtended, ReservationArgs,
    ReservationType,
};
pub use status::Status;

pub use zerocopy::little_endian::{U16, U32, U64, U128};

/// Declares a structure together with its size and the offset of every field.
///
/// The table is the specification's, and it does not compile if it is wrong.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $($(#[$field_meta:meta])* $at:literal: $vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* $vis $field: $type,)*
        }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $at);)*
        };
    };
}
pub(crate) use layout;

#[cfg(test)]
mod tests;
