//! Names that people choose.
//!
//! A name is a key in the store, a path segment in REST and a resource name in Kubernetes, so it is
//! lower case, short, and has no character that any of these would have to escape.

use alloc::string::{String, ToString};
use core::borrow::Borrow;
use core::fmt;
use core::str::FromStr;

use uuid::Uuid;

use crate::ValidationError;
use crate::text::as_text;

macro_rules! names {
    ($($(#[doc = $doc:literal])+ $name:ident = $what:literal, $check:path;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ValidationError;

            fn from_str(text: &str) -> Result<$name, ValidationError> {
                match $check(text) {
                    Ok(()) => Ok($name(text.to_string())),
                    Err(remedy) => Err(ValidationError::text($what, without_user(text), remedy)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        as_text!($name);
    )+};
}

names! {
    /// A machine that runs an engine; in Kubernetes the name of the node.
    NodeName = "node name", dns;
    /// A machine that uses volumes; often it has the same name as a node.
    HostName = "host name", dns;
    /// A pool, unique in the cluster.
    PoolName = "pool name", dns;
    /// What people call a volume, a snapshot or a group instead of its id; unique among its kind.
    GivenName = "name", given;
    /// Why a node or pool takes nothing new: each reason is set and lifted on its own.
    CordonName = "cordon name", dns;
    /// A key the operator supplied for encryption; never the key itself.
    KeyName = "key name", dns;
    /// Volumes that belong together, such as those of one stateful set: `namespace/name`.
    AffinityGroup = "affinity group", grouped;
    /// An absolute path of a disk, partition or file on a node.
    DevicePath = "device path", path;
    /// A request to be called when something happens.
    WebhookName = "webhook name", dns;
    /// Where events are posted to: `http` or `https`, without a user, a password or a fragment.
    CallbackUrl = "callback URL", callback;
    /// Key of a label, as in Kubernetes: `zone` or `example.org/disk-type`.
    LabelKey = "label key", label_key;
    /// Value of a label, as in Kubernetes; may be empty.
    LabelValue = "label value", label_value;
}

impl LabelKey {
    /// The well-known label that says in which zone a node is.
    pub const ZONE: &'static str = "topology.kubernetes.io/zone";
}

type Remedy = &'static str;

/// What may be repeated of a text that was refused: not the user and the password in a URL.
fn without_user(text: &str) -> &str {
    let url = text.contains("://");
    text.rsplit_once('@').filter(|_| url).map_or(text, |(_, rest)| rest)
}

fn dns(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "use 1 to 253 of a-z, 0-9, '-' and '.', with a letter or digit at both \
         ends and around each dot";
    let part = |part: &str| {
        part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && alphanumeric_ends(part)
    };
    (text.len() <= 253 && text.split('.').all(part)).then_some(()).ok_or(REMEDY)
}

/// Not an id: whoever gives a whole id means that.
fn given(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "a name must not look like an id; use 1 to 253 of a-z, 0-9, '-' and \
         '.', such as orders-db";
    dns(text)?;
    Uuid::try_parse(text).is_err().then_some(()).ok_or(REMEDY)
}

fn grouped(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "use NAME or NAMESPACE/NAME, each of a-z, 0-9, '-' and '.', with a \
         letter or digit at both ends";
    let (space, name) = text.split_once('/').unwrap_or(("default", text));
    dns(space).and_then(|()| dns(name)).map_err(|_| REMEDY)
}

fn path(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "give an absolute path of at most 1024 characters without '.', '..' or \
         empty parts, such as /dev/disk/by-id/nvme-eui.0025385b71b0c4a1";
    let part = |part: &str| !matches!(part, "" | "." | "..");
    let good = text.len() <= 1024
        && !text.chars().any(char::is_control)
        && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
    good.then_some(()).ok_or(REMEDY)
}

fn callback(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "give http:// or https:// with a host, and a port and a path if need \
         be, of at most 1024 characters, without a user, a password or a fragment, such as \
         https://pager.example.org/holdfast";
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let rest = rest.filter(|_| text.len() <= 1024).ok_or(REMEDY)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:@/?".contains(&b);
    let (host, port) = match authority.rsplit_once(':') {
        // Not the colon inside an address in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<core::net::Ipv6Addr>().is_ok(),
        None => dns(&host.to_ascii_lowercase()).is_ok(),
    };
    let digits = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let is_port = |port: &str| digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let good = is_host && port.is_none_or(is_port) && path.bytes().all(allowed);
    good.then_some(()).ok_or(REMEDY)
}

fn label_key(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "use NAME or PREFIX/NAME: NAME is 1 to 63 of A-Z, a-z, 0-9, '-', '_' \
         and '.' with a letter or digit at both ends, PREFIX is a DNS name";
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let good = label_text(name) && prefix.is_none_or(|prefix| dns(prefix).is_ok());
    good.then_some(()).ok_or(REMEDY)
}

fn label_value(text: &str) -> Result<(), Remedy> {
    const REMEDY: Remedy = "use nothing, or up to 63 of A-Z, a-z, 0-9, '-', '_' and '.', with a \
         letter or digit at both ends";
    (text.is_empty() || label_text(text)).then_some(()).ok_or(REMEDY)
}

fn label_text(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(allowed) && alphanumeric_ends(text)
}

fn alphanumeric_ends(text: &str) -> bool {
    let end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    end(text.bytes().next()) && end(text.bytes().next_back())
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use proptest::prelude::*;

    fn check<T: FromStr<Err = ValidationError>>(good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(text.parse::<T>().is_ok(), "{text:?}");
        }
        for text in bad {
            let refused = text.parse::<T>().err().unwrap_or_else(|| panic!("{text:?} was taken"));
            assert!(
                !refused.remedy().is_empty()
                    && refused.kind() == crate::ProblemKind::InvalidArgument
            );
        }
    }

    #[test]
    fn nodes_and_pools() {
        let long = "a".repeat(254);
        check::<NodeName>(
            &["a", "node-1", "ip-10-0-0-1.eu-west-1.compute.internal", &long[1..]],
            &["", "A", "a_b", "-a", "a-", ".a", "a.", "a..b", "a/b", "a b", "ä", &long],
        );
    }

    #[test]
    fn groups_paths_and_labels() {
        check::<AffinityGroup>(&["db", "prod/db"], &["", "/db", "prod/", "a/b/c", "Prod/db"]);
        check::<DevicePath>(
            &["/dev/sda", "/var/lib/pool 1.img"],
            &["", "/", "dev/sda", "/dev//sda", "/dev/../etc", "/dev/./sda", "/a\nb", "/dev/"],
        );
        check::<LabelKey>(
            &["zone", LabelKey::ZONE, "A_b.c", "x.y/Z"],
            &["", "/a", "a/", "a/b/c", "-a", "a-", "Prefix/a", "ключ", &"a".repeat(64)],
        );
        check::<LabelValue>(&["", "ssd", "A_1.b"], &["-", "a b", ".a", "a/b", &"a".repeat(64)]);
    }

    #[test]
    fn addresses_to_call() {
        let long = format!("http://a/{}", "b".repeat(1016));
        check::<CallbackUrl>(
            &[
                "http://a",
                "https://a.example.org:8443/x/y?z=1",
                "http://127.0.0.1:80/",
                "http://[::1]:7000/x",
                "http://[::1]",
                "http://A.example/",
                &long[..1024],
            ],
            &[
                "",
                "a",
                "ftp://a",
                "file:///etc/passwd",
                "http://",
                "http:///x",
                "http://user:secret@a/",
                "http://a:0/",
                "http://a:65536/",
                "http://a:+80/",
                "http://a:/",
                "http://a b/",
                "http://a/\r\nx: y",
                "http://a/#x",
                "http://[::1/",
                "http://[a]/",
                "http://a_b/",
                "javascript:alert(1)",
                &long,
            ],
        );
    }

    #[test]
    fn a_password_is_not_repeated() {
        let refused = "http://user:hunter2@a/".parse::<CallbackUrl>().unwrap_err().to_string();
        assert!(refused.contains("a/") && !refused.contains("hunter2"), "{refused}");
    }

    proptest! {
        #[test]
        fn names_survive_printing(text in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]+){0,3}") {
            let name: NodeName = text.parse().unwrap();
            prop_assert_eq!(name.to_string(), text.as_str());
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<NodeName>(&json).unwrap(), name);
        }

        #[test]
        fn any_text_is_a_name_or_refused(text in "\\PC{0,300}") {
            let _ = (text.parse::<NodeName>(), text.parse::<LabelKey>());
            let _ = (text.parse::<DevicePath>(), text.parse::<AffinityGroup>());
            let _ = format!("http://{text}").parse::<CallbackUrl>();
        }
    }
}
