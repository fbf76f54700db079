//! Connections to controllers on a network: `/dev/nvme-fabrics`.
//!
//! The kernel takes one line of options and answers `instance=3,cntlid=1`, or an error number. A
//! secret is part of that line; it is never part of an error or of anything printed.

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::time::Duration;

use model::Nqn;

use super::PathAddress;
use crate::{Kernel, SystemError};

const DEVICE: &str = "/dev/nvme-fabrics";

/// What carries NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
}

/// How many queues of each kind; zero leaves it to the kernel (one a processor) or makes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// For reads and writes.
    pub io: u16,
    /// For writes alone, apart from reads.
    pub write: u16,
    /// That are polled.
    pub poll: u16,
}

/// A connection to be made.
#[derive(Clone)]
pub struct Connect {
    /// What carries it.
    pub transport: Transport,
    /// Where the controller listens.
    pub address: PathAddress,
    /// The subsystem.
    pub subsystem: Nqn,
    /// What this host calls itself.
    pub host_nqn: Nqn,
    /// Its id, one for each name.
    pub host_id: String,
    /// Between two attempts to connect again.
    pub reconnect_delay: Option<Duration>,
    /// After this without a connection the path is given up, and with the last one the device;
    /// `Duration::MAX`: never.
    pub controller_loss: Option<Duration>,
    /// After this without a path, commands fail instead of waiting.
    pub fast_io_fail: Option<Duration>,
    /// Between two signs of life.
    pub keep_alive: Option<Duration>,
    /// Queues.
    pub queues: QueueCounts,
    /// Checksums of headers.
    pub header_digest: bool,
    /// Checksums of data.
    pub data_digest: bool,
    /// DH-HMAC-CHAP: what the host proves to know.
    pub host_secret: Option<String>,
    /// DH-HMAC-CHAP: what the controller must prove to know.
    pub controller_secret: Option<String>,
    /// TLS: the number of the key in the kernel's keyring.
    pub tls_key: Option<i32>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("subsystem", &self.subsystem)
            .field("address", &self.address)
            .field("host_nqn", &self.host_nqn)
            .finish_non_exhaustive()
    }
}

impl Connect {
    /// With the kernel's own times and queues, and without secrets.
    pub fn tcp(address: PathAddress, subsystem: Nqn, host_nqn: Nqn, host_id: String) -> Connect {
        Connect {
            transport: Transport::Tcp,
            address,
            subsystem,
            host_nqn,
            host_id,
            reconnect_delay: None,
            controller_loss: None,
            fast_io_fail: None,
            keep_alive: None,
            queues: QueueCounts::default(),
            header_digest: false,
            data_digest: false,
            host_secret: None,
            controller_secret: None,
            tls_key: None,
        }
    }

    /// The line that the kernel reads.
    fn line(&self) -> String {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Rdma => "rdma",
        };
        let mut line = format!(
            "nqn={},transport={transport},traddr={},trsvcid={},hostnqn={},hostid={}",
            self.subsystem.as_str(),
            self.address.address,
            self.address.port,
            self.host_nqn.as_str(),
            self.host_id
        );
        let mut option = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                // Writing to a string cannot fail.
                let _ = write!(line, ",{key}={value}");
            }
        };
        let seconds = |time: Option<Duration>| {
            time.map(|time| {
                if time == Duration::MAX { "-1".to_owned() } else { time.as_secs().to_string() }
            })
        };
        let count = |count: u16| (count > 0).then(|| count.to_string());
        option("reconnect_delay", seconds(self.reconnect_delay));
        option("ctrl_loss_tmo", seconds(self.controller_loss));
        option("fast_io_fail_tmo", seconds(self.fast_io_fail));
        option("keep_alive_tmo", seconds(self.keep_alive));
        option("nr_io_queues", count(self.queues.io));
        option("nr_write_queues", count(self.queues.write));
        option("nr_poll_queues", count(self.queues.poll));
        option("dhchap_secret", self.host_secret.clone());
        option("dhchap_ctrl_secret", self.controller_secret.clone());
        option("tls_key", self.tls_key.map(|key| key.to_string()));
        for (flag, is_set) in [
            ("hdr_digest", self.header_digest),
            ("data_digest", self.data_digest),
            ("tls", self.tls_key.is_some()),
        ] {
            if is_set {
                line.push(',');
                line.push_str(flag);
            }
        }
        line
    }

    /// An option that would end the line, or begin another, is not sent.
    fn check(&self) -> Result<(), ConnectError> {
        let secrets = [&self.host_secret, &self.controller_secret];
        let mut texts = vec![self.host_id.as_str()];
        texts.extend(secrets.into_iter().flatten().map(String::as_str));
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if texts.iter().all(|text| !text.is_empty() && text.bytes().all(is_plain)) {
            Ok(())
        } else {
            Err(ConnectError::BadOption)
        }
    }
}

