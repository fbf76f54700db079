//! What is typed in more than one command: sizes, times, secrets, and who may ask a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use api::{TlsServer, Tokens};
use clap::Args;
use model::{Size, Timestamp};
use nvme::auth::{BadSecret, Secret};

/// Who may ask a server, and how it shows who it is.
#[derive(Args)]
pub(crate) struct ServerAuthArgs {
    /// Certificate to serve TLS with, a PEM file; after it those that lead to its authority
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Who may ask: a file with lines of a role (viewer, editor, admin, node:NAME or host:NAME), a
    /// space and a token; without one, everybody may do everything
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// What a server of ours is given for it.
pub(crate) struct ServerAuth {
    pub(crate) tls: Option<TlsServer>,
    pub(crate) tokens: Option<Tokens>,
}

impl ServerAuthArgs {
    /// Reads the files; says what is dangerous where others can connect.
    pub(crate) fn read(&self, listen: SocketAddr) -> Result<ServerAuth> {
        let tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(TlsServer::read(cert, key)?),
            _ => None,
        };
        let tokens = self.token_file.as_deref().map(Tokens::read).transpose()?;
        if !listen.ip().is_loopback() {
            if tokens.is_none() {
                tracing::warn!(
                    "everybody who reaches {listen} may do everything: there is no --token-file"
                );
            } else if tls.is_none() {
                tracing::warn!(
                    "tokens come to {listen} for everybody to read: there is no --cert and --key"
                );
            }
        }
        Ok(ServerAuth { tls, tokens })
    }
}

/// A time, such as `30s`, `10m`, `24h` or `30d`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!("{text:?} is no time; write seconds, minutes, hours or days: 30s, 10m, 24h, 30d")
    };
    let split = text.len().saturating_sub(1);
    let (number, unit) = text.split_at_checked(split).ok_or_else(bad)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    let time = number.checked_mul(seconds).filter(|time| *time <= 100 * 366 * 86400);
    time.map(Duration::from_secs).ok_or_else(bad)
}

/// A time, or just a number of seconds, which may have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    number.map_or_else(|| some_time(text), Ok)
}

/// A moment: a time ago, or as REST writes it.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(moment) = text.parse() {
        return Ok(moment);
    }
    let ago = time(text).map_err(|_| {
        format!("{text:?} is no moment; write a time ago, as 2h, or 2026-03-01T12:00:00Z")
    })?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let millis = since.saturating_sub(ago).as_millis();
    Ok(Timestamp::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

/// A time that is not nothing.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("it must be more than nothing".to_owned()),
        time => Ok(time),
    }
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Option<Duration>);

/// A time, or `never`.
pub(crate) fn every(text: &str) -> Result<Interval, String> {
    if text == "never" {
        return Ok(Interval(None));
    }
    some_time(text).map(|time| Interval(Some(time))).map_err(|error| format!("{error}, or never"))
}

/// A size, such as `4096`, `128KiB` or `10GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<Size>().map(|size| size.bytes().0).map_err(|error| error.to_string())
}

/// A secret from `DHHC-1:…`, or from `@FILE`.
pub(crate) fn secret(text: &str) -> Result<Secret, String> {
    match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {path}: {error}"))?
            .parse()
            .map_err(|error: BadSecret| format!("{path}: {error}")),
        None => text.parse().map_err(|error: BadSecret| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_with_an_i_count_by_1024() {
        assert_eq!((bytes("4KiB"), bytes("4Ki"), bytes("4k")), (Ok(4096), Ok(4096), Ok(4000)));
        assert!(bytes("much").unwrap_err().contains("10GiB"));
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2d"), Ok(Duration::from_hours(48)));
        assert_eq!(every("never"), Ok(Interval(None)));
        assert_eq!(every("1h"), Ok(Interval(Some(Duration::from_hours(1)))));
        for bad in ["", "5", "m", "-1s", "1.5h", "10µ", "99999999999999999999s", "40000d"] {
            assert!(time(bad).unwrap_err().contains("30s, 10m"), "{bad}");
        }
        assert!(some_time("0s").is_err());
    }

    #[test]
    fn a_secret_comes_as_text_or_from_a_file() {
        let known = Secret::new(&[3; 32], None).unwrap();
        let text = known.to_text();
        assert_eq!(secret(&text).unwrap(), known);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("{}\n", text.as_str())).unwrap();
        assert_eq!(secret(&format!("@{}", path.display())).unwrap(), known);
        std::fs::write(&path, "hunter2").unwrap();
        let refused = secret(&format!("@{}", path.display())).unwrap_err();
        assert!(refused.contains("secret") && !refused.contains("hunter2"), "{refused}");
        assert!(secret("@/nonexistent").unwrap_err().contains("/nonexistent"));
    }
}