/// A controller that was connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The kernel's name, as `nvme3`.
    pub controller: String,
    /// The number the subsystem gave it.
    pub controller_id: u16,
}

/// Why a controller was not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This host is connected to that subsystem at that address.
    #[error("{subsystem} is connected at this address already")]
    Already {
        /// Which subsystem.
        subsystem: Nqn,
    },
    /// An option holds a comma, white space or nothing.
    #[error("the host id or a secret holds a character that an option cannot have")]
    BadOption,
    /// The module is not there.
    #[error("the kernel has no NVMe over Fabrics; load it: modprobe nvme-tcp")]
    NoModule(#[source] io::Error),
    /// Nobody listens there, or the network does not reach it.
    #[error("nothing answers at {address}; is its engine running, and the port open?")]
    Unreachable {
        /// Where.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The subsystem does not take this host.
    #[error("{subsystem} refuses this host; is the volume published to it, is the secret right?")]
    Refused {
        /// Which subsystem.
        subsystem: Nqn,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not know an option, or its value.
    #[error("the kernel refuses the options of this connection; dmesg says which")]
    Options(#[source] io::Error),
    /// Anything else.
    #[error("{subsystem} cannot be connected; dmesg says more")]
    Other {
        /// Which subsystem.
        subsystem: Nqn,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel answered what we do not understand.
    #[error("the kernel answered {0:?} to a connection")]
    Answer(String),
}

/// Connects a controller: one more path to the subsystem, or the first.
pub fn connect(kernel: &dyn Kernel, connect: &Connect) -> Result<Connected, ConnectError> {
    connect.check()?;
    let answer =
        kernel.exchange(DEVICE, &connect.line()).map_err(|error| explain(connect, error))?;
    let value = |key: &str| {
        let mut fields = answer.trim().split(',');
        fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse::<u16>().ok())
    };
    match (value("instance"), value("cntlid")) {
        (Some(instance), Some(controller_id)) => {
            Ok(Connected { controller: format!("nvme{instance}"), controller_id })
        }
        _ => Err(ConnectError::Answer(answer)),
    }
}

fn explain(connect: &Connect, source: io::Error) -> ConnectError {
    let subsystem = connect.subsystem.clone();
    match source.raw_os_error() {
        Some(libc::EALREADY) => ConnectError::Already { subsystem },
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ConnectError::NoModule(source),
        None if source.kind() == io::ErrorKind::NotFound => ConnectError::NoModule(source),
        Some(
            libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ETIMEDOUT
            | libc::EADDRNOTAVAIL
            | libc::ECONNRESET,
        ) => {
            let address = format!("{}:{}", connect.address.address, connect.address.port);
            ConnectError::Unreachable { address, source }
        }
        Some(libc::EACCES | libc::ECONNABORTED | libc::EKEYREJECTED | libc::ENOKEY) => {
            ConnectError::Refused { subsystem, source }
        }
        Some(libc::EINVAL | libc::EOPNOTSUPP) => ConnectError::Options(source),
        _ => ConnectError::Other { subsystem, source },
    }
}

/// Disconnects a controller. One that is gone, or goes, is no error.
pub fn disconnect(kernel: &dyn Kernel, controller: &str) -> Result<(), SystemError> {
    let path = format!("/sys/class/nvme/{controller}/delete_controller");
    match kernel.set_attribute(&path, "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        result => {
            result.map_err(|source| SystemError::new("disconnect", Path::new(controller), source))
        }
    }
}
